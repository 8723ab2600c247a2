//! Standard output. If it cannot be written, the command fails.

use std::io::{self, ErrorKind, Write};

use muxlock::unstable_tool::explained;

/// Writes all of a text. Returns whether it is still read: a reader that closes its pipe has seen
/// enough.
pub fn write(text: impl AsRef<[u8]>) -> io::Result<bool> {
    let mut out = io::stdout();
    is_read(out.write_all(text.as_ref()).and_then(|()| out.flush()))
}

/// The same for a text that something else has written.
pub fn is_read(written: io::Result<()>) -> io::Result<bool> {
    match written {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(io::Error::other(format!("standard output: {}", explained(&error)))),
    }
}
