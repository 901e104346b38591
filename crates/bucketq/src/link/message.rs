//! The messages of the link, as `MessagePack` with named fields: either side may add fields that the other one ignores.
//!
//! Everything is data: lengths of time and stamps of the client's clock instead of moments, no paths, no handles. Ops,
//! queries and their results are nested as bytes, so a side that does not know an op can still say so.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::noun::error::{Code, Error, Result};
use crate::noun::job::JobId;

/// Version of the messages; both sides use the lower one of theirs.
pub const LINK_VERSION: u16 = 1;
/// The oldest version that this library still understands.
pub const LINK_OLDEST: u16 = 1;
/// Most nesting of values in a message: an op in an atomic op has about ten levels.
const DEPTH: usize = 48;

/// The first message of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Always [`Hello::MAGIC`].
    pub magic: String,
    /// The newest version the client understands ...
    pub version: u16,
    /// ... and the oldest.
    pub oldest: u16,
    /// Version of the ops it sends.
    pub ops: u16,
    /// The resolved place of the queue file.
    pub place: String,
    /// The options that both sides must share, as text.
    pub shape: String,
    /// The session.
    pub session: [u8; 16],
    /// The process, for people.
    pub process: String,
}

impl Hello {
    /// The text that every first message contains.
    pub const MAGIC: &'static str = "bucketq link";
}

/// The reply to a hello.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Greeting {
    /// The session may send requests.
    Welcome(Welcome),
    /// First prove that this process may write the queue file itself: return proof for this nonce.
    Prove {
        /// Drawn for this connection.
        nonce: [u8; 32],
    },
    /// Write the queue file directly.
    Refused {
        /// The reason, for people.
        reason: String,
    },
}

/// The facts that a session needs from its writer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The version that both sides use.
    pub version: u16,
    /// The newest settled commit: the session is born here (P29).
    pub born: u64,
    /// The file id.
    pub file_id: [u8; 16],
    /// Largest difference between two writers' clocks that the queue file allows.
    pub max_skew_ms: u32,
    /// Most requests of the session without a reply.
    pub credit: u32,
    /// Most bytes of ops of the session without a reply.
    pub credit_bytes: u64,
    /// Largest message that the writer accepts.
    pub largest: u64,
    /// The writer's process, for people.
    pub process: String,
    /// For how long it has been the writer of this host.
    pub since_ms: u64,
}

/// A message of the client, after the hello.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// An op of the session.
    Op(OpRequest),
    /// A query.
    Ask {
        /// The number of the request in this connection.
        id: u64,
        /// The query, encoded.
        query: Bytes,
        /// How old the state may be; none for one that is read after the request arrived.
        max_age_ms: Option<u64>,
        /// The newest commit that the client has seen: no older state is a reply.
        seen: u64,
    },
    /// Reply when this job is finished.
    Await {
        /// The number of the request in this connection.
        id: u64,
        /// The job.
        job: JobId,
    },
    /// Run a task that has the same effect when it runs twice.
    Run {
        /// The number of the request in this connection.
        id: u64,
        /// The task.
        task: RepeatableTask,
    },
    /// The caller of an `Ask` or `Await` has left.
    Leave {
        /// The number of the request in this connection.
        id: u64,
    },
}

/// One delivery of an op (P29).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpRequest {
    /// The number of the op in its session.
    pub n: u64,
    /// The client has the final result of every op up to this number (P33).
    pub have: u64,
    /// The client has sent this op before (P38).
    #[serde(default)]
    pub again: bool,
    /// The client gives the op up (P39).
    #[serde(default)]
    pub cancel: bool,
    /// No commit with a later time executes the op (P39).
    pub last_ms: i64,
    /// The client's clock when it first sent the op, in milliseconds since the session began.
    pub stamp: u64,
    /// The client has listeners: return the events of the op.
    #[serde(default)]
    pub watched: bool,
    /// How long a claim waits for a job, or an enqueue for room.
    pub wait: WireWait,
    /// The op, encoded.
    pub op: Bytes,
}

