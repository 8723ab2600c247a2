//! Locks that are not one plain key: what their commands are about, and what must be true of them.

use muxlock::Resource;
use muxlock::node::ReleaseWith;
use muxlock::proto::{Command, KindCommand, KindStep, Lease};

use super::World;
use super::check::LastSet;
use super::clock::MILLI;
use super::network::{Trust, Yes};
use super::node::{companion, companion_token};
use super::own::NOBODY;
use super::rare::Rare;
use super::redis::{Change, ChangeKind, Key, Value, is_marker};
use super::timeline::Short;
use super::wire::Reply;
use crate::scripts::{
    FREE_ALL, FREE_AS, FREE_SHARED, KEEP_ALL, KEEP_AS, KEEP_SHARED, TAKE_ALL, TAKE_AS,
    TAKE_EXCLUSIVE, TAKE_SHARED, TAKE_SLOT,
};

/// How many permits there are.
const SLOTS: u32 = 2;
/// What callers lock a name with: so few that locks often have the same one.
pub const VALUES: [&str; 2] = ["one", "two"];
/// For how long a writer that waits, and is far away, may hold readers off.
const INTENT_MS: i64 = 5_000;

/// What a command does with a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Take,
    Keep,
    Free,
}

/// How the keys of a command are locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    All,
    Shared,
    Exclusive,
    Slot,
    /// With a caller's value.
    As,
}

/// A command for a lock that is not one plain key.
pub struct Form<'a> {
    pub step: Step,
    pub what: What,
    /// Those that are locked.
    pub keys: Vec<&'a [u8]>,
    pub token: &'a [u8],
    pub ttl: &'a [u8],
    /// A caller's value, or nothing.
    pub value: &'a [u8],
}

/// The scripts.
const SCRIPTS: [(&str, What, Step); 11] = [
    (TAKE_ALL, What::All, Step::Take),
    (KEEP_ALL, What::All, Step::Keep),
    (FREE_ALL, What::All, Step::Free),
    (TAKE_SHARED, What::Shared, Step::Take),
    (KEEP_SHARED, What::Shared, Step::Keep),
    (FREE_SHARED, What::Shared, Step::Free),
    (TAKE_EXCLUSIVE, What::Exclusive, Step::Take),
    (TAKE_SLOT, What::Slot, Step::Take),
    (TAKE_AS, What::As, Step::Take),
    (KEEP_AS, What::As, Step::Keep),
    (FREE_AS, What::As, Step::Free),
];

/// What a command is about, if it is one of these.
pub fn form<'a>(words: &[&'a [u8]]) -> Option<Form<'a>> {
    let [b"EVAL", script, count, rest @ ..] = words else {
        return None;
    };
    // A trial may stand in front of it.
    let (_, what, step) = *SCRIPTS.iter().find(|it| script.ends_with(it.0.as_bytes()))?;
    let count = std::str::from_utf8(count).ok()?.parse().ok()?;
    let (keys, args) = rest.split_at_checked(count)?;
    let &[token, ttl, extra, ..] = args else {
        return None;
    };
    let keys = match what {
        What::All => keys.to_vec(),
        What::Shared | What::Exclusive | What::As => vec![keys[0]],
        What::Slot => {
            let slot: usize = std::str::from_utf8(extra).ok()?.parse().ok()?;
            vec![keys[slot]]
        }
    };
    let value = match args {
        [.., value] if what == What::As => value,
        _ => &b""[..],
    };
    Some(Form { step, what, keys, token, ttl, value })
}

/// The command of a plain lock that is the same for checks.
pub fn as_plain<'a>(command: &Command<'a>) -> Command<'a> {
    let Command::OfKind(KindCommand { step, key, token, ttl, .. }) = *command else {
        return *command;
    };
    let key = key.as_bytes();
    match step {
        KindStep::Take { .. } => Command::Acquire { key, token, ttl },
        KindStep::Keep => Command::Extend { key, token, ttl },
        KindStep::Heal => Command::Heal { key, token, ttl },
        KindStep::Free => Command::Release { key, token, with: ReleaseWith::Script },
        KindStep::Look => Command::Inspect { key },
    }
}

/// Whether it is locked with a caller's value.
fn is_with_value(resource: &Resource) -> bool {
    format!("{resource:?}").starts_with("Resource(As")
}

/// Whether it is the sign of a writer that waits.
pub fn is_intent(key: &[u8]) -> bool {
    key.ends_with(b":intent")
}

