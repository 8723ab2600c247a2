//! Pushes of the masters: messages on the engine's channel, and changes of watched keys (W6, W8).

use super::entry::{FreeSince, Phase, StartedBy};
use super::{Cx, LocalQueues};
use crate::proto::command::{Step, Wakeup};

/// Pushes.
impl LocalQueues {
    pub(super) fn wake_entry(&mut self, cx: &mut Cx<'_>, node: usize, number: u32, wakeup: Wakeup) {
        let wait = cx.overtake_delay();
        let entry = self.entries.entry(number);
        let is_elsewhere = entry.seat.node.is_some_and(|queue_node| queue_node != node);
        if is_elsewhere && matches!(wakeup, Wakeup::Second | Wakeup::Asked) {
            // It waits, but looks after the lock at another queue node.
            let key = entry.key.clone();
            return self.step_out(cx, node, key, Step::Out);
        }
        if wakeup == Wakeup::Asked
            || entry.held.is_some()
            || is_elsewhere && wakeup != Wakeup::TakeNow
        {
            return;
        }
        entry.watch.end_pauses();
        if wakeup == Wakeup::Overtaken {
            entry.seat.phase = Phase::Unqueued;
            return self.ask_for_position(cx, number);
        }
        entry.seat.phase = Phase::Queued(if wakeup == Wakeup::Second { 1 } else { 0 });
        if wakeup == Wakeup::TakeNow {
            entry.backoff.refused_rounds = 0;
            self.desk.stats.notifications_received += 1;
        }
        let Some(who) = self.waiting_at(number) else {
            // This notifies the client behind one that has ended and is still listed.
            self.entries.entry(number).has_to_ask |= wakeup == Wakeup::TakeNow;
            return;
        };
        let entry = self.entries.entry(number);
        match wakeup {
            Wakeup::TakeNow => self.try_now(cx, who, number, StartedBy::Notification),
            Wakeup::First if entry.watch.pending.is_empty() && entry.watch.watched.is_empty() => {
                self.watch(cx, number)
            }
            Wakeup::First => {}
            Wakeup::Second | Wakeup::Overtaken | Wakeup::Asked => {
                entry.free_since = Some(FreeSince { at: cx.now, position: 1 });
                entry.check_by(cx.now.after(wait));
                self.set_entry_timer(number);
            }
        }
    }

    /// A watched key has changed.
    pub(super) fn handle_changed(&mut self, cx: &mut Cx<'_>, node: usize, key: &[u8]) {
        let key = self.desk.config.key_of_bytes(key);
        if let Some(number) = key.and_then(|key| self.queues.entry_of(&key)) {
            self.note_change(cx, node, number);
        }
    }

    /// A key that is watched for this entry may have changed.
    pub(crate) fn note_change(&mut self, cx: &mut Cx<'_>, node: usize, number: u32) {
        let Some(entry) = self.entries.get_mut(number).filter(|it| it.watch.watched.contains(node))
        else {
            return;
        };
        entry.watch.watched.remove(node);
        if let Some(who) = self.waiting_at(number) {
            self.handle_free(cx, who, number, StartedBy::Invalidation);
            self.set_entry_timer(number);
        } else {
            self.entries.entry(number).check_by(cx.now);
        }
    }
}
