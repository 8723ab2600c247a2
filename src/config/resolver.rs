//! The lookup of host names.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

/// Further addresses of a name are ignored.
const ADDRESSES_PER_NODE_MAX: usize = 16;

type LookUp = dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync;

/// Finds the addresses of a name.
#[derive(Clone)]
pub(crate) struct Resolver(Arc<LookUp>);

impl Resolver {
    pub(super) fn new<F>(look_up: F) -> Resolver
    where
        F: Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
    {
        Resolver(Arc::new(look_up))
    }

    /// The addresses of a name, at least one. It may block for any time.
    pub(crate) fn look_up(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        // A network interface of this machine, which no name server knows.
        let has_zone = host.contains('%');
        let mut found = if has_zone { by_system(host, port)? } else { (self.0)(host, port)? };
        if found.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
        }
        found.truncate(ADDRESSES_PER_NODE_MAX);
        Ok(found)
    }
}

fn by_system(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    Ok((host, port).to_socket_addrs()?.collect())
}

impl Default for Resolver {
    fn default() -> Resolver {
        Resolver::new(by_system)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_a_name_are_one_to_so_many() {
        for (found, used) in [(0, None), (1, Some(1)), (16, Some(16)), (17, Some(16))] {
            let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
            let resolver = Resolver::new(move |_, _| Ok((1..=found).map(address).collect()));
            let addresses = resolver.look_up("name", 6379).ok();
            assert_eq!(addresses.as_ref().map(Vec::len), used);
            assert!(addresses.is_none_or(|addresses| addresses[0] == address(1)));
        }
    }
}