impl World {
    /// What an application asks for, if it may be more than a plain lock.
    pub fn draw_form(&mut self, client: usize, resource: usize) -> (Resource, String) {
        let begin = self.plan.split(client).1;
        let names = self.plan.names.map(|name| [begin, name].concat());
        let name = &names[resource];
        let may = self.plan.forms && self.crowd.is_none() && self.vigil.is_none();
        let (made, shown) = match if may { self.choices.below(15) } else { 0 } {
            0..=3 => (Resource::new(name), name.clone()),
            10..=13 => {
                let value = self.choices.pick(&VALUES);
                (Resource::with_value(name, value), format!("{name} as {value}"))
            }
            14 => (Resource::new([name, ":as"].concat()), format!("{name}:as")),
            4 | 5 => (Resource::shared(name), format!("a share of {name}")),
            6 | 7 => (Resource::exclusive(name), format!("all of {name}")),
            8 => (Resource::all(&names), names.join(" and ")),
            _ => (Resource::slot(name, SLOTS), format!("a permit of {name}")),
        };
        (made.expect("a valid name"), shown)
    }

    /// The keys on the nodes that a lock has, and whether it is a share.
    pub fn keys_of(&self, client: usize, lease: &Lease) -> (Vec<Key>, bool) {
        let resource = lease.resource();
        let prefix = self.plan.split(client).0.as_bytes();
        let key = |name: &[u8]| (self.plan.db, [prefix, name].concat());
        let is_shared = format!("{resource:?}").starts_with("Resource(Shared");
        (resource.names().map(key).collect(), is_shared)
    }

    /// The application lets readers in from the next extension on.
    pub fn may_downgrade(&mut self, client: usize, lease: Lease) -> Lease {
        let (keys, is_shared) = self.keys_of(client, &lease);
        let has_value = is_with_value(lease.resource());
        let may = self.plan.forms && !is_shared && !has_value && keys.len() == 1;
        if !may || lease.fencing_token().is_some() || !self.choices.chance(300) {
            return lease;
        }
        self.downgrade(lease)
    }

    pub fn downgrade(&mut self, lease: Lease) -> Lease {
        self.rare.hit(Rare::Downgraded);
        let token = super::work::token_of(&lease);
        for held in self.checker.held.iter_mut().filter(|held| held.token == token) {
            held.is_shared = true;
        }
        lease.into_shared()
    }

    /// A grant, in the report.
    pub fn count_form(&mut self, client: usize, lease: &Lease) {
        let (keys, is_shared) = self.keys_of(client, lease);
        self.rare.hit_if(is_shared, Rare::Shared);
        self.rare.hit_if(keys.len() > 1, Rare::SetTaken);
        self.rare.hit_if(keys[0].1.contains(&b'{'), Rare::Permit);
        self.rare.hit_if(is_with_value(lease.resource()), Rare::WithValue);
    }

    /// What a server has changed for such a command: its own, and what is over (invariant 6).
    pub fn check_form(&mut self, node: usize, id: usize, form: &Form<'_>, changes: &[Change]) {
        if form.what == What::As {
            return self.check_own(node, id, form, changes);
        }
        let now = (self.nodes[node].wall(self.now) / MILLI) as i64;
        let had_own =
            changes.iter().filter_map(|it| it.before.as_ref()).any(|before| match before {
                Value::Text(text) => text == form.token,
                Value::Sorted(members) => members.get(form.token).is_some_and(|until| *until > now),
                _ => false,
            });
        for change in changes.iter().filter(|it| !is_marker(&it.key.1) && !is_intent(&it.key.1)) {
            let before = change.before.clone();
            let is_own = matches!(&before, Some(Value::Text(text)) if text == form.token);
            let is_wrong = match (change.kind, &before) {
                (ChangeKind::Set, None) => form.step == Step::Free,
                (ChangeKind::Set, _) => form.step != Step::Keep || !is_own,
                // An end that has passed deletes what is over.
                (ChangeKind::Delete, Some(Value::Sorted(members))) => {
                    members.values().any(|until| *until > now)
                }
                (ChangeKind::Delete, _) => !is_own || form.step == Step::Take,
                (ChangeKind::Member, None | Some(Value::Sorted(_))) => {
                    self.takes_anothers(node, now, form, change)
                }
                (ChangeKind::Expire, Some(Value::Sorted(_))) => false,
                (ChangeKind::Expire, Some(Value::Text(_))) => form.step != Step::Keep || !is_own,
                _ => true,
            };
            if is_wrong {
                let (kind, key) = (change.kind, change.key.1.escape_ascii().to_string());
                let text = format!("node {node}: {kind:?} of {key} for {}", Short(form.token));
                self.fail("CAD-ONLY", || text);
            }
            // What is raised, or becomes a share, was set before.
            let sets = match change.kind {
                ChangeKind::Set => !is_own,
                ChangeKind::Member => !had_own && self.nodes[node].has(&change.key, form.token),
                _ => false,
            };
            if sets && form.step != Step::Free {
                let healed = (form.step == Step::Keep).then_some(form.ttl);
                self.note_executed(node, id, form.token, healed);
            }
            if form.step == Step::Free {
                self.check_not_counted_on(node, id, form.token);
                self.check_sound(&change.key);
            }
        }
        for key in changes.iter().map(|change| &change.key) {
            let entry = self.nodes[node].redis.data.get(key);
            let (Some(Value::Sorted(members)), expires) =
                (entry.map(|it| &it.value), entry.and_then(|it| it.expires))
            else {
                continue;
            };
            if members.values().copied().max() != expires {
                let text = format!("node {node}: it ends at {expires:?}, with {members:?}");
                return self.fail("SHARE-CUT", || text);
            }
        }
    }

