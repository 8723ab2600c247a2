//! Defaults for flags of `muxlock run`: the table `[run]` of the file.

use std::error::Error as _;
use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{ArgMatches, Args as _, Command, FromArgMatches as _};
use muxlock::unstable_tool::{Setting, shown};

use super::super::settings::{similar, unknown};
use super::Args;

/// The flags that suit all jobs of a machine.
pub const KEYS: [&str; 7] =
    ["ttl", "wait", "wait_masters", "kill_after", "max_time", "descendants", "conflict_exit_code"];

/// The arguments of `muxlock`, which were parsed before, with these defaults for missing flags.
pub fn with_defaults(words: &[OsString], defaults: &[(String, Setting)]) -> Result<Args, String> {
    let given = parse(words.to_vec()).map_err(|error| error.to_string())?;
    let is_given = |key: &str| given.value_source(key) == Some(ValueSource::CommandLine);
    let mut missing = Vec::new();
    for (key, setting) in defaults {
        let flag = checked(key, setting)?;
        // Each of the two contradicts the other.
        let is_refused = key == "wait" && is_given("nonblock");
        if !is_given(key) && !is_refused {
            missing.push(flag);
        }
    }
    let (name, rest) = words.split_at(words.len().min(1));
    let matches = parse([name, &missing, rest].concat()).map_err(|error| error.to_string())?;
    Args::from_arg_matches(&matches).map_err(|error| error.to_string())
}

fn parse(words: Vec<OsString>) -> Result<ArgMatches, clap::Error> {
    Args::augment_args(Command::new("run")).try_get_matches_from(words)
}

/// The flag of a default, if the flag takes this value.
fn checked(key: &str, setting: &Setting) -> Result<OsString, String> {
    let Setting { text, origin } = setting;
    if !KEYS.contains(&key) {
        return Err(unknown(origin, key, &KEYS));
    }
    let flag = OsString::from(format!("--{}={text}", key.replace('_', "-")));
    let words = vec!["run".into(), flag.clone(), "resource".into(), "command".into()];
    let why = |error| format!("{origin} is {:?}: {}", shown(text), reason(&error, text));
    parse(words).map_err(why)?;
    Ok(flag)
}

/// Why a flag does not take a value.
fn reason(error: &clap::Error, text: &str) -> String {
    if let Some(source) = error.source() {
        return source.to_string();
    }
    match error.get(ContextKind::ValidValue) {
        Some(ContextValue::Strings(values)) => {
            let names: Vec<_> = values.iter().map(String::as_str).collect();
            format!("it must be one of {}{}", names.join(", "), similar(text, &names))
        }
        _ => error.kind().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::super::options::Wait;
    use super::super::Descendants;
    use super::*;

    fn setting(key: &str, text: &str) -> (String, Setting) {
        (key.to_owned(), Setting { text: text.to_owned(), origin: format!("FILE: {key}") })
    }

    fn args(words: &str, defaults: &[(&str, &str)]) -> Result<Args, String> {
        let words: Vec<OsString> = words.split(' ').map(OsString::from).collect();
        let defaults: Vec<_> = defaults.iter().map(|(key, text)| setting(key, text)).collect();
        with_defaults(&words, &defaults)
    }

    #[test]
    fn flag_counts_before_the_file() {
        let file = [
            ("ttl", "20s"),
            ("wait", "1m"),
            ("wait_masters", "40s"),
            ("kill_after", "3s"),
            ("max_time", "1h"),
            ("descendants", "end"),
            ("conflict_exit_code", "0"),
        ];
        let seconds = Duration::from_secs;
        let found = args("run deploy -- sh --wait 9s --ttl", &file).unwrap();
        assert_eq!((found.lock.ttl, found.lock.wait), (seconds(20), Some(Wait::For(seconds(60)))));
        assert_eq!(found.lock.wait_masters, Some(Wait::For(seconds(40))));
        assert_eq!((found.kill_after, found.max_time), (Some(seconds(3)), Some(seconds(3600))));
        assert_eq!((found.descendants, found.lock.conflict_exit_code), (Descendants::End, 0));
        assert_eq!(found.command, ["sh", "--wait", "9s", "--ttl"]);
        let found = args("run -w 2s --ttl=5s -E 7 --descendants leave deploy true", &file).unwrap();
        assert_eq!((found.lock.ttl, found.lock.wait), (seconds(5), Some(Wait::For(seconds(2)))));
        assert_eq!((found.descendants, found.lock.conflict_exit_code), (Descendants::Leave, 7));
        assert_eq!(args("run -n deploy true", &file).unwrap().lock.wait, None);
        assert_eq!(args("run deploy true", &[]).unwrap().lock.ttl, seconds(10));
    }

    /// Even if a flag replaces it.
    #[test]
    fn wrong_default_is_named() {
        for (key, text, why) in [
            ("ttl", "5", "FILE: ttl is \"5\": it has no unit: write 5s or 5ms"),
            ("ttl", "", "FILE: ttl is \"\": it is not a time, such as 30s or 1h30m"),
            ("descendants", "", "FILE: descendants is \"\": it must be one of wait, end, leave"),
            ("conflict_exit_code", "256", "FILE: conflict_exit_code is \"256\": 256 is not in 0"),
            (
                "descendants",
                "levae",
                "FILE: descendants is \"levae\": it must be one of wait, end, leave; did you mean \
                 leave?",
            ),
            ("tll", "5s", "FILE: tll is not known; did you mean ttl?"),
            ("shell", "sh", "FILE: shell is not known; known are ttl, wait, "),
        ] {
            let found = args("run --ttl 9s deploy true", &[(key, text)]).err().unwrap();
            assert!(found.starts_with(why), "{found}");
        }
        let found = args("run deploy true", &[("ttl", "redis://:sesame@h")]).err().unwrap();
        assert!(found.starts_with("FILE: ttl is \"***\": "), "{found}");
    }
}
