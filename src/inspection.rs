//! The holder of a lock, as the masters report it: answers of
//! [`Redlock::inspect`](crate::Redlock::inspect) and [`Redlock::owner`](crate::Redlock::owner).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::outcome::{NodeOutcome, write_nodes};
use crate::quorum::quorum;
use crate::token::{Fingerprint, LockToken};

/// A node's value of a key, and its time to live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holding {
    holder: Fingerprint,
    /// Negative if the key never expires.
    left_ms: i64,
}

impl Holding {
    /// From a server's answer: the beginning of the key's value, and its time to live in
    /// milliseconds, negative if it has none.
    pub fn new(holder: Fingerprint, left_ms: i64) -> Holding {
        Holding { holder, left_ms }
    }

    /// The beginning of the key's value.
    pub fn holder(&self) -> Fingerprint {
        self.holder
    }

    /// The time until the key expires. `None` if it never does, because another program has set it
    /// without a TTL.
    pub fn expires_in(&self) -> Option<Duration> {
        u64::try_from(self.left_ms).ok().map(Duration::from_millis)
    }
}

/// Which value a node has for a key, and the token beside it: for a reply of the engine.
#[doc(hidden)]
#[derive(Clone, PartialEq, Eq)]
pub struct Owned {
    pub(crate) token: LockToken,
    /// At most one byte more than a caller's value may have.
    pub(crate) value: Box<[u8]>,
}

/// The value may be a secret.
impl fmt::Debug for Owned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Owned(..)")
    }
}

/// What a node answers to the two questions about a key.
#[derive(Debug, Clone)]
pub(crate) enum FoundKey {
    Holding(Holding),
    Owned(Box<Owned>),
}

/// The value that a resource is locked with: see [`Redlock::owner`](crate::Redlock::owner).
///
/// It is past when you read it, and no permission to do anything: only a lock is.
#[derive(Clone, PartialEq, Eq)]
pub enum Owner {
    /// A quorum of masters has no such key.
    Free,
    /// A quorum of masters has this value under the key. If the value is longer than
    /// [`try_lock_as`](crate::Redlock::try_lock_as) allows, this is its beginning.
    Value(Box<[u8]>),
    /// No quorum gave the same answer, or too few masters answered.
    Unknown,
}

/// Without the value, which may be a secret.
impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Owner::Free => "Free",
            Owner::Value(_) => "Value(..)",
            Owner::Unknown => "Unknown",
        })
    }
}

/// The masters' answers about a resource: see [`Redlock::inspect`](crate::Redlock::inspect).
///
/// It has the holder's fingerprint. `muxlock inspect` also looks up the holder's host, process and
/// program, which are in the names of connections ([`client_name`](crate::Builder::client_name)).
///
/// It is past when you read it, and no permission to do anything: only a lock is.
#[derive(Debug, Clone)]
pub struct Inspection {
    nodes: Vec<NodeInspection>,
}

/// One node's answer about a resource.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct NodeInspection {
    /// The node's index in the configuration, from 0.
    pub node: usize,
    /// Its address, without credentials.
    pub address: Arc<str>,
    /// [`Held`](NodeOutcome::Held) if the key exists, [`Absent`](NodeOutcome::Absent) if not, and
    /// otherwise why the node did not answer. A node in quarantine answers, although it has no
    /// vote.
    pub outcome: NodeOutcome,
    /// The cause in words, as in [`NodeReport::message`](crate::node::NodeReport::message).
    pub message: Option<Arc<str>>,
    /// The value and time to live on this node, if the key exists. `None` if its value has another
    /// type.
    pub holding: Option<Holding>,
    /// The same, if it was asked for the value.
    pub(crate) owned: Option<Box<Owned>>,
}

impl Inspection {
    pub(crate) fn new(nodes: Vec<NodeInspection>) -> Inspection {
        Inspection { nodes }
    }

    /// The answer of each node, in the order of configuration.
    pub fn nodes(&self) -> &[NodeInspection] {
        &self.nodes
    }

