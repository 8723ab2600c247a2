//! Fencing tokens: numbers that grow from holder to holder.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

/// Numbers are below this: microseconds since 1970, until the year 2255 (F5). Such a number is
/// exact as a Lua number, as an SQL `BIGINT` and in JavaScript.
const NUMBER_MAX: u64 = 9_000_000_000_000_000;
/// How many counters a master has at most, of all resources together (F3).
const BUCKETS: u32 = 16_384;
/// The key of the hash with the counters of a master, without the prefix of other keys (F1).
pub(crate) const COUNTERS: &[u8] = b"muxlock:fence";

/// Whether an acquisition asks for a fencing token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fencing {
    /// No.
    Off,
    /// Yes: see [`Lease::fencing_token`](crate::proto::Lease::fencing_token).
    On,
}

/// The fencing token of a lock: each later holder gets a higher one.
/// [`FencedRedlock`](crate::FencedRedlock) describes how a resource checks it.
///
/// It is a number from 1 to 9·10^15 - 1. The tokens of one resource are ordered, with gaps. Tokens
/// of different resources cannot be compared.
///
/// ```
/// use muxlock::FencingToken;
///
/// let older: FencingToken = "1700000000000000".parse()?;
/// let newer = FencingToken::try_from(1_700_000_000_000_001)?;
/// assert!(older < newer);
/// assert_eq!(newer.to_string(), "1700000000000001");
/// assert!(FencingToken::try_from(0).is_err());
/// # Ok::<(), muxlock::error::InvalidFencingToken>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(NonZeroU64);

impl FencingToken {
    /// The number.
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// The number as an `i64`, the type of most databases. It always fits.
    pub const fn as_i64(self) -> i64 {
        self.0.get() as i64
    }

    /// `None` if the number is zero, or so great that only a mad clock can have made it.
    pub(crate) fn checked(number: u64) -> Option<FencingToken> {
        NonZeroU64::new(number).filter(|number| number.get() < NUMBER_MAX).map(FencingToken)
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<FencingToken> for u64 {
    fn from(token: FencingToken) -> u64 {
        token.get()
    }
}

impl From<FencingToken> for i64 {
    fn from(token: FencingToken) -> i64 {
        token.as_i64()
    }
}

impl TryFrom<u64> for FencingToken {
    type Error = InvalidFencingToken;

    fn try_from(number: u64) -> Result<FencingToken, InvalidFencingToken> {
        FencingToken::checked(number).ok_or(InvalidFencingToken)
    }
}

/// In decimal, as [`Display`](fmt::Display) writes it: digits, without a sign or leading zeros.
impl FromStr for FencingToken {
    type Err = InvalidFencingToken;

    fn from_str(text: &str) -> Result<FencingToken, InvalidFencingToken> {
        let is_plain = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
        let number = text.parse().ok().filter(|_| is_plain);
        number.and_then(FencingToken::checked).ok_or(InvalidFencingToken)
    }
}

/// A number outside the range of fencing tokens, or a text that is no number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidFencingToken;

impl fmt::Display for InvalidFencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a fencing token: it is a decimal number from 1 to {}", NUMBER_MAX - 1)
    }
}

impl std::error::Error for InvalidFencingToken {}

/// The counter of a key: FNV-1a of the whole key. It is part of what clients of all versions agree
/// on (F2).
pub(crate) fn bucket(key: &[u8]) -> u16 {
    let hash = key
        .iter()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    (hash % BUCKETS) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// F2: clients of all versions must agree.
    #[test]
    fn buckets_are_what_they_always_were() {
        let table: [(&[u8], u16); 4] =
            [(b"invoice:42", 10308), (b"r", 1813), (b"\xff\x00", 8394), (b"r26751", 10308)];
        for (key, expected) in table {
            assert_eq!(bucket(key), expected, "{}", key.escape_ascii());
        }
    }

    /// F5.
    #[test]
    fn numbers_are_exact_everywhere_or_refused() {
        for number in [1, 1_700_000_000_000_000, NUMBER_MAX - 1] {
            let token = FencingToken::try_from(number).unwrap();
            assert_eq!((token.get(), u64::from(token)), (number, number));
            assert_eq!(i64::from(token), number as i64);
            assert_eq!(token.to_string().parse(), Ok(token));
            assert_eq!(number as f64 as u64, number, "a double holds it");
        }
        for number in [0, NUMBER_MAX, u64::MAX] {
            assert_eq!(FencingToken::try_from(number), Err(InvalidFencingToken));
            assert_eq!(number.to_string().parse::<FencingToken>(), Err(InvalidFencingToken));
        }
        for text in ["", "+1", "-1", "01", "1 ", "1e3", "0x1", "99999999999999999999999"] {
            assert_eq!(text.parse::<FencingToken>(), Err(InvalidFencingToken), "{text}");
        }
    }
}
