//! What a Redis process is and says of itself, apart from its data.

use std::fmt::Write;

use super::clock::SECOND;

/// A state in which a server refuses commands (section F).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// `-OOM`: what takes memory.
    Memory,
    /// `-MISCONF`: what writes.
    Disk,
    /// `-NOREPLICAS`: what writes.
    Replicas,
    /// `-BUSY`: nearly all.
    Busy,
    /// `-NOPERM`: what the user may not do.
    Permission,
    /// `-MOVED`, `-CLUSTERDOWN` and the like.
    Cluster,
    /// `EVAL` is renamed.
    Scripts,
    /// `-NOPERM`: the commands of its own that delete.
    Deletes,
    /// `-ERR max number of clients reached`, to new connections.
    Clients,
}

impl Refusal {
    pub const ALL: [Refusal; 9] = [
        Refusal::Memory,
        Refusal::Disk,
        Refusal::Replicas,
        Refusal::Busy,
        Refusal::Permission,
        Refusal::Cluster,
        Refusal::Scripts,
        Refusal::Deletes,
        Refusal::Clients,
    ];
}

/// What a server has to compare and delete with, beside scripts, and what it says of that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Make {
    /// The commands that it has, in small letters.
    pub has: &'static [&'static str],
    /// What this user may not run.
    pub forbids: &'static [&'static str],
    /// Which of them its version is known for: forks report versions of others.
    pub claims: &'static str,
}

impl Make {
    /// Redis 7: nothing.
    pub const PLAIN: Make = Make { has: &[], forbids: &[], claims: "" };
    /// All that there are.
    pub const ALL: [Make; 8] = [
        Make::PLAIN,
        Make { has: &["delex"], claims: "delex", ..Make::PLAIN },
        Make { has: &["delifeq"], claims: "delifeq", ..Make::PLAIN },
        Make { claims: "delex", ..Make::PLAIN },
        Make { has: &["delex"], forbids: &["delex"], claims: "delex" },
        Make { has: &["delifeq"], forbids: &["delifeq"], claims: "delifeq" },
        Make { has: &["delex"], claims: "delifeq", ..Make::PLAIN },
        Make { has: &["delex", "delifeq"], claims: "delifeq", ..Make::PLAIN },
    ];
}

/// A process' identity and state.
#[derive(Debug, Clone)]
pub struct Server {
    /// 40 hexadecimal digits, new for each process.
    pub run_id: String,
    /// Its data's history: kept by a restart from disk only in theory, and never here.
    pub replication_id: String,
    /// Where its history parted from that of the master it had; -1 if it never had one.
    pub second_offset: i64,
    /// The whole second of its wall clock at which it started.
    pub started: u64,
    /// By how much its cached clock is late, in nanoseconds: it is read ten times a second.
    pub staleness: u64,
    pub is_replica: bool,
    /// Whether a replica takes writes that its master will never see.
    pub is_writable: bool,
    pub is_loading: bool,
    pub password: Option<String>,
    pub max_memory: u64,
    pub policy: &'static str,
    /// How many keys it has evicted.
    pub evicted: u64,
    pub refusals: Vec<Refusal>,
    /// Whether `CLIENT KILL` is what [`Refusal::Permission`] forbids, and not writing.
    pub forbids_kill: bool,
    pub cluster_error: &'static str,
    pub make: Make,
    /// The scripts that it runs by their hash: those that it has run.
    pub kept_scripts: Vec<&'static str>,
    /// Commands for waiting that it does not know.
    pub lacks: Vec<&'static str>,
    /// Commands for waiting that this user may not run, with their subcommands.
    pub forbids: Vec<&'static str>,
}

/// A name of a process or of a history. Those of real servers differ in each of their digits; here,
/// they do in the first 32, which are all that a client need keep.
pub fn random_name(kind: u64, count: u64) -> String {
    format!("{:032x}{:08x}", u128::from(kind) << 64 | u128::from(count), 0)
}

impl Server {
    /// A process that starts when its wall clock shows `wall`.
    pub fn new(run_id: String, replication_id: String, wall: u64) -> Server {
        Server {
            run_id,
            replication_id,
            second_offset: -1,
            started: wall / SECOND,
            staleness: 0,
            is_replica: false,
            is_writable: false,
            is_loading: false,
            password: None,
            max_memory: 0,
            policy: "noeviction",
            evicted: 0,
            refusals: Vec::new(),
            forbids_kill: false,
            cluster_error: "CLUSTERDOWN Hash slot not served",
            make: Make::PLAIN,
            kept_scripts: Vec::new(),
            lacks: Vec::new(),
            forbids: Vec::new(),
        }
    }

