//! What the library promises itself, and whether it was kept.

use crate::contention::{IN_QUEUE, RETRYING, TOLD_FLOOR};
use crate::driver::{Cell, Entry, Verdict};
use crate::job::{Client, Sample};
use crate::questions::{
    AWAY, FAR, FIVE_AND_NINE, FLOOR_DROP, FLOOR_FENCED, FLOOR_IN_FLIGHT, FLOOR_OF, FLOOR_THREADS,
    MUXLOCK_DROP, MUXLOCK_FENCED, MUXLOCK_IN_FLIGHT, MUXLOCK_OF, MUXLOCK_PAIR, MUXLOCK_SWAP,
    MUXLOCK_THREADS, MUXLOCK_UNGUARDED, PERMIT, PLAIN, Question, SET, SHARE, STATES,
};
use crate::report::{Answer, number};

/// One promise.
#[derive(Debug, Clone, PartialEq)]
pub struct Target {
    pub text: &'static str,
    /// What is promised of each figure.
    pub bound: String,
    /// What was measured, as it is compared.
    pub figures: Vec<f64>,
    pub digits: usize,
    pub is_met: bool,
    /// What the floor does, where that says what is possible.
    pub floor: Vec<f64>,
}

impl Target {
    fn beside(self, floor: Vec<f64>) -> Target {
        Target { floor, ..self }
    }
}

/// All of them; one without figures is a miss.
pub fn all(answers: &[Answer]) -> Vec<Target> {
    let answers = Answers(answers);
    let pair = |figure: fn(&Sample) -> f64| {
        STATES.map(|state| answers.ratio(Question::Pairs, state, Client::Muxlock, figure)).to_vec()
    };
    let counted = |client, figure: fn(&Sample) -> f64| {
        answers.median(Question::Counts, "one pair", client, figure)
    };
    let calls = |client| counted(client, |sample| sample.calls);
    let cpu = |client| answers.ratio(Question::Pairs, "healthy", client, |sample| sample.cpu);
    let in_flight = ["8", "64", "512"]
        .map(|size| answers.ratio(Question::InFlight, size, Client::Muxlock, |sample| sample.rate));
    let lost = |client| {
        let rate = |masters| {
            answers.median(Question::Masters, masters, client, |sample: &Sample| sample.rate)
        };
        vec![100.0 * (1.0 - rate("9") / rate("5"))]
    };
    let peers = [Client::Rslock, Client::Redlock].map(|peer| cpu(peer) / cpu(Client::Muxlock));
    let far = |figure: fn(&Sample) -> f64| {
        answers.ratio(Question::Distance, FAR, Client::Muxlock, figure)
    };
    let fenced = |figure: fn(&Sample) -> f64| answers.fenced(figure);
    let unguarded = answers.labelled(Question::Counts, "one pair", MUXLOCK_UNGUARDED);
    let instructions = unguarded.map_or(f64::NAN, |it| it.median(|sample| sample.instructions));
    let allocations = counted(Client::Muxlock, |sample| sample.allocations);
    let floor_instructions = counted(Client::Floor, |sample| sample.instructions);
    let more_calls = calls(Client::Muxlock) - calls(Client::Floor);
    let mut targets = vec![
        at_most("pair, p50 to the floor's, in the four states", 1.10, 2, pair(|sample| sample.p50)),
        at_most("pair, p99 to the floor's, in the four states", 1.25, 2, pair(|sample| sample.p99)),
        at_most("far masters, p50 to the floor's", 1.05, 2, vec![far(|sample| sample.p50)]),
        at_most("instructions for a pair, without the guard", 7_000.0, 0, vec![instructions])
            .beside(vec![floor_instructions]),
        at_most("allocations for a pair", 0.0, 4, vec![allocations]),
        at_most("system calls for a pair, more than the floor", 1.0, 1, vec![more_calls]),
        at_most("CPU for a pair to the floor's", 1.15, 2, vec![cpu(Client::Muxlock)]),
        at_least("CPU of rslock and redlock for a pair to muxlock's", 1.5, 2, peers.to_vec()),
        at_least("pairs/s to the floor's, 8, 64 and 512 at once", 0.95, 2, in_flight.to_vec()),
        at_most("CPU with more than 512 at once to that with 512", 1.5, 2, answers.growth()),
        at_most("acquire and drop, p50 to the floor's pair", 0.6, 2, answers.dropped(MUXLOCK_DROP))
            .beside(answers.dropped(FLOOR_DROP)),
        at_most("fenced pair, p50 to the fenced floor's", 1.10, 2, fenced(|sample| sample.p50)),
        at_most("fenced pair, p99 to the fenced floor's", 1.25, 2, fenced(|sample| sample.p99)),
        at_most(
            "CPU for a fenced pair to the fenced floor's",
            1.15,
            2,
            fenced(|sample| sample.cpu),
        ),
        at_most(
            "fenced pair with one frozen to one without, p50",
            1.10,
            2,
            vec![answers.fenced_frozen(MUXLOCK_FENCED)],
        )
        .beside(vec![answers.fenced_frozen(FLOOR_FENCED)]),
        at_least(
            "64 threads, pairs/s to those of 64 at once on one",
            0.8,
            2,
            answers.threads("64", MUXLOCK_THREADS, MUXLOCK_IN_FLIGHT),
        )
        .beside(answers.threads("64", FLOOR_THREADS, FLOOR_IN_FLIGHT)),
        at_most("pairs/s lost from 5 to 9 masters, in per cent", 35.0, 0, lost(Client::Muxlock))
            .beside(lost(Client::Floor)),
    ];
    targets.extend(to_the_floor(&answers));
    targets.extend(kinds(&answers));
    targets.extend(contention(&answers));
    targets
}

