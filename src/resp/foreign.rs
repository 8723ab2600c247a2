//! What the first bytes from a port say about what listens there.

use crate::proto::Foreign;

/// The beginning of an alert of TLS.
const TLS_ALERT: &[u8] = &[21, 3];

/// What listens there; `None` if it may be a Redis server, which answers `HELLO` with a map.
pub fn foreign(bytes: &[u8]) -> Option<Foreign<'_>> {
    if matches!(bytes, [] | [b'-' | b'%', ..]) {
        return None;
    }
    if bytes.starts_with(TLS_ALERT) {
        return Some(Foreign::Tls);
    }
    let end = bytes.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
    Some(Foreign::Line { text: &bytes[..end.unwrap_or(bytes.len())], is_whole: end.is_some() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_servers_are_told_by_their_first_bytes() {
        let line = |text, is_whole| Some(Foreign::Line { text, is_whole });
        let table: [(&[u8], Option<Foreign<'_>>); 9] = [
            (b"", None),
            (b"%7\r\n$6\r\nserver", None),
            (b"+OK\r\n", line(b"+OK", true)),
            (b"-NOAUTH Authentication required.\r\n", None),
            (b"+OK Dovecot ready.\r\n", line(b"+OK Dovecot ready.", true)),
            (b"HTTP/1.1 400 Bad Request\r\nServer: x\r\n", line(b"HTTP/1.1 400 Bad Request", true)),
            (b"HTTP", line(b"HTTP", false)),
            (b"\nJ", line(b"", true)),
            (&[21, 3, 3, 0, 2, 2, 70], Some(Foreign::Tls)),
        ];
        for (bytes, expected) in table {
            assert_eq!(foreign(bytes), expected, "{}", bytes.escape_ascii());
        }
    }
}
