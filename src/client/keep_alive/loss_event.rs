//! A file descriptor that becomes readable when a lock is lost.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

pub(super) struct LossEvent {
    sender: UnixStream,
    /// Held so that notifying raises no SIGPIPE after the callers have closed their copies.
    receiver: UnixStream,
}

impl LossEvent {
    pub(super) fn new() -> io::Result<LossEvent> {
        let (sender, receiver) = UnixStream::pair()?;
        // A thread notifies while it holds a mutex.
        sender.set_nonblocking(true)?;
        Ok(LossEvent { sender, receiver })
    }

    /// Makes the callers' descriptors readable. To be called at most twice.
    pub(super) fn notify(&self) {
        // It cannot fail: the buffer of a socket has room for two bytes.
        let _ = (&self.sender).write(&[0]);
    }

    pub(super) fn receiver(&self) -> io::Result<OwnedFd> {
        Ok(self.receiver.try_clone()?.into())
    }
}
