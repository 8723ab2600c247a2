//! What sets the kinds of rounds apart, what a round is about, and what a node says to it.

use std::time::Duration;

use super::command::{
    Command, Counter, Grant, KindCommand, KindStep, Reason, ReleaseWith, Reply, SentAs, Shape,
};
use crate::inspection::Holding;
use crate::outcome::NodeOutcome;
use crate::resource::{KeptBy, Key, Refusal};
use crate::token::LockToken;
use crate::validity::Ttl;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RoundKind {
    Acquire,
    /// An acquisition that asks for a fencing token.
    AcquireFenced,
    /// An acquisition of what is not one plain key.
    Take,
    Extend,
    /// An extension that sets the key where it is absent (R29).
    Heal,
    Release,
    /// A question about the key, and no vote.
    Inspect,
}

/// What a round's command refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(super) key: Key,
    pub(super) token: LockToken,
    pub(super) ttl: Ttl,
}

/// What a server says to a round's command, unless it is an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The key was set, as asked for.
    Set,
    /// The key was set, as asked for; the node's counter has this number, or 1 if it has the
    /// proposed one.
    Numbered(u64),
    /// The key was absent, and was set anew.
    Healed,
    /// The key was there with this token.
    Present,
    /// The key is there with another token, or absent; see [`RoundKind::refusal`].
    Refused,
    /// Nothing was taken, for this reason.
    RefusedFor(Reason),
    /// What the server has for the key.
    Holding(Option<Holding>),
}

/// What a connection loss took from a round.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Lost {
    /// The answer to a command.
    Sent,
    /// The command: it was not handed out.
    Unsent,
    /// The answer to a command that raises a counter.
    Confirm,
}

/// What a lost command may leave on its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    Nothing,
    /// The command may have set the key, or may set it later (R12).
    Key,
    /// The key may be there, and is to be deleted.
    Release,
}

/// What sets the kinds apart. A new kind is a new row of each.
impl RoundKind {
    /// Whether its command may create a key.
    #[inline]
    pub(super) fn may_create(self) -> bool {
        matches!(self, Self::Acquire | Self::AcquireFenced | Self::Take | Self::Heal)
    }

    #[inline]
    pub(super) fn is_acquisition(self) -> bool {
        matches!(self, Self::Acquire | Self::AcquireFenced | Self::Take)
    }

    pub(super) fn is_extension(self) -> bool {
        matches!(self, Self::Extend | Self::Heal)
    }

    #[inline]
    pub(super) fn is_release(self) -> bool {
        matches!(self, Self::Release)
    }

    /// Whether its command takes a lock, or keeps it.
    #[inline]
    pub(super) fn is_about_holding(self) -> bool {
        self.is_acquisition() || self.is_extension()
    }

    pub(super) fn is_inspection(self) -> bool {
        matches!(self, Self::Inspect)
    }

    /// The reply that is a plain grant; `None` if replies need more checks.
    #[inline]
    pub(super) fn plain_grant(self) -> Option<Grant> {
        match self {
            Self::Acquire => Some(Grant::Ok),
            Self::AcquireFenced | Self::Take | Self::Release => Some(Grant::One),
            Self::Extend | Self::Heal | Self::Inspect => None,
        }
    }

    /// The meaning of a reply that is no error; `None` if it makes no sense.
    pub(super) fn answer(self, reply: &Reply) -> Option<Answer> {
        Some(match (self, reply) {
            (Self::Acquire, Reply::Ok) => Answer::Set,
            (Self::Acquire | Self::AcquireFenced, Reply::Nil) => Answer::Refused,
            (Self::Take, Reply::Integer(1)) => Answer::Set,
            (Self::Take, Reply::Integer(0)) => Answer::Refused,
            (Self::Take, Reply::Refused(reason)) => Answer::RefusedFor(*reason),
            (Self::AcquireFenced, Reply::Integer(number @ 1..)) => {
                Answer::Numbered(number.unsigned_abs())
            }
            (Self::Extend | Self::Heal | Self::Release, Reply::Integer(1)) => Answer::Present,
            (Self::Extend | Self::Heal | Self::Release, Reply::Integer(0)) => Answer::Refused,
            // Another token would have been left alone (R29).
            (Self::Heal, Reply::Integer(2)) => Answer::Healed,
            (Self::Inspect, Reply::Holding(holding)) => Answer::Holding(Some(*holding)),
            (Self::Inspect, Reply::Integer(0)) => Answer::Holding(None),
            _ => return None,
        })
    }

