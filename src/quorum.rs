//! Majorities: how many votes make a quorum, and when a round is decided.

use std::fmt;

/// The maximum number of nodes.
pub const NODES_MAX: usize = 64;

/// The number of votes in a quorum of `nodes` nodes: more than half of the whole list. For zero
/// nodes it returns 1.
///
/// "The client [...] considers the lock acquired only if it was able to acquire the lock in the
/// majority of the instances (at least 3)": Redis documentation, *Distributed Locks with Redis*.
///
/// ```
/// assert_eq!(muxlock::quorum(5), 3);
/// assert_eq!(muxlock::quorum(4), 3);
/// assert_eq!(muxlock::quorum(1), 1);
/// ```
pub const fn quorum(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// The state of a round of votes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The outcome is still open.
    Pending,
    /// A quorum granted.
    Won,
    /// A quorum can no longer grant.
    Lost,
}

/// The votes of one round, counted. The round is decided as soon as its result is certain (R4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Invariant: `granted + refused + failed <= nodes`.
    nodes: u8,
    /// The number of votes that make a quorum.
    needed: u8,
    granted: u8,
    refused: u8,
    failed: u8,
}

impl Tally {
    pub(crate) fn new(nodes: usize) -> Tally {
        assert!((1..=NODES_MAX).contains(&nodes), "a round has 1 to {NODES_MAX} nodes");
        Tally { nodes: nodes as u8, needed: quorum(nodes) as u8, granted: 0, refused: 0, failed: 0 }
    }

    #[inline]
    pub(crate) fn grant(&mut self) {
        self.granted += 1;
        self.check();
    }

    #[inline]
    pub(crate) fn refuse(&mut self) {
        self.refused += 1;
        self.check();
    }

    #[inline]
    pub(crate) fn fail(&mut self) {
        self.failed += 1;
        self.check();
    }

    #[inline]
    fn check(&self) {
        let counted = self.granted + self.refused + self.failed;
        assert!(counted <= self.nodes, "one vote per node and round");
    }

    /// So many yes votes are open again.
    pub(crate) fn take_back_grants(&mut self, count: usize) {
        assert!(count <= self.granted(), "only votes that were given are taken back");
        self.granted -= count as u8;
    }

    pub(crate) fn granted(&self) -> usize {
        usize::from(self.granted)
    }

    pub(crate) fn refused(&self) -> usize {
        usize::from(self.refused)
    }

    pub(crate) fn failed(&self) -> usize {
        usize::from(self.failed)
    }

    pub(crate) fn undecided(&self) -> usize {
        usize::from(self.nodes) - self.granted() - self.refused() - self.failed()
    }

    #[inline]
    pub(crate) fn verdict(&self) -> Verdict {
        if self.granted >= self.needed {
            Verdict::Won
        } else if self.refused + self.failed > self.nodes - self.needed {
            Verdict::Lost
        } else {
            Verdict::Pending
        }
    }

    /// Whether a quorum answered, yes or no.
    pub(crate) fn is_quorum_answered(&self) -> bool {
        self.granted + self.refused >= self.needed
    }

    /// Whether the last counted vote completed a quorum of answers.
    #[inline]
    pub(crate) fn is_quorum_answered_just_now(&self) -> bool {
        self.granted + self.refused == self.needed
    }

    /// Whether the refusals alone make a quorum impossible.
    pub(crate) fn refusals_deny_quorum(&self) -> bool {
        self.nodes - self.refused < self.needed
    }

    /// Whether the failed nodes alone make a quorum impossible. If not, the round was lost to
    /// another client's lock.
    pub(crate) fn failures_deny_quorum(&self) -> bool {
        self.nodes - self.failed < self.needed
    }
}

/// A set of nodes, by index.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct NodeSet(u64);

impl NodeSet {
    /// The empty set.
    pub const EMPTY: NodeSet = NodeSet(0);

    pub(crate) fn all(nodes: usize) -> NodeSet {
        assert!((1..=NODES_MAX).contains(&nodes), "a set has 1 to {NODES_MAX} nodes");
        NodeSet(u64::MAX >> (NODES_MAX - nodes))
    }

    pub(crate) fn one(node: usize) -> NodeSet {
        NodeSet(1 << node)
    }

    pub(crate) fn insert(&mut self, node: usize) {
        self.0 |= 1 << node;
    }

    pub(crate) fn remove(&mut self, node: usize) {
        self.0 &= !(1 << node);
    }

    pub(crate) fn extend(&mut self, nodes: NodeSet) {
        self.0 |= nodes.0;
    }

    /// The nodes that are in both sets.
    pub(crate) fn and(self, other: NodeSet) -> NodeSet {
        NodeSet(self.0 & other.0)
    }

    /// The nodes that are in this set and not in the other.
    pub(crate) fn without(self, other: NodeSet) -> NodeSet {
        NodeSet(self.0 & !other.0)
    }

