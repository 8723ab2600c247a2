//! A proxy that makes masters on this machine look far away: what comes in is passed on after half
//! a round trip, in each direction for itself, as on a long cable.
//!
//! One thread serves all routes, woken by a timer of the kernel, so that it adds microseconds and
//! not a scheduler's tick.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::clock;

/// How many connections one proxy serves in its life; more are hung up on.
const CONNECTIONS_MAX: usize = 1 << 20;
/// How many bytes are on their way in one direction; a connection with more is given up.
const QUEUED_BYTES_MAX: usize = 64 * 1024 * 1024;
const CHUNK: usize = 64 * 1024;
/// How soon the thread notices that it is to stop.
const NOTICE: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// How long a socket that was full is left alone.
const FULL_PAUSE: Duration = Duration::from_micros(200);
const TIMER: u64 = u64::MAX;

/// The proxy; dropping it ends its thread and closes every connection.
pub struct Proxy {
    ports: Vec<u16>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Proxy {
    /// Listens on a free port for each route: to a port of this machine, with a round trip.
    pub fn start(routes: &[(u16, Duration)]) -> io::Result<Proxy> {
        let mut lanes = Vec::new();
        let mut ports = Vec::new();
        for (target, round_trip) in routes {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            listener.set_nonblocking(true)?;
            ports.push(listener.local_addr()?.port());
            lanes.push(Lane { listener, target: *target, delay: *round_trip / 2 });
        }
        let is_over = Arc::new(AtomicBool::new(false));
        let for_thread = Arc::clone(&is_over);
        let mut switch = Switch::new(lanes)?;
        let thread = thread::spawn(move || switch.run(&for_thread));
        Ok(Proxy { ports, is_over, thread: Some(thread) })
    }

    /// Where clients connect to, in the order of the routes.
    pub fn ports(&self) -> &[u16] {
        &self.ports
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // A panic has been printed by its thread.
        if let Some(Ok(Err(error))) = self.thread.take().map(JoinHandle::join) {
            eprintln!("the proxy failed: {error}");
        }
    }
}

struct Lane {
    listener: TcpListener,
    target: u16,
    delay: Duration,
}

/// One direction of a connection.
struct Pipe {
    from: Arc<TcpStream>,
    to: Arc<TcpStream>,
    delay: Duration,
    /// An empty piece is the end of the stream.
    queue: VecDeque<(Instant, Vec<u8>)>,
    queued: usize,
    /// When to try again, if the socket was full.
    not_before: Option<Instant>,
}

struct Switch {
    epoll: OwnedFd,
    timer: OwnedFd,
    lanes: Vec<Lane>,
    /// Both directions of each connection; `None` when it has ended.
    pipes: Vec<Option<Pipe>>,
    chunk: Box<[u8]>,
}

impl Switch {
    fn new(lanes: Vec<Lane>) -> io::Result<Switch> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )?;
        let readable = epoll::EventFlags::IN;
        // It need not be read: to set it anew is to make a new edge.
        epoll::add(
            &epoll,
            &timer,
            epoll::EventData::new_u64(TIMER),
            readable | epoll::EventFlags::ET,
        )?;
        for (index, lane) in lanes.iter().enumerate() {
            epoll::add(&epoll, &lane.listener, number(index), readable)?;
        }
        Ok(Switch { epoll, timer, lanes, pipes: Vec::new(), chunk: vec![0; CHUNK].into() })
    }

    fn run(&mut self, is_over: &AtomicBool) -> io::Result<()> {
        let mut events = Vec::with_capacity(64);
        while !is_over.load(Ordering::Relaxed) {
            events.clear();
            match epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                Some(&NOTICE),
            ) {
                Err(Errno::INTR) => continue,
                other => other?,
            };
            for event in &events {
                match event.data.u64() {
                    TIMER => {}
                    lane if (lane as usize) < self.lanes.len() => self.accept(lane as usize)?,
                    pipe => self.read(pipe as usize - self.lanes.len()),
                }
            }
            self.pass_on();
            self.set_timer()?;
        }
        Ok(())
    }

    fn accept(&mut self, lane: usize) -> io::Result<()> {
        let lane = &self.lanes[lane];
        let (client, _) = match lane.listener.accept() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            other => other?,
        };
        let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, lane.target)) else {
            return Ok(());
        };
        if self.pipes.len() >= CONNECTIONS_MAX {
            return Ok(());
        }
        for stream in [&client, &server] {
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
        }
        let (client, server) = (Arc::new(client), Arc::new(server));
        for (from, to) in [(&client, &server), (&server, &client)] {
            let at = number(self.lanes.len() + self.pipes.len());
            let readable = epoll::EventFlags::IN | epoll::EventFlags::ET;
            epoll::add(&self.epoll, from, at, readable)?;
            self.pipes.push(Some(Pipe {
                from: Arc::clone(from),
                to: Arc::clone(to),
                delay: lane.delay,
                queue: VecDeque::new(),
                queued: 0,
                not_before: None,
            }));
        }
        Ok(())
    }

    fn read(&mut self, index: usize) {
        let Some(pipe) = &mut self.pipes[index] else {
            return;
        };
        let due = clock::now() + pipe.delay;
        loop {
            let count = match (&*pipe.from).read(&mut self.chunk) {
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // A reset is passed on as an end.
                Err(_) => 0,
            };
            pipe.queue.push_back((due, self.chunk[..count].to_vec()));
            pipe.queued += count;
            if count == 0 {
                return;
            }
            if pipe.queued > QUEUED_BYTES_MAX {
                self.end(index);
                return;
            }
        }
    }

    /// Passes on what is due.
    fn pass_on(&mut self) {
        let now = clock::now();
        for index in 0..self.pipes.len() {
            let Some(pipe) = &mut self.pipes[index] else {
                continue;
            };
            if pipe.pass_on(now).is_err() {
                self.end(index);
            }
        }
    }

    /// Closes both directions of a connection.
    fn end(&mut self, index: usize) {
        for index in [index & !1, index | 1] {
            if let Some(pipe) = self.pipes[index].take() {
                // It fails if the other end has closed it already.
                let _ = pipe.from.shutdown(Shutdown::Both);
            }
        }
    }

    fn set_timer(&self) -> io::Result<()> {
        let next = self.pipes.iter().flatten().filter_map(Pipe::next).min();
        let Some(next) = next else {
            return Ok(());
        };
        // Zero would switch it off.
        let left = next.saturating_duration_since(clock::now()).max(Duration::from_nanos(1));
        let it_value =
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)?;
        Ok(())
    }
}

