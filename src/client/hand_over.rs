//! A held lock as text, for another process of the same machine.

use std::fmt;
use std::io;
use std::str::FromStr;
use std::time::Duration;

use super::LockParts;
use crate::fencing::FencingToken;
use crate::moment::Moment;
use crate::proto::{CONNECTIONS_MAX, ConnectionId, ConnectionIds, Doubt, Lease, NodeSet};
use crate::quorum::NODES_MAX;
use crate::resource::{NAMES_BYTES_MAX, Resource};
use crate::sys::clock::{Clock, ClockId, Stamp};
use crate::token::LockToken;
use crate::validity::{TTL_MS_MAX, Ttl};

const NAME: &str = "muxlock";
const VERSION: &str = "5";
const SEPARATOR: char = '.';
const CHECKSUM_DIGITS: usize = 8;
/// The longest `run_id` that is written; Redis' has 40 bytes. A connection to a server with a
/// longer one is written as unknown.
const PROCESS_BYTES_MAX: usize = 64;
/// Longer than any lock may live, and so longer than any doubt may last.
const UNCOUNTED_MS_MAX: u64 = 2 * TTL_MS_MAX as u64;
/// More than the text of the doubts about one node needs.
const DOUBT_BYTES_MAX: usize = 64 + CONNECTIONS_MAX * (2 * PROCESS_BYTES_MAX + 32);
/// More than the longest name, all numbers and all doubts need.
const TEXT_BYTES_MAX: usize = 2 * NAMES_BYTES_MAX + 512 + NODES_MAX * DOUBT_BYTES_MAX;

/// # As text
/// [`to_secret_text`](LockParts::to_secret_text) writes the parts as one word of letters, digits,
/// `.` and `-`; [`str::parse`] reads it. **The text is enough to release and extend the lock**:
/// pass it through a pipe, a file or an environment that others cannot read. Do not pass it as an
/// argument, and do not log it. Adopt it only once, because two processes would otherwise both hold
/// the lock.
///
/// Only a process on the same machine, since the same boot and in the same time namespace, can
/// parse it. Elsewhere parsing fails ([`HandOverError::OtherClock`]): the remaining validity is
/// measured by this machine's steady clock, and the wall clocks of two machines can differ by more
/// than a validity. The time in transit is subtracted. It is measured by the steady clock and by
/// the wall clock; the larger value is used. On systems other than Linux and Android, boot and
/// clock cannot be identified, and no text is written ([`HandOverError::NoClock`]).
///
/// The adopting client must list the same masters in the same order, with the same key prefix: the
/// text has the nodes by their numbers.
///
/// The fields, separated by dots, are:
///
/// | field | |
/// |---|---|
/// | `muxlock` | |
/// | `5` | the version; no other is read |
/// | clock | the boot's id, 32 hexadecimal digits, `-`, and the number of the time namespace |
/// | steady | nanoseconds on that clock when this was written |
/// | wall | nanoseconds on the wall clock then |
/// | left | the remaining validity then, in nanoseconds |
/// | ttl | the TTL of the acquisition or the last successful extension, in milliseconds |
/// | longest | the longest TTL that was ever requested, in milliseconds |
/// | granted | the nodes that had granted it, as a decimal number with one bit for each |
/// | doubts | nodes whose key is unconfirmed (see below); can be empty |
/// | fence | the fencing token, in decimal; empty without one |
/// | kind | the kind of lock, see below |
/// | resource | in hexadecimal digits |
/// | token | 40 hexadecimal digits |
/// | checksum | CRC-32 of everything before the last dot, 8 hexadecimal digits |
///
/// The kind is `0` for one resource; `1` for several, each after its length in two bytes, the low
/// byte first; `2` for a read lock; `3` for a write lock; `5` for a lock with an owner value, which
/// comes before the name in the form of a kind `1` entry.
///
/// The doubts have an entry for each node that had not answered or was in quarantine, in this form:
/// `n<node>u<time>[s](p<run_id>k<client id>)*[x]`.
///
/// - `n`: the node's number;
/// - `u`: the milliseconds for which its key must not count;
/// - `s`: only one SET can still arrive;
/// - `p` and `k`: a connection on which a command can still arrive, by the server's `run_id` in
///   hexadecimal digits and the connection's `CLIENT ID`;
/// - `x`: there is a connection that cannot be identified.
///
/// ```no_run
/// use muxlock::{LockParts, Redlock};
/// use std::time::Duration;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let redlock = Redlock::connect(["redis://10.0.0.1"])?;
/// // One process:
/// let lock = redlock.try_lock("invoice:42", Duration::from_secs(10))?;
/// let text = lock.into_parts().to_secret_text()?;
/// // Another one, with the same masters in the same order and the same key prefix:
/// let parts: LockParts = text.parse()?;
/// let lock = redlock.adopt(parts)?;
/// assert!(lock.unlock()?.was_held());
/// # Ok(())
/// # }
/// ```
impl LockParts {
    /// Writes the parts as text for another process of this machine; see [above](#as-text). The
    /// text is a secret.
    ///
    /// This does not consume the parts. Adopt either the parts or the text, never both.
    ///
    /// # Errors
    /// [`HandOverError::NoClock`] if this system provides no id of its boot and clock. Adopt the
    /// parts in this process, to use or to release the lock.
    pub fn to_secret_text(&self) -> Result<String, HandOverError> {
        let clock = ClockId::here().ok_or(HandOverError::NoClock)?;
        // In this order, time that passes in between is subtracted twice rather than not at all.
        let stamp = Clock.stamp();
        let left = self.0.remaining(Clock.now());
        Ok(write(&self.0, &clock, stamp, left))
    }
}

