//! What the masters push: messages on the engine's channel, and changes of watched keys (W6, W8).
//!
//! A message is a letter and a key. `g`: take the lock now. `p`: this place is the first; look at
//! the lock. `n`: it is the second. `o`: another client has overtaken it; queue up again. `a`: say
//! so if you no longer wait. `queue_up.lua`, `step_out.lua` and `hand_on.lua` send them.

use super::{Cx, Free, LocalQueues};
use crate::proto::command::Step;
use crate::resource::Resource;

/// What is pushed.
impl LocalQueues {
    pub(super) fn tell_stand(&mut self, cx: &mut Cx<'_>, node: usize, number: u32, letter: u8) {
        let wait = cx.stagger();
        let stand = self.stands.stand(number);
        let is_elsewhere = stand.gate.is_some_and(|gate| gate != node);
        if is_elsewhere && matches!(letter, b'n' | b'a') {
            // It waits, but looks after the lock at another gate.
            let key = stand.key.clone();
            return self.step_aside(cx, node, key, Step::Out);
        }
        if letter == b'a' || stand.held.is_some() || is_elsewhere && letter != b'g' {
            return;
        }
        stand.end_pauses();
        if letter == b'o' {
            stand.place = None;
            return self.ask_for_place(cx, number);
        }
        stand.place = Some(if letter == b'n' { 1 } else { 0 });
        if letter == b'g' {
            stand.refused_in_row = 0;
            self.desk.stats.told += 1;
        }
        let Some(stand) = self.stands.get(number) else {
            return;
        };
        let Some(who) = self.waiting_first(stand) else {
            // This notifies the client behind one that has ended and is still listed.
            self.stands.stand(number).has_to_ask |= letter == b'g';
            return;
        };
        let stand = self.stands.stand(number);
        match letter {
            b'g' => {
                stand.was_told = true;
                self.try_now(cx, who, number);
            }
            b'p' if stand.unheard.is_empty() && stand.armed.is_empty() => self.watch(cx, number),
            b'p' => {}
            _ => {
                stand.free_since = Some((cx.now, 1));
                stand.check_by(cx.now.after(wait));
                self.set_stand_timer(number);
            }
        }
    }

    /// A watched key has changed.
    pub(super) fn handle_changed(&mut self, cx: &mut Cx<'_>, node: usize, key: &[u8]) {
        let key = Resource::of_key(key);
        if let Some(number) = key.and_then(|key| self.queues.stand_of(&key)) {
            self.tell_change(cx, node, number);
        }
    }

    /// A key that is watched for this stand may have changed.
    pub(crate) fn tell_change(&mut self, cx: &mut Cx<'_>, node: usize, number: u32) {
        let Some(stand) = self.stands.get_mut(number) else {
            return;
        };
        if !stand.armed.contains(node) {
            return;
        }
        stand.armed.remove(node);
        let Some(stand) = self.stands.get(number) else {
            return;
        };
        if let Some(who) = self.waiting_first(stand) {
            self.handle_free(cx, who, number, Free::Changed);
            self.set_stand_timer(number);
        } else {
            self.stands.stand(number).check_by(cx.now);
        }
    }
}
