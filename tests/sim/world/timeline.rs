//! What happened, for people: written only when somebody wants to read it.

use std::fmt;

/// Queues with the true time in front, or nothing at all.
#[derive(Default)]
pub struct Timeline {
    lines: Option<Vec<String>>,
}

/// A timeline is cut off here: nobody reads more.
const LINES_MAX: usize = 100_000;

impl Timeline {
    pub fn new(is_wanted: bool) -> Timeline {
        Timeline { lines: is_wanted.then(Vec::new) }
    }

    /// Adds a line; the text is made only if there is somebody to read it.
    pub fn note(&mut self, now: u64, text: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines {
            if lines.len() < LINES_MAX {
                lines.push(format!("{:>14} {}", Millis(now).to_string(), text()));
            }
        }
    }

    pub fn into_lines(self) -> Vec<String> {
        self.lines.unwrap_or_default()
    }
}

/// Nanoseconds, shown as milliseconds.
pub struct Millis(pub u64);

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

/// The beginning of a token: enough to tell it from others.
pub struct Short<'a>(pub &'a [u8]);

impl fmt::Display for Short<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0[..self.0.len().min(8)].escape_ascii())
    }
}

/// A command as it is written, with tokens and scripts cut short.
pub fn command(words: &[&[u8]]) -> String {
    let shown: Vec<String> = words
        .iter()
        .map(|word| match word.len() {
            40 => Short(word).to_string(),
            41.. => format!("{}..", word[..16].escape_ascii()),
            _ => word.escape_ascii().to_string(),
        })
        .collect();
    shown.join(" ")
}
