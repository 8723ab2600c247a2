//! Colours, columns and numbers for people.

use std::env;
use std::io::{IsTerminal, stdout};
use std::time::Duration;

/// The role of a piece of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    Plain,
    /// A heading, or a figure that matters.
    Strong,
    /// An aside.
    Faint,
    Good,
    Doubtful,
    Bad,
}

/// Whether colours are used.
#[derive(Debug, Clone, Copy)]
pub struct Paint {
    coloured: bool,
}

impl Paint {
    /// Colours for a terminal, unless the user or the environment wants none
    /// (<https://no-color.org>).
    pub fn new(refused: bool) -> Paint {
        let is_set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = env::var_os("TERM").is_some_and(|term| term == "dumb");
        Paint { coloured: !refused && !is_set("NO_COLOR") && !is_dumb && stdout().is_terminal() }
    }

    pub fn style(self, style: Style, text: &str) -> String {
        let code = match style {
            Style::Plain => return text.to_owned(),
            Style::Strong => "1",
            Style::Faint => "2",
            Style::Good => "32",
            Style::Doubtful => "33",
            Style::Bad => "1;31",
        };
        match self.coloured && !text.is_empty() {
            true => format!("\x1b[{code}m{text}\x1b[0m"),
            false => text.to_owned(),
        }
    }
}

/// Breaks a paragraph into lines of at most `width` characters; a longer word has its own line.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// A time in the unit that suits it: `84 µs`, `50.3 ms`, `29.698 s`.
pub fn time(duration: Duration) -> String {
    if duration < Duration::from_millis(10) {
        format!("{} µs", thousands(duration.as_micros()))
    } else if duration < Duration::from_secs(1) {
        let millis = format!("{:.1}", duration.as_secs_f64() * 1e3);
        format!("{} ms", millis.trim_end_matches(".0"))
    } else {
        format!("{:.3} s", duration.as_secs_f64())
    }
}

/// A number in groups of three digits: `12,345`.
pub fn thousands(number: u128) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// `1 master`, `2 masters`.
pub fn count(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", thousands(number as u128))
}

/// `30 s`.
pub fn whole_seconds(duration: Duration) -> String {
    format!("{} s", duration.as_secs())
}

/// In the unit that suits it: `90 s`, `36 h`.
pub fn age(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7_200 => format!("{} min", seconds / 60),
        seconds @ 7_200..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

/// With a capital letter, at the beginning of a sentence.
pub fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_in_threes() {
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(999), "999");
        assert_eq!(thousands(1_000), "1,000");
        assert_eq!(thousands(1_234_567), "1,234,567");
        assert_eq!(count(1, "master"), "1 master");
        assert_eq!(count(2_000, "pair"), "2,000 pairs");
    }

    #[test]
    fn times_change_their_unit_with_their_size() {
        assert_eq!(time(Duration::ZERO), "0 µs");
        assert_eq!(time(Duration::from_micros(9_999)), "9,999 µs");
        assert_eq!(time(Duration::from_micros(50_340)), "50.3 ms");
        assert_eq!(time(Duration::from_millis(250)), "250 ms");
        assert_eq!(time(Duration::from_millis(29_698)), "29.698 s");
    }

    #[test]
    fn paragraphs_are_broken_between_words() {
        assert_eq!(wrap("to be or not", 5), ["to be", "or", "not"]);
        assert_eq!(wrap("incomprehensible µs", 4), ["incomprehensible", "µs"]);
        assert!(wrap(" ", 4).is_empty());
    }

    #[test]
    fn style_shows_only_in_colour_and_never_around_nothing() {
        let (coloured, plain) = (Paint { coloured: true }, Paint { coloured: false });
        assert_eq!(coloured.style(Style::Good, "ok"), "\x1b[32mok\x1b[0m");
        assert_eq!(coloured.style(Style::Plain, "ok"), "ok");
        assert_eq!(coloured.style(Style::Bad, ""), "");
        assert_eq!(plain.style(Style::Good, "ok"), "ok");
    }
}
