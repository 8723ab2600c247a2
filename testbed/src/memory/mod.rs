//! Masters in memory, for an engine on virtual time: no sockets, and the same in each run.
//!
//! [`Group`] answers at once, as healthy masters do; costs and benches count the engine's work with
//! that. In a [`Scenario`] the test sets the answer of each master. The fuzz target
//! [`engine`](crate::fuzz::engine) draws it from bytes. All three ask this file for a master's
//! answer about itself.

mod group;
mod scenario;

use std::time::Duration;

use muxlock::error::ServerErrorKind;
use muxlock::node::ReleaseWith;
use muxlock::proto::{
    Command, Entropy, KindStep, Marker, Notify, Replication, Reply, Section, ServerInfo, Step,
    Trial, WaitMessage,
};
use muxlock::{LockToken, Moment};

pub use group::{Group, Key};
pub use scenario::{Acted, CONNECT_TIMEOUT, NODE_TIMEOUT, Scenario, TOKENS_MAX, TTL, server_error};

/// A command, without its borrowed parts of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    Hello,
    /// A database, or the tracking of keys: `+OK` is the answer.
    Handshake,
    Marker,
    Info(Section),
    Time,
    Probe(ReleaseWith),
    /// When a client first saw the promoted server.
    Sighting,
    /// That this client has seen it.
    Sight,
    Try(Trial),
    Kill(i64),
    Set(LockToken),
    /// With its proposal.
    Fenced(LockToken, u64),
    /// Several resources, a share, or a slot.
    Take(LockToken),
    /// With its number.
    Confirm(LockToken, u64),
    Extend(LockToken),
    Heal(LockToken),
    Release(LockToken, ReleaseWith),
    Inspect,
    Wait(Waits),
}

/// A command for waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waits {
    Subscribe,
    /// The last question whether one can wait.
    Able,
    Cache,
    TimeToLive,
    QueueUp,
    ReleaseAtQueue(LockToken, Notify),
    StepOut(Step),
}

impl From<&WaitMessage<'_>> for Waits {
    fn from(wait: &WaitMessage<'_>) -> Waits {
        match wait {
            WaitMessage::Subscribe { .. } => Waits::Subscribe,
            WaitMessage::Publish { .. } => Waits::Able,
            WaitMessage::Cache => Waits::Cache,
            WaitMessage::TimeToLive { .. } => Waits::TimeToLive,
            WaitMessage::QueueUp { .. } => Waits::QueueUp,
            WaitMessage::ReleaseAtQueue { token, notify, .. } => {
                Waits::ReleaseAtQueue(**token, *notify)
            }
            WaitMessage::StepOut { to, .. } => Waits::StepOut(*to),
        }
    }
}

impl From<&Command<'_>> for Asked {
    // Inlined, like its callees: costs count this with the engine.
    #[inline]
    fn from(command: &Command<'_>) -> Asked {
        match command {
            Command::Hello { .. } => Asked::Hello,
            Command::Select { .. } | Command::Track => Asked::Handshake,
            Command::Marker { .. } => Asked::Marker,
            Command::Info(section) => Asked::Info(*section),
            Command::Time => Asked::Time,
            Command::Probe { with, .. } => Asked::Probe(*with),
            Command::Sighting { .. } => Asked::Sighting,
            Command::Sight { .. } => Asked::Sight,
            Command::Try { trial, .. } => Asked::Try(*trial),
            Command::Kill { connection } => Asked::Kill(*connection),
            Command::Acquire { token, .. } => Asked::Set(**token),
            Command::AcquireFenced { token, proposal, .. } => Asked::Fenced(**token, *proposal),
            Command::Confirm { token, number, .. } => Asked::Confirm(**token, *number),
            Command::Extend { token, .. } => Asked::Extend(**token),
            Command::Heal { token, .. } => Asked::Heal(**token),
            Command::Release { token, with, .. } => Asked::Release(**token, *with),
            Command::Inspect { .. } => Asked::Inspect,
            Command::Wait(wait) => Asked::Wait(wait.into()),
            Command::OfKind(form) => match form.step {
                KindStep::Take { .. } => Asked::Take(*form.token),
                KindStep::Keep => Asked::Extend(*form.token),
                KindStep::Heal => Asked::Heal(*form.token),
                KindStep::Free => Asked::Release(*form.token, ReleaseWith::Script),
                KindStep::Look => Asked::Inspect,
            },
        }
    }
}

