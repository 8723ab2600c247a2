//! What the parts' states must agree on at all times, for tests and the simulator.

use super::Engine;

impl Engine {
    /// What is broken, if anything. Call it when no action is left to carry out.
    #[doc(hidden)]
    pub fn broken_invariant(&self) -> Option<String> {
        let local = self.waits.local.broken();
        let link = self.nodes.iter().find_map(|node| node.link.broken());
        local.or_else(|| link.or_else(|| self.cleanup.broken()).map(str::to_owned))
    }
}
