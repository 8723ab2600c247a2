//! Visits every state, and asks from which of them an end can be reached.
//!
//! A checker of paths does not tell that: a system that may go round in circles for ever is not
//! stuck. So all steps are kept, and followed backwards from the ends. Of the states themselves
//! only hashes are kept.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};

use stateright::Model;

use super::protocol::{Action, Crowd};
use super::state::State;

/// More than any test visits.
const STATES_MAX: usize = 40_000_000;

pub struct Found {
    pub states: usize,
    /// How many states there are from which no end can be reached, and the way to the nearest.
    pub stuck: usize,
    pub stuck_after: Option<Vec<Action>>,
    pub shared_after: Option<Vec<Action>>,
    pub left_after: Option<Vec<Action>>,
    /// Which of the sights were seen.
    pub seen: Vec<bool>,
}

pub type Sight = (&'static str, fn(&State) -> bool);

#[derive(Default)]
struct Graph {
    numbers: HashMap<u64, u32, BuildHasherDefault<Same>>,
    hashes: Vec<u64>,
    /// The state from which each was reached first.
    parents: Vec<u32>,
    is_end: Vec<bool>,
    /// Steps that may be relied on, from and to.
    steps: Vec<(u32, u32)>,
}

pub fn search(model: &Crowd, sights: &[Sight]) -> Found {
    let mut graph = Graph::default();
    let mut seen = vec![false; sights.len()];
    let (mut shared, mut left) = (None, None);
    let mut frontier = Vec::new();
    for state in model.init_states() {
        let (number, _) = graph.add(model, &state, 0);
        frontier.push((number, state));
    }
    let mut actions = Vec::new();
    while !frontier.is_empty() {
        let mut next = Vec::new();
        for (number, state) in frontier {
            for (seen, (_, sight)) in seen.iter_mut().zip(sights) {
                *seen = *seen || sight(&state);
            }
            if !model.is_exclusive(&state) {
                shared = shared.or(Some(number));
            }
            if model.has_left_something(&state) {
                left = left.or(Some(number));
            }
            model.actions(&state, &mut actions);
            for action in actions.drain(..) {
                let counts = model.is_progress(&state, &action);
                let Some(reached) = model.next_state(&state, action) else { continue };
                let (to, is_new) = graph.add(model, &reached, number);
                if is_new {
                    next.push((to, reached));
                }
                if counts && to != number {
                    graph.steps.push((number, to));
                }
            }
        }
        frontier = next;
    }
    let goes_on = graph.reaching_an_end();
    let mut stuck = (0..).zip(&goes_on).filter(|(_, goes_on)| !**goes_on).map(|(it, _)| it);
    let first = stuck.next();
    Found {
        states: graph.hashes.len(),
        stuck: usize::from(first.is_some()) + stuck.count(),
        stuck_after: first.map(|number| graph.path(model, number)),
        shared_after: shared.map(|number| graph.path(model, number)),
        left_after: left.map(|number| graph.path(model, number)),
        seen,
    }
}

impl Graph {
    /// Its number, and whether it is new.
    fn add(&mut self, model: &Crowd, state: &State, parent: u32) -> (u32, bool) {
        let hash = hash(state);
        let number = self.hashes.len() as u32;
        let known = *self.numbers.entry(hash).or_insert(number);
        if known != number {
            return (known, false);
        }
        assert!(self.hashes.len() < STATES_MAX, "too many states");
        self.hashes.push(hash);
        self.parents.push(parent);
        self.is_end.push(model.is_end(state));
        (number, true)
    }

    /// For each state, whether an end can be reached.
    fn reaching_an_end(&self) -> Vec<bool> {
        let mut starts = vec![0; self.hashes.len() + 1];
        for (_, to) in &self.steps {
            starts[*to as usize + 1] += 1;
        }
        for state in 1..starts.len() {
            starts[state] += starts[state - 1];
        }
        let mut free = starts.clone();
        let mut sources = vec![0; self.steps.len()];
        for (from, to) in &self.steps {
            sources[free[*to as usize]] = *from;
            free[*to as usize] += 1;
        }
        let mut reaching = self.is_end.clone();
        let mut open: Vec<usize> = (0..reaching.len()).filter(|it| reaching[*it]).collect();
        while let Some(state) = open.pop() {
            for source in &sources[starts[state]..starts[state + 1]] {
                let source = *source as usize;
                if !std::mem::replace(&mut reaching[source], true) {
                    open.push(source);
                }
            }
        }
        reaching
    }

    /// A shortest way there.
    fn path(&self, model: &Crowd, number: u32) -> Vec<Action> {
        let mut numbers = vec![number];
        while let Some(last) = numbers.last().filter(|it| **it != 0) {
            numbers.push(self.parents[*last as usize]);
        }
        let mut state = model.init_states()[0];
        let mut path = Vec::new();
        for number in numbers.into_iter().rev().skip(1) {
            let mut steps = model.next_steps(&state).into_iter();
            let is_next = |step: &(_, State)| hash(&step.1) == self.hashes[number as usize];
            let (action, next) = steps.find(is_next).expect("there was such a step");
            path.push(action);
            state = next;
        }
        path
    }
}

/// A state's hash stands for it, as in stateright: two of these states have the same one with a
/// probability of less than 1 in 100,000.
fn hash(state: &State) -> u64 {
    let mut hasher = Mix::default();
    state.hash(&mut hasher);
    hasher.finish()
}

/// Quicker than the standard one; nobody chooses states to make hashes collide.
#[derive(Default)]
struct Mix(u64);

impl Mix {
    fn mix(&mut self, word: u64) {
        let mixed = u128::from(self.0 ^ word) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (mixed as u64) ^ ((mixed >> 64) as u64);
    }
}

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word).wrapping_add(1));
        }
    }

    fn write_u8(&mut self, word: u8) {
        self.mix(u64::from(word) + 1);
    }

    fn write_u64(&mut self, word: u64) {
        self.mix(word.wrapping_add(1));
    }

    fn write_isize(&mut self, word: isize) {
        self.mix((word as u64).wrapping_add(1));
    }

    fn write_usize(&mut self, word: usize) {
        self.mix((word as u64).wrapping_add(1));
    }
}

/// The key is a hash already.
#[derive(Default)]
struct Same(u64);

impl Hasher for Same {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are words");
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = word;
    }
}