/// Goals against what the floor does with the same, in the same turns; and those of swaps.
fn to_the_floor(answers: &Answers) -> Vec<Target> {
    let threads = |count| {
        let labels = [MUXLOCK_THREADS, FLOOR_THREADS];
        vec![answers.between(Question::Threads, count, labels, |sample| sample.rate)]
    };
    let dropped = ["1 ms apart", "back to back"].map(|cell| {
        answers.between(Question::Drop, cell, [MUXLOCK_DROP, FLOOR_DROP], |sample| sample.p50)
    });
    let away = answers.between(Question::Drop, AWAY, [MUXLOCK_DROP, MUXLOCK_PAIR], |it| it.p50);
    let cpu =
        |size| vec![answers.ratio(Question::InFlight, size, Client::Muxlock, |sample| sample.cpu)];
    let kept = |[five, nine]: [&str; 2]| {
        let labels = [nine, five];
        100.0 * answers.between(Question::Masters, FIVE_AND_NINE, labels, |sample| sample.rate)
    };
    let swapped = |figure: fn(&Sample) -> f64| {
        vec![answers.between(Question::Swap, "1", [MUXLOCK_SWAP, Client::Floor.name()], figure)]
    };
    let swapping =
        answers
            .between(Question::Swap, "64", [MUXLOCK_SWAP, MUXLOCK_IN_FLIGHT], |sample| sample.rate);
    vec![
        at_least("8 threads, pairs/s to the floor's threads", 0.65, 2, threads("8")),
        at_least("64 threads, pairs/s to the floor's threads", 0.85, 2, threads("64")),
        at_most("acquire and drop, p50 to the floor's", 1.1, 2, dropped.to_vec()),
        at_most("acquire and drop, masters 5 ms away, p50 to a pair", 0.55, 2, vec![away]),
        at_most("CPU for a pair to the floor's, 64 at once", 1.15, 2, cpu("64")),
        at_most("CPU for a pair to the floor's, 512 at once", 1.5, 2, cpu("512")),
        at_most(
            "pairs/s lost from 5 to 9 masters, points more than the floor loses",
            5.0,
            0,
            vec![kept(FLOOR_OF) - kept(MUXLOCK_OF)],
        ),
        at_most("swap, p50 to the floor's pair", 0.6, 2, swapped(|sample| sample.p50)),
        at_least("swap, locks/s to the floor's pairs/s", 1.6, 2, swapped(|sample| sample.rate)),
        at_least("swap on 64 threads to 64 at once on one, locks/s", 0.8, 2, vec![swapping]),
    ]
}

