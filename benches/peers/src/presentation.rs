//! How the answer to each question is shown: its words, its table and its chart.

use crate::chart::{Mark, Queues, Row, Rows, Series};
use crate::driver::{Cell, Entry, Verdict};
use crate::job::Sample;
use crate::questions::Question;

/// What a table shows of each client.
#[derive(Clone, Copy)]
pub struct Column {
    pub title: &'static str,
    pub figure: fn(&Sample) -> f64,
    /// How much of the figure is one of the column's unit.
    pub unit: f64,
    pub digits: usize,
    /// Whether its ratio to the first client's is shown, too.
    pub ratio: bool,
}

const P50: Column =
    Column { title: "p50 µs", figure: |sample| sample.p50, unit: 1e3, digits: 1, ratio: true };
const P99: Column = Column { title: "p99 µs", figure: |sample| sample.p99, ..P50 };
const P999: Column = Column { title: "p99.9 µs", figure: |sample| sample.p999, ..P50 };
const LONGEST: Column =
    Column { title: "longest µs", figure: |sample| sample.longest, ratio: false, ..P50 };
const CPU: Column = Column { title: "CPU µs", figure: |sample| sample.cpu, ..P50 };
const RATE: Column =
    Column { title: "pairs/s", figure: |sample| sample.rate, unit: 1.0, digits: 0, ratio: true };
const FAILED: Column =
    Column { title: "failed", figure: |sample| sample.failed, unit: 1.0, digits: 0, ratio: false };
const LEAST: Column = Column { title: "least", figure: |sample| sample.least, ..FAILED };
const MOST: Column = Column { title: "most", figure: |sample| sample.most, ..FAILED };
const FAR_P50: Column = Column { title: "p50 ms", unit: 1e6, digits: 2, ..P50 };
const FAR_P99: Column = Column { title: "p99 ms", unit: 1e6, digits: 2, ..P99 };
const HAND_OFFS: Column = Column { title: "hand-offs/s", ratio: false, ..RATE };
const GRANTS: Column = Column { title: "acquisitions/s", ..RATE };
const HANDED_P50: Column = Column { title: "hand-off p50 µs", ..P50 };
const HANDED_P99: Column = Column { title: "p99 µs", ratio: false, ..P99 };
const GAP_P99: Column =
    Column { title: "gap p99 µs", figure: |sample| sample.gap_p99, ..HANDED_P99 };
const LONGEST_GAP: Column =
    Column { title: "longest ms", figure: |sample| sample.longest_gap, unit: 1e6, ..HANDED_P99 };
const FREE_P50: Column = Column { title: "free for ms", unit: 1e6, digits: 2, ratio: false, ..P50 };
const LONGEST_WAIT: Column =
    Column { title: "longest wait ms", figure: |sample| sample.longest_wait, ..LONGEST_GAP };
const SHARES: Column = Column {
    title: "max/min",
    // Without a bound if some got none.
    figure: |sample| sample.most / sample.least,
    digits: 2,
    ..FAILED
};
/// Of clients and masters together.
const GRANTS_PER_CPU: Column = Column {
    title: "locks/CPU s",
    figure: |sample| 1e9 / (sample.cpu + sample.server_cpu),
    ..RATE
};
const SETS: Column = Column { title: "SETs", figure: |sample| sample.sets, digits: 2, ..FAILED };
const SERVER_CPU: Column =
    Column { title: "server CPU µs", figure: |sample| sample.server_cpu, ..HANDED_P99 };
const SERVER_RATIO: Column = Column { ratio: true, ..SERVER_CPU };
const INSTRUCTIONS: Column =
    Column { title: "instructions", figure: |sample| sample.instructions, ..RATE };
const ALLOCATIONS: Column =
    Column { title: "allocations", figure: |sample| sample.allocations, digits: 3, ..FAILED };
const CALLS: Column =
    Column { title: "system calls", figure: |sample| sample.calls, digits: 1, ..FAILED };
const MEMORY: Column =
    Column { title: "bytes/operation", figure: |sample| sample.memory, ..FAILED };

const KEPT_MEMORY: Column = Column { title: "bytes on the heap", ..MEMORY };
const WAKES: Column =
    Column { title: "wake-ups/s", figure: |sample| sample.wakes, digits: 2, ..FAILED };

impl Column {
    /// What an entry has in it, in its unit.
    pub fn value(&self, entry: &Entry) -> f64 {
        entry.median(self.figure) / self.unit
    }

