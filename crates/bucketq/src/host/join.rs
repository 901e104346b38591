//! Finds the writer of this host for a queue file: the leader to join, or the seat from which this process leads.
//!
//! Called when a queue file is opened, and again whenever the leader is lost. Nothing here decides about an op: if two
//! processes lead, both are right, and only slower.

use std::time::Duration;

use tokio::net::UnixStream;
use tokio::time::Instant;

use super::hello::{Greeted, Introduction, SILENCE, introduce};
use super::place::{MeetingPlace, SEATS, Seat};
use super::stream::Connection;
use crate::link::message::Welcome;
use crate::noun::env::Env;

/// The pause between two looks for the socket of a process that is about to lead.
const LOOK: Duration = Duration::from_millis(2);

/// The role of this process.
pub(crate) enum Role {
    /// Send the ops to this leader.
    Joined(Box<Joined>),
    /// Lead, from this seat.
    Lead(Box<Seat>),
    /// Write without the others, for this reason.
    Alone(String),
}

/// A connection to the leader.
pub(crate) struct Joined {
    pub(super) connection: Connection,
    pub welcome: Welcome,
}

/// The outcome of a try at one seat.
enum SeatTried {
    Joined(Box<Joined>),
    Refused(String),
    /// Nobody listens.
    Nobody,
    /// A process has the seat and does not reply.
    Hung,
}

/// Finds the role of this process. The newest leader has the highest seat: one that took over from a hung one.
pub(crate) async fn find_role(
    place: &MeetingPlace,
    own: &Introduction,
    session: [u8; 16],
    env: &Env,
) -> Role {
    let mut hung = [false; SEATS as usize];
    loop {
        for seat in (0..SEATS).rev().filter(|seat| !hung[usize::from(*seat)]).collect::<Vec<_>>() {
            match try_seat(place, seat, own, session, env).await {
                SeatTried::Joined(joined) => return Role::Joined(joined),
                SeatTried::Refused(reason) => return Role::Alone(reason),
                SeatTried::Nobody => {}
                SeatTried::Hung => hung[usize::from(seat)] = true,
            }
        }
        let first = hung.iter().rposition(|hung| *hung).map_or(0, |highest| highest + 1);
        let Some(seat) = u8::try_from(first).ok().filter(|seat| *seat < SEATS) else {
            return Role::Alone("the processes that lead on this host do not reply".to_owned());
        };
        match place.take(seat) {
            Ok(Some(seat)) => return Role::Lead(Box::new(seat)),
            Err(error) => return Role::Alone(error.message().to_owned()),
            // Another process has just taken it, and will listen in a moment.
            Ok(None) => {
                let until = env.monotonic() + SILENCE;
                if !listens(place, seat, until, env).await {
                    hung[usize::from(seat)] = true;
                }
            }
        }
    }
}

/// Waits until somebody listens at this seat, or its lock is free.
async fn listens(place: &MeetingPlace, seat: u8, until: Instant, env: &Env) -> bool {
    while env.monotonic() < until {
        if UnixStream::connect(place.socket(seat)).await.is_ok() || matches!(place.is_taken(seat), Ok(false))
        {
            return true;
        }
        env.sleep(LOOK).await;
    }
    false
}

async fn try_seat(
    place: &MeetingPlace,
    seat: u8,
    own: &Introduction,
    session: [u8; 16],
    env: &Env,
) -> SeatTried {
    let Ok(stream) = UnixStream::connect(place.socket(seat)).await else { return SeatTried::Nobody };
    let mut connection = match Connection::new(stream, env) {
        Ok(connection) => connection,
        Err(error) => return SeatTried::Refused(error.message().to_owned()),
    };
    if connection.peer_uid() != rustix::process::geteuid().as_raw() {
        return SeatTried::Refused("the process that leads belongs to another user".to_owned());
    }
    match introduce(&mut connection, own, session, env).await {
        Greeted::Welcome(welcome) => {
            connection.accept(usize::try_from(welcome.largest).unwrap_or(usize::MAX));
            SeatTried::Joined(Box::new(Joined { connection, welcome }))
        }
        Greeted::Refused(reason) => SeatTried::Refused(reason),
        Greeted::Ended => SeatTried::Nobody,
        // The child of a dead leader may keep its socket open: nobody has the seat then.
        Greeted::Silent if matches!(place.is_taken(seat), Ok(false)) => SeatTried::Nobody,
        Greeted::Silent => SeatTried::Hung,
    }
}