impl Pipe {
    fn next(&self) -> Option<Instant> {
        let (due, _) = self.queue.front()?;
        Some(self.not_before.map_or(*due, |not_before| not_before.max(*due)))
    }

    /// Fails when the stream has ended, one way or the other.
    fn pass_on(&mut self, now: Instant) -> io::Result<()> {
        while self.next().is_some_and(|next| next <= now) {
            let Some((_, bytes)) = self.queue.front_mut() else {
                return Ok(());
            };
            if bytes.is_empty() {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            match (&*self.to).write(bytes) {
                Ok(count) => {
                    bytes.drain(..count);
                    self.queued -= count;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.not_before = Some(now + FULL_PAUSE);
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
            self.not_before = None;
            if bytes.is_empty() {
                self.queue.pop_front();
            }
        }
        Ok(())
    }
}

fn number(index: usize) -> epoll::EventData {
    epoll::EventData::new_u64(index as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_arrive_in_order_after_the_round_trip() {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = server.local_addr().unwrap().port();
        let echo = thread::spawn(move || {
            let (mut stream, _) = server.accept().unwrap();
            let mut bytes = [0; 4];
            while stream.read_exact(&mut bytes).is_ok() {
                stream.write_all(&bytes).unwrap();
            }
        });
        let round_trip = Duration::from_millis(20);
        let proxy = Proxy::start(&[(port, round_trip)]).unwrap();
        let mut client = TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.ports()[0])).unwrap();
        let start = clock::now();
        client.write_all(b"onetwo-3").unwrap();
        let mut bytes = [0; 8];
        client.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"onetwo-3");
        assert!(clock::now() - start >= round_trip);
        drop(client);
        echo.join().unwrap();
    }
}
