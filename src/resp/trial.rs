//! The trial of the commands that scripts call.
//!
//! A server does not know which commands a script will call, and its error does not name the one
//! that it lacks. So each of them is called on a key that no client uses, in a form that changes
//! nothing, and the answer is the number of the first one that is missing. For the handshake, a
//! script of its own does that. For another kind of lock, the script that takes the first one does
//! it before its own work, and ends with an error where one is missing.

use std::sync::LazyLock;

use std::fmt::Write;

use bytes::BytesMut;

use super::scripts::{
    ACQUIRE_FENCED, EXTEND, EXTEND_OR_SET, FREE_ALL, FREE_AS, FREE_SHARED, KEEP_ALL, KEEP_AS,
    KEEP_SHARED, LOOK_AS, RAISE, RELEASE, TAKE_ALL, TAKE_AS, TAKE_EXCLUSIVE, TAKE_SHARED,
    TAKE_SLOT, TRIAL, TRIAL_FIRST,
};
use super::words::{append, few_digits};
use crate::outcome::ServerCommand;
use crate::proto::{Trial, TrialFirst};

/// What stands in a trial in front of a script for the number of the commands, and for themselves.
const PLACEHOLDERS: [&str; 2] = ["COUNT", "COMMANDS()"];
/// Where a master without memory refuses these, it also refuses them behind a trial. A server looks
/// at its memory before a script has written, and the trial writes.
const NEED_MEMORY: [&str; 2] = [TAKE_SHARED, TAKE_EXCLUSIVE];
/// How the error begins that such a script ends with. The command's number follows.
const MISSING: &[u8] = b"MUXLOCKMISSING ";

static COMMANDS: LazyLock<[Vec<ServerCommand>; Trial::ALL.len()]> =
    LazyLock::new(|| Trial::ALL.map(commands));

/// The scripts that a client may send for such locks.
fn scripts(trial: Trial) -> Vec<&'static str> {
    match trial {
        Trial::Plain => vec![RELEASE, EXTEND, EXTEND_OR_SET],
        Trial::Several => vec![TAKE_ALL, KEEP_ALL, FREE_ALL],
        Trial::Permits => vec![TAKE_SLOT],
        Trial::Shares => vec![TAKE_SHARED, KEEP_SHARED, TAKE_EXCLUSIVE, FREE_SHARED],
        Trial::Owned => vec![TAKE_AS, KEEP_AS, FREE_AS, LOOK_AS],
        Trial::Fenced => vec![ACQUIRE_FENCED, RAISE],
    }
}

/// What these scripts call. The handshake has already tried what every lock needs, but for `SET`:
/// plain locks send it without a script, so that the server's error names it.
fn commands(trial: Trial) -> Vec<ServerCommand> {
    let known = match trial {
        Trial::Plain => vec![ServerCommand::Set],
        _ => commands(Trial::Plain),
    };
    let mut commands = Vec::new();
    for name in scripts(trial).into_iter().flat_map(called) {
        if let Some(command) = ServerCommand::named(name) {
            if !known.contains(&command) && !commands.contains(&command) {
                commands.push(command);
            }
        }
    }
    commands
}

/// The names of the commands that a script calls.
fn called(script: &str) -> impl Iterator<Item = &str> {
    let calls = script.split("call(\"").skip(1);
    calls.filter_map(|rest| rest.split_once('"').map(|(name, _)| name))
}

/// The words of a command that changes nothing if the key is absent. The second word is the key,
/// where it is empty. Commands that would create it have arguments that the server refuses after it
/// has looked at the user's rights.
fn words(command: ServerCommand) -> &'static [&'static str] {
    match command {
        ServerCommand::Del => &["DEL", ""],
        ServerCommand::Exists => &["EXISTS", ""],
        ServerCommand::Get => &["GET", ""],
        ServerCommand::Hget => &["HGET", "", "f"],
        ServerCommand::Hset => &["HSET", "", "f", "v", "f"],
        ServerCommand::Pexpire => &["PEXPIRE", "", "1"],
        ServerCommand::Pexpireat => &["PEXPIREAT", "", "1"],
        ServerCommand::Pttl => &["PTTL", ""],
        ServerCommand::Set => &["SET", "", "v", "XX", "PX", "1"],
        ServerCommand::Time => &["TIME"],
        ServerCommand::Type => &["TYPE", ""],
        ServerCommand::Zadd => &["ZADD", "", "f", "v"],
        ServerCommand::Zrange => &["ZRANGE", "", "-1", "-1", "WITHSCORES"],
        ServerCommand::Zrem => &["ZREM", "", "v"],
        ServerCommand::Zremrangebyscore => &["ZREMRANGEBYSCORE", "", "-inf", "0"],
        ServerCommand::Zscore => &["ZSCORE", "", "v"],
    }
}

/// Appends the trial. It declares no key: a user who may not use the key may still use the
/// commands, and servers look at the command first.
#[cold]
pub(super) fn encode(key: &[u8], trial: Trial, out: &mut BytesMut) {
    let mut all: Vec<&[u8]> = Vec::with_capacity(64);
    all.extend([b"EVAL", TRIAL.as_bytes(), b"0"]);
    for command in &COMMANDS[trial as usize] {
        let words = words(*command).iter().map(|word| word.as_bytes());
        all.extend([few_digits(command.number()), few_digits(words.len())]);
        all.extend(words.map(|word| if word.is_empty() { key } else { word }));
    }
    append(out, &all);
}