    /// The vote of a node that refuses.
    pub(super) fn refusal(self) -> NodeOutcome {
        match self {
            Self::Acquire | Self::AcquireFenced | Self::Take | Self::Inspect => NodeOutcome::Held,
            Self::Extend | Self::Heal | Self::Release => NodeOutcome::Absent,
        }
    }

    /// What a command leaves that was lost with its connection. An unsent SET leaves nothing (R11);
    /// a release is owed whether it was sent or not.
    pub(super) fn left(self, lost: Lost) -> Left {
        match (self, lost) {
            (_, Lost::Confirm) => Left::Nothing,
            (Self::Heal, Lost::Sent) => Left::Key,
            (Self::Acquire | Self::AcquireFenced | Self::Take, Lost::Sent) => Left::Key,
            (Self::Acquire | Self::AcquireFenced | Self::Take | Self::Heal, Lost::Unsent)
            | (Self::Extend | Self::Inspect, _) => Left::Nothing,
            (Self::Release, Lost::Sent | Lost::Unsent) => Left::Release,
        }
    }
}

impl Claim {
    /// What an integer stands for in a vote on what is not one plain key.
    #[cold]
    pub(super) fn shape(&self) -> Shape {
        match self.key.row().refusal {
            Refusal::FreeSlots => Shape::VoteOfSlot,
            Refusal::Held | Refusal::HeldName | Refusal::Sign => Shape::VoteOfSet,
        }
    }

    /// The command of a lock that is not one plain key. `intent` is for how long an acquisition
    /// that is refused holds others off.
    #[cold]
    pub(super) fn lock_kind_command<'a>(
        &'a self,
        kind: RoundKind,
        with: ReleaseWith,
        intent: Duration,
    ) -> Command<'a> {
        let has_own = self.key.row().kept_by != KeptBy::PlainCommands;
        let step = match kind {
            RoundKind::Take => KindStep::Take { intent },
            RoundKind::Extend if has_own => KindStep::Keep,
            RoundKind::Heal if has_own => KindStep::Heal,
            RoundKind::Release if has_own => KindStep::Free,
            RoundKind::Inspect if self.key.value().is_some() => KindStep::Look,
            _ => return self.command(kind, with, || unreachable!("it has no number")),
        };
        Command::OfKind(KindCommand {
            step,
            key: &self.key,
            token: &self.token,
            ttl: self.ttl,
            sent_as: SentAs::Text,
        })
    }

    /// The command for nodes with this release command. `fence` is asked for the counter and the
    /// proposal, where there are any.
    #[inline]
    pub(super) fn command<'a>(
        &'a self,
        kind: RoundKind,
        with: ReleaseWith,
        fence: impl FnOnce() -> (Counter<'a>, u64),
    ) -> Command<'a> {
        let (key, token, ttl) = (self.key.as_bytes(), &self.token, self.ttl);
        match kind {
            RoundKind::Acquire => Command::Acquire { key, token, ttl },
            RoundKind::Take => unreachable!("it has a command of its own"),
            RoundKind::AcquireFenced => {
                let (counter, proposal) = fence();
                Command::AcquireFenced { key, token, ttl, counter, proposal, trial: None }
            }
            RoundKind::Extend => Command::Extend { key, token, ttl },
            RoundKind::Heal => Command::Heal { key, token, ttl },
            RoundKind::Release => Command::Release { key, token, with },
            RoundKind::Inspect => Command::Inspect { key },
        }
    }
}

/// A node's contribution to a round.
#[derive(Clone, Copy)]
pub(crate) struct Vote {
    pub(super) outcome: NodeOutcome,
    latency_nanos: Option<u64>,
}

impl Vote {
    pub(super) const PENDING: Vote = Vote { outcome: NodeOutcome::Pending, latency_nanos: None };

    #[inline]
    pub(super) fn new(outcome: NodeOutcome, latency_nanos: Option<u64>) -> Vote {
        Vote { outcome, latency_nanos }
    }

    pub(super) fn without_latency(self) -> Vote {
        Vote { latency_nanos: None, ..self }
    }

    pub(super) fn latency(self) -> Option<Duration> {
        self.latency_nanos.map(Duration::from_nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_set_and_what_heals_may_create() {
        let kinds = [
            RoundKind::Acquire,
            RoundKind::AcquireFenced,
            RoundKind::Take,
            RoundKind::Extend,
            RoundKind::Heal,
            RoundKind::Release,
            RoundKind::Inspect,
        ];
        assert_eq!(kinds.map(RoundKind::may_create), [true, true, true, false, true, false, false]);
    }
}
