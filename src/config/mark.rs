//! A short mark over all that the clients of a resource must have alike. It stands in the name of
//! their connections, so that operators and `muxlock doctor` can compare clients.

use super::{NodeConfig, RestartGuard};
use crate::resource::Key;

/// What each two digits of a mark are for, in order.
pub const MARKED: [&str; 5] =
    ["addresses", "database", "prefix", "max_ttl", "restart_guard or flush_marker"];

/// The settings of a client. Credentials are left out; the order of the nodes and the time limits
/// may differ.
pub(super) struct Marked<'a> {
    pub(super) nodes: &'a [NodeConfig],
    pub(super) key_prefix: &'a [u8],
    pub(super) max_ttl_ms: u128,
    pub(super) flush_marker: Option<&'a Key>,
}

impl Marked<'_> {
    /// Two hexadecimal digits for each setting: other values have the same ones in 1 of 256 cases.
    pub(super) fn mark(&self) -> String {
        let (guards, marker) = (self.each(guard), self.flush_marker.map(Key::as_bytes));
        let guards = [guards.as_bytes(), marker.unwrap_or_default()].join(&b'\n');
        let digests: [u8; MARKED.len()] = [
            digest(self.each(|node| node.address.to_ascii_lowercase()).as_bytes()),
            digest(self.each(|node| node.db.to_string()).as_bytes()),
            digest(self.key_prefix),
            digest(self.max_ttl_ms.to_string().as_bytes()),
            digest(&guards),
        ];
        digests.iter().map(|digest| format!("{digest:02x}")).collect()
    }

    /// The different values of the nodes.
    fn each(&self, value: fn(&NodeConfig) -> String) -> String {
        let mut values: Vec<_> = self.nodes.iter().map(value).collect();
        values.sort_unstable();
        values.dedup();
        values.join("\n")
    }
}

fn guard(node: &NodeConfig) -> String {
    match node.restart_guard {
        RestartGuard::Uptime => "uptime",
        RestartGuard::OwnObservation => "own_observation",
        RestartGuard::Off => "off",
    }
    .to_owned()
}

/// FNV-1a, which is the same in every build of every version.
fn digest(bytes: &[u8]) -> u8 {
    let step = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    bytes.iter().fold(0x811c_9dc5, step).to_be_bytes().iter().fold(0, |all, byte| all ^ byte)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::config::{Builder, RestartGuard};

    /// Only the digits of a setting that differs differ.
    #[test]
    fn mark_is_over_what_must_be_equal() {
        let of = |builder: Builder| builder.config().unwrap().mark.to_string();
        let with = |urls: [&str; 2]| Builder::default().nodes(urls);
        let base = || with(["redis://a", "redis://b"]);
        let mark = of(base());
        assert_eq!(mark, "1f3ec51a3a", "it is the same in every version");
        let equal = with(["redis://u:p@B:6379/0", "redis://:q@a"]);
        assert_eq!(of(equal.node_timeout(Duration::from_secs(1)).client_name("x")), mark);
        let others = [
            with(["redis://a", "redis://c"]),
            with(["redis://a/1", "redis://b/1"]),
            base().key_prefix("app:"),
            base().max_ttl(Duration::from_secs(31)),
            base().restart_guard(RestartGuard::Off),
            with(["redis://a?restart_guard=off", "redis://b"]),
            base().flush_marker("mark"),
        ];
        let digits = |mark: &str, at: usize| mark[2 * at..2 * at + 2].to_owned();
        for (at, other) in [0, 1, 2, 3, 4, 4, 4].into_iter().zip(others) {
            let other = of(other);
            for digit in 0..5 {
                let is_equal = digits(&mark, digit) == digits(&other, digit);
                assert_eq!(is_equal, digit != at, "{mark} {other}");
            }
        }
    }
}
