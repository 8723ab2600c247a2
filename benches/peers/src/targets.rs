//! What the library promises, what it aims at, and whether a run shows either.

use crate::contention::{IN_QUEUE, RING_FLOOR, STOPPED, TOLD_FLOOR};
use crate::driver::{Cell, Entry, Verdict};
use crate::job::{Client, Sample};
use crate::questions::{
    AWAY, FAR, FIVE_AND_NINE, FLOOR_DROP, FLOOR_FENCED, FLOOR_OF, FLOOR_PERMIT, FLOOR_SET,
    FLOOR_SHARE, FLOOR_THREADS, MUXLOCK_DROP, MUXLOCK_FENCED, MUXLOCK_IN_FLIGHT, MUXLOCK_OF,
    MUXLOCK_PAIR, MUXLOCK_SWAP, MUXLOCK_THREADS, MUXLOCK_UNGUARDED, ONE_REFUSED, PAUSES, PERMIT,
    PLAIN, Question, SET, SHARE, STATES,
};
use crate::report::{Answer, number};

/// How much a target binds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tier {
    /// Users may rely on it: a release must not miss it.
    Promised,
    /// It is worked at.
    Aimed,
}

/// On which side of a bound a figure has to be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Bound {
    /// A figure that was not measured meets no bound.
    fn is_met(self, figure: f64) -> bool {
        match self {
            Bound::AtMost(most) => figure <= most,
            Bound::AtLeast(least) => figure >= least,
        }
    }

    pub fn text(self, digits: usize) -> String {
        match self {
            Bound::AtMost(most) => format!("≤ {}", number(most, digits)),
            Bound::AtLeast(least) => format!("≥ {}", number(least, digits)),
        }
    }
}

/// One target.
#[derive(Debug, Clone, PartialEq)]
pub struct Target {
    pub text: &'static str,
    pub tier: Tier,
    /// What each figure has to be.
    pub bound: Bound,
    /// What was measured, as it is compared.
    pub figures: Vec<f64>,
    pub digits: usize,
    /// What the floor does, where that says what is possible.
    pub floor: Vec<f64>,
}

impl Target {
    fn beside(self, floor: Vec<f64>) -> Target {
        Target { floor, ..self }
    }

    fn aimed(self) -> Target {
        Target { tier: Tier::Aimed, ..self }
    }

    /// One without figures is a miss.
    pub fn is_met(&self) -> bool {
        !self.figures.is_empty() && self.figures.iter().all(|figure| self.bound.is_met(*figure))
    }

    /// Nothing can be asked for that the floor itself does not do.
    pub fn is_possible(&self) -> bool {
        self.floor.iter().all(|figure| figure.is_nan() || self.bound.is_met(*figure))
    }
}

/// All of them.
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
        at_most("allocations for a pair", 0.0, 4, vec![allocations]),
        at_most("system calls for a pair, more than the floor", 1.0, 1, vec![more_calls]),
        at_most("CPU for a pair to the floor's", 1.15, 2, vec![cpu(Client::Muxlock)]),
        at_least("CPU of rslock and redlock for a pair to muxlock's", 1.5, 2, peers.to_vec()),
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
        at_most("instructions for a pair, without the guard", 8_500.0, 0, vec![instructions])
            .beside(vec![floor_instructions])
            .aimed(),
    ];
    targets.extend(healthy(&answers));
    targets.extend(pauses(&answers));
    targets.extend(to_the_floor(&answers));
    targets.extend(refused(&answers));
    targets.extend(kinds(&answers));
    targets.extend(contention(&answers));
    targets
}

