//! What the masters push: messages on the engine's channel, and changes of watched keys (W6, W8).

use super::entry::{FreeSince, Phase, StartedBy};
use super::{Cx, LocalQueues};
use crate::proto::command::{Step, Wakeup};

/// What is pushed.
impl LocalQueues {
    pub(super) fn tell_stand(&mut self, cx: &mut Cx<'_>, node: usize, number: u32, wakeup: Wakeup) {
        let wait = cx.stagger();
        let stand = self.stands.stand(number);
        let is_elsewhere = stand.seat.gate.is_some_and(|gate| gate != node);
        if is_elsewhere && matches!(wakeup, Wakeup::Second | Wakeup::Asked) {
            // It waits, but looks after the lock at another gate.
            let key = stand.key.clone();
            return self.step_aside(cx, node, key, Step::Out);
        }
        if wakeup == Wakeup::Asked
            || stand.held.is_some()
            || is_elsewhere && wakeup != Wakeup::TakeNow
        {
            return;
        }
        stand.watch.end_pauses();
        if wakeup == Wakeup::Overtaken {
            stand.seat.phase = Phase::Unqueued;
            return self.ask_for_place(cx, number);
        }
        stand.seat.phase = Phase::Queued(if wakeup == Wakeup::Second { 1 } else { 0 });
        if wakeup == Wakeup::TakeNow {
            stand.backoff.in_row = 0;
            self.desk.stats.notifications_received += 1;
        }
        let Some(who) = self.waiting_at(number) else {
            // This notifies the client behind one that has ended and is still listed.
            self.stands.stand(number).has_to_ask |= wakeup == Wakeup::TakeNow;
            return;
        };
        let stand = self.stands.stand(number);
        match wakeup {
            Wakeup::TakeNow => self.try_now(cx, who, number, StartedBy::Notification),
            Wakeup::First if stand.watch.unheard.is_empty() && stand.watch.armed.is_empty() => {
                self.watch(cx, number)
            }
            Wakeup::First => {}
            Wakeup::Second | Wakeup::Overtaken | Wakeup::Asked => {
                stand.free_since = Some(FreeSince { at: cx.now, place: 1 });
                stand.check_by(cx.now.after(wait));
                self.set_stand_timer(number);
            }
        }
    }

    /// A watched key has changed.
    pub(super) fn handle_changed(&mut self, cx: &mut Cx<'_>, node: usize, key: &[u8]) {
        let key = self.desk.config.key_of_bytes(key);
        if let Some(number) = key.and_then(|key| self.queues.stand_of(&key)) {
            self.tell_change(cx, node, number);
        }
    }

    /// A key that is watched for this stand may have changed.
    pub(crate) fn tell_change(&mut self, cx: &mut Cx<'_>, node: usize, number: u32) {
        let Some(stand) = self.stands.get_mut(number).filter(|it| it.watch.armed.contains(node))
        else {
            return;
        };
        stand.watch.armed.remove(node);
        if let Some(who) = self.waiting_at(number) {
            self.handle_free(cx, who, number, StartedBy::Invalidation);
            self.set_stand_timer(number);
        } else {
            self.stands.stand(number).check_by(cx.now);
        }
    }
}