    fn mark(&self, entry: &Entry) -> Mark {
        word(entry.verdict).map_or_else(|| Mark::Value(self.value(entry)), Mark::Word)
    }
}

/// What stands in the place of figures that there are none of.
pub fn word(verdict: Verdict) -> Option<&'static str> {
    match verdict {
        Verdict::Measured => None,
        Verdict::Hangs => Some("hangs"),
        Verdict::Fails => Some("fails"),
    }
}

impl Question {
    /// What its table shows.
    pub fn columns(self) -> Vec<Column> {
        match self {
            Question::Pairs | Question::Fenced | Question::Kinds | Question::Tls => {
                vec![P50, P99, CPU, SERVER_RATIO, FAILED]
            }
            Question::Pauses => vec![P50, CPU, SERVER_RATIO, INSTRUCTIONS, FAILED],
            Question::Drop => vec![P50, P99, CPU, FAILED],
            Question::Counts => vec![INSTRUCTIONS, ALLOCATIONS, CALLS],
            Question::Distance => vec![FAR_P50, FAR_P99, FAILED],
            Question::InFlight => vec![RATE, CPU, FAILED],
            Question::Threads => vec![RATE, CPU, LEAST, MOST, FAILED],
            Question::Swap | Question::Masters => vec![P50, RATE, CPU, FAILED],
            Question::HandOff => {
                vec![HAND_OFFS, LEAST, MOST, Column { title: "two holders", ..FAILED }]
            }
            Question::Contention => vec![
                GRANTS,
                HANDED_P50,
                HANDED_P99,
                GAP_P99,
                LONGEST_GAP,
                LEAST,
                MOST,
                SHARES,
                LONGEST_WAIT,
                SETS,
                CPU,
                SERVER_RATIO,
                GRANTS_PER_CPU,
                Column { title: "two holders", ..FAILED },
            ],
            Question::Stopped => vec![
                Column { ratio: false, ..GRANTS },
                FREE_P50,
                Column { title: "stops", ..MOST },
                Column { title: "not taken", ..LEAST },
                Column { title: "two holders", ..FAILED },
            ],
            Question::Growth => vec![CPU, RATE, MEMORY, FAILED],
            Question::Resources => {
                vec![Column { ratio: false, ..P50 }, Column { ratio: false, ..CPU }, FAILED]
            }
            Question::Steady => vec![P50, P99, P999, LONGEST, CPU, FAILED],
            Question::Rest => vec![P50, P99, WAKES, KEPT_MEMORY, FAILED],
        }
    }