/// Parses the text described at [`LockParts`]. This also succeeds for an expired lock:
/// [`Redlock::adopt`] then returns [`Expired`](crate::LockErrorKind::Expired) and releases any keys
/// that are left.
///
/// [`Redlock::adopt`]: crate::Redlock::adopt
impl FromStr for LockParts {
    type Err = HandOverError;

    fn from_str(text: &str) -> Result<LockParts, HandOverError> {
        let written = read(text)?;
        let clock = ClockId::here().ok_or(HandOverError::NoClock)?;
        if written.clock != clock.as_str() {
            return Err(HandOverError::OtherClock);
        }
        // In this order, for the same reason.
        let now = Clock.now();
        let deadline = deadline(now, Clock.stamp(), written.stamp, written.left)?;
        let Written { resource, token, ttl, longest, granted, doubts, fencing, .. } = written;
        let lease = Lease::elsewhere(resource, token, ttl, deadline).fenced(fencing);
        Ok(LockParts(lease.with_past(longest, granted, doubts)))
    }
}

/// Why a lock was not written as text, or not read from it. The error never contains the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum HandOverError {
    /// This system provides no ID of its boot and its clock: any system except Linux and Android.
    NoClock,
    /// The text was written on another machine, before the last boot, or in another time namespace.
    /// So the remaining validity cannot be known. The lock expires on its own.
    OtherClock,
    /// The text is longer than any valid text.
    TooLong {
        /// Its length in bytes.
        bytes: usize,
        /// The greatest length allowed.
        max: usize,
    },
    /// The text does not begin with `muxlock.`.
    NotALock,
    /// The text has a format version that this crate does not read.
    Version,
    /// The text was changed: its checksum or the number of its fields is wrong.
    Damaged,
    /// A field is invalid, although the checksum is right.
    Field(&'static str),
}

impl fmt::Display for HandOverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cannot hand the lock over: ")?;
        match self {
            HandOverError::NoClock => f.write_str("this system has no id of its boot and clock"),
            HandOverError::OtherClock => {
                f.write_str("it comes from another machine, boot or time namespace")
            }
            HandOverError::TooLong { bytes, max } => {
                write!(f, "the text has {bytes} bytes: at most {max} are allowed")
            }
            HandOverError::NotALock => f.write_str("the text does not begin with muxlock."),
            HandOverError::Version => f.write_str("another version of muxlock wrote the text"),
            HandOverError::Damaged => f.write_str("the text is damaged"),
            HandOverError::Field(name) => write!(f, "the field `{name}` is invalid"),
        }
    }
}

impl std::error::Error for HandOverError {}

/// `NoClock` becomes `Unsupported`, and the others become `InvalidData`.
impl From<HandOverError> for io::Error {
    fn from(error: HandOverError) -> io::Error {
        let kind = match error {
            HandOverError::NoClock => io::ErrorKind::Unsupported,
            _ => io::ErrorKind::InvalidData,
        };
        io::Error::new(kind, error)
    }
}