    /// Whether a quorum of nodes has answered.
    pub fn is_answered(&self) -> bool {
        let has_said = |node: &&NodeInspection| {
            matches!(node.outcome, NodeOutcome::Held | NodeOutcome::Absent)
        };
        self.nodes.iter().filter(has_said).count() >= quorum(self.nodes.len())
    }

    /// The holder whose value a quorum has. `None` if the resource is free, an attempt is in
    /// progress or has left keys behind, or too few nodes answered.
    pub fn holder(&self) -> Option<Fingerprint> {
        let holders = || self.nodes.iter().filter_map(|node| Some(node.holding?.holder));
        let has_quorum = |holder: &Fingerprint| {
            holders().filter(|other| other == holder).count() >= quorum(self.nodes.len())
        };
        holders().find(has_quorum)
    }

    /// Which value a quorum has, if the nodes were asked for it.
    #[doc(hidden)]
    pub fn owner(&self) -> Owner {
        let nodes = || self.nodes.iter();
        let free = nodes().filter(|node| node.outcome == NodeOutcome::Absent).count();
        let values = || nodes().filter_map(|node| Some(&*node.owned.as_ref()?.value));
        let quorum = quorum(self.nodes.len());
        let has_quorum = |value: &&[u8]| values().filter(|it| it == value).count() >= quorum;
        match values().find(has_quorum) {
            Some(value) => Owner::Value(value.into()),
            None if free >= quorum => Owner::Free,
            None => Owner::Unknown,
        }
    }

    /// The token that most of those nodes have beside this value that have it.
    #[doc(hidden)]
    pub fn token_beside(&self, value: &[u8]) -> LockToken {
        let with_value = |node: &NodeInspection| {
            node.owned.as_ref().filter(|owned| *owned.value == *value).map(|owned| owned.token)
        };
        let tokens = || self.nodes.iter().filter_map(with_value);
        let times = |token: &LockToken| tokens().filter(|other| other == token).count();
        tokens().max_by_key(times).unwrap_or(LockToken::NONE)
    }

    /// The time until a quorum of nodes has no key, unless a holder renews or releases it first;
    /// zero if the resource is free now. `None` if too few nodes answered, or too many have a key
    /// that never expires.
    pub fn free_in(&self) -> Option<Duration> {
        let mut waits: Vec<Duration> = self
            .nodes
            .iter()
            .filter_map(|node| match (node.outcome, node.holding) {
                (NodeOutcome::Absent, _) => Some(Duration::ZERO),
                (NodeOutcome::Held, Some(holding)) => holding.expires_in(),
                _ => None,
            })
            .collect();
        waits.sort_unstable();
        waits.get(quorum(self.nodes.len()) - 1).copied()
    }
}

impl fmt::Display for NodeInspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {} {}: ", self.node, self.address)?;
        match (self.outcome, self.holding) {
            (NodeOutcome::Held, Some(holding)) => match holding.expires_in() {
                Some(left) => write!(f, "held by {} for another {left:.1?}", holding.holder),
                None => write!(f, "held by {}, without a TTL", holding.holder),
            },
            (NodeOutcome::Held, None) => f.write_str("the key has a value of another type"),
            (NodeOutcome::Absent, _) => f.write_str("free"),
            (outcome, _) => match &self.message {
                Some(message) => write!(f, "{outcome}: {message}"),
                None => outcome.fmt(f),
            },
        }
    }
}