/// The text of a script with a trial before it.
#[cold]
pub(super) fn before(TrialFirst { key, trial }: TrialFirst<'_>, script: &str) -> String {
    let mut commands: Vec<&ServerCommand> = COMMANDS[trial as usize].iter().collect();
    let needs_memory = NEED_MEMORY.contains(&script);
    if needs_memory {
        commands.sort_by_key(|command| **command != ServerCommand::Set);
    }
    let [begins, goes_on, ends] = first_parts();
    let mut text = format!("{begins}{}{goes_on}", commands.len());
    for (index, command) in (1..).zip(&commands) {
        let branch = if index == 1 { "if" } else { "elseif" };
        let number = command.number();
        // Writing to a text does not fail.
        let _ = write!(text, "{branch} i=={index} then n={number} r=redis.pcall(");
        for (index, word) in words(**command).iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let word = if word.is_empty() { key.as_bytes() } else { word.as_bytes() };
            let _ = write!(text, "{comma}\"{}\"", Quoted(word));
        }
        text.push_str(if needs_memory && index == 1 { ") m=r " } else { ") " });
    }
    for part in ["end ", ends, " ", script] {
        text.push_str(part);
    }
    text
}

/// A trial in front of a script, without what its placeholders stand for.
fn first_parts() -> [&'static str; 3] {
    let [count, commands] = PLACEHOLDERS;
    let split =
        |text: &'static str, at| text.split_once(at).expect("the script has its placeholders");
    let (begins, rest) = split(TRIAL_FIRST, count);
    let (goes_on, ends) = split(rest, commands);
    [begins, goes_on, ends]
}

/// Bytes within a text of Lua.
struct Quoted<'a>(&'a [u8]);

impl std::fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| match byte {
            b'"' | b'\\' => write!(f, "\\{}", char::from(*byte)),
            b' '..=b'~' => f.write_char(char::from(*byte)),
            other => write!(f, "\\{other:03}"),
        })
    }
}

/// The command that a script says is missing, if this error is how it says that.
pub(super) fn missing(error: &[u8]) -> Option<ServerCommand> {
    let number = std::str::from_utf8(error.strip_prefix(MISSING)?).ok()?;
    ServerCommand::numbered(number.parse().ok()?)
}

/// The script without the trial before it, if there is one.
#[cfg(feature = "testing")]
pub(crate) fn without_trial(script: &[u8]) -> &[u8] {
    let text = std::str::from_utf8(script).ok();
    let [begins, _, ends] = first_parts();
    let after = text.filter(|text| text.starts_with(begins));
    let after = after.and_then(|text| text.split_once(ends));
    after.map_or(script, |(_, script)| script.trim_ascii_start().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::super::scripts::ALL;
    use super::*;
    use crate::resource::{Key, Resource};

    /// The scripts of the queue are tried in another way: without them, clients wait in another
    /// way. The others are sent only after the commands of every lock, or try commands themselves.
    const OTHERS: [&str; 7] =
        ["HAND_ON", "INSPECT", "MARKER", "QUEUE_UP", "STEP_OUT", "TRIAL", "TRIAL_FIRST"];

    #[test]
    fn every_command_of_every_script_has_a_trial() {
        for (name, text) in ALL {
            let calls = text.matches("call(").count() - text.matches("call(unpack(").count();
            assert_eq!(called(text).count(), calls, "{name}: a command whose name is no text");
            if OTHERS.contains(&name) {
                continue;
            }
            let sends = |trial: &Trial| scripts(*trial).contains(&text);
            let trial = Trial::ALL.into_iter().find(sends);
            let trial = trial.unwrap_or_else(|| panic!("{name} is in no trial"));
            for command in called(text) {
                let command = ServerCommand::named(command);
                let command = command.unwrap_or_else(|| panic!("{name} calls what is not tried"));
                let is_tried = |trial| COMMANDS[trial as usize].contains(&command);
                let is_known = command == ServerCommand::Set || is_tried(Trial::Plain);
                assert!(is_known || is_tried(trial), "{name}: {command}");
            }
        }
    }

    /// The first command is one that a master without memory refuses, so that nothing is written
    /// before.
    #[test]
    fn trial_in_front_of_what_needs_memory_begins_with_a_command_that_does() {
        let key = Key::new(Resource::new("k").unwrap(), b"");
        for script in [TAKE_SHARED, TAKE_EXCLUSIVE] {
            let text = before(TrialFirst { key: &key, trial: Trial::Shares }, script);
            let first =
                "if i==1 then n=9 r=redis.pcall(\"SET\",\"k\",\"v\",\"XX\",\"PX\",\"1\") m=r ";
            assert!(text.contains(first), "{text}");
            assert_eq!(text.matches(" m=r ").count(), 1);
        }
        let others = [(Trial::Permits, TAKE_SLOT), (Trial::Owned, TAKE_AS)];
        for (trial, script) in others {
            assert!(!before(TrialFirst { key: &key, trial }, script).contains(" m=r "));
        }
    }

    #[test]
    fn error_names_what_is_missing() {
        assert_eq!(missing(b"MUXLOCKMISSING 9"), Some(ServerCommand::Set));
        for other in ["MUXLOCKMISSING 0", "MUXLOCKMISSING 17", "MUXLOCKMISSING", "ERR 9", ""] {
            assert_eq!(missing(other.as_bytes()), None, "{other}");
        }
    }
}
