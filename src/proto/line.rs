//! Queues of waiting acquisitions: those of one engine that wait for the same resource queue in the
//! order of their arrival, and only the first asks the nodes.
//!
//! While a previous member of the queue holds the lock, the first one does not ask either. It
//! starts right after the release, on the same connections, or when the lock's validity ends. So
//! passing a lock on within a client costs one acquisition and one release each. An acquisition of
//! exactly one round does not queue.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, DefaultHasher, Hasher};
use std::mem;

use super::{Engine, Failure, Last, OpId, Patience, Progress, Task};
use crate::error::LockError;
use crate::token::LockToken;
use crate::{Moment, Resource};

/// From this many queues on, empty ones are removed before another is added.
const LINES_TIDY: usize = 256;

pub(super) struct Lines {
    by_key: HashMap<Resource, Line, Keyed>,
    /// The number of queues that triggers the next removal.
    tidy_at: usize,
}

#[derive(Default)]
struct Line {
    /// The token of the current lock, and until when it is valid.
    holder: Option<(LockToken, Moment)>,
    first: Option<OpId>,
    others: VecDeque<OpId>,
    /// How many of `others` have ended: they are skipped when their turn comes, or removed when
    /// they are many.
    gone: usize,
    /// The last report of an acquisition that asked for the others and has left.
    told: Option<(Failure, LockError)>,
}

impl Lines {
    pub(super) fn new(key: u64) -> Lines {
        Lines { by_key: HashMap::with_hasher(Keyed(key)), tidy_at: LINES_TIDY }
    }

    /// Locks that were handed on, dropped or not released leave empty queues.
    fn tidy(&mut self, now: Moment) {
        if self.by_key.len() >= self.tidy_at {
            self.by_key.retain(|_, line| line.first.is_some() || line.held_until(now).is_some());
            self.tidy_at = (2 * self.by_key.len()).max(LINES_TIDY);
        }
    }
}

impl Line {
    /// The end of the current lock's validity: until then no acquisition needs to ask.
    fn held_until(&self, now: Moment) -> Option<Moment> {
        self.holder.map(|(_, deadline)| deadline).filter(|deadline| now < *deadline)
    }
}

/// Names may come from outside: a secret seed keeps attackers from choosing names that collide.
struct Keyed(u64);

impl BuildHasher for Keyed {
    type Hasher = DefaultHasher;

    fn build_hasher(&self) -> DefaultHasher {
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(self.0);
        hasher
    }
}

impl Engine {
    /// A new acquisition joins the queue for its key. Returns whether it may start now.
    pub(super) fn join_line(
        &mut self,
        now: Moment,
        op: usize,
        key: &Resource,
        give_up_at: Moment,
    ) -> bool {
        let id = self.id_of(op);
        self.lines.tidy(now);
        let Some(line) = self.lines.by_key.get_mut(key) else {
            let line = Line { first: Some(id), ..Line::default() };
            self.lines.by_key.insert(key.clone(), line);
            return true;
        };
        let held_until = line.held_until(now);
        let start_at = match line.first {
            Some(_) => {
                line.others.push_back(id);
                give_up_at
            }
            None => {
                line.first = Some(id);
                match held_until {
                    None => return true,
                    Some(held_until) => held_until.min(give_up_at),
                }
            }
        };
        if let Task::Acquire { last, .. } = &mut self.operations[op].task {
            *last = Some(Box::new(Last { key: key.clone(), told: None }));
        }
        self.set_timer(op, start_at);
        false
    }

    /// The first in the queue is due to start. If the lock was extended meanwhile, it waits longer;
    /// returns whether it does.
    pub(super) fn waits_longer(&mut self, now: Moment, op: usize, give_up_at: Moment) -> bool {
        let Task::Acquire { last: Some(last), .. } = &self.operations[op].task else {
            return false;
        };
        let line = self.lines.by_key.get(&last.key);
        let Some(held_until) = line.and_then(|line| line.held_until(now)) else {
            return false;
        };
        self.set_timer(op, held_until.min(give_up_at));
        true
    }