/// How long a claim waits for a job, or an enqueue for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WireWait {
    /// Not at all.
    No,
    /// For this time.
    Ms(u64),
    /// Until there is a job, or room.
    Forever,
}

/// A task that has the same effect when it runs twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RepeatableTask {
    /// Make an empty commit: everything sent before is settled.
    Settle,
    /// Read the newest commit.
    Refresh,
    /// Delete garbage that was needed last longer ago than this.
    Collect {
        /// The grace period.
        grace_ms: u64,
    },
    /// Archive finished jobs.
    Archive,
}

/// A message of the writer, after its greeting.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// The results of ops, those of one commit together.
    Ops(Vec<OpReply>),
    /// The result of a request with this number.
    Answer {
        /// The number of the request.
        id: u64,
        /// The result, encoded by the kind of the request.
        result: Result<Bytes, WireError>,
    },
    /// The store fails at the moment, for error messages; none once it works again.
    Trouble(Option<WireError>),
    /// An enqueue waits for room, as the policy of its queue allows: its caller waits for longer than a deadline.
    Parked {
        /// The number of the op in its session.
        n: u64,
    },
    /// This writer leaves: send everything without a result to the next one.
    Moving,
}

/// The result of one delivery of an op.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpReply {
    /// The number of the op in its session.
    pub n: u64,
    /// The outcome, encoded.
    pub result: Result<Bytes, WireError>,
    /// The result stands in a commit, so no other delivery of the op has another one (P38).
    pub recorded: bool,
    /// The op, or its session, is unknown to this writer.
    #[serde(default)]
    pub unknown: Option<Unknown>,
    /// The commit that contains the op; for an op that changed nothing, the commit that it was decided on.
    pub commit_seq: u64,
    /// The time of that commit.
    pub commit_ms: i64,
    /// The client's clock from which leases count.
    pub stamp: u64,
    /// The facts that the execution reported for listeners and metrics.
    #[serde(default)]
    pub report: OpReport,
}

/// The facts that an op reported while it was executed, for listeners and metrics of its own process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpReport {
    /// The events, encoded; empty without any.
    #[serde(default, skip_serializing_if = "Bytes::is_empty")]
    pub events: Bytes,
    /// How long claimed jobs had waited.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits_ms: Vec<i64>,
    /// How long acked jobs had been worked on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs_ms: Vec<i64>,
}

/// Why a writer has no result for an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unknown {
    /// Its session was dropped: this delivery is not executed, an earlier one may have been (P31).
    Session,
    /// This writer is too old to know the op.
    Op,
}

/// An error on its way through the link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireError {
    /// The text form of its code.
    pub code: String,
    /// Its message.
    pub message: String,
}

impl From<&Error> for WireError {
    fn from(error: &Error) -> Self {
        Self { code: error.code().as_str().to_owned(), message: error.message().to_owned() }
    }
}

impl WireError {
    /// Returns the error. A newer writer may have codes that this library does not know.
    pub fn into_error(self) -> Error {
        Error::new(Code::from_text(&self.code).unwrap_or(Code::OutcomeUnknown), self.message)
    }
}

/// Returns the bytes of a message, or of something nested in one.
pub fn encode<T: Serialize>(value: &T) -> Result<Bytes> {
    let bytes = rmp_serde::to_vec_named(value);
    bytes.map(Bytes::from).map_err(|e| Error::bug("a message cannot be encoded").because(e))
}

/// Reads what [`encode`] wrote.
pub fn decode<T: for<'a> Deserialize<'a>>(bytes: &[u8]) -> Result<T> {
    let mut reader = rmp_serde::Deserializer::from_read_ref(bytes);
    reader.set_max_depth(DEPTH);
    let value = T::deserialize(&mut reader);
    let damaged = |e| Error::new(Code::Internal, "a message of the other side cannot be read").because(e);
    value.map_err(damaged)
}