    /// Its heading.
    pub fn title(self) -> &'static str {
        match self {
            Question::Pairs => "Acquire and release, one after the other",
            Question::Pauses => "Acquire and release, with pauses in between",
            Question::Fenced => "With fencing tokens",
            Question::Kinds => "Other kinds of lock",
            Question::Tls => "Over TLS",
            Question::Counts => "What a pair costs that can be counted",
            Question::Drop => "Acquire and drop",
            Question::Distance => "Acquire from masters at different distances",
            Question::InFlight => "Many pairs at once on one thread",
            Question::Threads => "Many threads on one client",
            Question::Swap => "From one lock to the next",
            Question::Masters => "More masters",
            Question::HandOff => "One lock that sixteen clients want",
            Question::Contention => "One lock that many processes want",
            Question::Stopped => "A process that waits for a lock is stopped",
            Question::Growth => "Up to a hundred thousand pairs at once",
            Question::Resources => "Many resources",
            Question::Steady => "Ten minutes of a low rate",
            Question::Rest => "A client that does little",
        }
    }

    /// What was measured, and what is peculiar about it.
    pub fn text(self) -> &'static str {
        match self {
            Question::Pairs => {
                "Five masters: all healthy; one port that refuses connections; one or two masters \
                 frozen (SIGSTOP) after everybody had connected. A client that did not come back \
                 in time `hangs` and was killed; one of which most pairs fail, `fails`. `redis` is \
                 the plain client on one master without any quorum, for scale. CPU is what the \
                 client's process computes for a pair, in user space and in the kernel; server CPU \
                 is the same of all masters together."
            }
            Question::Pauses => {
                "After each pair, the client does nothing for so long, as most services do. Caches \
                 are colder than in a tight loop. muxlock checks the clocks and roles of the \
                 masters at most every 10 ms, so it may check them for each of these pairs. The \
                 CPU that idle masters use is subtracted. Instructions in user space are \
                 callgrind's, with the same pauses."
            }
            Question::Fenced => {
                "The floor sends the same script as muxlock and proposes the time of the machine's \
                 clock, but compares no numbers. Beside it, pairs without tokens, in the same \
                 turns: what a script costs that is a plain SET otherwise. One master is frozen in \
                 the second case."
            }
            Question::Kinds => {
                "One pair after the other: a lock of one resource, a share, a permit of a \
                 semaphore that is free, and a lock of eight resources. Shares and sets are taken \
                 and freed by scripts, and what a script makes the masters do is a part of its \
                 time. The floor sends the same scripts as muxlock, and for a permit a plain SET \
                 of one slot, which is the least that a permit can be. The ratio is to muxlock's \
                 plain lock."
            }
            Question::Tls => {
                "One pair after the other, of muxlock alone, to masters that listen both with and \
                 without TLS, in the same turns. The ratio is to the pair without TLS."
            }
            Question::Counts => {
                "Instructions in user space are callgrind's, system calls are strace's: the \
                 difference of two runs of different length, divided by the difference in pairs. \
                 Beneath such a tool a pair takes longer, so what a client does every so many \
                 milliseconds, such as muxlock's looks at the masters' clocks, weighs more than it \
                 does otherwise: without the guard, there are none. Allocations are counted by the \
                 process itself."
            }
            Question::Drop => {
                "The release is sent, and nobody waits for the answer; redlock's guard cannot do \
                 so. The ratio is to the floor's pair. Back to back, the next SET waits at the \
                 masters behind the release; 1 ms apart, it does not. Masters that are 5 ms away \
                 are so by a proxy, both ways together."
            }
            Question::Distance => {
                "Round trips of 1, 2, 3, 40 and 400 ms to the five masters, by a proxy. Only the \
                 acquisition is timed. The third fastest master decides, unless a client waits for \
                 all of them, or asks one after the other."
            }
            Question::InFlight => {
                "Each with a resource of its own. The floor sends what is ready in one write for \
                 each master and turn; muxlock is a guest in an event loop (`Multiplexer`); rslock \
                 has a task for each, on the faster of its runtimes. The floor draws the random \
                 bytes of the tokens that leave together by one call for up to twelve, as muxlock \
                 does. In the last two cases, somebody else holds one of the resources: each \
                 attempt to take it fails, counts as a pair, and is followed by a release and the \
                 next attempt, without waiting for that release."
            }
            Question::Threads => {
                "Each with a resource of its own, on one `Redlock` handle, or one `RedLock` of \
                 redlock; for rslock, tasks on one thread, which is faster here than several. \
                 Beside them, as many pairs at once on one thread: whoever has threads pays for \
                 their sleeping and waking. What that costs at the least, the floor's threads \
                 show, which give their orders to one more thread that works its loop. A swap, \
                 from one lock to the next in one write, is counted as a pair. Least and most is \
                 what single threads got in one turn."
            }
            Question::Swap => {
                "On one thread. `swap` releases one lock and takes another in one write, and is \
                 counted as a pair. Swaps on many threads stand in the table above."
            }
            Question::Masters => {
                "One pair after the other. In the last case, five masters and nine in the same \
                 turns."
            }
            Question::HandOff => {
                "Each has a client of its own, with default settings, and holds the lock for 1 ms. \
                 Least and most is what single clients got in one turn."
            }
            Question::Contention => {
                "A case is the number of processes and how long each holds the lock. A hand-off is \
                 the time from the moment before a release is called to the next grant, and counts \
                 only if the next holder began to wait before; a gap is the same without that \
                 condition. SETs, CPU and the masters' CPU are for one acquisition. Least and most \
                 is what single processes got in one turn, or single threads of the only process. \
                 The processes of the ring floor take the lock in a fixed order: each waits for a \
                 message that the one before it publishes behind its release, which is the least \
                 that an order can cost; the floor that is told is a ring of two. The spinning \
                 floor asks again at once. Locks per CPU second are those for a second that \
                 clients and masters together compute. With a pause, each of two processes does \
                 nothing for 5 ms after its release, and the one alone for 20 ms. For the one \
                 alone, an acquisition stands in the place of a hand-off. Only two floors spin, \
                 since sixteen split all votes, and rslock contends with up to 64 processes that \
                 hold for 1 ms. A ratio is to the first client of the case."
            }
            Question::Stopped => {
                "Sixteen processes take the same lock in turn and hold it for so long. One after \
                 the other is stopped for 100 ms (SIGSTOP) and goes on. In that time it comes to \
                 the head of the queue, and the others have to notice that it does not take the \
                 lock. Acquisitions are those during the stops. `free for` is the longest time of \
                 a stop in which the lock was free, the median over all stops. In about one stop \
                 of sixteen, the stopped process holds the lock, and no other takes it."
            }
            Question::Growth => {
                "CPU is the whole client's for a pair, to the last; bytes are the growth of the \
                 whole process up to its peak, divided by the operations."
            }
            Question::Resources => {
                "One pair after the other, over so many resources in turn: a client that kept \
                 anything for each would grow."
            }
            Question::Steady => {
                "2,000 pairs in a second, for ten minutes; the floor does the same for two, so its \
                 longest pair is one of fewer. A pair that is late because the one before it took \
                 too long is timed from when it should have begun. The machine is shared: the \
                 longest pair is also the longest time that the machine did something else."
            }
            Question::Rest => {
                "The first lock of a new client, from before its connections are made: muxlock \
                 also asks each master for its age, role and settings. Then a client that is not \
                 used, without a lock and with locks that it keeps alive, of a TTL of 2 s: how \
                 often one of its threads wakes up, and what it has on the heap, or has for each \
                 lock that it keeps."
            }
        }
    }

    /// Its chart, as SVG.
    pub fn chart(self, cells: &[Cell]) -> String {
        let title = self.title();
        match self {
            Question::Pairs
            | Question::Fenced
            | Question::Kinds
            | Question::Tls
            | Question::Drop => rows(title, P50, Some(P99), cells),
            Question::Pauses => rows(title, P50, None, cells),
            Question::Counts => rows(title, INSTRUCTIONS, None, cells),
            Question::Swap => rows(title, RATE, None, cells),
            Question::Steady => rows(title, P50, Some(P99), cells),
            Question::Rest => rows(title, P50, None, &cells[..cells.len().min(1)]),
            Question::Distance => rows(title, FAR_P50, None, cells),
            Question::HandOff => rows(title, HAND_OFFS, None, cells),
            Question::Contention => rows(title, GRANTS_PER_CPU, None, cells),
            Question::Stopped => rows(title, FREE_P50, None, cells),
            Question::InFlight => lines(title, "pairs at once", RATE, cells),
            Question::Threads => lines(title, "threads", RATE, cells),
            Question::Masters => lines(title, "masters", P50, cells),
            Question::Growth => lines(title, "pairs at once", CPU, cells),
            Question::Resources => lines(title, "resources", CPU, cells),
        }
    }
}

