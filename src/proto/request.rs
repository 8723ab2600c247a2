//! What was sent to a node, and what its reply answers.

use super::command::{ReleaseWith, Section, Shape, Step};
use super::kind::Lost;
use crate::moment::Moment;
use crate::proto::index::RoundId;

/// What a reply answers.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Request {
    About(Question),
    Round(RoundId, Shape),
    /// The same, by the text of a script that takes a lock, behind a trial of its commands.
    Trialled(RoundId, Shape),
    /// The same, by the text alone.
    Text(RoundId, Shape),
    /// A fenced round's raise.
    Confirm(RoundId),
    /// The `CLIENT KILL` of an old connection, with its `CLIENT ID`.
    Kill(i64),
    /// The release of this round at a queue node.
    ReleaseAtQueue(RoundId),
    Wait(WaitCommand),
}

// Each command to each node is one.
const _: () = assert!(size_of::<Request>() <= 16);

impl Request {
    /// The round whose command it is.
    #[inline]
    pub(super) fn round(self) -> Option<RoundId> {
        match self {
            Request::Round(round, _) | Request::Trialled(round, _) | Request::Text(round, _) => {
                Some(round)
            }
            _ => None,
        }
    }

    /// What an integer in the reply stands for.
    pub(super) fn shape(self) -> Shape {
        match self {
            Request::Round(_, shape) | Request::Trialled(_, shape) | Request::Text(_, shape) => {
                shape
            }
            Request::ReleaseAtQueue(_) => Shape::ReleasedAtQueue,
            Request::Wait(WaitCommand::QueueUp(_)) => Shape::Position,
            Request::Wait(WaitCommand::TimeToLive { .. }) => Shape::Expiry,
            Request::About(Question::Handshake(HandshakeStep::Probe)) => Shape::Missing,
            Request::About(_) | Request::Confirm(_) | Request::Kill(_) | Request::Wait(_) => {
                Shape::Number
            }
        }
    }

    /// The round that loses it with the connection, and what it loses.
    pub(super) fn lost(self) -> Option<(RoundId, Lost)> {
        match self {
            Request::Round(round, _) | Request::Trialled(round, _) | Request::Text(round, _) => {
                Some((round, Lost::Sent))
            }
            Request::ReleaseAtQueue(round) => Some((round, Lost::Sent)),
            Request::Confirm(round) => Some((round, Lost::Confirm)),
            _ => None,
        }
    }
}

/// What a node is asked or told about its server.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Question {
    Handshake(HandshakeStep),
    Time,
    /// Whether the server is still what its handshake said.
    Look(Section),
    /// Whether the database was flushed of which this client reads the marker.
    Marker,
    /// Whether this user may run the native release command.
    Probe(ReleaseWith),
    /// That this client has seen the promoted server (R33).
    Sight,
}

impl Question {
    /// Whether the answer is the server's time.
    pub(super) fn is_time(self) -> bool {
        matches!(self, Question::Time | Question::Handshake(HandshakeStep::Time))
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct InFlight {
    pub(crate) request: Request,
    pub(crate) sent_at: Moment,
}

/// A step of the handshake. All of them are sent at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HandshakeStep {
    Hello,
    Select,
    Track,
    Info(Section),
    Time,
    /// Whether a client saw the server after a promotion. What its answer is compared with was
    /// told by the steps before.
    Sighting,
    Marker,
    /// The last step: when it is answered, all are.
    Probe,
}

impl HandshakeStep {
    /// Whether it only asks.
    pub(super) fn is_repeatable(self) -> bool {
        !matches!(self, HandshakeStep::Hello | HandshakeStep::Select | HandshakeStep::Track)
    }
}

/// A command of a wait, and what its answer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitCommand {
    /// Whether clients can wait on this connection.
    Able(Ability),
    /// A place in the queue, for the entry with this number.
    QueueUp(u32),
    /// That the next key is watched, for one of an entry's watches.
    Watch { entry: u32, watch: u32 },
    /// How long the key lives; next to `Watch` on the wire.
    TimeToLive { entry: u32, watch: u32 },
    /// For a place that is left, by its number.
    StepOut(u32, Step),
}

impl WaitCommand {
    pub(super) const SUBSCRIBE: WaitCommand = WaitCommand::Able(Ability::Subscribe);
}

/// A question of W4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ability {
    Subscribe,
    Publish,
}
