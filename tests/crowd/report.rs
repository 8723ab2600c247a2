//! What a crowd did, put together of what each contender told.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::contender::{Event, Part};

/// The time that one holder had the lock.
#[derive(Debug, Clone)]
pub struct Turn {
    pub process: usize,
    pub thread: usize,
    pub key: String,
    /// When it began to wait.
    pub began: Duration,
    pub granted: Duration,
    /// When it gave the lock back, or could no longer rely on it.
    pub ended: Duration,
}

/// A run of a crowd.
#[derive(Debug)]
pub struct Report {
    name: String,
    from: Duration,
    until: Duration,
    /// In the order in which they were granted.
    turns: Vec<Turn>,
    parts: Vec<Part>,
    /// How long each wait took, with those that were ended from outside.
    waits: Vec<Duration>,
}

impl Report {
    /// Of what each contender told, in the order of the contenders.
    pub fn new(name: &str, run: [Duration; 2], parts: &[Part], told: &[Vec<Event>]) -> Report {
        let [from, until] = run;
        let (name, parts) = (name.to_owned(), parts.to_vec());
        let mut report = Report { name, from, until, turns: Vec::new(), parts, waits: Vec::new() };
        for (process, events) in told.iter().enumerate() {
            report.add_all(process, events);
        }
        report.sort();
        report
    }

    fn add_all(&mut self, process: usize, events: &[Event]) {
        let keys = self.parts[process].keys;
        // By thread.
        let mut held: BTreeMap<usize, Turn> = BTreeMap::new();
        for event in events {
            match *event {
                Event::Granted { thread, began, at, until } => {
                    let key = Part::key(thread % keys);
                    let turn = Turn { process, thread, key, began, granted: at, ended: until };
                    assert!(held.insert(thread, turn).is_none(), "each thread holds one lock");
                    self.waits.push(at.saturating_sub(began));
                }
                Event::Released { thread, at } => {
                    let mut turn = held.remove(&thread).expect("it was granted before");
                    turn.ended = turn.ended.min(at);
                    self.turns.push(turn);
                }
                Event::GaveUp { began, at } => self.waits.push(at.saturating_sub(began)),
                Event::Ready | Event::Failed(_) => {}
            }
        }
        // What a process held when it was killed is held until it expires.
        self.turns.extend(held.into_values());
    }

    fn sort(&mut self) {
        self.turns.sort_by_key(|turn| turn.granted);
    }

    /// Adds the turns of holders that are no contenders.
    pub fn join(&mut self, turns: impl IntoIterator<Item = Turn>) {
        self.turns.extend(turns);
        self.sort();
    }

    /// The turns, in the order in which they were granted.
    pub fn turns(&self) -> &[Turn] {
        &self.turns
    }

    /// How often each process got the lock.
    pub fn grants(&self) -> Vec<usize> {
        self.grants_since(Duration::ZERO)
    }

    /// The same from this moment on.
    pub fn grants_since(&self, since: Duration) -> Vec<usize> {
        let mut grants = vec![0; self.parts.len()];
        for turn in self.turns.iter().filter(|turn| turn.granted >= since) {
            if let Some(grants) = grants.get_mut(turn.process) {
                *grants += 1;
            }
        }
        grants
    }

    /// How often each thread of each process got it.
    pub fn grants_of_threads(&self) -> Vec<usize> {
        let threads = |part: &Part| part.threads;
        let firsts: Vec<usize> = self
            .parts
            .iter()
            .scan(0, |first, part| Some(std::mem::replace(first, *first + threads(part))))
            .collect();
        let mut grants = vec![0; self.parts.iter().map(threads).sum()];
        for turn in self.turns.iter().filter(|turn| turn.process < firsts.len()) {
            grants[firsts[turn.process] + turn.thread] += 1;
        }
        grants
    }

    /// The most grants of a process to the least; a process without one counts as if it had one.
    pub fn unevenness(&self) -> f64 {
        let grants = self.grants();
        let least = grants.iter().min().copied().unwrap_or_default().max(1);
        let most = grants.iter().max().copied().unwrap_or_default();
        most as f64 / least as f64
    }

    /// The longest time in which nobody held a key, from the sign to begin to the sign to end.
    pub fn longest_gap(&self) -> Duration {
        self.by_key().into_values().map(|turns| self.longest_of(&turns)).max().unwrap_or_default()
    }

    fn longest_of(&self, turns: &[&Turn]) -> Duration {
        let (mut longest, mut free_since) = (Duration::ZERO, self.from);
        for turn in turns {
            longest = longest.max(turn.granted.min(self.until).saturating_sub(free_since));
            free_since = free_since.max(turn.ended);
        }
        longest.max(self.until.saturating_sub(free_since))
    }