    /// The same, of a lock with a caller's value: what it is told by is the token beside it.
    fn check_own(&mut self, node: usize, id: usize, form: &Form<'_>, changes: &[Change]) {
        let key: Key = (self.connections[id].session.db, form.keys[0].to_vec());
        let beside = companion(&key);
        let before = |key: &Key| match changes.iter().find(|change| change.key == *key) {
            Some(change) => (change.before.clone(), change.ended),
            None => match self.nodes[node].redis.data.get(key) {
                Some(entry) => (Some(entry.value.clone()), entry.expires),
                None => (None, None),
            },
        };
        let ((held, end), (companion, companion_end)) = (before(&key), before(&beside));
        let seen = companion.as_ref().and_then(companion_token).map(<[u8]>::to_vec);
        let has_value = matches!(&held, Some(Value::Text(text)) if text == form.value);
        // Of a key that ends at another time, no token is known.
        let known = seen.clone().filter(|_| end == companion_end).unwrap_or(NOBODY.to_vec());
        let is_of = |token: &[u8]| known == token;
        let is_ours = companion.is_none() || seen.is_some();
        let changed = |kind: ChangeKind, key: &Key| {
            changes.iter().any(|change| change.kind == kind && change.key == *key)
        };
        let may = match form.step {
            Step::Take => held.is_none() && is_ours,
            Step::Keep => has_value && is_of(form.token) || held.is_none() && companion.is_none(),
            // The companion of what is gone may be deleted alone.
            Step::Free => match changed(ChangeKind::Delete, &key) {
                true => has_value && is_of(form.token),
                false => seen.as_deref() == Some(form.token),
            },
        };
        let kinds = |change: &&Change| {
            let is_own = change.key == key || change.key == beside;
            let fits = match (change.kind, form.step) {
                (ChangeKind::Set, Step::Take | Step::Keep) => held.is_none(),
                (ChangeKind::Field, Step::Take) => true,
                (ChangeKind::Field, Step::Keep) => held.is_none(),
                (ChangeKind::Expire, Step::Take | Step::Keep) => true,
                (ChangeKind::Delete, Step::Free) => true,
                // What stood beside a lock that is gone.
                (ChangeKind::Delete, Step::Take) => change.key == beside,
                _ => false,
            };
            !(is_marker(&change.key.1) || is_own && fits && may)
        };
        if let Some(change) = changes.iter().find(kinds) {
            let (kind, name) = (change.kind, change.key.1.escape_ascii().to_string());
            let text = format!("node {node}: {kind:?} of {name} for {}", Short(form.token));
            return self.fail("CAD-ONLY", || text);
        }
        if changed(ChangeKind::Field, &beside) && form.step != Step::Free {
            let healed = (form.step == Step::Keep).then_some(form.ttl);
            self.note_executed(node, id, form.token, healed);
        }
        if changes.iter().any(|change| change.key == key || change.key == beside) {
            if form.step == Step::Free {
                self.check_not_counted_on(node, id, &known);
            }
            self.check_sound(&key);
        }
    }

    /// Whether an entry of another owner has gone, or was changed, that is not over.
    fn takes_anothers(&self, node: usize, now: i64, form: &Form<'_>, change: &Change) -> bool {
        let Some(Value::Sorted(before)) = &change.before else {
            return false;
        };
        let after = self.nodes[node].redis.data.get(&change.key).map(|entry| &entry.value);
        let left = |token: &[u8]| match after {
            Some(Value::Sorted(after)) => after.get(token).copied(),
            _ => None,
        };
        before.iter().any(|(token, until)| {
            let own = token == form.token;
            match (left(token), own) {
                (Some(after), true) => after < *until,
                (None, true) => form.step != Step::Free && *until > now,
                (after, false) => *until > now && after != Some(*until),
            }
        })
    }