/// Those of locks that are not of one plain key.
fn kinds(answers: &Answers) -> Vec<Target> {
    let to_plain = |label: &str| {
        let entry = |label| answers.labelled(Question::Kinds, "healthy", label);
        let pair = entry(label).zip(entry(PLAIN));
        vec![pair.map_or(f64::NAN, |(kind, plain)| kind.ratio(plain, |sample| sample.p50))]
    };
    vec![
        at_most("a share, p50 to a plain lock", 1.15, 2, to_plain(SHARE)),
        at_most("a permit, p50 to a plain lock", 1.15, 2, to_plain(PERMIT)),
        at_most("eight resources, p50 to a plain lock", 1.30, 2, to_plain(SET)),
    ]
}

/// Those of processes that want one lock.
fn contention(answers: &Answers) -> Vec<Target> {
    let queue = |cell: &str, figure: fn(&Sample) -> f64| {
        let entry = answers.labelled(Question::Contention, cell, IN_QUEUE);
        entry.map_or(f64::NAN, |entry| entry.median(figure))
    };
    let to = |cell: &str, label: &str, figure: fn(&Sample) -> f64| {
        let entry = |label| answers.labelled(Question::Contention, cell, label);
        let pair = entry(IN_QUEUE).zip(entry(label));
        pair.map_or(f64::NAN, |(ours, other)| ours.ratio(other, figure))
    };
    let rate = |cell| queue(cell, |sample| sample.rate);
    let even = ["2, 0 ms", "16, 0 ms", "64, 0 ms", "2, 1 ms", "16, 1 ms", "64, 1 ms"];
    let crowds = ["16, 1 ms", "64, 1 ms", "256, 1 ms"];
    let told = to("pause, 5 to 25 ms", TOLD_FLOOR, |sample| sample.p50);
    let cpu = queue("256, 1 ms", |sample| sample.cpu / 1e3);
    vec![
        at_least(
            "256 processes to 16, locks/s, held for 1 ms",
            0.92,
            2,
            vec![rate("256, 1 ms") / rate("16, 1 ms")],
        ),
        at_most(
            "most to least of a process; 2, 16, 64 of them, held for 0 and 1 ms",
            1.15,
            2,
            even.map(|cell| queue(cell, |sample| sample.most / sample.least)).to_vec(),
        ),
        at_most(
            "gap between holders in ms, p99; 16, 64, 256 processes",
            3.0,
            1,
            crowds.map(|cell| queue(cell, |sample| sample.gap_p99 / 1e6)).to_vec(),
        ),
        at_most("hand-off to that of a floor that is told, p50", 1.3, 2, vec![told]),
        at_most("CPU of the clients for a lock in µs, 256 processes", 250.0, 0, vec![cpu]),
        at_least(
            "16 processes, held for 0 ms, locks/s to those that retry",
            1.0,
            2,
            vec![to("16, 0 ms", RETRYING, |sample| sample.rate)],
        ),
    ]
}

fn at_most(text: &'static str, bound: f64, digits: usize, figures: Vec<f64>) -> Target {
    let is_met = !figures.is_empty() && figures.iter().all(|figure| *figure <= bound);
    Target {
        text,
        bound: format!("≤ {}", number(bound, digits)),
        figures,
        digits,
        is_met,
        floor: vec![],
    }
}

fn at_least(text: &'static str, bound: f64, digits: usize, figures: Vec<f64>) -> Target {
    let is_met = !figures.is_empty() && figures.iter().all(|figure| *figure >= bound);
    Target {
        text,
        bound: format!("≥ {}", number(bound, digits)),
        figures,
        digits,
        is_met,
        floor: vec![],
    }
}

struct Answers<'a>(&'a [Answer]);