/// The parsed text.
struct Written<'a> {
    clock: &'a str,
    stamp: Stamp,
    left: Duration,
    ttl: Ttl,
    longest: Ttl,
    granted: NodeSet,
    doubts: Vec<Doubt>,
    fencing: Option<FencingToken>,
    resource: Resource,
    token: LockToken,
}

/// The deadline of a lock that had `left` at the stamp `written`, and is adopted at `now`, just
/// before the stamp `read` is taken. If that is uncertain, the earlier moment.
fn deadline(
    now: Moment,
    read: Stamp,
    written: Stamp,
    left: Duration,
) -> Result<Moment, HandOverError> {
    let passed = read.since(written).ok_or(HandOverError::OtherClock)?;
    Ok(now.after(left.saturating_sub(passed)))
}

fn write(lease: &Lease, clock: &ClockId, stamp: Stamp, left: Duration) -> String {
    let (longest, granted, doubts) = lease.past();
    let bits = granted.iter().fold(0_u64, |bits, node| bits | 1 << node);
    let token = std::str::from_utf8(lease.token().as_bytes()).expect("hexadecimal digits are text");
    let (kind, names) = lease.resource().to_raw();
    let fields = [
        NAME.to_owned(),
        VERSION.to_owned(),
        clock.as_str().to_owned(),
        stamp.steady_nanos.to_string(),
        stamp.wall_nanos.to_string(),
        left.as_nanos().to_string(),
        lease.ttl().as_millis().to_string(),
        longest.as_millis().to_string(),
        bits.to_string(),
        doubts.iter().map(write_doubt).collect(),
        lease.fencing_token().map_or(String::new(), |number| number.to_string()),
        kind.to_string(),
        digits(&names),
        token.to_owned(),
    ];
    let text = fields.join(&SEPARATOR.to_string());
    format!("{text}{SEPARATOR}{:0CHECKSUM_DIGITS$x}", crc32(text.as_bytes()))
}

fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn write_doubt(doubt: &Doubt) -> String {
    // Rounded up, so that the time is not shorter.
    let millis = doubt.uncounted.as_nanos().div_ceil(1_000_000).min(UNCOUNTED_MS_MAX.into());
    let mut text = format!("n{}u{millis}", doubt.node);
    if doubt.is_one_set {
        text.push('s');
    }
    let (known, unknown): (Vec<_>, Vec<_>) =
        doubt.connections.known.iter().partition(|id| id.process.len() <= PROCESS_BYTES_MAX);
    for ConnectionId { process, connection } in known {
        text += &format!("p{}k{connection}", digits(process.as_bytes()));
    }
    if doubt.connections.has_unknown || !unknown.is_empty() {
        text.push('x');
    }
    text
}

fn read_doubts(field: &str) -> Option<Vec<Doubt>> {
    let Some(all) = field.strip_prefix('n') else {
        return field.is_empty().then(Vec::new);
    };
    all.split('n').map(read_doubt).collect()
}

fn split_flag(text: &str, flag: char) -> (&str, bool) {
    text.strip_suffix(flag).map_or((text, false), |text| (text, true))
}

/// Parses the output of [`write_doubt`], without its first letter.
fn read_doubt(text: &str) -> Option<Doubt> {
    let (text, has_unknown) = split_flag(text, 'x');
    let mut parts = text.split('p');
    let (node, millis) = parts.next()?.split_once('u')?;
    let (millis, is_one_set) = split_flag(millis, 's');
    let node = node.parse().ok().filter(|node| *node < NODES_MAX)?;
    let mut connections = ConnectionIds::default();
    for part in parts {
        let (process, connection) = part.split_once('k')?;
        let process = String::from_utf8(bytes_of(process, "doubts").ok()?).ok()?;
        connections
            .insert(ConnectionId { process: process.into(), connection: connection.parse().ok()? });
    }
    connections.has_unknown |= has_unknown;
    let millis = millis.parse().ok().filter(|millis| *millis <= UNCOUNTED_MS_MAX)?;
    let uncounted = Duration::from_millis(millis);
    Some(Doubt { node, connections, is_one_set, uncounted })
}