    pub fn longest_wait(&self) -> Duration {
        self.waits.iter().max().copied().unwrap_or_default()
    }

    /// The times from each release to the grant of another contender that waited for it already.
    pub fn hand_overs(&self) -> Vec<Duration> {
        let mut times = Vec::new();
        for turns in self.by_key().into_values() {
            for pair in turns.windows(2) {
                let (before, after) = (pair[0], pair[1]);
                if after.process != before.process && after.began < before.ended {
                    times.push(after.granted.saturating_sub(before.ended));
                }
            }
        }
        times
    }

    /// The turns for each key that was waited for.
    fn by_key(&self) -> BTreeMap<String, Vec<&Turn>> {
        let keys =
            self.parts.iter().flat_map(|part| (0..part.keys.min(part.threads)).map(Part::key));
        let mut turns: BTreeMap<String, Vec<&Turn>> = keys.map(|key| (key, Vec::new())).collect();
        for turn in &self.turns {
            turns.entry(turn.key.clone()).or_default().push(turn);
        }
        turns
    }

    /// Two turns at the same time, which must never be.
    pub fn two_holders(&self) -> Option<[Turn; 2]> {
        let overlap = |pair: &[&Turn]| pair[0].ended > pair[1].granted;
        let mut keys = self.by_key().into_values();
        keys.find_map(|turns| {
            let pair = turns.windows(2).find(|pair| overlap(pair))?;
            Some([pair[0].clone(), pair[1].clone()])
        })
    }

    /// Shows what was measured.
    pub fn print(&self) {
        let grants = self.grants();
        println!(
            "measured: {}: {} grants, {} to {} a process, longest gap {:?}, longest wait {:?}",
            self.name,
            self.turns.len(),
            grants.iter().min().copied().unwrap_or_default(),
            grants.iter().max().copied().unwrap_or_default(),
            self.longest_gap(),
            self.longest_wait(),
        );
    }
}

/// The middle one of some times.
#[track_caller]
pub fn median(times: &[Duration]) -> Duration {
    let mut times = times.to_vec();
    times.sort_unstable();
    *times.get(times.len() / 2).expect("there are times")
}

#[cfg(test)]
mod tests {
    use super::*;
    use muxlock::settings::Waiting;

    const fn millis(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// A wait, and the hold behind it.
    fn turn([began, at, released]: [u64; 3]) -> [Event; 2] {
        let (began, at, until) = (millis(began), millis(at), millis(at + 100));
        let granted = Event::Granted { thread: 0, began, at, until };
        [granted, Event::Released { thread: 0, at: millis(released) }]
    }

    fn report(told: &[Vec<Event>]) -> Report {
        let parts = vec![Part::new(Vec::new(), Waiting::Queue); told.len()];
        Report::new("a test", [millis(0), millis(100)], &parts, told)
    }

    #[test]
    fn figures_of_a_report_are_those_of_its_turns() {
        let first = [turn([0, 5, 10]), turn([10, 40, 50])].concat();
        let gave_up = Event::GaveUp { began: millis(30), at: millis(100) };
        let second = [&turn([0, 12, 30])[..], &[gave_up]].concat();
        let report = report(&[first, second]);
        assert!(report.two_holders().is_none());
        assert_eq!((report.grants(), report.grants_since(millis(12))), (vec![2, 1], vec![1, 1]));
        assert_eq!((report.grants_of_threads(), report.unevenness()), (vec![2, 1], 2.0));
        // To the end of the run.
        assert_eq!((report.longest_gap(), report.longest_wait()), (millis(50), millis(70)));
        assert_eq!(report.hand_overs(), [millis(2), millis(10)]);
    }

    #[test]
    fn two_holders_are_found_also_if_one_is_killed() {
        let one = turn([0, 20, 30]);
        assert!(report(&[turn([0, 5, 21]).to_vec(), one.to_vec()]).two_holders().is_some());
        // It holds it until it expires, unless it says otherwise.
        let killed = turn([0, 5, 6])[..1].to_vec();
        assert!(report(&[killed.clone(), one.to_vec()]).two_holders().is_some());
        assert!(report(&[killed, turn([0, 105, 106]).to_vec()]).two_holders().is_none());
        // Who holds it for too long has lost it before.
        let late = turn([0, 5, 300]);
        assert!(report(&[late.to_vec(), turn([0, 105, 106]).to_vec()]).two_holders().is_none());
    }
}