/// On one line: the holder of the resource, or that it is free, and the answer of each node.
impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has = |outcome| self.nodes.iter().filter(|node| node.outcome == outcome).count();
        let (total, held) = (self.nodes.len(), has(NodeOutcome::Held));
        match (self.holder(), self.free_in()) {
            (Some(holder), Some(left)) => {
                write!(f, "held by {holder}; free in {left:.1?} at the latest, unless renewed")?;
            }
            (Some(holder), None) => write!(f, "held by {holder}")?,
            (None, Some(Duration::ZERO)) if held == 0 => f.write_str("free")?,
            (None, _) if !self.is_answered() => {
                write!(f, "unknown: fewer than {} of {total} nodes answered", quorum(total))?;
            }
            (None, _) => write!(f, "no holder has a quorum; {held} of {total} nodes have a key")?,
        }
        write_nodes(&self.nodes, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An outcome, and the holder with its seconds.
    type FoundKey = (NodeOutcome, Option<(&'static str, Option<u64>)>);

    fn inspection(nodes: &[FoundKey]) -> Inspection {
        let nodes = nodes.iter().enumerate().map(|(node, (outcome, holding))| NodeInspection {
            message: None,
            node,
            address: format!("10.0.0.{node}").into(),
            outcome: *outcome,
            holding: holding.map(|(holder, left)| {
                let left_ms = left.map_or(-1, |seconds| 1_000 * i64::try_from(seconds).unwrap());
                Holding::new(Fingerprint::new(holder.as_bytes()), left_ms)
            }),
            owned: None,
        });
        Inspection::new(nodes.collect())
    }

    const FREE: FoundKey = (NodeOutcome::Absent, None);
    const DOWN: FoundKey = (NodeOutcome::NotConnected, None);

    fn held(holder: &'static str, left: impl Into<Option<u64>>) -> FoundKey {
        (NodeOutcome::Held, Some((holder, left.into())))
    }

    #[test]
    fn quorum_of_one_value_is_a_holder() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let table: [(&[_], Option<&str>, Option<Duration>, &str); 8] = [
            (&[FREE, FREE, DOWN], None, seconds(0), "free ("),
            (&[FREE, DOWN, DOWN], None, None, "unknown: fewer than 2 of 3 nodes answered ("),
            (
                &[held("aa", 9), held("aa", 5), FREE],
                Some("aa"),
                seconds(5),
                "held by aa; free in 5.0s at the latest, unless renewed (",
            ),
            (
                &[held("aa", 9), held("aa", 5), held("bb", 20)],
                Some("aa"),
                seconds(9),
                "held by aa; free in 9.0s",
            ),
            (
                &[held("aa", 9), held("bb", 5), FREE],
                None,
                seconds(5),
                "no holder has a quorum; 2 of 3 nodes have a key (",
            ),
            (&[held("aa", None), held("aa", None), FREE], Some("aa"), None, "held by aa ("),
            (&[held("aa", 9), held("aa", 5), DOWN], Some("aa"), seconds(9), "held by aa; free"),
            (&[FREE, FREE, held("aa", 3)], None, seconds(0), "no holder has a quorum; 1 of 3"),
        ];
        for (nodes, holder, free_in, text) in table {
            let inspection = inspection(nodes);
            let found = inspection.holder().map(|holder| holder.to_string());
            assert_eq!((found.as_deref(), inspection.free_in()), (holder, free_in), "{nodes:?}");
            assert!(inspection.to_string().starts_with(text), "{inspection}");
        }
        let shown = inspection(&[held("a\n", None), (NodeOutcome::Held, None), DOWN]).to_string();
        let nodes = "(node 0 10.0.0.0: held by a\\n, without a TTL; node 1 10.0.0.1: the key has \
             a value of another type; node 2 10.0.0.2: not connected yet)";
        assert!(shown.ends_with(nodes), "{shown}");
    }

    /// K13: of those that have the value, and of no others, however many they are.
    #[test]
    fn token_is_that_beside_the_value() {
        let token = |byte| LockToken::from_random([byte; 20]);
        let said = |said: &[(&str, LockToken)]| {
            let mut inspection = inspection(&vec![held("aa", 9); said.len()]);
            for (node, (value, token)) in inspection.nodes.iter_mut().zip(said) {
                let value = value.as_bytes().into();
                node.owned = Some(Box::new(Owned { value, token: *token }));
            }
            inspection
        };
        let (mine, theirs) = (("mine", token(1)), ("theirs", token(2)));
        assert_eq!(said(&[mine, theirs, theirs]).token_beside(b"mine"), token(1));
        assert_eq!(said(&[("mine", token(3)), mine, mine]).token_beside(b"mine"), token(1));
        assert_eq!(said(&[mine, mine, ("mine", token(3))]).token_beside(b"mine"), token(1));
        assert_eq!(said(&[theirs; 3]).token_beside(b"mine"), LockToken::NONE);
    }
}