/// Tighter ones of a pair with all masters healthy, and of a new client.
fn healthy(answers: &Answers) -> Vec<Target> {
    let ratio = |question, cell, figure: fn(&Sample) -> f64| {
        vec![answers.ratio(question, cell, Client::Muxlock, figure)]
    };
    let pair = |figure| ratio(Question::Pairs, "healthy", figure);
    let first = ratio(Question::Rest, "first lock", |sample| sample.p50);
    let calls =
        |client| answers.median(Question::Counts, "one pair", client, |sample| sample.calls);
    let more_calls = vec![calls(Client::Muxlock) - calls(Client::Floor)];
    vec![
        at_most("pair, p50 to the floor's, all masters healthy", 1.03, 2, pair(|it| it.p50))
            .aimed(),
        at_most("CPU for a pair to the floor's, all masters healthy", 1.05, 2, pair(|it| it.cpu))
            .aimed(),
        at_most("system calls for a pair, more than the floor", 0.0, 1, more_calls).aimed(),
        at_most("first lock of a new client, p50 to the floor's", 1.6, 2, first).aimed(),
    ]
}

/// Those of a client that does something else between two pairs.
fn pauses(answers: &Answers) -> Vec<Target> {
    let [(cell, _), _] = PAUSES;
    let ratio = |figure| vec![answers.ratio(Question::Pauses, cell, Client::Muxlock, figure)];
    let counted =
        |client| vec![answers.median(Question::Pauses, cell, client, |sample| sample.instructions)];
    vec![
        at_most("pair 15 ms apart, p50 to the floor's", 1.10, 2, ratio(|it| it.p50)).aimed(),
        at_most("CPU for a pair 15 ms apart to the floor's", 1.20, 2, ratio(|it| it.cpu)).aimed(),
        at_most("instructions for a pair 15 ms apart", 12_000.0, 0, counted(Client::Muxlock))
            .beside(counted(Client::Floor))
            .aimed(),
    ]
}

/// Those of many at once, of which somebody else holds one.
fn refused(answers: &Answers) -> Vec<Target> {
    let ratio = |figure: fn(&Sample) -> f64| {
        let of = |(cell, _)| answers.ratio(Question::InFlight, cell, Client::Muxlock, figure);
        ONE_REFUSED.map(of).to_vec()
    };
    vec![
        at_most(
            "CPU for a pair to the floor's, 64 and 512 at once, one refused",
            1.45,
            2,
            ratio(|sample| sample.cpu),
        )
        .aimed(),
        at_least(
            "pairs/s to the floor's, 64 and 512 at once, one refused",
            0.96,
            2,
            ratio(|sample| sample.rate),
        )
        .aimed(),
    ]
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
    let in_flight = ["8", "64", "512"]
        .map(|size| answers.ratio(Question::InFlight, size, Client::Muxlock, |sample| sample.rate));
    let cpu =
        |size| vec![answers.ratio(Question::InFlight, size, Client::Muxlock, |sample| sample.cpu)];
    let most = |figure: fn(&Sample) -> f64| {
        vec![answers.ratio(Question::Growth, "100000", Client::Muxlock, figure)]
    };
    let kept = |[five, nine]: [&str; 2]| {
        let labels = [nine, five];
        100.0 * answers.between(Question::Masters, FIVE_AND_NINE, labels, |sample| sample.rate)
    };
    let swapped = |figure: fn(&Sample) -> f64| {
        vec![answers.between(
            Question::Swap,
            "healthy",
            [MUXLOCK_SWAP, Client::Floor.name()],
            figure,
        )]
    };
    let swapping =
        answers.between(Question::Threads, "64", [MUXLOCK_SWAP, MUXLOCK_IN_FLIGHT], |sample| {
            sample.rate
        });
    vec![
        at_least("64 threads, pairs/s to the floor's threads", 0.85, 2, threads("64")),
        at_most("acquire and drop, p50 to the floor's", 1.1, 2, dropped.to_vec()),
        at_most(
            "CPU for a pair to the floor's, 100,000 at once",
            1.15,
            2,
            most(|sample| sample.cpu),
        ),
        at_most(
            "pairs/s lost from 5 to 9 masters, points more than the floor loses",
            5.0,
            0,
            vec![kept(FLOOR_OF) - kept(MUXLOCK_OF)],
        ),
        at_most("swap, p50 to the floor's pair", 0.6, 2, swapped(|sample| sample.p50)),
        at_least("swap, locks/s to the floor's pairs/s", 1.6, 2, swapped(|sample| sample.rate)),
        at_most("acquire and drop, masters 5 ms away, p50 to a pair", 0.55, 2, vec![away]).aimed(),
        at_least("pairs/s to the floor's, 8, 64 and 512 at once", 0.95, 2, in_flight.to_vec())
            .aimed(),
        at_most("CPU for a pair to the floor's, 64 at once", 1.3, 2, cpu("64")).aimed(),
        at_most("CPU for a pair to the floor's, 512 at once", 1.6, 2, cpu("512")).aimed(),
        at_least("8 threads, pairs/s to the floor's threads", 0.65, 2, threads("8")).aimed(),
        at_least("64 threads, pairs/s to the floor's threads", 0.87, 2, threads("64")).aimed(),
        // A thread sleeps and wakes for each swap, which one thread with 64 at once does not.
        at_least("swap on 64 threads to 64 at once on one, locks/s", 0.75, 2, vec![swapping])
            .aimed(),
    ]
}

