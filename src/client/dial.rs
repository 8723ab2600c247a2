//! Blocking connections to the masters of a configuration, for the command-line tool.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::config::{Config, NodeConfig, Target};

/// A connected stream.
#[doc(hidden)]
pub trait Dialled: Read + Write + Send {}

impl<T: Read + Write + Send> Dialled for T {}

/// A blocking connection to a master, before its greeting, and what to greet it with.
#[doc(hidden)]
pub struct Dial {
    pub stream: Box<dyn Dialled>,
    pub user: Option<String>,
    pub password: Option<String>,
    pub db: u32,
}

impl Config {
    /// The addresses of the masters, without credentials.
    #[doc(hidden)]
    pub fn addresses(&self) -> impl Iterator<Item = &str> {
        self.nodes.iter().map(|node| &*node.address)
    }

    /// The name of a resource's key.
    #[doc(hidden)]
    pub fn key_of(&self, resource: &[u8]) -> Vec<u8> {
        [&self.key_prefix, resource].concat()
    }

    /// Connects to a master, as locks do. Connecting, each read and each write may take as long as
    /// the client's timeout of a connection.
    ///
    /// # Panics
    /// If there is no such master.
    #[doc(hidden)]
    pub fn dial(&self, node: usize) -> io::Result<Dial> {
        let NodeConfig { target, user, password, db, .. } = &self.nodes[node];
        let stream = connect(self, target)?;
        Ok(Dial { stream, user: user.clone(), password: password.clone(), db: *db })
    }
}

fn connect(config: &Config, target: &Target) -> io::Result<Box<dyn Dialled>> {
    let timeout = config.connect_timeout;
    match target {
        Target::Address(address) => dialled(TcpStream::connect_timeout(address, timeout)?, timeout),
        Target::Name { host, port } => {
            let mut last = io::Error::from(io::ErrorKind::NotFound);
            for address in config.resolver.look_up(host, *port)? {
                match TcpStream::connect_timeout(&address, timeout) {
                    Ok(stream) => return dialled(stream, timeout),
                    Err(error) => last = error,
                }
            }
            Err(last)
        }
        #[cfg(unix)]
        Target::Unix(path) => {
            let stream = std::os::unix::net::UnixStream::connect(path)?;
            stream.set_read_timeout(Some(timeout))?;
            stream.set_write_timeout(Some(timeout))?;
            Ok(Box::new(stream))
        }
        #[cfg(not(unix))]
        Target::Unix(_) => Err(io::Error::from(io::ErrorKind::Unsupported)),
    }
}

fn dialled(stream: TcpStream, timeout: Duration) -> io::Result<Box<dyn Dialled>> {
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    stream.set_nodelay(true)?;
    Ok(Box::new(stream))
}
