//! Situations that a run must come into now and then, or it proves nothing about them.

/// Declares the situations, each with its name in the report.
macro_rules! situations {
    ($($name:ident => $text:literal,)*) => {
        /// A situation worth counting.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Rare { $($name,)* }

        impl Rare {
            /// All of them.
            pub const ALL: &[Rare] = &[$(Rare::$name,)*];

            /// What it is called.
            pub fn name(self) -> &'static str {
                match self { $(Rare::$name => $text,)* }
            }
        }
    };
}

situations! {
    Granted => "lock granted",
    Contended => "lock refused: contended",
    Unavailable => "lock refused: unavailable",
    LateQuorum => "quorum that came too late",
    EarlyReturn => "lock granted before all nodes answered",
    Straggler => "straggler granted after the hand-out",
    Retry => "round after a failed round",
    GiveUpInRound => "patience ended in the middle of a round",
    GhostSet => "SET executed after its connection was closed",
    FrozenGhost => "dead SET executed when its server thawed",
    KillBarrier => "CLIENT KILL ended a connection",
    KillRefused => "CLIENT KILL refused",
    DebtExpired => "debt that expired unpaid",
    QuarantinedGrant => "grant of a forgetful node, not counted",
    QuarantineEnded => "node votes again after its quarantine",
    Extended => "extension",
    ExtensionLate => "extension that came too late",
    ExtensionMinority => "extension granted by a minority",
    CancelledAcquisition => "acquisition cancelled",
    CancelledEnd => "acquisition cancelled that had ended",
    CancelledExtension => "extension cancelled",
    CancelledSuccess => "extension cancelled that had succeeded",
    CancelledRelease => "release cancelled",
    Healed => "key set by an extension",
    HealRefused => "extension that could have set a key, refused",
    GhostHeal => "key set by an extension after its connection was closed",
    HealCounted => "extension that counted a key that it set",
    HealAfterTwoLosses => "extension that counted a key that it set, after two lost connections",
    ExtendedAfterLoss => "extension after a lost connection",
    Renewed => "renewal by the engine",
    KeptLost => "lock lost that the engine renewed",
    KeptGone => "renewal refused by a quorum",
    KeptStopped => "lock taken back from the engine",
    KeptLong => "lock renewed for longer than three times its time to live",
    HandedOver => "lock handed over",
    HandedOverUnanswered => "lock handed over with a command unanswered",
    HandedOverLost => "lock handed over after a lost connection",
    AdoptedExtended => "lock handed over and extended",
    AdoptedInDoubt => "lock handed over in doubt and extended",
    GiverLost => "connection lost with a command of a lock that was handed over",
    RelayedExtension => "extension by the next owner after a lost SET has run",
    LateSet => "extension when what was lost with a SET was to be over",
    LateHeal => "lock given back by its next owner with a lost extension on its way",
    GiverSet => "SET of a lock executed after it was handed over",
    GiverRestarted => "client restarted that had handed a lock over",
    TakerStarted => "lock handed to a client that had just started",
    ReleasedByDelex => "lock deleted by DELEX",
    ReleasedByDelifeq => "lock deleted by DELIFEQ",
    DeleteForbidden => "listed delete that the user may not run",
    DeleteRefused => "release refused since DELEX or DELIFEQ was forbidden",
    ReleasedAbsent => "release answered with absent",
    ReleaseUnconfirmed => "release that no quorum confirmed",
    Fenced => "fenced lock granted",
    FencedBySecond => "fenced lock granted after a second round trip",
    LateEqualGrant => "late grant with the lock's number, counted",
    LateGreaterGrant => "late grant with a greater number",
    LateSmallerGrant => "late grant with a smaller number, raised",
    RaiseRefused => "raise refused",
    RaiseTimedOut => "raise timed out",
    RaiseLost => "raise lost with its connection",
    RaiseQuarantined => "raise answered by a node in quarantine",
    ClampUp => "number raised to near the server's clock",
    ClampDown => "proposal cut to near the server's clock",
    NoProposal => "fenced lock asked for without a proposal",
    CounterLost => "counters lost",
    CounterSetBack => "counters set back by a restart",
    CounterText => "counters replaced by text",
    NeighbourBetween => "counter raised by another between grant and raise",
    StaleWriteRefused => "write with a stale number refused",
    FencedExtended => "fenced lock extended",
    FencedHealed => "fenced lock healed",
    FencedAdopted => "fenced lock handed over",
    PartialWrite => "partial write",
    PartialRead => "partial read",
    AnsweredBeside => "silent connection given up for an answer beside it",
    SplitReply => "message cut in two",
    Blocked => "backlog: a socket took no more",
    PausedPastDeadline => "holder paused past its deadline",
    ClientRestart => "client restarted",
    CrashDurable => "crash that lost nothing",
    CrashWithLoss => "crash that lost locks",
    BootStep => "restart with a lying uptime",
    Loading => "server seen while loading",
    ScriptsForgotten => "scripts that a server forgot",
    Demoted => "demoted master seen",
    Promoted => "promoted replica seen",
    FromRdb => "start from the file of a master that had a replica",
    Sighted => "sighting stored on a promoted server",
    SightingCounted => "promoted server that votes for a client at once",
    Elected => "server that was elected a short time ago",
    ElectedMeanwhile => "connection to a server in whose place another was elected",
    Moved => "process at another node's address",
    Duplicate => "one server under two addresses",
    Evicting => "server that evicts, refused",
    JumpSeen => "jump of a server's clock that could be seen",
    GrantAfterJump => "grant of a server whose clock had jumped, not counted",
    BlindGrant => "grant counted although its server had forgotten, unnoticed",
    ClockStepDetected => "clock step detected",
    PartlyResynced => "replica that lost a key to its master and told nobody",
    FlushTold => "flush that the server told of",
    FlushElsewhere => "flush of another database",
    Poisoned => "connection closed on a foreign frame",
    Surplus => "connection closed on a surplus reply",
    ErrorMemory => "error reply: OOM",
    ErrorDisk => "error reply: MISCONF",
    ErrorReplicas => "error reply: NOREPLICAS",
    ErrorBusy => "error reply: BUSY",
    ErrorPermission => "error reply: NOPERM",
    ErrorCluster => "error reply: MOVED and the like",
    ErrorScripts => "error reply: unknown command",
    ErrorClients => "error reply: max number of clients",
    ErrorReadOnly => "error reply: READONLY",
    ErrorLoading => "error reply: LOADING",
    ErrorAuth => "error reply: NOAUTH",
    ErrorType => "error reply: WRONGTYPE",
    Crowd => "crowd for one lock",
    HandOff => "crowd whose hand-offs were timed",
    Vigil => "lock held for long by a stranger",
    PlacesKept => "places of clients that do not wait any longer",
    LateAfterIdle => "first answer after a long pause that is late",
    LeapInQuarantine => "clock that leaps between two causes of a quarantine",
    RowBehind => "client that waits while a line of another takes the lock again and again",
    RowElsewhere => "client that waits at another queue node meanwhile",
    RowBarred => "client that waits where the line may not",
    MovedInExtension => "process that changes its place while a lock is extended",
    LineHeir => "waiter that went on in the place of one without patience",
    LineOwn => "wait for what the same client had as another kind",
    MixedKinds => "plain locks and another kind in turn",
    FarWriter => "writer far away that got in beside readers",
    FullKept => "lock of another kind kept by a full master",
    FullFreed => "lock of another kind released by a full master",
    PlaceBehindPause => "place of one that waits no longer, behind one that stands still",
    SecondElsewhere => "second in a queue that waits at another queue node",
    LongerKey => "stranger's key that outlives the others",
    MuteMajority => "stranger's keys where nobody can wait",
    Shared => "share granted",
    Downgraded => "lock turned into a share",
    SetTaken => "several resources granted at once",
    Permit => "permit granted",
    WithValue => "lock with a value granted",
    CancelledLook => "inspection cancelled",
    OwnerNamed => "owner named",
    OwnerUnknown => "owner asked for, and no quorum says the same",
    NamedMinority => "lock named by its value that no quorum has",
    FreedLive => "lock released by its value while its holder goes on",
    FreedLeft => "lock released by its value that nobody held",
    FreedPlain => "plain lock released by its value",
    FreedGone => "lock that was gone when its release by value came",
    ExtendedFreed => "extension after a release by value, refused",
}

