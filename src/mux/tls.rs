//! TLS of one connection: it moves bytes between a socket and rustls, which does the cryptography.

use std::fmt;
use std::io::{self, ErrorKind, IoSlice, Read, Write};

use bytes::BytesMut;
use rustls::pki_types::{ServerName, UnixTime};
use rustls::{AlertDescription, CertificateError, ClientConnection, StreamOwned};

use super::stream::{Received, Stream};
use crate::config::NodeTls;
use crate::outcome::{NodeOutcome, TlsErrorKind};
use crate::resp::ReplyReader;

/// Reads of one turn while the connection is made; the rest follows in the next turn.
const HANDSHAKE_READS_PER_TURN_MAX: usize = 16;

/// How far a handshake is.
pub(super) enum TlsProgress {
    /// The poll will report further bytes.
    Waiting,
    /// There may be further bytes, and this turn is over.
    Unread,
    /// The server is verified.
    Over,
}

/// Why TLS failed, with words that may quote the server.
#[derive(Debug)]
pub(super) struct TlsFailure {
    pub(super) kind: TlsErrorKind,
    pub(super) message: String,
}

impl TlsFailure {
    /// `has_version`: whether the server had chosen a version of TLS before.
    fn of(error: &rustls::Error, has_version: bool) -> TlsFailure {
        let kind = kind_of(error, has_version);
        let message = match (error, kind) {
            (rustls::Error::InvalidCertificate(error), _) => words_of_certificate(error),
            (_, TlsErrorKind::NotTls) => {
                "it answered without TLS: write redis:// or the server's TLS port".to_owned()
            }
            (rustls::Error::AlertReceived(alert), _) => {
                let alert = spaced(&format!("{alert:?}"));
                match kind {
                    TlsErrorKind::ClientCertificate => {
                        format!("its alert is \"{alert}\": check cert= and key=")
                    }
                    _ => format!("its alert is \"{alert}\""),
                }
            }
            _ => error.to_string(),
        };
        TlsFailure { kind, message }
    }
}

impl fmt::Display for TlsFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", NodeOutcome::Tls(self.kind), self.message)
    }
}

/// Its source is the [`TlsErrorKind`].
impl std::error::Error for TlsFailure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.kind)
    }
}

/// The client's side of a connection's TLS.
///
/// All that rustls has to send goes to the socket at once, or to the socket's unsent bytes. Only
/// the last message of the handshake waits for the first command, to leave with it.
pub(super) struct Session {
    rustls: ClientConnection,
    /// Decrypted bytes that were not received yet. While there are any, nothing is read.
    plaintext: usize,
    /// Whether the poll will report further bytes.
    is_drained: bool,
    /// Whether the server has ended its side.
    is_ended: bool,
    /// Why it failed, if it did.
    pub(super) failure: Option<TlsFailure>,
}

impl Session {
    pub(super) fn new(node: &NodeTls) -> io::Result<Session> {
        let mut rustls = node.session().map_err(io::Error::other)?;
        // The socket's unsent bytes are bounded instead.
        rustls.set_buffer_limit(None);
        let failure = None;
        Ok(Session { rustls, plaintext: 0, is_drained: false, is_ended: false, failure })
    }