    /// Whether the set contains the node, which must be less than [`NODES_MAX`].
    pub fn contains(self, node: usize) -> bool {
        self.0 & (1 << node) != 0
    }

    /// Whether the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The number of nodes in the set.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// The nodes, in ascending order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            if rest == 0 {
                return None;
            }
            let node = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            Some(node)
        })
    }
}

impl FromIterator<usize> for NodeSet {
    fn from_iter<T: IntoIterator<Item = usize>>(nodes: T) -> NodeSet {
        NodeSet(nodes.into_iter().fold(0, |set, node| set | 1 << node))
    }
}

impl fmt::Debug for NodeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(nodes: usize, granted: usize, refused: usize, failed: usize) -> Tally {
        let mut tally = Tally::new(nodes);
        (0..granted).for_each(|_| tally.grant());
        (0..refused).for_each(|_| tally.refuse());
        (0..failed).for_each(|_| tally.fail());
        tally
    }

    #[test]
    fn quorum_is_more_than_half_and_any_two_overlap() {
        let expected = [1, 2, 2, 3, 3, 4, 4, 5, 5];
        for (nodes, expected) in (1..=9).zip(expected) {
            assert_eq!(quorum(nodes), expected);
        }
        for nodes in 1..=NODES_MAX {
            assert!(2 * quorum(nodes) > nodes);
            assert!(quorum(nodes) <= nodes);
        }
    }

    fn check(nodes: usize, granted: usize, refused: usize, failed: usize) {
        let (tally, needed) = (tally(nodes, granted, refused, failed), quorum(nodes));
        assert_eq!((tally.granted(), tally.refused(), tally.failed()), (granted, refused, failed));
        let open = nodes - granted - refused - failed;
        assert_eq!(tally.undecided(), open);
        let expected = match (granted + open >= needed, granted >= needed) {
            (true, true) => Verdict::Won,
            (true, false) => Verdict::Pending,
            (false, _) => Verdict::Lost,
        };
        assert_eq!(tally.verdict(), expected, "{tally:?}");
        let answered = granted + refused;
        assert_eq!(tally.is_quorum_answered(), answered >= needed, "{tally:?}");
        assert_eq!(tally.is_quorum_answered_just_now(), answered == needed);
        assert_eq!(tally.refusals_deny_quorum(), nodes - refused < needed);
        assert_eq!(tally.failures_deny_quorum(), nodes - failed < needed);
    }

    #[test]
    fn tally_tells_apart_who_said_what_and_falls_exactly_when_that_decides() {
        for nodes in 1..=9 {
            for granted in 0..=nodes {
                for refused in 0..=nodes - granted {
                    for failed in 0..=nodes - granted - refused {
                        check(nodes, granted, refused, failed);
                    }
                }
            }
        }
    }

    #[test]
    fn failures_alone_explain_a_loss_only_from_a_blocking_minority_on() {
        assert!(!tally(5, 0, 3, 2).failures_deny_quorum());
        assert!(tally(5, 0, 0, 3).failures_deny_quorum());
        assert!(tally(5, 2, 0, 3).failures_deny_quorum());
        assert!(tally(2, 1, 0, 1).failures_deny_quorum());
        assert!(!tally(4, 2, 1, 1).failures_deny_quorum());
        assert!(tally(4, 2, 0, 2).failures_deny_quorum());
    }

    #[test]
    #[should_panic(expected = "one vote per node")]
    fn a_vote_too_many_is_our_bug() {
        tally(3, 2, 1, 1);
    }

    #[test]
    fn sets_hold_every_node() {
        let mut set = NodeSet::all(NODES_MAX);
        assert_eq!(set.len(), NODES_MAX);
        set.remove(63);
        assert!(!set.contains(63) && set.contains(62));
        assert_eq!(NodeSet::all(3).iter().collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(NodeSet::one(5).iter().collect::<Vec<_>>(), [5]);
        assert!(NodeSet::EMPTY.is_empty());
    }

    #[test]
    fn sets_are_joined_cut_and_subtracted() {
        let of = |nodes: &[usize]| {
            let mut set = NodeSet::EMPTY;
            nodes.iter().for_each(|node| set.insert(*node));
            assert_eq!(set, nodes.iter().copied().collect());
            set
        };
        let (one, other) = (of(&[0, 2, 63]), of(&[2, 3]));
        assert_eq!(one.iter().collect::<Vec<_>>(), [0, 2, 63]);
        assert!(!one.is_empty() && !one.contains(1) && one.contains(63));
        assert_eq!((one.len(), NodeSet::EMPTY.len()), (3, 0));
        assert_eq!(one.and(other), of(&[2]));
        assert_eq!(one.without(other), of(&[0, 63]));
        let mut both = one;
        both.extend(other);
        assert_eq!(both, of(&[0, 2, 3, 63]));
        both.insert(3);
        both.remove(1);
        assert_eq!(both, of(&[0, 2, 3, 63]), "what is so stays so");
        both.remove(2);
        assert_eq!(both, of(&[0, 3, 63]));
    }
}
