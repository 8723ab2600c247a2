//! What the masters push: messages on the engine's channel, and changes of watched keys (W6, W8).

use super::Free;
use crate::moment::Moment;
use crate::proto::Engine;
use crate::proto::command::Step;
use crate::resource::Resource;

/// What is pushed.
impl Engine {
    /// A node's message on the engine's channel: a letter and a key (W6). Returns whether it makes
    /// sense.
    pub(in crate::proto) fn handle_told(
        &mut self,
        now: Moment,
        node: usize,
        message: &[u8],
    ) -> bool {
        let Some((letter, key)) = message.split_first() else {
            return false;
        };
        match letter {
            b't' if key.is_empty() => {
                let effect = self.nodes[node].hear_trial();
                self.follow_ability(now, node, effect);
                return true;
            }
            b'g' | b'p' | b'n' | b'o' | b'a' if !key.is_empty() => {}
            _ => return false,
        }
        let Some(key) = Resource::of_key(key) else {
            return false;
        };
        let stand = self.queues.stand_of(&key).and_then(|it| self.stands.get(it).map(|_| it));
        match stand {
            Some(number) => self.tell_stand(now, node, number, *letter),
            None if self.tell_visit(now, node, &key, *letter) => {}
            // It is passed on to those behind.
            None if matches!(letter, b'g' | b'p' | b'a') => {
                self.step_aside(node, key, Step::Out);
            }
            None => {}
        }
        true
    }

    pub(super) fn tell_stand(&mut self, now: Moment, node: usize, number: u32, letter: u8) {
        let wait = self.stagger();
        let stand = self.stand(number);
        let is_elsewhere = stand.gate.is_some_and(|gate| gate != node);
        if letter == b'a' {
            // It waits, but looks after the lock at another gate.
            if is_elsewhere {
                let key = stand.key.clone();
                self.step_aside(node, key, Step::Out);
            }
            return;
        }
        if stand.held.is_some() || is_elsewhere && letter != b'g' {
            return;
        }
        stand.end_pauses();
        if letter == b'o' {
            stand.place = None;
            return self.ask_for_place(now, number);
        }
        stand.place = Some(if letter == b'n' { 1 } else { 0 });
        if letter == b'g' {
            stand.refused_in_row = 0;
            self.stats.told += 1;
        }
        let Some(stand) = self.stands.get(number) else {
            return;
        };
        let Some((op, _)) = self.waiting_first(stand) else {
            // Whoever comes after one that has ended, and is not yet gone, is told by this.
            self.stand(number).is_owed |= letter == b'g';
            return;
        };
        let stand = self.stand(number);
        match letter {
            b'g' => {
                stand.was_told = true;
                self.try_now(now, op, number);
            }
            b'p' if stand.unheard.is_empty() && stand.armed.is_empty() => self.watch(now, number),
            b'p' => {}
            _ => {
                stand.free_since = Some((now, 1));
                stand.check_by(now.after(wait));
                self.set_stand_timer(number);
            }
        }
    }

    /// A watched key has changed.
    pub(in crate::proto) fn handle_changed(&mut self, now: Moment, node: usize, key: &[u8]) {
        let key = Resource::of_key(key);
        if let Some(number) = key.and_then(|key| self.queues.stand_of(&key)) {
            self.tell_change(now, node, number);
        }
    }

    /// Any key may have changed.
    pub(in crate::proto) fn handle_all_changed(&mut self, now: Moment, node: usize) {
        for number in self.stands.numbers_where(|stand| stand.armed.contains(node)) {
            self.tell_change(now, node, number);
        }
    }

    pub(super) fn tell_change(&mut self, now: Moment, node: usize, number: u32) {
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
        if let Some((op, _)) = self.waiting_first(stand) {
            self.handle_free(now, op, number, Free::Changed);
            self.set_stand_timer(number);
        } else {
            self.stand(number).check_by(now);
        }
    }
}
