//! Enough of HTTP/1.1 for an example, in place of your framework: a thread for each connection.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

const CONNECTIONS_MAX: usize = 256;
const HEAD_BYTES_MAX: u64 = 8 * 1_024;
/// How long a connection may be silent.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// Between two looks at a state that no event announces.
const TICK: Duration = Duration::from_millis(10);

pub struct Answer {
    pub status: u16,
    pub content_type: &'static str,
    pub retry_after_secs: Option<u64>,
    pub body: String,
}

impl Answer {
    pub fn text(status: u16, body: impl ToString) -> Answer {
        let body = format!("{}\n", body.to_string());
        Answer { status, content_type: "text/plain; charset=utf-8", retry_after_secs: None, body }
    }

    fn write(&self, mut stream: &TcpStream, is_last: bool) -> io::Result<()> {
        let Answer { status, content_type, body, .. } = self;
        let retry = self.retry_after_secs.map(|secs| format!("Retry-After: {secs}\r\n"));
        let (retry, close) =
            (retry.unwrap_or_default(), if is_last { "Connection: close\r\n" } else { "" });
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status} \r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n"
        );
        stream.write_all(format!("{head}{retry}{close}\r\n{body}").as_bytes())
    }
}

#[derive(Default)]
pub struct Server {
    connections: AtomicUsize,
    /// Requests that were read and not answered yet.
    open: AtomicUsize,
    is_ending: AtomicBool,
}

impl Server {
    /// Accepts connections for as long as the process lives, and answers their requests by path.
    pub fn run<F>(self: Arc<Server>, listener: &TcpListener, answer: F)
    where
        F: Fn(&str) -> Answer + Clone + Send + 'static,
    {
        for stream in listener.incoming() {
            // Without a descriptor for it, a connection waits until another one has ended.
            let Ok(stream) = stream else {
                pause(TICK);
                continue;
            };
            if self.connections.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
                self.connections.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let (server, answer) = (Arc::clone(&self), answer.clone());
            thread::spawn(move || {
                // It fails if the client is gone, silent, or sends something else than HTTP.
                let _ = server.serve(&stream, answer);
                server.connections.fetch_sub(1, Ordering::Relaxed);
            });
        }
    }

    fn serve(&self, stream: &TcpStream, answer: impl Fn(&str) -> Answer) -> io::Result<()> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(IDLE_MAX))?;
        stream.set_write_timeout(Some(IDLE_MAX))?;
        let mut reader = BufReader::new(stream);
        while let Some((path, is_last)) = read(&mut reader)? {
            self.open.fetch_add(1, Ordering::SeqCst);
            // A handler that panics drops its guard, which releases the lock.
            let answer = catch_unwind(AssertUnwindSafe(|| answer(&path)));
            let answer = answer.unwrap_or_else(|_| Answer::text(500, "the handler panicked"));
            let is_last = is_last || self.is_ending.load(Ordering::SeqCst);
            let written = answer.write(stream, is_last);
            self.open.fetch_sub(1, Ordering::SeqCst);
            written?;
            if is_last {
                break;
            }
        }
        Ok(())
    }

    /// Ends each connection after its next answer. Returns after `time`, or later: once every
    /// request is answered.
    pub fn end(&self, time: Duration) {
        self.is_ending.store(true, Ordering::SeqCst);
        pause(time);
        while self.open.load(Ordering::SeqCst) > 0 {
            pause(TICK);
        }
    }
}

/// The path of the next request, and whether it is the last one; `None` if the client has hung up.
fn read(reader: &mut impl BufRead) -> io::Result<Option<(String, bool)>> {
    let mut lines = reader.by_ref().take(HEAD_BYTES_MAX).lines();
    let Some(first) = lines.next().transpose()? else { return Ok(None) };
    let path = first.split(' ').nth(1).ok_or(ErrorKind::InvalidData)?.to_owned();
    let mut is_last = first.ends_with("HTTP/1.0");
    loop {
        // There is none if the head is too long.
        let line = lines.next().ok_or(ErrorKind::InvalidData)??.to_ascii_lowercase();
        if line.is_empty() {
            return Ok(Some((path, is_last)));
        }
        // Nobody reads the body: after it, no request can be found.
        let has_body = ["content-length:", "transfer-encoding:"];
        is_last |= line == "connection: close" || has_body.iter().any(|it| line.starts_with(it));
    }
}

#[allow(clippy::disallowed_methods, reason = "time itself is waited for")]
fn pause(time: Duration) {
    thread::sleep(time);
}