    /// Continues the handshake as far as possible, once the socket is connected.
    pub(super) fn handshake(
        &mut self,
        stream: &mut Stream,
        unsent: &mut BytesMut,
    ) -> io::Result<TlsProgress> {
        for _ in 0..HANDSHAKE_READS_PER_TURN_MAX {
            self.write_records(stream, unsent)?;
            match self.read_records(stream) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => self.process(stream, unsent)?,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return Ok(TlsProgress::Waiting);
                }
                Err(error) => return Err(error),
            }
            if !self.rustls.is_handshaking() {
                return Ok(TlsProgress::Over);
            }
        }
        Ok(TlsProgress::Unread)
    }

    /// Encrypts and sends the bytes, and keeps those that the socket does not accept.
    #[inline(never)]
    pub(super) fn send(
        &mut self,
        bytes: &[u8],
        stream: &mut Stream,
        unsent: &mut BytesMut,
    ) -> io::Result<()> {
        // Otherwise rustls would keep them.
        if self.rustls.is_handshaking() {
            return Err(ErrorKind::NotConnected.into());
        }
        self.rustls.writer().write_all(bytes)?;
        self.write_records(stream, unsent)
    }

    /// Reads at most once from the socket, and decrypts into the reader's buffer. It may have
    /// received bytes that are none for the reader.
    #[inline(never)]
    pub(super) fn receive(
        &mut self,
        stream: &mut Stream,
        unsent: &mut BytesMut,
        reader: &mut ReplyReader,
    ) -> io::Result<Received> {
        if self.plaintext == 0 {
            match self.read_records(stream) {
                Ok(0) => return Ok(Received::Ended),
                Ok(_) => self.process(stream, unsent)?,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return Ok(Received::Nothing);
                }
                Err(error) => return Err(error),
            }
            self.write_records(stream, unsent)?;
        }
        if self.plaintext > 0 {
            let count = self.rustls.reader().read(reader.room())?;
            reader.filled(count);
            self.plaintext -= count;
        }
        // The poll reports neither the bytes that are left here nor an end without the socket's.
        let is_last = self.plaintext == 0 && self.is_drained && !self.is_ended;
        Ok(if is_last { Received::Last } else { Received::Some })
    }

    fn read_records(&mut self, stream: &mut Stream) -> io::Result<usize> {
        let mut inlet = Inlet { stream, is_drained: false };
        let count = self.rustls.read_tls(&mut inlet);
        self.is_drained = inlet.is_drained;
        count
    }

    /// Decrypts and handles the bytes that were read.
    fn process(&mut self, stream: &mut Stream, unsent: &mut BytesMut) -> io::Result<()> {
        let before = self.rustls.protocol_version();
        match self.rustls.process_new_packets() {
            Ok(state) => {
                self.plaintext = state.plaintext_bytes_to_read();
                self.is_ended = state.peer_has_closed();
                Ok(())
            }
            Err(error) => {
                // An alert tells the server why; the connection ends, whether it arrives or not.
                let _ = self.write_records(stream, unsent);
                self.failure = Some(TlsFailure::of(&error, before.is_some()));
                Err(ErrorKind::InvalidData.into())
            }
        }
    }

    fn write_records(&mut self, stream: &mut Stream, unsent: &mut BytesMut) -> io::Result<()> {
        let mut outlet = Outlet { stream, unsent };
        while self.rustls.wants_write() {
            self.rustls.write_tls(&mut outlet)?;
        }
        Ok(())
    }
}

/// The socket's bytes for rustls.
struct Inlet<'a> {
    stream: &'a mut Stream,
    is_drained: bool,
}

impl Read for Inlet<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.stream.read(into) {
                Ok(count) => {
                    // As for a socket without TLS.
                    self.is_drained = Received::of(count, into.len()) == Received::Last;
                    return Ok(count);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Takes all bytes: for the socket, or for the unsent ones, which the poll's next report sends.
struct Outlet<'a> {
    stream: &'a mut Stream,
    unsent: &'a mut BytesMut,
}

impl Write for Outlet<'_> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(from)])
    }

    fn write_vectored(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        while self.unsent.is_empty() {
            match self.stream.write_vectored(from) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => return Ok(count),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        from.iter().for_each(|slice| self.unsent.extend_from_slice(slice));
        Ok(from.iter().map(|slice| slice.len()).sum())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A blocking stream with TLS. Its errors name the TLS problem.
pub(super) struct Blocking<S: Read + Write>(StreamOwned<ClientConnection, S>);

impl<S: Read + Write> Blocking<S> {
    fn why(&mut self, error: io::Error) -> io::Error {
        with_kind(last_words(&mut self.0.conn, &mut self.0.sock, error), true)
    }
}

impl<S: Read + Write> Read for Blocking<S> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into).map_err(|error| with_kind(error, true))
    }
}