fn read(text: &str) -> Result<Written<'_>, HandOverError> {
    let (bytes, max) = (text.len(), TEXT_BYTES_MAX);
    if bytes > max {
        return Err(HandOverError::TooLong { bytes, max });
    }
    let mut fields = text.split(SEPARATOR);
    if fields.next() != Some(NAME) {
        return Err(HandOverError::NotALock);
    }
    // The checksum of a later version may be different, so the version is checked first.
    if fields.next() != Some(VERSION) {
        return Err(HandOverError::Version);
    }
    let (checked, checksum) = text.rsplit_once(SEPARATOR).ok_or(HandOverError::Damaged)?;
    if checksum != format!("{:0CHECKSUM_DIGITS$x}", crc32(checked.as_bytes())) {
        return Err(HandOverError::Damaged);
    }
    let mut field = || fields.next().ok_or(HandOverError::Damaged);
    let clock = field()?;
    let steady_nanos = number(field()?, "steady")?;
    let wall_nanos = number(field()?, "wall")?;
    let left = Duration::from_nanos(number(field()?, "left")?);
    let ttl = ttl(field()?, "ttl")?;
    let longest = self::ttl(field()?, "longest")?;
    let bits: u64 = number(field()?, "granted")?;
    let doubts = read_doubts(field()?).ok_or(HandOverError::Field("doubts"))?;
    let fencing = match field()? {
        "" => None,
        fence => Some(number(fence, "fence")?),
    };
    let kind = number(field()?, "kind")?;
    let resource = bytes_of(field()?, "resource")?;
    let token = bytes_of(field()?, "token")?;
    let (_checksum, None) = (field()?, fields.next()) else {
        return Err(HandOverError::Damaged);
    };
    if longest < ttl {
        return Err(HandOverError::Field("longest"));
    }
    if left > longest.as_duration() {
        return Err(HandOverError::Field("left"));
    }
    let mut granted = NodeSet::EMPTY;
    (0..NODES_MAX).filter(|node| bits >> node & 1 == 1).for_each(|node| granted.insert(node));
    let resource = Resource::of_raw(kind, &resource);
    let resource = resource.map_err(|_| HandOverError::Field("resource"))?;
    if fencing.is_some() && !resource.is_plain() {
        return Err(HandOverError::Field("fence"));
    }
    let token = token.try_into().map_err(|_| HandOverError::Field("token"))?;
    let token = LockToken::from_random(token);
    let stamp = Stamp { steady_nanos, wall_nanos };
    Ok(Written { clock, stamp, left, ttl, longest, granted, doubts, fencing, resource, token })
}

fn number<T: FromStr>(field: &str, name: &'static str) -> Result<T, HandOverError> {
    field.parse().map_err(|_| HandOverError::Field(name))
}

fn ttl(field: &str, name: &'static str) -> Result<Ttl, HandOverError> {
    let ttl = Ttl::new(Duration::from_millis(number(field, name)?));
    ttl.ok_or(HandOverError::Field(name))
}

/// Decodes lower-case hexadecimal digits.
fn bytes_of(field: &str, name: &'static str) -> Result<Vec<u8>, HandOverError> {
    let digit = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let byte = |pair: &[u8]| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    };
    let bytes: Option<_> = field.as_bytes().chunks(2).map(byte).collect();
    bytes.ok_or(HandOverError::Field(name))
}

