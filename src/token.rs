//! The random value that proves ownership of a lock, and where it comes from.

use std::fmt;

use crate::moment::Moment;

/// Random bytes in a token: 128 bits, six more than in a random UUID (R6).
pub(crate) const TOKEN_RANDOM_BYTES: usize = 16;
/// Two hexadecimal digits for each of them, and for the four of the tag. It tells the clients on a
/// server apart, and is no secret.
pub(crate) const TOKEN_BYTES: usize = 2 * (TOKEN_RANDOM_BYTES + size_of::<u32>());

/// Each byte as two hexadecimal digits.
const HEX: [[u8; 2]; 256] = {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut hex = [[0; 2]; 256];
    let mut byte = 0;
    while byte < hex.len() {
        hex[byte] = [DIGITS[byte >> 4], DIGITS[byte & 15]];
        byte += 1;
    }
    hex
};

/// A byte as two hexadecimal digits.
pub(crate) fn hex(byte: u8) -> [u8; 2] {
    HEX[usize::from(byte)]
}

/// The random value that identifies one acquisition. It is the key's value on the masters.
///
/// Knowing the token is enough to release or extend the lock, so `Debug` does not show it. Every
/// attempt draws 128 new random bits from the operating system. The last 8 digits are the tag of
/// the client, by which `muxlock inspect` finds its name in `CLIENT LIST`. It is *not* a fencing
/// token: it identifies the holder and has no order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockToken([u8; TOKEN_BYTES]);

impl LockToken {
    /// That of no attempt.
    pub(crate) const NONE: LockToken = LockToken([b'0'; TOKEN_BYTES]);

    /// A token as a server has it; `None` if it is none.
    pub(crate) fn from_text(text: &[u8; TOKEN_BYTES]) -> Option<LockToken> {
        let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        text.iter().all(is_digit).then_some(LockToken(*text))
    }

    /// Bytes as lower-case hexadecimal digits. Raw bytes would garble the error messages, `MONITOR`
    /// output and logs of the masters.
    pub(crate) fn from_random(random: [u8; TOKEN_BYTES / 2]) -> LockToken {
        let mut text = [0; TOKEN_BYTES];
        for (pair, byte) in text.chunks_exact_mut(2).zip(random) {
            pair.copy_from_slice(&hex(byte));
        }
        LockToken(text)
    }

    /// The value as it is stored on the masters: 40 hexadecimal digits.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Its beginning, for logs: it identifies the holder, but is not enough to release or extend
    /// the lock.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::new(&self.0)
    }

    /// Same as [`as_bytes`](LockToken::as_bytes), of known length.
    pub(crate) fn as_array(&self) -> &[u8; TOKEN_BYTES] {
        &self.0
    }
}

impl fmt::Debug for LockToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LockToken(..)")
    }
}

/// Most bytes of a fingerprint.
pub(crate) const FINGERPRINT_BYTES_MAX: usize = 8;

/// The beginning of a [`LockToken`], for logs: enough to tell holders apart, but not to release or
/// extend the lock.
///
/// For a token of this crate, it is the first 8 of 40 hexadecimal digits; 96 random bits stay
/// secret. For another client's value, it is the first 8 bytes, at most a third. If the value has
/// less than 24 bytes, it is the first 8 hexadecimal digits of its SHA-1.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    bytes: [u8; FINGERPRINT_BYTES_MAX],
    len: u8,
}

impl Fingerprint {
    /// Of the beginning of a key's value: the first 8 bytes count.
    pub fn new(text: &[u8]) -> Fingerprint {
        let len = text.len().min(FINGERPRINT_BYTES_MAX);
        let mut bytes = [0; FINGERPRINT_BYTES_MAX];
        bytes[..len].copy_from_slice(&text[..len]);
        Fingerprint { bytes, len: len as u8 }
    }

    /// The bytes, as they are in the key's value.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len.into()]
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().escape_ascii().fmt(f)
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint(\"{self}\")")
    }
}

/// The source of randomness of the engine. It is a trait so that a simulation can replay it.
pub trait Entropy: Send + Sync {
    /// 20 bytes for a fresh token: 16 random ones from the operating system, and the client's tag.
    /// `None` if the system returns none. A token that is used twice makes locks unsafe. Tokens can
    /// be drawn in advance for attempts that start within a millisecond of each other.
    fn token(&mut self, now: Moment) -> Option<[u8; 20]>;

    /// Discards the tokens that were drawn in advance. The engine's caller asks for this before a
    /// pause, because a copy of the virtual machine would use the same tokens.
    fn forget(&mut self) {}

    /// A number for jitter, uniformly distributed; it need not be secret.
    fn next_u64(&mut self) -> u64;
}

#[cfg(test)]
pub(crate) use tests::Sevens;

#[cfg(test)]
mod tests {
    use super::*;

    /// Draws sevens.
    pub(crate) struct Sevens;

    impl Entropy for Sevens {
        fn token(&mut self, _: Moment) -> Option<[u8; 20]> {
            Some([7; 20])
        }

        fn next_u64(&mut self) -> u64 {
            7
        }
    }

    #[test]
    fn token_is_lower_case_hex_and_hidden_in_debug() {
        let mut random = [0; TOKEN_BYTES / 2];
        random[0] = 0xf0;
        random[19] = 0x0f;
        let token = LockToken::from_random(random);
        assert_eq!(token.as_bytes(), b"f00000000000000000000000000000000000000f");
        assert_eq!(format!("{token:?}"), "LockToken(..)");
        assert_eq!(token.fingerprint().to_string(), "f0000000");
    }

    #[test]
    fn fingerprint_is_short_and_shows_no_control_character() {
        let fingerprint = Fingerprint::new(b"0123456789");
        assert_eq!(format!("{fingerprint} {fingerprint:?}"), "01234567 Fingerprint(\"01234567\")");
        assert_eq!(Fingerprint::new(b"\r\n").to_string(), "\\r\\n");
        assert_eq!(Fingerprint::new(b"").as_bytes(), b"");
    }
}