impl<S: Read + Write> Write for Blocking<S> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let written = self.0.write(from);
        written.map_err(|error| self.why(error))
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.0.flush();
        flushed.map_err(|error| self.why(error))
    }
}

/// TLS over a blocking stream, with its handshake.
pub(super) fn blocking<S: Read + Write>(node: &NodeTls, mut stream: S) -> io::Result<Blocking<S>> {
    let mut session = node.session().map_err(io::Error::other)?;
    // Each iteration moves a byte at least, before the stream's deadline.
    while session.is_handshaking() {
        if let Err(error) = session.complete_io(&mut stream) {
            let has_version = session.protocol_version().is_some();
            return Err(with_kind(last_words(&mut session, &mut stream, error), has_version));
        }
    }
    Ok(Blocking(StreamOwned::new(session, stream)))
}

/// A server that refuses this client says why, and may close before all is written.
fn last_words(
    session: &mut ClientConnection,
    stream: &mut impl Read,
    error: io::Error,
) -> io::Error {
    if !matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) {
        return error;
    }
    let _ = session.read_tls(stream);
    match session.process_new_packets() {
        Ok(_) => error,
        Err(why) => io::Error::new(ErrorKind::InvalidData, why),
    }
}

/// In place of an error of rustls, a [`TlsFailure`].
fn with_kind(error: io::Error, has_version: bool) -> io::Error {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    match inner.map(|inner| TlsFailure::of(inner, has_version)) {
        Some(failure) => io::Error::new(ErrorKind::InvalidData, failure),
        None => error,
    }
}

/// `has_version`: whether the server had chosen a version of TLS before.
fn kind_of(error: &rustls::Error, has_version: bool) -> TlsErrorKind {
    use AlertDescription as Alert;
    match error {
        rustls::Error::InvalidCertificate(error) => kind_of_certificate(error),
        rustls::Error::NoCertificatesPresented => TlsErrorKind::Untrusted,
        rustls::Error::PeerIncompatible(_) => TlsErrorKind::Version,
        rustls::Error::InvalidMessage(_) if !has_version => TlsErrorKind::NotTls,
        rustls::Error::AlertReceived(alert) => match alert {
            Alert::ProtocolVersion | Alert::InsufficientSecurity => TlsErrorKind::Version,
            // Up to TLS 1.2 it also means a missing certificate.
            Alert::HandshakeFailure if !has_version => TlsErrorKind::Version,
            Alert::HandshakeFailure
            | Alert::CertificateRequired
            | Alert::NoCertificate
            | Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::AccessDenied => TlsErrorKind::ClientCertificate,
            _ => TlsErrorKind::Other,
        },
        _ => TlsErrorKind::Other,
    }
}

fn kind_of_certificate(error: &CertificateError) -> TlsErrorKind {
    use CertificateError::*;
    match error {
        Expired | ExpiredContext { .. } => TlsErrorKind::Expired,
        NotValidYet | NotValidYetContext { .. } => TlsErrorKind::NotYetValid,
        NotValidForName | NotValidForNameContext { .. } => TlsErrorKind::WrongName,
        Revoked => TlsErrorKind::Revoked,
        UnknownIssuer | BadSignature => TlsErrorKind::Untrusted,
        _ => TlsErrorKind::Certificate,
    }
}

/// The words of a name that is written together.
fn spaced(name: &str) -> String {
    let (mut words, mut last) = (String::new(), ' ');
    for char in name.chars() {
        if char.is_ascii_uppercase() && last.is_ascii_lowercase() {
            words.push(' ');
        }
        words.push(char.to_ascii_lowercase());
        last = char;
    }
    words
}

/// The names and addresses of a certificate, of what rustls shows as `DnsName("name")`.
fn names(presented: &[String]) -> Vec<&str> {
    let inner = |name: &str| name.find('(').map_or(0, |at| at + 1);
    let is_name = |name: &&String| name.starts_with("DnsName(") || name.starts_with("IpAddress(");
    let presented = presented.iter().filter(is_name);
    presented.map(|name| name[inner(name)..].trim_matches(['"', ')'])).collect()
}

