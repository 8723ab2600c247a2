//! What tables show of each client.

use crate::job::Sample;

/// One figure.
#[derive(Clone, Copy)]
pub struct Column {
    pub title: &'static str,
    pub figure: fn(&Sample) -> f64,
    /// How much of the figure is one of the column's unit.
    pub unit: f64,
    pub digits: usize,
    /// Whether its ratio to the first client's is shown beside it.
    pub ratio: Ratio,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Ratio {
    Shown,
    Hidden,
}

const fn microseconds(title: &'static str, figure: fn(&Sample) -> f64) -> Column {
    Column { title, figure, unit: 1e3, digits: 1, ratio: Ratio::Shown }
}

const fn milliseconds(title: &'static str, figure: fn(&Sample) -> f64) -> Column {
    Column { title, figure, unit: 1e6, digits: 2, ratio: Ratio::Shown }
}

const fn number(title: &'static str, figure: fn(&Sample) -> f64, digits: usize) -> Column {
    Column { title, figure, unit: 1.0, digits, ratio: Ratio::Hidden }
}

const fn rate(title: &'static str, figure: fn(&Sample) -> f64) -> Column {
    Column { ratio: Ratio::Shown, ..number(title, figure, 0) }
}

const fn without_ratio(column: Column) -> Column {
    Column { ratio: Ratio::Hidden, ..column }
}

const P50: Column = microseconds("p50 µs", |it| it.p50);
const P99: Column = microseconds("p99 µs", |it| it.p99);
const CPU: Column = microseconds("CPU µs", |it| it.cpu);
const SERVER_CPU: Column = microseconds("server CPU µs", |it| it.server_cpu);
const RATE: Column = rate("pairs/s", |it| it.rate);
const INSTRUCTIONS: Column = rate("instructions", |it| it.instructions);
const FAILED: Column = number("failed", |it| it.failed, 0);
const TWO_HOLDERS: Column = number("two holders", |it| it.failed, 0);
const LEAST: Column = number("least", |it| it.least, 0);
const MOST: Column = number("most", |it| it.most, 0);

pub const PAIRS: &[Column] = &[P50, P99, CPU, SERVER_CPU, FAILED];
pub const PAUSES: &[Column] = &[P50, CPU, SERVER_CPU, INSTRUCTIONS, FAILED];
pub const COUNTS: &[Column] = &[
    INSTRUCTIONS,
    number("allocations", |it| it.allocations, 3),
    number("system calls", |it| it.calls, 1),
];
pub const FAR: &[Column] =
    &[milliseconds("p50 ms", |it| it.p50), milliseconds("p99 ms", |it| it.p99), FAILED];
pub const IN_FLIGHT: &[Column] = &[RATE, CPU, FAILED];
pub const THREADS: &[Column] = &[RATE, CPU, LEAST, MOST, FAILED];
pub const RATES: &[Column] = &[P50, RATE, CPU, FAILED];
pub const CONTENTION: &[Column] = &[
    rate("acquisitions/s", |it| it.rate),
    microseconds("hand-off p50 µs", |it| it.p50),
    without_ratio(P99),
    without_ratio(microseconds("gap p99 µs", |it| it.gap_p99)),
    without_ratio(Column { digits: 1, ..milliseconds("longest ms", |it| it.longest_gap) }),
    LEAST,
    MOST,
    // Without a bound if some got none.
    number("max/min", |it| it.most / it.least, 2),
    without_ratio(Column { digits: 1, ..milliseconds("longest wait ms", |it| it.longest_wait) }),
    number("SETs", |it| it.sets, 2),
    CPU,
    SERVER_CPU,
    rate("locks/CPU s", |it| 1e9 / (it.cpu + it.server_cpu)),
    TWO_HOLDERS,
];
pub const STOPPED: &[Column] = &[
    without_ratio(rate("acquisitions/s", |it| it.rate)),
    without_ratio(milliseconds("free for ms", |it| it.p50)),
    number("stops", |it| it.most, 0),
    number("not taken", |it| it.least, 0),
    TWO_HOLDERS,
];
pub const FIRST: &[Column] = &[P50, P99, FAILED];