/// Those of locks that are not of one plain key. What their scripts make a master do is a part of
/// the ratio, which no client can save.
fn kinds(answers: &Answers) -> Vec<Target> {
    let to = |labels| answers.between(Question::Kinds, "healthy", labels, |sample| sample.p50);
    let to_plain = |label| vec![to([label, PLAIN])];
    let same = [[SHARE, FLOOR_SHARE], [PERMIT, FLOOR_PERMIT], [SET, FLOOR_SET]];
    vec![
        at_most("a share, p50 to a plain lock", 1.30, 2, to_plain(SHARE)).aimed(),
        at_most("a permit, p50 to a plain lock", 1.02, 2, to_plain(PERMIT)).aimed(),
        at_most("eight resources, p50 to a plain lock", 1.45, 2, to_plain(SET)).aimed(),
        at_most(
            "a share, a permit, eight resources, p50 to the floor's of the same commands",
            1.08,
            2,
            same.map(to).to_vec(),
        )
        .aimed(),
    ]
}

/// Processes that let go at once, which are compared with a ring.
const ORDERED: [&str; 3] = ["16, 0 ms", "64, 0 ms", "256, 0 ms"];

/// Those of processes that want one lock.
fn contention(answers: &Answers) -> Vec<Target> {
    let queue = |cell: &str, figure: fn(&Sample) -> f64| {
        let entry = answers.labelled(Question::Contention, cell, IN_QUEUE);
        entry.map_or(f64::NAN, |entry| entry.median(figure))
    };
    let to = |cell: &str, label: &str, figure: fn(&Sample) -> f64| {
        answers.between(Question::Contention, cell, [IN_QUEUE, label], figure)
    };
    let to_ring = |figure: fn(&Sample) -> f64| ORDERED.map(|cell| to(cell, RING_FLOOR, figure));
    let stopped = STOPPED.map(|(cell, _)| {
        let entry = answers.labelled(Question::Stopped, cell, IN_QUEUE);
        entry.map_or(f64::NAN, |entry| entry.median(|sample| sample.p50 / 1e6))
    });
    let rate = |cell| queue(cell, |sample| sample.rate);
    let share = |cell: &str| queue(cell, |sample| sample.most / sample.least);
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
            even.map(share).to_vec(),
        ),
        at_most(
            "gap between holders in ms, p99; 16, 64, 256 processes",
            3.0,
            1,
            crowds.map(|cell| queue(cell, |sample| sample.gap_p99 / 1e6)).to_vec(),
        ),
        at_most("hand-off to that of a floor that is told, p50", 1.3, 2, vec![told]),
        at_most(
            "longest time without a holder in ms, p50, if one of 16 is stopped; held for 0, 1 ms",
            5.0,
            1,
            stopped.to_vec(),
        )
        .aimed(),
        at_most("CPU of the clients for a lock in µs, 256 processes", 210.0, 0, vec![cpu]).aimed(),
        // In order, a lock goes to another process each time, as the ring passes it on.
        at_least(
            "16, 64, 256 processes, held for 0 ms, locks for a CPU second to the ring's",
            0.72,
            2,
            to_ring(|sample| 1.0 / (sample.cpu + sample.server_cpu)).to_vec(),
        )
        .aimed(),
        at_most(
            "16, 64, 256 processes, held for 0 ms, hand-off to the ring's, p50",
            1.4,
            2,
            to_ring(|sample| sample.p50).to_vec(),
        )
        .aimed(),
        at_most(
            "most to least of 16, 64, 256 processes, held for 0 ms",
            1.1,
            2,
            ORDERED.map(share).to_vec(),
        )
        .aimed(),
    ]
}