fn time_between(earlier: UnixTime, later: UnixTime) -> String {
    match later.as_secs().saturating_sub(earlier.as_secs()) {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7_200 => format!("{} min", seconds / 60),
        seconds @ 7_200..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

/// The problem of a certificate, and its fix.
fn words_of_certificate(error: &CertificateError) -> String {
    use CertificateError::*;
    match error {
        UnknownIssuer => "none of the roots (ca=, or those of the system) has signed it".to_owned(),
        BadSignature => {
            "a root of the same name has another key: ca= may be an older root".to_owned()
        }
        NotValidForNameContext { expected, presented } if names(presented).is_empty() => {
            let kind = if matches!(expected, ServerName::IpAddress(_)) { "IP" } else { "DNS" };
            let name = expected.to_str();
            format!("it has no subjectAltName: make a new one with subjectAltName={kind}:{name}")
        }
        NotValidForNameContext { expected, presented } => format!(
            "it is for {}, and not for {}: write one of its names in the address or in server_name=",
            names(presented).join(", "),
            expected.to_str()
        ),
        ExpiredContext { time, not_after } => format!(
            "it expired {} ago: renew it, or correct the clock of this machine",
            time_between(*not_after, *time)
        ),
        NotValidYetContext { time, not_before } => format!(
            "it is not valid yet; it will be in {}: correct the clock of this machine, or make a new one",
            time_between(*time, *not_before)
        ),
        BadEncoding => "it is malformed: make a new one".to_owned(),
        // rustls has no variant of its own for these, or only in later versions.
        _ => {
            let name = match error {
                Other(inner) => inner.to_string(),
                _ => format!("{error:?}"),
            };
            let is = |text: &str| name.starts_with(text);
            let advice = if is("CaUsedAsEndEntity") {
                "it is the certificate of an authority: make the server's with \
                 basicConstraints=CA:FALSE (openssl req -x509 makes an authority)"
            } else if is("EndEntityUsedAsCa") {
                "the certificate that has signed it is no authority: make that one with \
                 basicConstraints=CA:TRUE"
            } else if is("UnsupportedCertVersion") {
                "it has X.509 version 1: make one of version 3 (openssl x509 -req with -extfile)"
            } else if is("UnsupportedSignatureAlgorithm") {
                "its signature has an algorithm that is too old or not supported: sign it with \
                 -sha256"
            } else if is("InvalidPurpose") {
                "its extendedKeyUsage does not include servers: make a new one with serverAuth"
            } else if matches!(error, Other(_)) {
                return format!("it was refused: {name}");
            } else {
                return error.to_string();
            };
            advice.to_owned()
        }
    }
}

// They need the cryptography of the feature, and sockets that take many bytes at once.
#[cfg(all(test, target_os = "linux", feature = "tls"))]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
    use rustls::{ServerConfig, ServerConnection};

    use super::*;
    use crate::config::Builder;

    /// The client's side of a connection, and the socket of the server's.
    struct Client {
        session: Session,
        stream: Stream,
        unsent: BytesMut,
    }

    fn connect() -> (Client, UnixStream) {
        let config = Builder::default().node("rediss://127.0.0.1?verify=no").config().unwrap();
        let session = Session::new(config.nodes[0].tls.as_ref().unwrap()).unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_nonblocking(true).unwrap();
        let stream = Stream::Unix(mio::net::UnixStream::from_std(ours));
        (Client { session, stream, unsent: BytesMut::new() }, theirs)
    }

    impl Client {
        fn handshake(&mut self) -> TlsProgress {
            self.session.handshake(&mut self.stream, &mut self.unsent).unwrap()
        }

        fn receive(&mut self, reader: &mut ReplyReader) -> Received {
            self.session.receive(&mut self.stream, &mut self.unsent, reader).unwrap()
        }
    }

    fn server() -> ServerConnection {
        let made = rcgen::generate_simple_self_signed(["redis.test".to_owned()]).unwrap();
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider);
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let builder = builder.with_no_client_auth();
        let key = PrivateKeyDer::Pkcs8(key);
        let mut config = builder.with_single_cert(vec![made.cert.der().clone()], key).unwrap();
        // Nothing but replies comes after the handshake.
        config.send_tls13_tickets = 0;
        ServerConnection::new(Arc::new(config)).unwrap()
    }

    /// Lets a server read and write all that it can.
    fn serve(server: &mut ServerConnection, socket: &mut UnixStream) {
        while matches!(server.read_tls(socket), Ok(1..)) {
            server.process_new_packets().unwrap();
        }
        while server.wants_write() {
            server.write_tls(socket).unwrap();
        }
    }

    /// rustls has no variants for these, and its words are for programmers.
    #[test]
    fn certificates_of_no_use_have_words() {
        let words = |name: &'static str| {
            let inner = rustls::OtherError(Arc::new(io::Error::other(name)));
            words_of_certificate(&CertificateError::Other(inner))
        };
        let table = [
            ("UnsupportedCertVersion", "make one of version 3 (openssl x509 -req with -extfile)"),
            ("CaUsedAsEndEntity", "basicConstraints=CA:FALSE"),
            ("EndEntityUsedAsCa", "basicConstraints=CA:TRUE"),
            ("UnsupportedSignatureAlgorithmContext(..)", "-sha256"),
            ("PathLenConstraintViolated", "it was refused: PathLenConstraintViolated"),
        ];
        for (name, text) in table {
            assert!(words(name).contains(text), "{name}: {}", words(name));
        }
        assert_eq!(spaced("CertificateRequired"), "certificate required");
        assert_eq!(spaced("UnknownCA"), "unknown ca");
    }

    /// The socket has nothing more, so nothing would report them.
    #[test]
    fn plaintext_that_a_read_leaves_is_received_without_another_record() {
        let (mut client, mut socket) = connect();
        let mut server = server();
        while !matches!(client.handshake(), TlsProgress::Over) {
            serve(&mut server, &mut socket);
        }
        // The end of the handshake leaves with it.
        client.session.send(b"PING\r\n", &mut client.stream, &mut client.unsent).unwrap();
        serve(&mut server, &mut socket);
        // The first record has most of the longest reply. The next two are complete at the same
        // time, and have more than the room beside it.
        const SHORT: usize = 3_474;
        let long = [b"$16384\r\n", &[b'x'; 16_384][..], b"\r\n"].concat();
        server.writer().write_all(&[long, b"+OK\r\n".repeat(SHORT)].concat()).unwrap();
        serve(&mut server, &mut socket);
        let mut reader = ReplyReader::new();
        let mut replies = 0;
        let mut reads = 0;
        loop {
            let received = client.receive(&mut reader);
            while reader.next().unwrap().is_some() {
                replies += 1;
            }
            reads += 1;
            assert!(reads < 100 && received != Received::Ended, "after {replies} replies");
            if matches!(received, Received::Last | Received::Nothing) {
                break;
            }
        }
        assert_eq!(replies, 1 + SHORT);
    }

    /// A server that sends without end does not delay others.
    #[test]
    fn turn_of_a_handshake_reads_a_bounded_number_of_times() {
        let (mut client, mut socket) = connect();
        assert!(matches!(client.handshake(), TlsProgress::Waiting));
        // The begin of a ServerHello with 65,520 bytes, a byte in each record.
        let message = [2, 0, 0xff, 0xf0].into_iter().chain(std::iter::repeat_n(0, 14_000));
        let records: Vec<u8> = message.flat_map(|byte| [22, 3, 3, 0, 1, byte]).collect();
        socket.write_all(&records).unwrap();
        // After that, rustls refuses more.
        assert!(matches!(client.handshake(), TlsProgress::Unread));
    }
}