impl Answers<'_> {
    fn cells(&self, question: Question) -> &[Cell] {
        let answer = self.0.iter().find(|answer| answer.question == question);
        answer.map_or(&[], |answer| &answer.cells)
    }

    fn cell(&self, question: Question, name: &str) -> Option<&Cell> {
        self.cells(question).iter().find(|cell| cell.name == name)
    }

    fn labelled(&self, question: Question, cell: &str, label: &str) -> Option<&Entry> {
        self.cell(question, cell)?.labelled(label)
    }

    /// What was not measured is not a number, which no target is met with.
    fn median(
        &self,
        question: Question,
        cell: &str,
        client: Client,
        figure: fn(&Sample) -> f64,
    ) -> f64 {
        let entry = self.cell(question, cell).and_then(|cell| cell.entry(client));
        entry.filter(|entry| has_succeeded(entry)).map_or(f64::NAN, |entry| entry.median(figure))
    }

    fn ratio(
        &self,
        question: Question,
        cell: &str,
        client: Client,
        figure: fn(&Sample) -> f64,
    ) -> f64 {
        let ratio = |cell: &Cell| {
            let entry = cell.entry(client).filter(|entry| has_succeeded(entry))?;
            Some(entry.ratio(cell.entries.first()?, figure))
        };
        self.cell(question, cell).and_then(ratio).unwrap_or(f64::NAN)
    }

    /// Of each size above 512, to 512.
    fn growth(&self) -> Vec<f64> {
        let cpu =
            |name: &str| self.median(Question::Growth, name, Client::Muxlock, |sample| sample.cpu);
        let is_above = |cell: &&Cell| cell.name.parse::<usize>().is_ok_and(|size| size > 512);
        let above = self.cells(Question::Growth).iter().filter(is_above);
        above.map(|cell| cpu(&cell.name) / cpu("512")).collect()
    }

    /// Of so many threads, to another client of the same turns.
    fn threads(&self, count: &str, many: &str, one: &str) -> Vec<f64> {
        vec![self.between(Question::Threads, count, [many, one], |sample| sample.rate)]
    }

    /// Of one label, to another of the same turns.
    fn between(
        &self,
        question: Question,
        cell: &str,
        [ours, other]: [&str; 2],
        figure: fn(&Sample) -> f64,
    ) -> f64 {
        let entry = |label| self.labelled(question, cell, label).filter(|at| has_succeeded(at));
        let ratio = entry(ours).zip(entry(other));
        ratio.map_or(f64::NAN, |(ours, other)| ours.ratio(other, figure))
    }

    /// With all masters healthy.
    fn fenced(&self, figure: fn(&Sample) -> f64) -> Vec<f64> {
        let ratio = |cell: &Cell| {
            let entry = cell.labelled(MUXLOCK_FENCED)?;
            Some(entry.ratio(cell.labelled(FLOOR_FENCED)?, figure))
        };
        self.cell(Question::Fenced, "healthy").and_then(ratio).into_iter().collect()
    }

    /// With one master frozen, to all healthy.
    fn fenced_frozen(&self, label: &str) -> f64 {
        let p50 = |cell| {
            let entry = self.cell(Question::Fenced, cell)?.labelled(label)?;
            Some(entry.median(|sample| sample.p50))
        };
        p50("frozen").zip(p50("healthy")).map_or(f64::NAN, |(frozen, healthy)| frozen / healthy)
    }

    /// Apart, back to back, and from masters that are away.
    fn dropped(&self, label: &str) -> Vec<f64> {
        let ratio = |cell: &Cell| {
            let entry = cell.entries.iter().find(|entry| entry.label == label)?;
            Some(entry.ratio(cell.entries.first()?, |sample| sample.p50))
        };
        self.cells(Question::Drop).iter().filter_map(ratio).collect()
    }
}

fn has_succeeded(entry: &Entry) -> bool {
    entry.verdict == Verdict::Measured
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_met_on_both_sides() {
        assert!(at_most("", 1.1, 2, vec![1.1, 0.9]).is_met);
        assert!(!at_most("", 1.1, 2, vec![1.11, 0.9]).is_met);
        assert!(at_least("", 0.95, 2, vec![0.95]).is_met);
        assert!(!at_least("", 0.95, 2, vec![0.94]).is_met);
    }

    #[test]
    fn target_without_figures_is_missed() {
        assert!(all(&[]).iter().all(|target| !target.is_met));
        assert!(!at_most("", 1.0, 2, vec![]).is_met);
        assert!(!at_most("", 1.0, 2, vec![f64::NAN]).is_met);
    }
}
