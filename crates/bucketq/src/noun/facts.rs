//! One row for each op and each query: everything that the engine must know about it beside its effect on the state.
//!
//! A new op does not compile without its row, and no other code of the engine has a default for ops that it does not
//! know. Used by the checks, the door and the writer. Pure.

use std::slice;

use crate::noun::job::{New, Payload};
use crate::noun::life::Archived;
use crate::noun::op::{Claim, ClaimWith, Held, Op};
use crate::noun::policy::Policy;
use crate::noun::query::{Answer, Query};

/// Whether an atomic may contain the op.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Nesting {
    Inside,
    Alone,
}

/// The lease that the op uses.
#[derive(Clone, Copy)]
enum LeaseUse<'a> {
    /// None.
    Unused,
    /// It ends a lease.
    Ends(&'a Held),
    /// It sets a lease to this length.
    Extends(&'a Held, i64),
    /// It sets the length of leases that begin later.
    Sets(Option<i64>),
}

/// How large the op is.
#[derive(Clone, Copy)]
enum Size<'a> {
    /// One change.
    Small,
    /// One change, with bytes of a user.
    Bytes(Option<&'a Payload>),
    /// These jobs, enqueued into this queue.
    Jobs(&'a str, &'a [New]),
    /// One change for the time that it takes, with this number of places in the order of enqueues and of finishes.
    Places(u64),
    /// That of these ops.
    Parts(&'a [Op]),
    /// That of this claim, and of an op before it.
    Claiming(&'a Claim, Option<&'a Op>),
}

use LeaseUse::{Ends, Extends, Sets, Unused};
use Nesting::{Alone, Inside};
use Size::{Bytes, Claiming, Jobs, Parts, Places, Small};

struct Facts<'a> {
    nesting: Nesting,
    lease: LeaseUse<'a>,
    size: Size<'a>,
}

macro_rules! facts {
    ($( $op:pat => $name:literal, $nesting:expr, $lease:expr, $size:expr; )*) => {
        impl Op {
            /// The names of all ops.
            pub const NAMES: &[&str] = &[$($name),*];

            /// Returns the name in traces and metrics.
            #[allow(unused_variables, reason = "a row binds what its other columns need")]
            pub const fn name(&self) -> &'static str {
                match self { $( $op => $name, )* }
            }

            fn facts(&self) -> Facts<'_> {
                match self { $( $op => Facts { nesting: $nesting, lease: $lease, size: $size }, )* }
            }
        }
    };
}

facts! {
    Self::Enqueue { queue, jobs } => "enqueue", Inside, Unused, Jobs(queue, jobs);
    Self::Claim(claim) => "claim", Alone, Sets(claim.lease_ms.or_else(default_lease)), Claiming(claim, None);
    Self::Ack { held, result } => "ack", Inside, Ends(held), Bytes(result.as_ref());
    Self::Nack { held, .. } => "nack", Inside, Ends(held), Small;
    Self::Release { held } => "release", Inside, Ends(held), Small;
    Self::Reject { held, .. } => "reject", Inside, Ends(held), Small;
    Self::Extend { held, lease_ms, .. } => "extend", Inside, Extends(held, *lease_ms), Small;
    Self::Cancel { .. } => "cancel", Inside, Unused, Small;
    Self::Requeue { .. } => "requeue", Inside, Unused, Small;
    Self::Purge { .. } => "purge", Inside, Unused, Small;
    Self::Pause { .. } => "pause", Inside, Unused, Small;
    Self::Resume { .. } => "resume", Inside, Unused, Small;
    Self::Atomic(ops) => "atomic", Alone, Unused, Parts(ops);
    Self::Configure { changes, .. } => "configure", Inside, Sets(changes.lease_ms.flatten()), Small;
    Self::RequeueMany { limit, .. } => "requeue_many", Inside, Unused, Places(2 * u64::from(*limit));
    Self::Drain { .. } => "drain", Inside, Unused, Small;
    Self::Schedule { .. } => "schedule", Inside, Unused, Small;
    Self::Unschedule { .. } => "unschedule", Inside, Unused, Small;
    Self::PurgeSome { .. } => "purge_some", Inside, Unused, Small;
    Self::ConfigureSome { changes, .. } => "configure_some", Inside, Sets(changes.lease_ms.flatten()), Small;
    Self::ClaimWith(with) => "claim_with", Alone, Sets(with.lease_ms()), Claiming(&with.claim, with.ends.as_deref());
    Self::Move { .. } => "move", Inside, Unused, Small;
    Self::MoveSome { limit, .. } => "move_some", Inside, Unused, Places(2 * u64::from(*limit));
    Self::Delete { .. } => "delete", Inside, Unused, Small;
    Self::CreateQueue { .. } => "create_queue", Inside, Unused, Small;
    Self::DeleteQueue { .. } => "delete_queue", Inside, Unused, Small;
    Self::StrictQueues { .. } => "strict_queues", Inside, Unused, Small;
    Self::AckLate { result, .. } => "ack_late", Inside, Unused, Bytes(result.as_ref());
}

/// The policy is not known here. Its default is, and a change of the policy is checked too.
fn default_lease() -> Option<i64> {
    Policy::default().lease_ms
}

/// Places for what a claim does beside its own jobs: those that expire, or whose last lease has expired, become dead, and
/// ready again in a dead-letter queue; schedules fire.
const ASIDE: u64 = 4_000;

impl ClaimWith {
    /// Jobs that are done at once have no lease.
    fn lease_ms(&self) -> Option<i64> {
        if self.done { None } else { self.claim.lease_ms.or_else(default_lease) }
    }
}