    /// The acquisition has ended. The next one waits until the lock that was taken has expired, or
    /// starts if none was taken.
    pub(super) fn leave_line(
        &mut self,
        now: Moment,
        op: usize,
        key: &Resource,
        got: Option<(LockToken, Moment)>,
    ) {
        let id = self.id_of(op);
        let has_others = |line: &Line| line.first == Some(id) && !line.others.is_empty();
        let is_told = got.is_none() && self.lines.by_key.get(key).is_some_and(has_others);
        let told = if is_told { self.told_by(op) } else { None };
        let Some(line) = self.lines.by_key.get_mut(key) else {
            return;
        };
        if got.is_some() {
            (line.holder, line.told) = (got, None);
        }
        if line.first == Some(id) {
            line.first = None;
            line.told = told.or(line.told.take());
            return self.call_next(now, key);
        }
        line.gone += 1;
        if 2 * line.gone > line.others.len() {
            line.gone = 0;
            let mut others = mem::take(&mut line.others);
            others.retain(|other| *other != id && self.lookup(*other).is_some());
            if let Some(line) = self.lines.by_key.get_mut(key) {
                line.others = others;
            }
        }
    }

    /// Promotes the next waiter if there is no first.
    fn call_next(&mut self, now: Moment, key: &Resource) {
        let Some(line) = self.lines.by_key.get_mut(key) else {
            return;
        };
        let held_until = line.held_until(now);
        let mut others = mem::take(&mut line.others);
        let next = std::iter::from_fn(|| others.pop_front()).find_map(|id| {
            let (op, give_up_at) = self.patience_of(id)?;
            // An operation whose patience has ended will get its result without asking.
            (now < give_up_at).then_some((id, op, give_up_at))
        });
        let Some((id, op, give_up_at)) = next else {
            if held_until.is_none() {
                self.lines.by_key.remove(key);
            }
            return;
        };
        if let Some(line) = self.lines.by_key.get_mut(key) {
            (line.first, line.others) = (Some(id), others);
        }
        match held_until {
            Some(held_until) => self.set_timer(op, held_until.min(give_up_at)),
            None => self.start_again(now, op),
        }
    }

    /// A lock was given up, and its release is queued to be sent: the first in the queue starts
    /// after it.
    pub(super) fn call_first(&mut self, now: Moment, key: &Resource, token: LockToken) {
        let Some(line) = self.lines.by_key.get_mut(key) else {
            return;
        };
        if line.holder.is_some_and(|(holder, _)| holder == token) {
            line.holder = None;
        }
        let held_until = line.held_until(now);
        let Some(first) = line.first else {
            if held_until.is_none() {
                self.lines.by_key.remove(key);
            }
            return;
        };
        if let (None, Some((op, give_up_at))) = (held_until, self.patience_of(first)) {
            let is_waiting = matches!(self.operations[op].progress, Progress::Waiting);
            if is_waiting && now < give_up_at {
                self.start_again(now, op);
            }
        }
    }

    /// A lock was extended: no acquisition needs to ask before the new deadline.
    pub(super) fn hold_longer(&mut self, key: &Resource, token: LockToken, deadline: Moment) {
        let line = self.lines.by_key.get_mut(key);
        if let Some((holder, until)) = line.and_then(|line| line.holder.as_mut()) {
            if *holder == token {
                *until = deadline;
            }
        }
    }

    pub(super) fn has_lines(&self) -> bool {
        !self.lines.by_key.is_empty()
    }

    /// The last report of the acquisition that asks for this queue, or of one that asked before.
    pub(super) fn told_in_line(&self, key: &Resource) -> Option<(Failure, LockError)> {
        let line = self.lines.by_key.get(key)?;
        let first = line.first.and_then(|first| self.lookup(first));
        let told = first.and_then(|first| self.told_by(first)).or_else(|| line.told.clone());
        told.or_else(|| self.told_so_far(first?))
    }

    pub(super) fn patience_of(&self, id: OpId) -> Option<(usize, Moment)> {
        let op = self.lookup(id)?;
        match self.operations[op].task {
            Task::Acquire { patience: Patience::Until(give_up_at), .. } => Some((op, give_up_at)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_nobody_stands_in_are_not_kept_for_ever() {
        let mut lines = Lines::new(7);
        let (deadline, token) = (Moment::from_nanos(10), LockToken::from_random([1; 20]));
        for i in 0..2 * LINES_TIDY {
            let key = Resource::new(i.to_string()).unwrap();
            let holder = (i % 2 == 0).then_some((token, deadline));
            lines.tidy(Moment::from_nanos(0));
            lines.by_key.insert(key, Line { holder, ..Line::default() });
        }
        let valid = lines.by_key.values().filter(|line| line.holder.is_some()).count();
        assert_eq!(valid, LINES_TIDY, "what is held is kept");
        assert!(lines.by_key.len() < 2 * LINES_TIDY);
        lines.tidy_at = lines.by_key.len();
        lines.tidy(deadline);
        assert!(lines.by_key.is_empty());
    }
}
