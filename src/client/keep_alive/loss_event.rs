//! Tells an event loop that a lock was lost.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

pub(super) struct LossEvent {
    bell: UnixStream,
    /// Kept, so that ringing raises no SIGPIPE after the listeners have closed theirs.
    listener: UnixStream,
}

impl LossEvent {
    pub(super) fn new() -> io::Result<LossEvent> {
        let (bell, listener) = UnixStream::pair()?;
        // A thread rings while it holds a mutex.
        bell.set_nonblocking(true)?;
        Ok(LossEvent { bell, listener })
    }

    /// Makes the listeners' sockets readable. To be called at most twice.
    pub(super) fn ring(&self) {
        // It cannot fail: the buffer of a socket has room for two bytes.
        let _ = (&self.bell).write(&[0]);
    }

    pub(super) fn listen(&self) -> io::Result<OwnedFd> {
        Ok(self.listener.try_clone()?.into())
    }
}