/// CRC-32 as in Ethernet and zip: it detects every change of up to four bytes in a row. It does not
/// protect from an attacker.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| crc >> 1 ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
    let each = |crc: u32, byte: &u8| (0..8).fold(crc ^ u32::from(*byte), step);
    !bytes.iter().fold(!0, each)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::resource::{RESOURCE_BYTES_MAX, RESOURCES_MAX};

    const SECOND: Duration = Duration::from_secs(1);
    const TOKEN: &str = "0707070707070707070707070707070707070707";

    fn lease(name: &[u8], deadline: Moment) -> Lease {
        lease_of(Resource::new(name).unwrap(), deadline)
    }

    fn lease_of(resource: Resource, deadline: Moment) -> Lease {
        let ttl = |seconds| Ttl::new(seconds * SECOND).unwrap();
        let token = LockToken::from_random([7; 20]);
        let mut granted = NodeSet::EMPTY;
        [0, 2, 63].into_iter().for_each(|node| granted.insert(node));
        Lease::elsewhere(resource, token, ttl(10), deadline).with_past(ttl(20), granted, doubts())
    }

    fn doubts() -> Vec<Doubt> {
        let id = |process: &str, connection| ConnectionId { process: process.into(), connection };
        let mut one = ConnectionIds::default();
        one.insert(id("0a1b", 7));
        one.insert(id("", -1));
        let other = ConnectionIds { has_unknown: true, ..ConnectionIds::default() };
        let uncounted = Duration::from_millis(31_300);
        vec![
            Doubt { node: 1, connections: one, is_one_set: false, uncounted },
            Doubt { node: 63, connections: other, is_one_set: true, uncounted: Duration::ZERO },
        ]
    }

    /// A text with these fields and a matching checksum.
    fn signed(text: &str) -> String {
        format!("{text}.{:08x}", crc32(text.as_bytes()))
    }

    fn stamp(steady: u64, wall: i64) -> Stamp {
        let nanos = 1_000_000_000;
        Stamp { steady_nanos: steady * nanos, wall_nanos: wall * nanos as i64 }
    }

    fn text_of(name: &[u8], left: Duration) -> String {
        LockParts(lease(name, Clock.now().after(left))).to_secret_text().unwrap()
    }

    fn number_of(text: &str) -> Option<FencingToken> {
        Some(text.parse().unwrap())
    }

    fn fenced_text(left: Duration) -> String {
        let lease = lease(b"invoice:42", Clock.now().after(left));
        let lease = lease.fenced(number_of("1700000000000000"));
        LockParts(lease).to_secret_text().unwrap()
    }

    /// One of each kind that may be held, but for the plain one.
    fn kinds() -> [Resource; 4] {
        [
            Resource::all(["b", "aa"]),
            Resource::shared("a"),
            Resource::exclusive("a"),
            Resource::with_value("a", "bb"),
        ]
        .map(Result::unwrap)
    }

    fn text_of_kind(resource: Resource, left: Duration) -> String {
        let parts = LockParts(lease_of(resource, Clock.now().after(left)));
        parts.to_secret_text().unwrap()
    }

    /// A plain lock, a fenced one, and one of each other kind.
    fn texts(left: Duration) -> [String; 6] {
        let [all, shared, exclusive, own] = kinds().map(|resource| text_of_kind(resource, left));
        [text_of(b"invoice:42", left), fenced_text(left), all, shared, exclusive, own]
    }

    #[test]
    fn checksum_is_the_usual_one() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(crc32(b""), 0);
    }

    #[test]
    fn what_is_written_is_read_with_no_more_validity() {
        let longest = vec![0; RESOURCE_BYTES_MAX];
        for name in [&b"invoice:42"[..], b".", b"\0\xff\n", &longest] {
            let deadline = Clock.now().after(9 * SECOND);
            let parts = LockParts(lease(name, deadline));
            let text = parts.to_secret_text().unwrap();
            assert!(text.len() <= TEXT_BYTES_MAX);
            assert!(text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'.' || b == b'-'));
            let read: LockParts = text.parse().unwrap();
            assert_eq!(read.resource().as_bytes(), name);
            assert_eq!(read.token(), parts.token());
            let (read, written) = (&read.0, &parts.0);
            assert_eq!((read.ttl(), read.past()), (written.ttl(), written.past()));
            assert!(read.valid_until() <= deadline, "never more");
            assert!(deadline.since(read.valid_until()) < 5 * SECOND, "not much less");
        }
    }

    /// F17.
    #[test]
    fn fencing_token_is_in_the_text_of_a_fenced_lock_only() {
        for number in ["1", "1700000000000000", "8999999999999999"] {
            let fence = number_of(number);
            let lease = lease(b"invoice:42", Clock.now().after(9 * SECOND)).fenced(fence);
            let parts = LockParts(lease);
            let text = parts.to_secret_text().unwrap();
            assert!(text.starts_with("muxlock.5.") && text.len() <= TEXT_BYTES_MAX);
            assert_eq!(text.split('.').nth(10), Some(number));
            let read: LockParts = text.parse().unwrap();
            assert_eq!((read.fencing_token(), read.token()), (fence, parts.token()));
            assert_eq!(read.0.past(), parts.0.past());
        }
        let text = text_of(b"invoice:42", 9 * SECOND);
        assert_eq!(text.split('.').nth(10), Some(""));
        assert_eq!(text.parse::<LockParts>().unwrap().fencing_token(), None);
    }

    #[test]
    fn slow_every_cut_and_every_changed_byte_is_noticed() {
        texts(9 * SECOND).iter().for_each(|text| check_cuts_and_changes(text));
    }

    fn check_cuts_and_changes(text: &str) {
        for end in 0..text.len() {
            let error = text[..end].parse::<LockParts>().unwrap_err();
            assert!(!error.to_string().contains(TOKEN));
        }
        for at in 0..text.len() {
            for new in 0..128 {
                let mut changed = text.to_owned().into_bytes();
                if std::mem::replace(&mut changed[at], new) != new {
                    let changed = String::from_utf8(changed).unwrap();
                    changed.parse::<LockParts>().unwrap_err();
                }
            }
        }
        for other in
            [format!("{text}."), format!("{text}0"), format!(" {text}"), text.to_uppercase()]
        {
            other.parse::<LockParts>().unwrap_err();
        }
    }

    /// R27: an extension by a shorter TTL leaves more of an earlier one.
    #[test]
    fn more_validity_than_the_last_ttl_is_read() {
        let deadline = Clock.now().after(15 * SECOND);
        let parts = LockParts(lease(b"invoice:42", deadline));
        let read: LockParts = parts.to_secret_text().unwrap().parse().unwrap();
        assert_eq!(read.0.ttl(), 10 * SECOND);
        assert!(deadline.since(read.0.valid_until()) < 4 * SECOND);
    }

    /// Doubts that do not fit into the text make the doubt greater.
    #[test]
    fn doubt_is_not_less_where_it_is_read() {
        let mut connections = ConnectionIds::default();
        let process = "a".repeat(PROCESS_BYTES_MAX + 1).into();
        connections.insert(ConnectionId { process, connection: 7 });
        let uncounted = Duration::from_nanos(1);
        let doubt = Doubt { node: 2, connections, is_one_set: true, uncounted };
        let read = read_doubts(&write_doubt(&doubt)).unwrap();
        assert_eq!(read[0].uncounted, Duration::from_millis(1));
        assert!(read[0].connections.has_unknown && read[0].connections.known.is_empty());
    }

    /// With a matching checksum, as a bug of ours or an attacker may produce.
    #[test]
    fn arbitrary_fields_are_read_or_refused_and_never_valid_for_longer_than_the_ttl() {
        texts(9 * SECOND).iter().for_each(|text| check_arbitrary_fields(text));
    }

    fn check_arbitrary_fields(text: &str) {
        let (checked, _) = text.rsplit_once('.').unwrap();
        let fields: Vec<&str> = checked.split('.').collect();
        let wild = [
            "",
            "0",
            "1",
            "-1",
            "+1",
            "01",
            " 1",
            "1e9",
            "18446744073709551615",
            "99999999999999999999",
            "9223372036854775807",
            "-9223372036854775808",
            "2147483648",
            "zz",
            "0g",
            "é",
            "\0",
            "ffffffffffffffffffffffffffffffffffffffff",
            "muxlock",
            "4294967296",
        ];
        for at in 0..fields.len() {
            for field in wild {
                let mut fields = fields.clone();
                fields[at] = field;
                let Ok(parts) = signed(&fields.join(".")).parse::<LockParts>() else {
                    continue;
                };
                let most = Clock.now().after(20 * SECOND);
                assert!(parts.0.valid_until() <= most, "{at} {field:?}");
            }
            let mut fewer = fields.clone();
            fewer.remove(at);
            signed(&fewer.join(".")).parse::<LockParts>().unwrap_err();
            let mut more = fields.clone();
            more.insert(at, "1");
            signed(&more.join(".")).parse::<LockParts>().unwrap_err();
        }
    }

    #[test]
    fn error_says_what_is_wrong() {
        let text = text_of(b"invoice:42", 9 * SECOND);
        let (checked, _) = text.rsplit_once('.').unwrap();
        let with = |at: usize, field: &str| {
            let mut fields: Vec<&str> = checked.split('.').collect();
            fields[at] = field;
            signed(&fields.join(".")).parse::<LockParts>().unwrap_err()
        };
        assert_eq!(with(0, "redlock"), HandOverError::NotALock);
        for version in ["", "1", "2", "3", "4", "6"] {
            assert_eq!(with(1, version), HandOverError::Version);
        }
        assert_eq!(with(2, "00000000000000000000000000000000-0"), HandOverError::OtherClock);
        assert_eq!(with(3, "18446744073709551615"), HandOverError::OtherClock, "in the future");
        let names = [
            "steady", "wall", "left", "ttl", "longest", "granted", "doubts", "fence", "kind",
            "resource", "token",
        ];
        for (i, name) in names.into_iter().enumerate() {
            assert_eq!(with(3 + i, "x"), HandOverError::Field(name));
            assert!(with(3 + i, "x").to_string().contains(name));
        }
        assert_eq!(with(5, "20000000001"), HandOverError::Field("left"), "more than the TTL");
        assert_eq!(with(7, "9999"), HandOverError::Field("longest"), "less than the TTL");
        for doubts in [
            "n",
            "n64u1",
            "n1",
            "n1u",
            "n1u1p",
            "n1u1p0k1",
            "n1u18446744073709551615",
            "n1u1pffk1",
            "n1u1n",
        ] {
            assert_eq!(with(9, doubts), HandOverError::Field("doubts"), "{doubts}");
        }
        assert_eq!(with(12, ""), HandOverError::Field("resource"));
        assert_eq!(with(13, &TOKEN[2..]), HandOverError::Field("token"));
        let error = "x".repeat(TEXT_BYTES_MAX + 1).parse::<LockParts>().unwrap_err();
        assert!(matches!(error, HandOverError::TooLong { .. }), "{error}");
        let damaged = text.replacen(TOKEN, &TOKEN.replace('7', "8"), 1);
        assert_eq!(damaged.parse::<LockParts>().unwrap_err(), HandOverError::Damaged);
    }

    #[test]
    fn field_that_is_no_fencing_token_is_named() {
        let text = fenced_text(9 * SECOND);
        let (checked, _) = text.rsplit_once('.').unwrap();
        let mut fields: Vec<&str> = checked.split('.').collect();
        for fence in ["0", "-1", "+1", "01", "9000000000000000", "99999999999999999999", "x"] {
            fields[10] = fence;
            let error = signed(&fields.join(".")).parse::<LockParts>().unwrap_err();
            assert_eq!(error, HandOverError::Field("fence"), "{fence}");
        }
        fields[10] = "1";
        let _ = signed(&fields.join(".")).parse::<LockParts>().unwrap();
        // Only a lock of one plain key has a number.
        fields[11] = "2";
        let error = signed(&fields.join(".")).parse::<LockParts>().unwrap_err();
        assert_eq!(error, HandOverError::Field("fence"));
    }

    /// K1, K4, K7: the kind is a field of its own, and the longest names fit.
    #[test]
    fn kind_is_in_the_text_of_each_lock() {
        let many: Vec<String> = (0..RESOURCES_MAX).map(|i| format!("{i:0512}")).collect();
        let long = vec![0xff; RESOURCE_BYTES_MAX];
        let others = [Resource::all(many), Resource::shared(&long), Resource::exclusive(long)];
        for resource in kinds().into_iter().chain(others.map(Result::unwrap)) {
            let text = text_of_kind(resource.clone(), 9 * SECOND);
            assert!(text.len() <= TEXT_BYTES_MAX);
            let read: LockParts = text.parse().unwrap();
            assert_eq!((read.resource(), read.fencing_token()), (&resource, None));
            let written = lease_of(resource, Clock.now());
            assert_eq!((read.token(), read.0.past()), (written.token(), written.past()));
        }
        let fields = |text: &str| text.split('.').skip(11).take(2).collect::<Vec<_>>().join(".");
        let written = kinds().map(|resource| fields(&text_of_kind(resource, SECOND)));
        assert_eq!(written, ["1.02006161010062", "2.61", "3.61", "5.0200626261"]);
    }

    #[test]
    fn torn_kinds_and_names_are_refused() {
        let text = text_of_kind(kinds()[0].clone(), 9 * SECOND);
        let (checked, _) = text.rsplit_once('.').unwrap();
        let with = |kind: &str, names: &str| {
            let mut fields: Vec<&str> = checked.split('.').collect();
            (fields[11], fields[12]) = (kind, names);
            signed(&fields.join(".")).parse::<LockParts>().map(|parts| parts.resource().clone())
        };
        for kind in ["", "x", "-1", "256", "1 "] {
            assert_eq!(with(kind, "010061010062"), Err(HandOverError::Field("kind")), "{kind}");
        }
        // A slot, and kinds that do not exist.
        for kind in ["4", "6", "255"] {
            let refused = Err(HandOverError::Field("resource"));
            assert_eq!(with(kind, "010061010062"), refused, "{kind}");
        }
        // No name; an empty one; one that is cut; half a length; a length beyond the end.
        for names in ["", "0000", "01006101", "0100610100", "ffff61", "01006102006200ff"] {
            assert_eq!(with("1", names), Err(HandOverError::Field("resource")), "{names}");
        }
        // No value; a length beyond the end; no name.
        for value in ["", "01", "000061", "020061", "010061"] {
            assert_eq!(with("5", value), Err(HandOverError::Field("resource")), "{value}");
        }
        let long = "61".repeat(RESOURCE_BYTES_MAX + 1);
        for kind in ["0", "2", "3"] {
            assert_eq!(with(kind, ""), Err(HandOverError::Field("resource")));
            assert_eq!(with(kind, &long), Err(HandOverError::Field("resource")));
        }
        assert_eq!(with("1", &format!("0104{long}")), Err(HandOverError::Field("resource")));
        let many: String = (0..=RESOURCES_MAX).map(|i| format!("0300{i:06x}")).collect();
        assert_eq!(with("1", &many), Err(HandOverError::Field("resource")), "too many");
        // In another order than we write them.
        assert_eq!(with("1", "010062010061"), Ok(Resource::all(["a", "b"]).unwrap()));
        assert_eq!(with("1", "010061"), Ok(Resource::new("a").unwrap()));
    }

    /// R20: the elapsed time is the greater one of the two clocks.
    #[test]
    fn time_on_the_way_is_taken_off_by_the_clock_that_says_more() {
        let now = Moment::from_nanos(77_000_000_000);
        let written = stamp(1_000, 5_000);
        let left = |read| deadline(now, read, written, 10 * SECOND).map(|at| at.since(now));
        assert_eq!(left(stamp(1_000, 5_000)), Ok(10 * SECOND));
        assert_eq!(left(stamp(1_003, 5_003)), Ok(7 * SECOND));
        assert_eq!(left(stamp(1_003, 5_008)), Ok(2 * SECOND), "the wall clock jumped forward");
        assert_eq!(left(stamp(1_003, 1)), Ok(7 * SECOND), "and back");
        assert_eq!(left(stamp(1_010, 5_000)), Ok(Duration::ZERO));
        assert_eq!(left(stamp(9_999, i64::MAX / 1_000_000_000)), Ok(Duration::ZERO));
        assert_eq!(
            left(stamp(999, 5_003)),
            Err(HandOverError::OtherClock),
            "before it was written"
        );
    }

    #[test]
    fn lock_that_is_over_is_read_and_not_valid() {
        for left in [Duration::ZERO, Duration::from_nanos(1)] {
            let parts: LockParts = text_of(b"invoice:42", left).parse().unwrap();
            assert!(!parts.0.is_valid_at(Clock.now()));
        }
    }

    #[test]
    fn debug_shows_no_token() {
        let parts: LockParts = text_of(b"invoice:42", SECOND).parse().unwrap();
        assert!(!format!("{parts:?}").contains(TOKEN));
    }

    /// A master that says that it was flushed and must be waited for for ever is one faulty master:
    /// the lock can be handed over all the same.
    #[test]
    fn doubt_that_lasts_for_ever_is_written_so_that_it_can_be_read() {
        // The value of `quarantine_at` after the reply `-9223372036854775807`.
        let uncounted = Duration::from_nanos(u64::MAX - Clock.now().as_nanos());
        let doubt =
            Doubt { node: 2, connections: ConnectionIds::default(), is_one_set: true, uncounted };
        let lease = lease(b"r", Clock.now().after(9 * SECOND));
        let (longest, granted, _) = lease.past();
        let parts = LockParts(lease.with_past(longest, granted, vec![doubt]));
        let text = parts.to_secret_text().unwrap();
        assert!(text.parse::<LockParts>().is_ok(), "{:?}", text.parse::<LockParts>().err());
    }
}