fn axis(column: Column) -> String {
    match column.title {
        "p50 µs" => "microseconds".to_owned(),
        "p50 ms" => "p50 in milliseconds".to_owned(),
        "CPU µs" => "computing time for a pair, microseconds".to_owned(),
        "pairs/s" => "pairs in a second".to_owned(),
        "locks/CPU s" => "locks for a second of CPU time, clients and masters together".to_owned(),
        "free for ms" => "longest time without a holder, p50 in milliseconds".to_owned(),
        "acquisitions/s" => "acquisitions in a second".to_owned(),
        "hand-offs/s" => "hand-offs in a second".to_owned(),
        "instructions" => "instructions in user space for a pair".to_owned(),
        other => other.to_owned(),
    }
}

fn rows(title: &str, column: Column, ring: Option<Column>, cells: &[Cell]) -> String {
    let row = |entry: &Entry| Row {
        label: entry.label.clone(),
        client: entry.client,
        mark: column.mark(entry),
        ring: ring.map(|ring| ring.value(entry)).filter(|value| value.is_finite()),
    };
    let group = |cell: &Cell| (cell.name.clone(), cell.entries.iter().map(row).collect());
    let chart = Rows {
        title: title.to_owned(),
        axis: axis(column),
        key: ring.map(|_| "dot and number: p50 · ring: p99".to_owned()),
        groups: cells.iter().map(group).collect(),
    };
    chart.draw()
}

fn lines(title: &str, x_axis: &str, column: Column, cells: &[Cell]) -> String {
    let mut series: Vec<Series> = Vec::new();
    for cell in cells {
        let Ok(x) = cell.name.parse() else {
            continue;
        };
        for entry in &cell.entries {
            let point = (x, column.mark(entry));
            match series.iter_mut().find(|series| series.label == entry.label) {
                Some(series) => series.points.push(point),
                None => series.push(Series {
                    label: entry.label.clone(),
                    client: entry.client,
                    points: vec![point],
                }),
            }
        }
    }
    let y_axis =
        if column.title == P50.title { "p50 in microseconds".into() } else { axis(column) };
    Queues { title: title.to_owned(), x_axis: x_axis.to_owned(), y_axis, series }.draw()
}
