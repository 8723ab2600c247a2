//! Servers between a client and a master: one that passes bytes on and counts them, and one that
//! ends TLS itself.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use muxlock::testing::TlsFiles;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection};

/// Passes on what comes, in pieces of at most so many bytes. Its threads end with the connections.
pub struct Tap {
    addr: SocketAddr,
    /// For each connection, how many bytes the server sent before the client said more than once.
    first_flights: Arc<Mutex<Vec<usize>>>,
}

impl Tap {
    pub fn start(upstream: SocketAddr, piece: usize) -> Tap {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let addr = listener.local_addr().expect("it has one");
        let first_flights = Arc::new(Mutex::new(Vec::new()));
        let counted = Arc::clone(&first_flights);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(upstream) else { continue };
                let at = {
                    let mut counted = counted.lock().unwrap_or_else(PoisonError::into_inner);
                    counted.push(0);
                    counted.len() - 1
                };
                let counted = Arc::clone(&counted);
                thread::spawn(move || pass_both(client, server, piece, at, &counted));
            }
        });
        Tap { addr, first_flights }
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub fn connections(&self) -> usize {
        self.first_flights().len()
    }

    /// How many bytes each server sent first, up to the client's second message.
    pub fn first_flights(&self) -> Vec<usize> {
        self.first_flights.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn pass_both(
    client: TcpStream,
    server: TcpStream,
    piece: usize,
    at: usize,
    counted: &Mutex<Vec<usize>>,
) {
    let said = Mutex::new(0);
    let lock = || said.lock().unwrap_or_else(PoisonError::into_inner);
    for stream in [&client, &server] {
        stream.set_nodelay(true).expect("a socket");
    }
    thread::scope(|scope| {
        scope.spawn(|| pass(&client, &server, piece, |_| *lock() += 1));
        pass(&server, &client, piece, |count| {
            // Only what answers the first message.
            if *lock() <= 1 {
                counted.lock().unwrap_or_else(PoisonError::into_inner)[at] += count;
            }
        });
    });
}

fn pass(mut from: &TcpStream, mut to: &TcpStream, piece: usize, mut note: impl FnMut(usize)) {
    let mut buffer = [0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        note(count);
        for piece in buffer[..count].chunks(piece) {
            if to.write_all(piece).is_err() {
                break;
            }
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

/// What a server of [`front`] does besides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Habit {
    /// Changes its keys before each reply.
    NewKeys,
    /// Each byte of a reply has a record of its own.
    TinyRecords,
    /// After so many replies it says that it ends, and keeps the socket open.
    SaysGoodbye(usize),
    /// Sends a reply that nobody asked for right after its handshake.
    SpeaksFirst,
}

pub fn server_config(files: &TlsFiles) -> ServerConfig {
    let chain = CertificateDer::pem_file_iter(&files.cert).expect("a file");
    let chain = chain.collect::<Result<Vec<_>, _>>().expect("certificates");
    let key = PrivateKeyDer::from_pem_file(&files.key).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().expect("versions");
    builder.with_no_client_auth().with_single_cert(chain, key).expect("they fit")
}

/// A server that ends TLS and passes what is inside on to a master, one message at a time.
pub fn front(files: &TlsFiles, upstream: SocketAddr, habit: Habit) -> SocketAddr {
    let config = Arc::new(server_config(files));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let addr = listener.local_addr().expect("it has one");
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let config = Arc::clone(&config);
            thread::spawn(move || serve(client, config, upstream, habit));
        }
    });
    addr
}

fn serve(
    mut client: TcpStream,
    config: Arc<ServerConfig>,
    upstream: SocketAddr,
    habit: Habit,
) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut server = TcpStream::connect(upstream)?;
    server.set_nodelay(true)?;
    let mut tls = ServerConnection::new(config).map_err(io::Error::other)?;
    tls.set_buffer_limit(None);
    let mut buffer = [0; 64 * 1024];
    let mut left = match habit {
        Habit::SaysGoodbye(replies) => replies,
        _ => usize::MAX,
    };
    while tls.is_handshaking() {
        tls.complete_io(&mut client)?;
    }
    if habit == Habit::SpeaksFirst {
        tls.writer().write_all(b"+OK\r\n")?;
        tls.complete_io(&mut client)?;
    }
    // Both sides are asked in turns: neither waits for the other for long.
    client.set_nonblocking(true)?;
    server.set_nonblocking(true)?;
    loop {
        match tls.read_tls(&mut client) {
            Ok(0) => return Ok(()),
            Ok(_) => {
                tls.process_new_packets().map_err(io::Error::other)?;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        match tls.reader().read(&mut buffer) {
            Ok(count) => server.write_all(&buffer[..count])?,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        match server.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => {
                let pieces = if habit == Habit::TinyRecords { 1 } else { count };
                for piece in buffer[..count].chunks(pieces) {
                    if habit == Habit::NewKeys {
                        tls.refresh_traffic_keys().map_err(io::Error::other)?;
                    }
                    tls.writer().write_all(piece)?;
                }
                left = left.saturating_sub(1);
                if left == 0 {
                    tls.send_close_notify();
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                testbed::pause(std::time::Duration::from_micros(200));
            }
            Err(error) => return Err(error),
        }
        while tls.wants_write() {
            match tls.write_tls(&mut client) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }
}
