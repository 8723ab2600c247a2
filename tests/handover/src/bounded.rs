//! Every interleaving with few interruptions.
//!
//! After Musuvathi and Qadeer, "Iterative context bounding for systematic testing of multithreaded
//! programs" (PLDI 2007): most bugs need two interruptions at the most, and their interleavings are
//! few enough to be tried one and all.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use shuttle::scheduler::{Schedule, Scheduler, Task, TaskId};

/// A thread is interrupted where it could go on for so many times in all.
pub struct Bounded {
    interruptions_max: usize,
    /// The choices of this run so far, and those of the one before from there on.
    choices: Vec<Choice>,
    made: usize,
    interruptions: usize,
    runs: Arc<AtomicUsize>,
}

struct Choice {
    among: Vec<TaskId>,
    chosen: usize,
}

impl Bounded {
    /// The second counts the runs.
    pub fn new(interruptions_max: usize) -> (Bounded, Arc<AtomicUsize>) {
        let runs = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&runs);
        let choices = Vec::new();
        (Bounded { interruptions_max, choices, made: 0, interruptions: 0, runs }, counter)
    }

    fn among(&self, runnable: &[&Task], current: Option<TaskId>) -> Vec<TaskId> {
        let all = runnable.iter().map(|task| task.id());
        match current.filter(|current| runnable.iter().any(|task| task.id() == *current)) {
            None => all.collect(),
            Some(current) if self.interruptions == self.interruptions_max => vec![current],
            Some(current) => {
                [current].into_iter().chain(all.filter(|task| *task != current)).collect()
            }
        }
    }
}

impl Scheduler for Bounded {
    fn new_execution(&mut self) -> Option<Schedule> {
        if self.runs.fetch_add(1, Ordering::Relaxed) > 0 {
            // The last choice that can be made otherwise is, and all after it anew.
            while self.choices.pop_if(|last| last.chosen + 1 == last.among.len()).is_some() {}
            self.choices.last_mut()?.chosen += 1;
        }
        (self.made, self.interruptions) = (0, 0);
        Some(Schedule::new(0))
    }

    fn next_task(
        &mut self,
        runnable: &[&Task],
        current: Option<TaskId>,
        _is_yielding: bool,
    ) -> Option<TaskId> {
        if self.made == self.choices.len() {
            self.choices.push(Choice { among: self.among(runnable, current), chosen: 0 });
        }
        let Choice { among, chosen } = &self.choices[self.made];
        self.made += 1;
        // Who runs now and can go on is the first.
        self.interruptions += usize::from(*chosen > 0 && current == Some(among[0]));
        Some(among[*chosen])
    }

    fn next_u64(&mut self) -> u64 {
        unreachable!("nothing here is left to chance")
    }
}
