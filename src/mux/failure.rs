//! Why a node failed, and the words for it. They are made here, where the error arises, because an
//! outcome has no room for them.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};

use crate::outcome::{
    NodeOutcome, ProtocolError, explained_connection, explained_start, is_limit, is_unnamed,
};

/// A lookup holds so many descriptors at a time, or fewer.
const LOOKUP_DESCRIPTORS: usize = 4;

/// A failure of a node.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) outcome: NodeOutcome,
    /// Words for reports, where the outcome leaves a question.
    pub(super) words: Option<String>,
}

impl From<NodeOutcome> for Failed {
    fn from(outcome: NodeOutcome) -> Failed {
        Failed { outcome, words: None }
    }
}

impl From<ProtocolError> for Failed {
    fn from(error: ProtocolError) -> Failed {
        NodeOutcome::Protocol(error).into()
    }
}

impl Failed {
    pub(super) fn with(outcome: NodeOutcome, words: String) -> Failed {
        Failed { outcome, words: Some(words) }
    }

    /// The connection ended or could not be made.
    pub(super) fn disconnected(error: &io::Error) -> Failed {
        let outcome = match is_limit(error) {
            true => NodeOutcome::AtLimit,
            false => NodeOutcome::Disconnected(error.kind()),
        };
        match explained_connection(error) {
            None if is_unnamed(error.kind()) => Failed::with(outcome, error.to_string()),
            words => Failed { outcome, words },
        }
    }

    /// A thread that looks up the node's address could not be started.
    pub(super) fn no_thread(error: &io::Error) -> Failed {
        let words = format!("no thread for the lookup: {}", explained_start(error));
        Failed::with(NodeOutcome::AtLimit, words)
    }
}

/// The system's error, if it has no descriptors left for a lookup: resolvers then say that the name
/// does not exist.
pub(super) fn limit() -> Option<io::Error> {
    let open = |_| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0));
    let opened = (0..LOOKUP_DESCRIPTORS).map(open).collect::<io::Result<Vec<_>>>();
    opened.err().filter(is_limit)
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn what_a_kind_leaves_open_is_explained() {
        let failed = |errno| Failed::disconnected(&io::Error::from_raw_os_error(errno));
        for (errno, words) in [
            (99, "all local ports for this address are in use"),
            (13, "a firewall or route of this machine forbids the address"),
            (1, "exclude this user (unixsocketperm)"),
            (22, "(os error 22)"),
        ] {
            let failed = failed(errno);
            assert!(matches!(failed.outcome, NodeOutcome::Disconnected(_)), "{failed:?}");
            assert!(failed.words.as_ref().unwrap().contains(words), "{failed:?}");
        }
        assert_eq!(failed(111).words, None);
    }

    #[test]
    fn limits_of_the_system_are_named_with_what_to_do() {
        let failed = |errno| Failed::disconnected(&io::Error::from_raw_os_error(errno));
        for errno in [23, 24] {
            let failed = failed(errno);
            assert_eq!(failed.outcome, NodeOutcome::AtLimit);
            let words = failed.words.unwrap();
            assert!(words.contains(&format!("(os error {errno}): ")), "{words}");
        }
        assert!(failed(24).words.unwrap().ends_with("raise the limit of open files (ulimit -n)"));
        // The kind of this one has no name.
        let failed = failed(71);
        assert!(failed.words.unwrap().contains("(os error 71)"));
        assert_eq!(failed.outcome.to_string(), "disconnected");
        let refused = Failed::disconnected(&ErrorKind::ConnectionRefused.into());
        assert_eq!(refused.outcome, NodeOutcome::Disconnected(ErrorKind::ConnectionRefused));
        assert_eq!(refused.words, None);
        let thread = Failed::no_thread(&ErrorKind::WouldBlock.into());
        assert!(thread.words.unwrap().contains("ulimit -u"));
    }
}