impl Op {
    /// Returns the job that it needs to hold, with the token; of an atomic, the first one.
    pub fn held(&self) -> Option<Held> {
        let of = |op: &Self| match op.facts().lease {
            Ends(held) | Extends(held, _) => Some(*held),
            Unused | Sets(_) => None,
        };
        self.parts().iter().find_map(of)
    }

    /// Returns whether it ends the lease that it needs.
    pub(crate) fn ends_lease(&self) -> bool {
        matches!(self.facts().lease, Ends(_))
    }

    /// Returns its single changes: the parts of an atomic, or itself.
    pub(crate) fn parts(&self) -> &[Self] {
        match self.facts().size {
            Parts(ops) => ops,
            Small | Bytes(_) | Jobs(..) | Places(_) | Claiming(..) => slice::from_ref(self),
        }
    }

    /// Returns whether an atomic may contain it.
    pub(crate) fn may_be_part(&self) -> bool {
        self.facts().nesting == Inside
    }

    /// Returns the length of the lease that it sets, if it is known.
    pub(crate) fn lease_ms(&self) -> Option<i64> {
        match self.facts().lease {
            Extends(_, lease_ms) => Some(lease_ms),
            Sets(lease_ms) => lease_ms,
            Unused | Ends(_) => None,
        }
    }

    /// Returns the length to which it sets a lease that is held already; of an atomic, the shortest.
    pub(crate) fn extends_ms(&self) -> Option<i64> {
        let of = |op: &Self| match op.facts().lease {
            Extends(_, lease_ms) => Some(lease_ms),
            Unused | Ends(_) | Sets(_) => None,
        };
        self.parts().iter().filter_map(of).min()
    }

    /// Returns the claim in it, if it claims jobs.
    pub(crate) fn claim(&self) -> Option<&Claim> {
        self.claiming().map(|(claim, _)| claim)
    }

    /// Returns whether it claims jobs and ends another one first.
    pub(crate) fn ends_and_claims(&self) -> bool {
        self.claiming().is_some_and(|(_, ends)| ends.is_some())
    }

    fn claiming(&self) -> Option<(&Claim, Option<&Self>)> {
        match self.facts().size {
            Claiming(claim, ends) => Some((claim, ends)),
            Small | Bytes(_) | Jobs(..) | Places(_) | Parts(_) => None,
        }
    }

    /// Returns the jobs that it enqueues, without those of its parts.
    pub(crate) fn jobs(&self) -> &[New] {
        match self.facts().size {
            Jobs(_, jobs) => jobs,
            Small | Bytes(_) | Places(_) | Parts(_) | Claiming(..) => &[],
        }
    }

    /// Returns the queue and the number of jobs of each enqueue in it.
    pub(crate) fn enqueues(&self) -> Vec<(String, u64)> {
        match self.facts().size {
            Jobs(queue, jobs) => vec![(queue.to_owned(), jobs.len() as u64)],
            Parts(ops) => ops.iter().flat_map(Self::enqueues).collect(),
            Small | Bytes(_) | Places(_) | Claiming(..) => vec![],
        }
    }

    /// Returns the bytes of users in it: payloads, headers, keys and results.
    pub(crate) fn payload_bytes(&self) -> usize {
        match self.facts().size {
            Small | Places(_) => 0,
            Bytes(payload) => payload.map_or(0, |payload| payload.bytes.len()),
            Jobs(_, jobs) => jobs.iter().map(New::user_bytes).sum(),
            Parts(ops) => ops.iter().map(Self::payload_bytes).sum(),
            Claiming(_, ends) => ends.map_or(0, Self::payload_bytes),
        }
    }

    /// Returns roughly how many changes it makes, for the time that its commit takes to build.
    pub(crate) fn changes(&self) -> usize {
        match self.facts().size {
            Small | Bytes(_) | Places(_) => 1,
            Jobs(_, jobs) => jobs.len(),
            Parts(ops) => ops.iter().map(Self::changes).sum(),
            Claiming(_, ends) => 1 + ends.map_or(0, Self::changes),
        }
    }

    /// Returns how many places it may take in the order of enqueues and of finishes.
    pub(crate) fn places(&self) -> u64 {
        match self.facts().size {
            Small | Bytes(_) => 2,
            // Each may cancel another job to make room, and some may expire.
            Jobs(_, jobs) => 1_000 + 2 * jobs.len() as u64,
            Places(places) => places,
            Parts(ops) => ops.iter().map(Self::places).sum(),
            Claiming(claim, ends) => ASIDE + 4 * u64::from(claim.max) + ends.map_or(0, Self::places),
        }
    }
}

impl Query {
    /// Returns whether it reads the commits of the log. All others read the database.
    pub(crate) const fn reads_log(&self) -> bool {
        match self {
            Self::History { .. } => true,
            Self::Get(_)
            | Self::GetMany(_)
            | Self::List { .. }
            | Self::ListWhole { .. }
            | Self::Queues
            | Self::Stats
            | Self::Policy(_)
            | Self::Schedules(_)
            | Self::Archives { .. }
            | Self::Finished { .. } => false,
        }
    }
}

impl Answer {
    /// Returns the archive objects in it, whose keys the database does not know.
    pub(crate) fn archived_mut(&mut self) -> &mut [Archived] {
        match self {
            Self::Archives(archives) => &mut archives.objects,
            Self::Job(_)
            | Self::Jobs(_)
            | Self::Page(_)
            | Self::Details(_)
            | Self::Queues(_)
            | Self::Stats(_)
            | Self::History(_)
            | Self::Policy(_)
            | Self::Schedules(_)
            | Self::Finished(_) => &mut [],
        }
    }
}
