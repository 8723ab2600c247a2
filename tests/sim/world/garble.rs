//! A node that answers a take-over with nonsense, late: the lock is won by the others' votes, and
//! released on the same connection, before its client finds out that the take-over is lost (K14).

use super::World;
use super::clock::MILLI;
use super::faults::Fault;
use super::forms::{Form, Step, What, form};
use super::rare::Rare;
use super::timeline::Short;
use super::wire::Reply;

/// How often, in runs where servers say what they should not.
const GARBLED: u32 = 500;
/// For how long the answer stands still, at most.
const HELD_UP: u64 = 100 * MILLI;

impl World {
    /// What a node tells of a command that it has run.
    pub fn may_garble(&mut self, id: usize, words: &[&[u8]], reply: Reply) -> Reply {
        let is_usual = !self.is_faulty || !self.plan.has(Fault::Poison);
        if is_usual || !matches!(reply, Reply::Integer(1)) {
            return reply;
        }
        let Some(form) = form(words).filter(|form| form.step == Step::Take && is_take_over(form))
        else {
            return reply;
        };
        let attempt = self.checker.attempts.get_mut(form.token);
        let Some(attempt) = attempt.filter(|it| !it.is_decided && !it.is_garbled) else {
            return reply;
        };
        if !self.choices.chance(GARBLED) {
            return reply;
        }
        attempt.is_garbled = true;
        self.rare.hit(Rare::Garbled);
        let until = self.now + self.choices.magnitude(MILLI, HELD_UP);
        let down = &mut self.connections[id].down;
        down.held_until = down.held_until.max(until);
        Reply::Status("QUEUED")
    }

    /// Whether a node has answered this take-over with nonsense.
    pub fn is_garbled(&mut self, token: &[u8; 40]) -> bool {
        let is_it = self.checker.attempts.get(token).is_some_and(|attempt| attempt.is_garbled);
        self.rare.hit_if(is_it, Rare::GarbledFreed);
        is_it
    }

    /// A lock that somebody has had after a take-over is released, and not given back (K14).
    pub fn check_not_given_back(&mut self, node: usize, form: &Form<'_>) {
        let attempt = self.checker.attempts.get(form.token);
        let was_had = attempt.is_some_and(|attempt| attempt.is_decided);
        if form.step == Step::Free && is_take_over(form) && was_had {
            let token = Short(form.token);
            self.fail("BY-VALUE", || format!("node {node} is to give {token} back, which was had"));
        }
    }
}

fn is_take_over(form: &Form<'_>) -> bool {
    form.what == What::As && !form.value.1.is_empty()
}
