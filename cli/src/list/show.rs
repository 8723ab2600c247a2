//! The list as a table and as JSON.

use std::time::Duration;

use muxlock::unstable_tool::printable;
use serde_json::{Value, json};

use super::Seen;
use super::lock::{Item, Kind, Lock, Semaphore, State};
use crate::holder::Client;
use crate::paint::age;

const COLUMNS: usize = 8;
const HEADINGS: [&str; COLUMNS] =
    ["RESOURCE", "KIND", "HOLDER", "LEFT", "ON", "WAITING", "AGE", "CLIENT"];
/// The column that always changes.
const LEFT: usize = 3;
/// The columns that are missing if no master lists its clients.
const AGE: usize = 6;
const CLIENT: usize = 7;
/// A longer name moves the rest of its own line.
const WIDTH_MAX: usize = 40;
const INDENT: &str = "  ";

/// A line of the table.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row([String; COLUMNS]);

/// A line for each lock. The held permits of a semaphore follow it.
pub fn rows(items: &[Item], total: usize) -> Vec<Row> {
    let mut rows = Vec::new();
    for item in items {
        match item {
            Item::Lock(lock) => rows.push(of_lock("", lock, total)),
            Item::Semaphore(semaphore) => {
                rows.push(of_semaphore(semaphore, item.waiting()));
                rows.extend(semaphore.permits.iter().map(|lock| of_lock(INDENT, lock, total)));
            }
        }
    }
    rows
}

fn of_lock(indent: &str, lock: &Lock, total: usize) -> Row {
    let holder = match lock.kind {
        Kind::Read if lock.readers == 1 => "1 reader".to_owned(),
        Kind::Read => format!("{} readers", lock.readers),
        _ => fingerprint(lock).unwrap_or_default(),
    };
    Row([
        format!("{indent}{}", name_as_text(&lock.name)),
        kind(lock.kind).to_owned(),
        match lock.state {
            State::Held => holder,
            State::Revoked | State::Split => state(lock.state).to_owned(),
            State::Leftover => format!("{holder} ({})", state(lock.state)),
        },
        left(lock.left),
        format!("{}/{total}", lock.on),
        lock.waiting.to_string(),
        lock.age().map_or_else(String::new, age),
        lock.client_words.clone(),
    ])
}

fn fingerprint(lock: &Lock) -> Option<String> {
    Some(lock.holder.as_ref()?.fingerprint.to_string())
}

fn of_semaphore(semaphore: &Semaphore, waiting: u64) -> Row {
    Row([
        name_as_text(&semaphore.name),
        "semaphore".to_owned(),
        format!("{} taken", semaphore.taken()),
        left(semaphore.left()),
        String::new(),
        waiting.to_string(),
        String::new(),
        String::new(),
    ])
}

/// The lines, each column as wide as its longest cell, with headings if there is any.
pub fn table(rows: &[Row]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut headings = Row(HEADINGS.map(str::to_owned));
    for column in [AGE, CLIENT] {
        if rows.iter().all(|row| row.0[column].is_empty()) {
            headings.0[column].clear();
        }
    }
    let rows: Vec<&Row> = [&headings].into_iter().chain(rows).collect();
    let length = |text: &String| text.chars().count();
    let widths: [usize; COLUMNS] = std::array::from_fn(|column| {
        let cells = rows.iter().map(|row| length(&row.0[column]));
        cells.filter(|width| *width <= WIDTH_MAX).max().unwrap_or(0)
    });
    let line = |row: &&Row| {
        let cells = row.0.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        format!("{}\n", line.trim_end())
    };
    rows.iter().map(line).collect()
}

impl Row {
    /// Its resource.
    pub fn name(&self) -> &str {
        self.0[0].trim_start()
    }

    /// Without the times, which always change, and the client, which masters may fail to name.
    pub fn state(&self) -> Row {
        let mut row = self.clone();
        for column in [LEFT, AGE, CLIENT] {
            row.0[column].clear();
        }
        row
    }

    /// One line, for a change.
    pub fn line(&self) -> String {
        format!("{}\n", self.0.join("  ").trim())
    }
}

fn left(left: Option<Duration>) -> String {
    left.map_or("no TTL".to_owned(), |left| format!("{:.1} s", left.as_secs_f64()))
}

/// Escapes the bytes of a name in another encoding.
fn name_as_text(name: &[u8]) -> String {
    match std::str::from_utf8(name) {
        Ok(name) => printable(name),
        Err(_) => name.escape_ascii().to_string(),
    }
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Lock => "lock",
        Kind::Permit => "permit",
        Kind::Owner => "owner",
        Kind::Read => "read",
        Kind::Other => "other",
    }
}

fn state(state: State) -> &'static str {
    match state {
        State::Held => "held",
        State::Revoked => "revoked",
        State::Split => "split",
        State::Leftover => "leftover",
    }
}

/// One object: the locks, and the masters' answers.
pub fn as_json(seen: &Seen) -> Value {
    let item = |item: &Item| match item {
        Item::Lock(lock) => lock_as_json(lock),
        Item::Semaphore(semaphore) => {
            let (resource, hex) = name_as_json(&semaphore.name);
            json!({
                "resource": resource,
                "resource_hex": hex,
                "kind": "semaphore",
                "taken": semaphore.taken(),
                "free_in_ms": semaphore.left().map(millis),
                "waiting": item.waiting(),
                "permits": semaphore.permits.iter().map(lock_as_json).collect::<Vec<_>>(),
            })
        }
    };
    let node = |(address, why): &(String, Option<String>)| {
        let answered = why.is_none();
        json!({ "address": address, "answered": answered, "why": why })
    };
    json!({
        "locks": seen.items.iter().map(item).collect::<Vec<_>>(),
        "masters": seen.nodes.len(),
        "answered": seen.answered(),
        "quorum": seen.quorum(),
        "truncated": seen.is_truncated(),
        "clients_unknown": seen.clients_unknown(),
        "perhaps_held": seen.perhaps,
        "notes": seen.notes,
        "nodes": seen.nodes.iter().map(node).collect::<Vec<_>>(),
    })
}

fn lock_as_json(lock: &Lock) -> Value {
    let (resource, hex) = name_as_json(&lock.name);
    let is_read = lock.kind == Kind::Read;
    let clients: Vec<Value> = lock.clients.iter().map(Client::as_json).collect();
    json!({
        "resource": resource,
        "resource_hex": hex,
        "kind": kind(lock.kind),
        "state": state(lock.state),
        "holder": fingerprint(lock),
        "client": clients.first().filter(|_| !is_read),
        "value": lock.value,
        "readers": is_read.then_some(lock.readers),
        "reader_clients": is_read.then_some(&clients),
        "free_in_ms": lock.left.map(millis),
        "age_s": lock.age().map(|age| age.as_secs()),
        "on": lock.on,
        "waiting": lock.waiting,
    })
}

/// The name, and its bytes if it has another encoding than UTF-8.
fn name_as_json(name: &[u8]) -> (String, Option<String>) {
    match std::str::from_utf8(name) {
        Ok(name) => (name.to_owned(), None),
        Err(_) => {
            let hex = name.iter().map(|byte| format!("{byte:02x}")).collect();
            (name.escape_ascii().to_string(), Some(hex))
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
