//! The text of a sighting: `@`, 32 hexadecimal digits of the replication id, a colon, the server's
//! time in microseconds, a colon, and the `run_id`.

use std::time::Duration;

use super::line::number;
use crate::proto::{History, Reply, Sighting};

/// The longest `run_id` that is believed.
const RUN_ID_BYTES_MAX: usize = 64;
const HISTORY_DIGITS: usize = 32;

pub(super) fn text(sighting: &Sighting) -> String {
    let (history, micros) = (u128::from(sighting.history), sighting.time.as_micros());
    format!("@{history:032x}:{micros}:{}", sighting.run_id)
}

/// What is behind the `@`. `None` if no client of this crate has written it.
pub(super) fn sighting(text: &[u8]) -> Option<Reply> {
    let (history, rest) = text.split_at_checked(HISTORY_DIGITS)?;
    let rest = rest.strip_prefix(b":")?;
    let colon = rest.iter().position(|byte| *byte == b':')?;
    let (micros, run_id) = (number(&rest[..colon])?, &rest[colon + 1..]);
    let is_digit = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    let is_run_id =
        (1..=RUN_ID_BYTES_MAX).contains(&run_id.len()) && run_id.iter().all(u8::is_ascii_graphic);
    if !is_run_id || !history.iter().all(is_digit) {
        return None;
    }
    let history = u128::from_str_radix(std::str::from_utf8(history).ok()?, 16).ok()?;
    let run_id = std::str::from_utf8(run_id).ok()?.into();
    let (history, time) = (History::from(history), Duration::from_micros(micros));
    Some(Reply::Sighting(Box::new(Sighting { run_id, history, time })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_read_as_it_was_written_and_no_other() {
        let sighting_of = |number, micros, run_id: &str| Sighting {
            run_id: run_id.into(),
            history: History::from(number),
            time: Duration::from_micros(micros),
        };
        let table = [
            sighting_of(0, 0, "a"),
            sighting_of(u128::MAX, 1_700_000_000_123_456, &"f".repeat(40)),
            sighting_of(0xabc, 999_999_999_999_999_999, "with:colon"),
        ];
        for written in table {
            let text = text(&written);
            let read = sighting(&text.as_bytes()[1..]);
            assert_eq!(read, Some(Reply::Sighting(Box::new(written))), "{text}");
        }
        let history = "0123456789abcdef0123456789abcdef";
        let others = [
            String::new(),
            history.into(),
            format!("{history}:"),
            format!("{history}:1"),
            format!("{history}:1:"),
            format!("{history}::a"),
            format!("{history}:-1:a"),
            format!("{history}:1234567890123456789:a"),
            format!("{history}:1:{}", "a".repeat(65)),
            format!("{history}:1:a b"),
            format!("+{}:1:a", &history[1..]),
            format!("{}:1:a", history.to_uppercase()),
            format!("{}:1:a", &history[1..]),
        ];
        for text in others {
            assert_eq!(sighting(text.as_bytes()), None, "{text}");
        }
    }
}
