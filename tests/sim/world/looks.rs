//! How clients look at servers' clocks and roles, and what they have to notice.
//!
//! Who guards looks at the clock before each SET or extension whose last look is older than ten
//! milliseconds, and in any case if the node has refused a SET within a second: then the look
//! leaves together with the SET, before it. At the role they look if the last look is older than a
//! second. What happens between a look and the command behind it goes unnoticed, and so does what
//! no look can see and no server tells.

use muxlock::LockToken;
use muxlock::node::NodeState;
use muxlock::proto::NodeSet;

use super::World;
use super::check::Failure;
use super::clock::{MILLI, SECOND};
use super::rare::Rare;
use super::timeline::Short;

/// For so long, a look at the clock need not be repeated, and one at the role.
const FRESH: u64 = 10 * MILLI;
const ROLE_FRESH: u64 = SECOND;
/// For so long after a refusal, the clock is looked at before each SET.
const WAITING: u64 = SECOND;
/// A jump must be larger than this, beside drift and round trips, to stand out.
const JUMP_MIN: u64 = 5 * MILLI;
/// What is lost in roundings.
const SLACK: u64 = MILLI;

/// What a client asked a node, and was told.
#[derive(Clone, Copy, Default)]
pub struct Looks {
    /// When the clock was last asked for, by the client's clock.
    pub clock_at: Option<u64>,
    /// Together with which of the client's commands that was: see `Client::passes`.
    pub clock_in: u64,
    /// When the role was.
    pub role_at: Option<u64>,
    /// When it last read that a SET was refused.
    refused_at: Option<u64>,
    told: Option<Told>,
    /// From when until when, in true time, nothing of the node counts, since its clock has jumped.
    jumped: Option<(u64, u64)>,
}

/// What a server's clock showed.
#[derive(Clone, Copy)]
struct Told {
    node: usize,
    said: u64,
    /// When it was asked, by the client's clock without its jumps.
    sent: u64,
}

impl Looks {
    /// Whether what the node says now must not count.
    pub fn is_after_jump(&self, now: u64) -> bool {
        self.jumped.is_some_and(|(from, until)| from <= now && now < until)
    }

    /// What was missing before a SET that was asked for at `asked`, and is sent at `told`, in the
    /// pass.
    fn missing(&self, (asked, told): (u64, u64), pass: u64) -> Option<&'static str> {
        let is_stale = |at: Option<u64>, fresh| at.is_none_or(|at| at + fresh <= asked);
        let is_waiting = self.refused_at.is_some_and(|at| at < asked && told < at + WAITING);
        if is_stale(self.clock_at, FRESH) || is_waiting && self.clock_in != pass {
            Some("clock")
        } else if is_stale(self.role_at, ROLE_FRESH) {
            Some("role")
        } else {
            None
        }
    }
}

/// A SET or an extension is about to be written: were the nodes looked at?
pub fn check_looked(
    looks: &[Looks],
    times: (u64, u64),
    pass: u64,
    nodes: NodeSet,
    token: &LockToken,
) -> Option<Failure> {
    nodes.iter().find_map(|slot| {
        let missing = looks[slot].missing(times, pass)?;
        let text = format!(
            "{} is sent without a look at node {slot}'s {missing}",
            Short(token.as_bytes())
        );
        Some(("LOOK", text))
    })
}

impl World {
    /// A client has read that a SET was refused. On a connection that it has given up it does not
    /// listen.
    pub fn note_refused(&mut self, client: usize, slot: usize) {
        let it = &mut self.clients[client];
        if it.engine.node(slot).is_open() {
            it.looks[slot].refused_at = Some(it.told);
        }
    }

    /// A client has read a reply on a connection. If it tells the server's time, and that has
    /// jumped since it was told before, the client must notice.
    pub fn note_told(&mut self, client: usize, slot: usize, id: usize) {
        let connection = &mut self.connections[id];
        let index = connection.replies - 1;
        let Some((_, said)) = connection.times.front().copied().filter(|(at, _)| *at == index)
        else {
            return;
        };
        connection.times.pop_front();
        let sent = connection.time_asked.pop_front();
        let node = connection.node;
        let it = &mut self.clients[client];
        let state = it.engine.statuses().nth(slot).map(|status| status.state);
        let is_heard = matches!(
            state,
            Some(NodeState::Handshaking | NodeState::Ready | NodeState::Quarantined)
        );
        let (Some(sent), Some(said), true) = (sent, said, is_heard) else {
            return;
        };
        let read = it.steady;
        let looks = &mut it.looks[slot];
        let before = looks.told.replace(Told { node, said, sent });
        let has_jumped = before.filter(|before| before.node == node).is_some_and(|before| {
            let passed = read.saturating_sub(before.sent);
            said.saturating_sub(before.said) > passed + passed / 100 + JUMP_MIN + SLACK
        });
        if has_jumped {
            let until = self.now + self.plan.max_ttl / 100 * 99;
            looks.jumped = Some((self.now, until));
            self.rare.hit(Rare::JumpSeen);
        }
    }
}