/// A master's answer about itself.
pub struct About<'a> {
    pub info: &'a ServerInfo,
    /// The commands that it has to release with, beside scripts.
    pub offers: ReleaseWith,
    /// The time on its wall clock.
    pub time: Duration,
    /// The number of the connection.
    pub connection: i64,
    /// What stands under the marker's key.
    pub marker: Marker,
}

impl About<'_> {
    /// The answer of a healthy master, unless the command is about a key.
    #[inline]
    pub fn answer(&self, asked: Asked) -> Option<Reply> {
        Some(match asked {
            Asked::Handshake => Reply::Ok,
            Asked::Hello => Reply::Hello { client_id: Some(self.connection) },
            Asked::Marker => Reply::Marker(self.marker),
            Asked::Info(section) => self.section(section),
            Asked::Time => Reply::Time(self.time),
            Asked::Probe(_) | Asked::Try(_) | Asked::Kill(_) => Reply::Integer(0),
            Asked::Sighting => Reply::Nil,
            Asked::Sight => Reply::Ok,
            // A server that does not know it.
            Asked::Wait(_) => server_error(ServerErrorKind::Other),
            Asked::Set(_)
            | Asked::Fenced(..)
            | Asked::Take(_)
            | Asked::Confirm(..)
            | Asked::Extend(_)
            | Asked::Heal(_)
            | Asked::Release(..)
            | Asked::Inspect => return None,
        })
    }

    fn section(&self, section: Section) -> Reply {
        let said = self.info;
        let info = match section {
            Section::Replication => return Reply::Replication(said.replication),
            Section::Server => ServerInfo {
                version: match self.offers {
                    ReleaseWith::Delex => Some("redis 8.4.0".into()),
                    ReleaseWith::Delifeq => Some("valkey 9.0.0".into()),
                    _ => said.version.clone(),
                },
                run_id: said.run_id.clone(),
                uptime: said.uptime,
                standalone: said.standalone,
                ..ServerInfo::default()
            },
            Section::Memory => return Reply::Memory(said.memory_max, said.evicts_nothing),
            Section::Stats => return Reply::Stats(said.evicted),
            Section::Persistence => ServerInfo { loading: said.loading, ..ServerInfo::default() },
        };
        Reply::Info(Box::new(info))
    }
}

/// A master that has been up for long, each with a name of its own.
pub fn aged_master(node: usize) -> ServerInfo {
    ServerInfo {
        version: Some("redis 7.0.15".into()),
        run_id: Some(format!("process {node}").into()),
        uptime: Some(Duration::from_secs(1_000_000)),
        standalone: Some(true),
        replication: Replication {
            master: Some(true),
            history: Some((node as u128).into()),
            promoted: Some(false),
        },
        memory_max: Some(0),
        evicts_nothing: Some(true),
        loading: Some(false),
        evicted: Some(0),
    }
}

/// What stands under the key of a marker that was never flushed.
pub const MARKER: Marker = Marker { id: 1, micros: 1 };

/// Tokens that are counted from 1, in their first four bytes, and jitter that is always the same.
pub struct Counted {
    drawn: u32,
    most: u32,
    jitter: u64,
}

impl Counted {
    /// After `most` tokens the source is dry.
    pub fn new(most: u32, jitter: u64) -> Counted {
        Counted { drawn: 0, most, jitter }
    }
}

impl Entropy for Counted {
    fn token(&mut self, _: Moment) -> Option<[u8; 20]> {
        if self.drawn == self.most {
            return None;
        }
        self.drawn += 1;
        let mut token = [0; 20];
        token[..4].copy_from_slice(&self.drawn.to_be_bytes());
        Some(token)
    }

    fn next_u64(&mut self) -> u64 {
        self.jitter
    }
}