fn at_most(text: &'static str, bound: f64, digits: usize, figures: Vec<f64>) -> Target {
    promised(text, Bound::AtMost(bound), digits, figures)
}

fn at_least(text: &'static str, bound: f64, digits: usize, figures: Vec<f64>) -> Target {
    promised(text, Bound::AtLeast(bound), digits, figures)
}

fn promised(text: &'static str, bound: Bound, digits: usize, figures: Vec<f64>) -> Target {
    Target { text, tier: Tier::Promised, bound, figures, digits, floor: vec![] }
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
}

fn has_succeeded(entry: &Entry) -> bool {
    entry.verdict == Verdict::Measured
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_met_on_both_sides() {
        assert!(at_most("", 1.1, 2, vec![1.1, 0.9]).is_met());
        assert!(!at_most("", 1.1, 2, vec![1.11, 0.9]).is_met());
        assert!(at_least("", 0.95, 2, vec![0.95]).is_met());
        assert!(!at_least("", 0.95, 2, vec![0.94]).is_met());
    }

    #[test]
    fn target_without_figures_is_missed() {
        assert!(all(&[]).iter().all(|target| !target.is_met()));
        assert!(!at_most("", 1.0, 2, vec![]).is_met());
        assert!(!at_most("", 1.0, 2, vec![f64::NAN]).is_met());
    }

    #[test]
    fn target_that_the_floor_misses_is_impossible() {
        assert!(at_most("", 1.1, 2, vec![1.2]).is_possible());
        assert!(at_most("", 1.1, 2, vec![1.2]).beside(vec![1.0, 1.1]).is_possible());
        assert!(!at_most("", 0.6, 2, vec![0.5]).beside(vec![0.82]).is_possible());
        assert!(!at_least("", 0.8, 2, vec![0.9]).beside(vec![0.63]).is_possible());
        assert!(at_most("", 1.1, 2, vec![1.0]).beside(vec![f64::NAN]).is_possible());
    }

    /// The published page has these targets, keeps what is promised, and asks for nothing that the
    /// floor misses.
    #[test]
    fn published_promises_are_kept_and_possible() {
        let page = include_str!("../../RESULTS.md");
        let rows = |title: &str| {
            let (_, section) = page.split_once(&format!("\n### {title}\n")).expect(title);
            let section = section.split("\n#").next().unwrap_or("");
            let cells =
                |row: &str| row.split('|').map(|it| it.trim().to_owned()).collect::<Vec<_>>();
            section
                .lines()
                .filter(|row| row.starts_with('|'))
                .skip(2)
                .map(cells)
                .collect::<Vec<_>>()
        };
        for (title, tier) in [("Promised", Tier::Promised), ("Aimed at", Tier::Aimed)] {
            let targets = all(&[]).into_iter().filter(|target| target.tier == tier);
            let expected: Vec<_> =
                targets.map(|it| [it.text.to_owned(), it.bound.text(it.digits)]).collect();
            let found: Vec<_> =
                rows(title).into_iter().map(|it| [it[1].clone(), it[2].clone()]).collect();
            assert_eq!(found, expected, "{title}");
        }
        assert!(rows("Promised").iter().all(|row| row[4] == "pass"), "a promise is missed");
        assert!(!page.contains("**impossible**"), "the floor misses a target");
    }
}