    /// Keeps a yes to such a command, to compare it with what the client makes of it.
    pub fn note_form_yes(&mut self, node: usize, id: usize, form: &Form<'_>, reply: &Reply) {
        let Reply::Integer(vote) = *reply else {
            return;
        };
        let is_extension = match form.step {
            Step::Take if vote == 1 => false,
            Step::Keep if matches!(vote, 1 | 2) => true,
            _ => return,
        };
        let Ok(token) = <[u8; 40]>::try_from(form.token) else {
            return;
        };
        let db = self.connections[id].session.db;
        let keys: Vec<Key> = form.keys.iter().map(|key| (db, key.to_vec())).collect();
        self.check_granted(node, form, &keys, vote);
        let who = self.who(id);
        let connection = &self.connections[id];
        let (index, told_at) = (connection.answered, connection.role_told_at);
        let known = keys.iter().map(|key| self.nodes[node].memory(self.now, key, &token, who));
        let known = known.max().unwrap_or(Trust::Full);
        let memory = if connection.said_evicts { Trust::No } else { known };
        let role = self.nodes[node].role(told_at);
        let (is_healed, at) = (vote == 2, self.now);
        let yes = Yes { index, token, is_extension, is_healed, at, memory, role };
        self.connections[id].yeses.push_back(yes);
    }

    /// A yes means that every key is the owner's now, and no reader comes before a waiting writer.
    fn check_granted(&mut self, node: usize, form: &Form<'_>, keys: &[Key], vote: i64) {
        let it = &self.nodes[node];
        let missing = keys.iter().find(|key| !it.has(key, form.token)).cloned();
        let now = (it.wall(self.now) / MILLI) as i64;
        let sign = (keys[0].0, [&keys[0].1[..], b":intent"].concat());
        let is_there = |key: &Key| it.redis.data.get(key).is_some_and(|at| at.expires >= Some(now));
        let is_new = form.step == Step::Take || vote == 2;
        let is_rude = form.what == What::Shared && is_new && is_there(&sign);
        if let Some((_, key)) = missing {
            let (key, token) = (key.escape_ascii().to_string(), Short(form.token));
            let text = format!("node {node} says yes to {token}, which {key} does not hold");
            self.fail("ALL-OR-NONE", || text);
        }
        if is_rude {
            let text = format!("node {node} lets {} in before a writer", Short(form.token));
            self.fail("INTENT", || text);
        }
    }

    /// MEMORY: a node that has no memory keeps and frees what it has (K3).
    pub fn check_memory(&mut self, node: usize, id: usize, words: &[&[u8]], reply: &Reply) {
        self.count_full(node, words, reply);
        let is_full = matches!(reply, Reply::Error(text) if text.starts_with("OOM"));
        let form = form(words).filter(|form| is_full && form.step != Step::Take);
        let Some(form) = form else {
            return;
        };
        let wall = (self.nodes[node].wall(self.now) / MILLI) as i64;
        let db = self.connections[id].session.db;
        let is_there = |key: &&[u8]| {
            let (it, key) = (&self.nodes[node], (db, key.to_vec()));
            let entry = it.redis.data.get(&key);
            let is_over = match entry.map(|entry| &entry.value) {
                Some(Value::Sorted(members)) => members.get(form.token) <= Some(&wall),
                // It ends in this millisecond: nothing is left to be written first.
                _ => entry.and_then(|entry| entry.expires).is_some_and(|at| at <= wall + 1),
            };
            it.has(&key, form.token) && !is_over
        };
        if form.keys.iter().all(is_there) {
            let token = Short(form.token);
            self.fail("MEMORY", || format!("node {node} has no memory for {token}, which it has"));
        }
    }

    /// When all is quiet, no share is left whose owner gave it up, and no sign stands for longer
    /// than it may.
    pub fn check_forms_left(
        &self,
        node: usize,
        excuse: impl Fn(&LastSet) -> bool,
    ) -> Option<String> {
        let it = &self.nodes[node];
        let wall = (it.wall(self.now) / MILLI) as i64;
        for (key, entry) in &it.redis.data {
            let name = key.1.escape_ascii();
            let token = companion_token(&entry.value).filter(|_| entry.expires >= Some(wall));
            let set = token.and_then(|token| self.checker.set_of(token, node));
            if set.is_some_and(|set| !excuse(&set)) {
                return Some(format!("node {node} still has a token beside a value: {name}"));
            }
            if is_intent(&key.1) && entry.expires.is_none_or(|at| at > wall + INTENT_MS) {
                return Some(format!("node {node}: {name} stands until {:?}", entry.expires));
            }
            let Value::Sorted(members) = &entry.value else {
                continue;
            };
            let left = members.iter().filter(|(_, until)| **until > wall).find(|(token, _)| {
                self.checker.set_of(token, node).is_some_and(|set| !excuse(&set))
            });
            if let Some((token, _)) = left {
                return Some(format!("node {node} still shares {name}: {}", Short(token)));
            }
        }
        None
    }
}