/// How often each situation occurred.
#[derive(Debug, Clone)]
pub struct Counts([u64; Rare::ALL.len()]);

impl Counts {
    pub fn new() -> Counts {
        Counts([0; Rare::ALL.len()])
    }

    pub fn hit(&mut self, rare: Rare) {
        self.0[rare as usize] += 1;
    }

    pub fn hit_if(&mut self, is_it: bool, rare: Rare) {
        self.0[rare as usize] += u64::from(is_it);
    }

    pub fn of(&self, rare: Rare) -> u64 {
        self.0[rare as usize]
    }

    pub fn add(&mut self, other: &Counts) {
        self.0.iter_mut().zip(&other.0).for_each(|(sum, more)| *sum += more);
    }

    /// The situation that an error reply is.
    pub fn hit_error(&mut self, text: &str) {
        const CODES: [(&str, Rare); 12] = [
            ("OOM", Rare::ErrorMemory),
            ("MISCONF", Rare::ErrorDisk),
            ("NOREPLICAS", Rare::ErrorReplicas),
            ("BUSY", Rare::ErrorBusy),
            ("NOPERM", Rare::ErrorPermission),
            ("MOVED", Rare::ErrorCluster),
            ("CLUSTERDOWN", Rare::ErrorCluster),
            ("READONLY", Rare::ErrorReadOnly),
            ("LOADING", Rare::ErrorLoading),
            ("NOAUTH", Rare::ErrorAuth),
            ("WRONGTYPE", Rare::ErrorType),
            ("ERR unknown command", Rare::ErrorScripts),
        ];
        if let Some((_, rare)) = CODES.iter().find(|(code, _)| text.starts_with(code)) {
            self.hit(*rare);
        }
    }
}

impl Default for Counts {
    fn default() -> Counts {
        Counts::new()
    }
}
