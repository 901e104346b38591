//! The first messages of a connection: each side learns whether the other one may share the writer.
//!
//! The leader accepts processes of its own user that prove that they may write the queue file themselves, and that
//! would reach it in the same way. All others write directly.

use std::time::Duration;

use super::proof::{Credential, Proven, sign, verify};
use super::serve::{CREDIT, CREDIT_BYTES, LARGEST};
use super::stream::Connection;
use crate::door::Info;
use crate::link::frame::Arrived;
use crate::link::message::{Greeting, Hello, LINK_OLDEST, LINK_VERSION, Welcome, decode};
use crate::noun::env::Env;
use crate::noun::error::{Code, Error, Result};

/// A side that says nothing for this long has stopped.
pub(super) const SILENCE: Duration = Duration::from_secs(1);
/// The pause between two heartbeats.
pub(super) const BEAT: Duration = Duration::from_millis(250);
/// A process that has not proven itself by then is refused.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Version of the ops: raised with every op that an older version does not know.
pub(super) const OPS_VERSION: u16 = 1;

/// The facts that a process tells of itself, the same for every connection.
#[derive(Clone, Debug)]
pub(crate) struct Introduction {
    /// The resolved place of the queue file.
    pub place: String,
    /// The options that decide what the objects in the store look like, and how the store is reached.
    pub shape: String,
    pub credential: Credential,
    /// The process, for people.
    pub process: String,
}

impl Introduction {
    /// Returns the hello of this process for its session.
    pub fn hello(&self, session: [u8; 16]) -> Hello {
        Hello {
            magic: Hello::MAGIC.to_owned(),
            version: LINK_VERSION,
            oldest: LINK_OLDEST,
            ops: OPS_VERSION,
            place: self.place.clone(),
            shape: self.shape.clone(),
            session,
            process: self.process.clone(),
        }
    }

    /// Returns why the process with this hello must write directly.
    fn refusal(&self, hello: &Hello) -> Option<String> {
        let reason = if hello.magic != Hello::MAGIC {
            "it is no bucketq process"
        } else if hello.oldest > LINK_VERSION || hello.version < LINK_OLDEST || hello.ops != OPS_VERSION {
            "its version of bucketq speaks another protocol"
        } else if hello.place != self.place {
            "it means another queue file"
        } else if hello.shape != self.shape {
            "it has other options for the store or the queue file"
        } else {
            return None;
        };
        Some(reason.to_owned())
    }
}

/// The leader's side: reads the hello and the proof. Returns the hello of a process that may share the writer.
pub(super) async fn receive(connection: &mut Connection, own: &Introduction, env: &Env) -> Result<Hello> {
    let shaken = async {
        let hello: Hello = connection.next_message().await?;
        if let Some(reason) = own.refusal(&hello) {
            return refuse(connection, reason).await;
        }
        let nonce: [u8; 32] = env.bytes();
        connection.send(&Greeting::Prove { nonce })?;
        let proof = connection.next_message().await?;
        match verify(&own.credential, &nonce, &proof) {
            Proven::Valid => Ok(hello),
            Proven::Unknown => refuse(connection, "it has other credentials".to_owned()).await,
            Proven::Invalid => refuse(connection, "its proof of access is wrong".to_owned()).await,
        }
    };
    tokio::select! {
        biased;
        shaken = shaken => shaken,
        () = env.sleep(HANDSHAKE) => Err(Error::new(Code::Timeout, "the process did not finish its introduction")),
    }
}

/// Tells the other process to write directly. Returns the error for the log.
pub(super) async fn refuse(connection: &mut Connection, reason: String) -> Result<Hello> {
    let error = Error::new(Code::Denied, format!("a process may not share the writer: {reason}"));
    connection.send(&Greeting::Refused { reason })?;
    connection.flush().await?;
    Err(error)
}

/// The outcome of an introduction, for the process that wants to join.
pub(super) enum Greeted {
    Welcome(Welcome),
    /// Write directly.
    Refused(String),
    /// The leader has stopped: it neither replies nor sends heartbeats.
    Silent,
    /// The leader has ended the connection.
    Ended,
}

/// The joining side: introduces this process, and waits until the leader has opened the queue file.
pub(super) async fn introduce(
    connection: &mut Connection,
    own: &Introduction,
    session: [u8; 16],
    env: &Env,
) -> Greeted {
    if connection.send(&own.hello(session)).is_err() {
        return Greeted::Ended;
    }
    loop {
        let silent_at = connection.heard() + SILENCE;
        let arrived = tokio::select! {
            biased;
            arrived = connection.next() => arrived,
            () = env.sleep(silent_at.saturating_duration_since(env.monotonic())) => return Greeted::Silent,
        };
        let greeting = match arrived {
            Ok(Arrived::Beat(_)) => continue,
            Ok(Arrived::Message(bytes)) => decode(&bytes),
            Err(error) if error.code() == Code::Closed => return Greeted::Ended,
            Err(error) => Err(error),
        };
        match greeting {
            Ok(Greeting::Welcome(welcome)) => return Greeted::Welcome(welcome),
            Ok(Greeting::Refused { reason }) => return Greeted::Refused(reason),
            Ok(Greeting::Prove { nonce }) => {
                let Some(proof) = sign(&own.credential, &nonce) else {
                    return Greeted::Refused(
                        "this process has no credentials to prove its access".to_owned(),
                    );
                };
                if connection.send(&proof).is_err() {
                    return Greeted::Ended;
                }
            }
            Err(error) => return Greeted::Refused(error.message().to_owned()),
        }
    }
}

/// Returns the welcome for a session that is born at this commit.
pub(super) fn welcome(info: &Info, born: u64, since_ms: u64, own: &Introduction) -> Greeting {
    Greeting::Welcome(Welcome {
        version: LINK_VERSION,
        born,
        file_id: info.file_id,
        max_skew_ms: info.max_skew_ms,
        credit: CREDIT,
        credit_bytes: CREDIT_BYTES,
        largest: LARGEST as u64,
        process: own.process.clone(),
        since_ms,
    })
}
