//! Texts for the user, written by a thread of their own: a terminal that is stopped, or a full
//! pipe, must hold up neither a renewal nor SIGKILL.

use std::io::{Write, stderr};
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use muxlock::unstable_tool::printable;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Lines that wait; further ones are lost.
const LINES_MAX: usize = 64;
/// How long the end of the process waits for lines that cannot be written,
const FINISH_MAX: Duration = Duration::from_millis(500);
/// and how many times as long for the writer, which a busy machine lets wait.
const FINISHES_MAX: usize = 20;

const CLEAR_LINE: &str = "\r\x1b[K";

enum Order {
    Write(String),
    /// A text on the last line of a terminal, until the next order.
    Show(String),
    /// Everything before it is written once the sender is dropped.
    Finish(SyncSender<()>),
}

static WRITER: OnceLock<Option<SyncSender<Order>>> = OnceLock::new();
/// Whether a text to show waits for the writer. A second one would take the place of a line.
static SHOWS: AtomicBool = AtomicBool::new(false);

fn start() -> Option<SyncSender<Order>> {
    let (sender, orders) = sync_channel(LINES_MAX);
    let thread = thread::Builder::new().name("muxlock-words".into());
    thread.spawn(move || write_all(&orders)).ok().map(|_| sender)
}

fn write_all(orders: &Receiver<Order>) {
    let mut is_shown = false;
    while let Ok(order) = orders.recv() {
        let clear = if is_shown { CLEAR_LINE } else { "" };
        let is_text = matches!(order, Order::Show(_));
        let (text, done) = match order {
            Order::Write(line) => (line, None),
            Order::Show(text) => {
                SHOWS.store(false, Ordering::SeqCst);
                (text, None)
            }
            Order::Finish(done) => (String::new(), Some(done)),
        };
        is_shown = is_text;
        // At once, because three processes may write. A failure cannot be reported.
        let _ = stderr().write_all(format!("{clear}{text}").as_bytes());
        drop(done);
    }
}

/// Text for the user. It does not block.
pub fn say(text: &str) {
    // The line breaks of an error stay; other control characters are escaped.
    let text: Vec<String> = text.lines().map(printable).collect();
    let line = format!("muxlock: {}\n", text.join("\n"));
    match WRITER.get_or_init(start) {
        Some(writer) => drop(writer.try_send(Order::Write(line))),
        None => write_unless_stopped(&line),
    }
}

/// Shows a text on a terminal, in place of the one before, until something else is written.
pub fn show(text: &str) {
    if SHOWS.swap(true, Ordering::SeqCst) {
        return;
    }
    let writer = WRITER.get_or_init(start).as_ref();
    if writer.is_none_or(|writer| writer.try_send(Order::Show(printable(text))).is_err()) {
        SHOWS.store(false, Ordering::SeqCst);
    }
}

/// The system has no thread left for a writer.
fn write_unless_stopped(line: &str) {
    if is_writable() {
        let _ = stderr().write_all(line.as_bytes());
    }
}

/// A terminal that is stopped and a pipe without room for a line are not.
fn is_writable() -> bool {
    let stderr = stderr();
    let mut fds = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
    poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

/// Waits until the lines are written and no text is shown, for a short time. To be called before
/// another process writes, and before this one ends.
pub fn finish() {
    let Some(Some(writer)) = WRITER.get() else {
        return;
    };
    let (done, finished) = sync_channel(0);
    if writer.try_send(Order::Finish(done)).is_ok() {
        wait(&finished, FINISH_MAX, is_writable);
    }
}

/// Waits for the writer, and again for as long while the lines can be written.
fn wait(finished: &Receiver<()>, each: Duration, mut is_writable: impl FnMut() -> bool) {
    for _ in 0..FINISHES_MAX {
        if finished.recv_timeout(each) != Err(RecvTimeoutError::Timeout) || !is_writable() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(1);

    #[test]
    fn delayed_writer_is_waited_for_while_there_is_room_for_its_lines() {
        let (done, finished) = sync_channel::<()>(0);
        let mut asked = 0;
        wait(&finished, SOON, || {
            asked += 1;
            asked < 3
        });
        assert_eq!(asked, 3, "the terminal was stopped then");

        let (mut writer, mut asked) = (Some(done), 0);
        wait(&finished, SOON, || {
            asked += 1;
            if asked == 5 {
                writer = None;
            }
            true
        });
        assert_eq!(asked, 5, "the writer was done then");

        let (_done, finished) = sync_channel::<()>(0);
        let mut asked = 0;
        wait(&finished, SOON, || {
            asked += 1;
            true
        });
        assert_eq!(asked, FINISHES_MAX);
    }
}