    pub fn refuses(&self, refusal: Refusal) -> bool {
        self.refusals.contains(&refusal)
    }

    /// Whether it may delete any key when it is full.
    pub fn evicts(&self) -> bool {
        self.max_memory > 0 && self.policy != "noeviction"
    }

    /// What `-NOPERM` is said to.
    pub fn is_forbidden(&self, name: &str, words: &[&[u8]]) -> bool {
        let deletes = matches!(name, "delex" | "delifeq");
        if self.make.forbids.contains(&name) || deletes && self.refuses(Refusal::Deletes) {
            return true;
        }
        let is_it = |forbidden: &&str| match forbidden.split_once('|') {
            Some((command, rest)) => {
                let is_rest = |word: &&&[u8]| word.eq_ignore_ascii_case(rest.as_bytes());
                command == name && words.get(1).filter(is_rest).is_some()
            }
            None => **forbidden == *name,
        };
        if self.forbids.iter().any(is_it) {
            return true;
        }
        self.refuses(Refusal::Permission) && self.is_forbidden_for_now(name, words)
    }

    fn is_forbidden_for_now(&self, name: &str, words: &[&[u8]]) -> bool {
        match self.forbids_kill {
            true => name == "client" && words[1].eq_ignore_ascii_case(b"kill"),
            false => name == "set",
        }
    }

    pub fn cluster_error(&self) -> String {
        self.cluster_error.into()
    }

    /// The answer to `INFO`, with the fields that say something to a lock client.
    pub fn info(&self, sections: &[&[u8]], clients: usize, wall: u64) -> Vec<u8> {
        let mut out = String::new();
        let wanted = |name: &str| {
            sections.is_empty()
                || sections.iter().any(|word| word.eq_ignore_ascii_case(name.as_bytes()))
        };
        for name in ["Server", "Clients", "Memory", "Persistence", "Stats", "Replication"] {
            if !wanted(name) {
                continue;
            }
            if !out.is_empty() {
                out.push_str("\r\n");
            }
            field(&mut out, format_args!("# {name}"));
            match name {
                "Server" => self.describe_process(&mut out, wall),
                "Clients" => field(&mut out, format_args!("connected_clients:{clients}")),
                "Memory" => self.describe_memory(&mut out),
                "Stats" => field(&mut out, format_args!("evicted_keys:{}", self.evicted)),
                "Persistence" => self.describe_persistence(&mut out),
                _ => self.describe_replication(&mut out),
            }
        }
        out.into_bytes()
    }

    fn describe_process(&self, out: &mut String, wall: u64) {
        let uptime = (wall.saturating_sub(self.staleness) / SECOND).saturating_sub(self.started);
        let mode = if self.refuses(Refusal::Cluster) { "cluster" } else { "standalone" };
        let version = if self.make.claims == "delex" { "8.4.0" } else { "7.0.15" };
        field(out, format_args!("redis_version:{version}"));
        if self.make.claims == "delifeq" {
            field(out, format_args!("server_name:valkey"));
            field(out, format_args!("valkey_version:9.0.0"));
        }
        field(out, format_args!("redis_mode:{mode}"));
        field(out, format_args!("process_id:1"));
        field(out, format_args!("run_id:{}", self.run_id));
        field(out, format_args!("tcp_port:6379"));
        field(out, format_args!("server_time_usec:{}", wall / 1_000));
        field(out, format_args!("uptime_in_seconds:{uptime}"));
        field(out, format_args!("uptime_in_days:{}", uptime / 86_400));
    }

    fn describe_memory(&self, out: &mut String) {
        field(out, format_args!("used_memory:1048576"));
        field(out, format_args!("maxmemory:{}", self.max_memory));
        field(out, format_args!("maxmemory_policy:{}", self.policy));
    }

    fn describe_persistence(&self, out: &mut String) {
        field(out, format_args!("loading:{}", u8::from(self.is_loading)));
        field(out, format_args!("async_loading:0"));
        field(out, format_args!("aof_enabled:0"));
    }

    fn describe_replication(&self, out: &mut String) {
        let role = if self.is_replica { "slave" } else { "master" };
        field(out, format_args!("role:{role}"));
        field(out, format_args!("connected_slaves:0"));
        field(out, format_args!("master_replid:{}", self.replication_id));
        field(out, format_args!("master_replid2:{}", "0".repeat(40)));
        field(out, format_args!("master_repl_offset:0"));
        field(out, format_args!("second_repl_offset:{}", self.second_offset));
    }
}

fn field(out: &mut String, line: std::fmt::Arguments<'_>) {
    write!(out, "{line}\r\n").expect("a string takes all");
}
