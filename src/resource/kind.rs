//! The kinds of lock: one row of a table for each. Its scripts are in `resp`.

/// What is locked under a name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum LockKind {
    /// One key, which has one holder.
    Plain,
    /// Several such keys at once: all the names, in the order of their bytes (K1).
    Set(Vec<Vec<u8>>),
    /// A share of one key.
    Shared,
    /// One key, which may be shared by others: a plain lock, once it is taken.
    Exclusive,
    /// One of so many keys, whichever is free, or this one: the plain lock of it, once it is taken.
    Slot { of: u8, slot: Option<u8> },
    /// One key with the caller's own value.
    Value(Vec<u8>),
}

/// What sets a kind of lock apart.
#[derive(Debug)]
pub(crate) struct KindRow {
    /// What the resource is called in `Debug`.
    pub(crate) name: &'static str,
    /// Its number in the text of a hand-over. A slot is never held.
    pub(crate) number: u8,
    /// What is tried before its first command on a connection, unless the handshake has.
    pub(crate) trial: Option<Trial>,
    /// What keeps, heals and frees it once it is taken.
    pub(crate) kept_by: KeptBy,
    pub(crate) keys: Keys,
    pub(crate) refusal: Refusal,
    pub(crate) queue: QueueOf,
    pub(crate) asks: AskPolicy,
    /// Whether it may become a share while it is held (K7).
    pub(crate) sharing: Sharing,
}

/// The commands that the scripts of a kind of lock call: they are tried together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trial {
    /// The commands that every lock needs.
    Plain,
    /// Several resources at once.
    Several,
    /// Permits.
    Permits,
    /// Read locks and write locks.
    Shares,
    /// Locks with an owner value.
    Owned,
    /// Locks with a fencing token.
    Fenced,
}

impl Trial {
    pub(crate) const ALL: [Trial; 6] =
        [Trial::Plain, Trial::Several, Trial::Permits, Trial::Shares, Trial::Owned, Trial::Fenced];
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeptBy {
    /// The commands of a plain lock.
    PlainCommands,
    /// Scripts of its own.
    OwnScripts,
}

/// The keys that its scripts are given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keys {
    /// One for each name.
    Names,
    /// The name, and one that ends with this.
    And(&'static [u8]),
    /// One for each slot.
    Slots,
}

/// What a refusal tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// That it is held.
    Held,
    /// Which of the names is held.
    HeldName,
    /// Which slots are free.
    FreeSlots,
    /// That it is held. It has left a sign that holds new readers off (K6).
    Sign,
}

/// The plain key whose queue on a master a refused acquisition joins (K9).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QueueOf {
    /// Its own key's, as described in W1 to W15.
    Own,
    /// That of its name.
    OfName,
    /// That of the name which was held.
    OfHeldName,
    /// That of the slot it asked for. Any other slot will do as well.
    OfSlot,
}

/// Which acquisitions of one engine that wait for it ask the masters (K9).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AskPolicy {
    /// One asks, and the others wait behind it.
    One,
    /// Each asks, and those that wait for one place on the masters try one after the other.
    Each,
    /// Each asks, and all that wait for one place try together: they share the lock.
    All,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sharing {
    CanBeShared,
    Never,
}

/// How many numbers of kinds there are.
pub(crate) const KINDS: usize = 6;

const PLAIN: KindRow = KindRow {
    name: "Plain",
    number: 0,
    trial: None,
    kept_by: KeptBy::PlainCommands,
    keys: Keys::Names,
    refusal: Refusal::Held,
    queue: QueueOf::Own,
    asks: AskPolicy::One,
    sharing: Sharing::CanBeShared,
};

pub(super) const SET: KindRow = KindRow {
    name: "All",
    number: 1,
    trial: Some(Trial::Several),
    kept_by: KeptBy::OwnScripts,
    keys: Keys::Names,
    refusal: Refusal::HeldName,
    queue: QueueOf::OfHeldName,
    asks: AskPolicy::One,
    sharing: Sharing::Never,
};

const SHARED: KindRow = KindRow {
    name: "Shared",
    number: 2,
    trial: Some(Trial::Shares),
    kept_by: KeptBy::OwnScripts,
    keys: Keys::And(INTENT),
    refusal: Refusal::Held,
    queue: QueueOf::OfName,
    asks: AskPolicy::All,
    sharing: Sharing::CanBeShared,
};

const EXCLUSIVE: KindRow = KindRow {
    name: "Exclusive",
    number: 3,
    trial: Some(Trial::Shares),
    kept_by: KeptBy::PlainCommands,
    keys: Keys::And(INTENT),
    refusal: Refusal::Sign,
    queue: QueueOf::OfName,
    asks: AskPolicy::One,
    sharing: Sharing::CanBeShared,
};

const SLOT: KindRow = KindRow {
    name: "Slot",
    number: 4,
    trial: Some(Trial::Permits),
    kept_by: KeptBy::PlainCommands,
    keys: Keys::Slots,
    refusal: Refusal::FreeSlots,
    queue: QueueOf::OfSlot,
    asks: AskPolicy::Each,
    sharing: Sharing::CanBeShared,
};

pub(super) const VALUE: KindRow = KindRow {
    name: "As",
    number: 5,
    trial: Some(Trial::Owned),
    kept_by: KeptBy::OwnScripts,
    keys: Keys::And(COMPANION),
    refusal: Refusal::Held,
    queue: QueueOf::OfName,
    asks: AskPolicy::One,
    sharing: Sharing::Never,
};

/// What a key's name ends with on which a client waits for readers to end.
const INTENT: &[u8] = b":intent";

/// What the name of the key ends with that stands beside one with a caller's value: a hash with the
/// token (K11).
const COMPANION: &[u8] = b":as";

impl LockKind {
    pub(crate) fn row(&self) -> &'static KindRow {
        match self {
            LockKind::Plain => &PLAIN,
            LockKind::Set(_) => &SET,
            LockKind::Shared => &SHARED,
            LockKind::Exclusive => &EXCLUSIVE,
            LockKind::Slot { .. } => &SLOT,
            LockKind::Value(_) => &VALUE,
        }
    }

    /// The kind with this number, of those without fields that are held.
    pub(super) fn of_number(number: u8) -> Option<LockKind> {
        let kinds = [LockKind::Plain, LockKind::Shared, LockKind::Exclusive];
        kinds.into_iter().find(|kind| kind.row().number == number)
    }
}
