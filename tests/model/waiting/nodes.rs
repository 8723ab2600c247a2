//! What nodes do: the commands, and the scripts of `src/scripts` as they are.

use super::protocol::{Crowd, Mistake};
use super::state::{NO_OWNER, Phase, Placed, Reply, Request, STRANGER, State, Watch, number};

impl Crowd {
    pub fn execute(&self, state: &mut State, n: usize, c: usize) {
        let link = &mut state.clients[c].links[n];
        let request = link.requests.first_request().expect("something was sent");
        link.requests.remove_first();
        match request {
            Request::Set | Request::StaleSet => {
                let is_free = state.owners[n] == NO_OWNER;
                if is_free {
                    self.set_owner(state, n, number(c));
                }
                if request == Request::Set {
                    let reply = if is_free { Reply::Granted } else { Reply::Refused };
                    state.clients[c].links[n].replies.answer(reply);
                }
            }
            Request::Release => self.delete(state, n, c),
            Request::QueueUp | Request::StaleQueueUp => {
                let reply = Reply::placed(self.queue_up(state, n, c));
                if request == Request::QueueUp {
                    state.clients[c].links[n].replies.answer(reply);
                }
            }
            Request::Watch => {
                let is_absent = state.owners[n] == NO_OWNER && !self.makes(Mistake::PttlUnread);
                let link = &mut state.clients[c].links[n];
                link.is_tracked = true;
                link.replies.answer(if is_absent { Reply::Absent } else { Reply::Present });
            }
            Request::HandOn => self.hand_on(state, n, c),
            Request::StepInFront => self.step_in_front(state, n, c),
            Request::StepOut => self.step_out(state, n, c),
        }
    }

    fn delete(&self, state: &mut State, n: usize, c: usize) {
        if state.owners[n] == number(c) {
            self.set_owner(state, n, NO_OWNER);
        }
    }

    /// `queue_up.lua`. The queue is never full.
    fn queue_up(&self, state: &mut State, n: usize, c: usize) -> Placed {
        let position = state.position_of(n, c).unwrap_or_else(|| {
            let position = state.queued(n);
            state.queues[n][position] = number(c);
            position
        });
        let is_absent = state.owners[n] == NO_OWNER && !self.makes(Mistake::KeyUnreadInQueue);
        Placed { position: position as u8, is_absent }
    }

    /// `hand_on.lua`.
    fn hand_on(&self, state: &mut State, n: usize, c: usize) {
        let was_there = state.owners[n] == number(c);
        self.delete(state, n, c);
        state.leave_queue(n, c);
        if self.makes(Mistake::GoOnlyIfDeleted) && !was_there {
            return;
        }
        self.tell(state, n, 0, Reply::Go);
    }

    /// `step_out.lua` with 1.
    fn step_in_front(&self, state: &mut State, n: usize, c: usize) {
        let position = state.position_of(n, c);
        state.leave_queue(n, c);
        if position != Some(0) && state.queues[n][0] != 0 {
            state.leave_queue(n, usize::from(state.queues[n][0]) - 1);
        }
        state.put_in_front(n, c);
        self.tell(state, n, 1, Reply::Next);
    }

    /// `step_out.lua` with 0.
    fn step_out(&self, state: &mut State, n: usize, c: usize) {
        let position = state.position_of(n, c);
        state.leave_queue(n, c);
        if self.makes(Mistake::SilentStepOut) {
            return;
        }
        if let Some(position @ 0..=1) = position {
            let is_free = state.owners[n] == NO_OWNER;
            self.tell(state, n, position, if is_free { Reply::Go } else { Reply::Passed });
        }
    }

    /// The loop at the end of the scripts, from a position on. Who is not connected is dropped.
    fn tell(&self, state: &mut State, n: usize, from: usize, first: Reply) {
        let mut i = from;
        let end = if self.makes(Mistake::NextUntold) { 1 } else { 2 };
        while i < end && state.queues[n][i] != 0 {
            let c = usize::from(state.queues[n][i]) - 1;
            if self.publish(state, c, if i == 0 { first } else { Reply::Next }) {
                i += 1;
            } else {
                state.leave_queue(n, c);
            }
        }
    }

    /// Whether the client's connection is there. What it will not look at is not sent.
    fn publish(&self, state: &mut State, c: usize, letter: Reply) -> bool {
        let client = &mut state.clients[c];
        let is_read = match client.phase {
            Phase::Idle | Phase::Trying | Phase::Queued => true,
            Phase::Held | Phase::Done => letter != Reply::Next,
            Phase::Crashed | Phase::Paused => false,
        };
        let link = &mut client.links[client.queue_node];
        if is_read {
            link.replies.answer(letter);
        }
        !link.is_closed || self.makes(Mistake::DeadKept)
    }

    pub fn close(&self, state: &mut State, n: usize, c: usize) {
        let queue_node = state.clients[c].queue_node;
        let link = &mut state.clients[c].links[n];
        while !link.requests.is_empty() {
            link.requests.remove_first();
        }
        link.is_closed = n == queue_node;
    }

    /// By anybody's command: all who track the key are told once.
    pub fn set_owner(&self, state: &mut State, n: usize, owner: u8) {
        debug_assert!(owner <= STRANGER, "no such owner");
        state.owners[n] = owner;
        for client in &mut state.clients {
            let link = &mut client.links[n];
            if std::mem::take(&mut link.is_tracked) && client.watches[n] != Watch::None {
                link.replies.answer(Reply::Changed);
            }
        }
    }
}
