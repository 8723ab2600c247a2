//! Whether clients can wait on a node's connection, and how that is found out (W4).
//!
//! It takes a channel of the engine's own, and the tracking of keys. The node is asked when
//! a wait first needs it. A refusal holds for this connection, unless the node has no room or no
//! time for now.

use crate::channel::Channel;
use crate::proto::command::{Command, Reply, ServerError, WaitMessage};
use crate::proto::nodes::passes;
use crate::proto::request::Ability;
use crate::proto::status::{QueueObstacle, QueueSupport};

/// After so many connections in a row that ended while the node was asked, it is not asked again.
const LOST_ASKING_MAX: u32 = 2;

/// The next step after an answer to a question of W4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Learned {
    Nothing,
    /// Clients can wait on this connection.
    MayWait,
    /// Clients cannot wait on this connection.
    CannotWait(QueueObstacle),
    /// Whether clients can wait on this connection is to be asked again: the answer was an error
    /// that passes.
    CannotWaitNow,
    /// The answer makes no sense.
    Unexpected,
}

impl Ability {
    /// All questions, which are asked at once.
    pub(super) const ALL: [Ability; 2] = [Ability::Subscribe, Ability::Publish];

    pub(super) fn command(self, channel: &Channel) -> Command<'_> {
        Command::Wait(match self {
            Ability::Subscribe => WaitMessage::Subscribe { channel },
            Ability::Publish => WaitMessage::Publish { channel },
        })
    }
}

/// Whether one node's connection can be waited on.
#[derive(Debug, Default)]
pub(crate) struct Waitable {
    state: QueueSupport,
    /// Whether the trial message was sent to a listener, and whether it has arrived.
    is_published: bool,
    is_heard: bool,
    /// Whether an answer was an error that passes.
    is_put_off: bool,
    lost_asking: u32,
    /// Whether the operator knows that clients cannot wait there.
    is_reported: bool,
}

impl Waitable {
    pub(super) fn state(&self) -> QueueSupport {
        self.state
    }

    /// A new connection: nothing is known of it.
    pub(super) fn reconnect(&mut self) {
        self.lost_asking += u32::from(self.state == QueueSupport::Checking);
        self.state = match self.lost_asking < LOST_ASKING_MAX {
            true => QueueSupport::Untried,
            false => QueueSupport::Unavailable(QueueObstacle::Connection),
        };
        (self.is_published, self.is_heard, self.is_put_off) = (false, false, false);
    }

    /// The last question is answered.
    fn conclude(&mut self) -> Learned {
        match self.state {
            QueueSupport::Checking if self.is_put_off => {
                (self.state, self.is_published, self.is_put_off) =
                    (QueueSupport::Untried, false, false);
                Learned::CannotWaitNow
            }
            _ => self.try_out(),
        }
    }

    /// Both halves of the trial.
    fn try_out(&mut self) -> Learned {
        match self.state {
            QueueSupport::Checking if self.is_published && self.is_heard => {
                self.state = QueueSupport::Available;
                (self.lost_asking, self.is_reported) = (0, false);
                Learned::MayWait
            }
            _ => Learned::Nothing,
        }
    }

    /// The node is about to be asked.
    pub(super) fn ask(&mut self) {
        self.state = QueueSupport::Checking;
    }

    /// The connection is of no use for waiting. Returns whether that is news.
    pub(super) fn set_unable(&mut self, obstacle: QueueObstacle) -> bool {
        let was_able = !matches!(self.state, QueueSupport::Unavailable(_));
        self.state = QueueSupport::Unavailable(obstacle);
        was_able
    }

    /// Whether the operator does not know yet that clients cannot wait there; counts as reported
    /// from now on.
    pub(super) fn is_inability_news(&mut self) -> bool {
        !std::mem::replace(&mut self.is_reported, true)
    }

    /// An error answered a question of W4.
    pub(super) fn handle_error(&mut self, asked: Ability, error: &ServerError) -> Learned {
        if !passes(error.kind) {
            return Learned::CannotWait(QueueObstacle::Channel);
        }
        self.is_put_off = true;
        self.note_answer(asked)
    }

    /// The answer to a question of W4 that is neither an error nor a push.
    pub(super) fn handle_reply(&mut self, asked: Ability, reply: &Reply) -> Learned {
        match (asked, reply) {
            (Ability::Publish, Reply::Integer(0)) => {
                return Learned::CannotWait(QueueObstacle::Channel);
            }
            (Ability::Publish, Reply::Integer(1..)) => self.is_published = true,
            _ => return Learned::Unexpected,
        }
        self.note_answer(asked)
    }

    fn note_answer(&mut self, asked: Ability) -> Learned {
        match asked {
            Ability::Publish => self.conclude(),
            Ability::Subscribe => Learned::Nothing,
        }
    }

    /// Whether the trial message was delivered, as its answer said, and has not arrived.
    pub(super) fn is_trial_missing(&self) -> bool {
        self.state == QueueSupport::Checking && self.is_published && !self.is_heard
    }

    /// The trial message has arrived.
    pub(super) fn hear_trial(&mut self) -> Learned {
        self.is_heard = true;
        self.try_out()
    }
}
