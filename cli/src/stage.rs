//! The masters of the demo, and its repeated steps: break masters, watch them, show their answers.

use std::io;
use std::time::Duration;

use muxlock::node::{NodeOutcome, NodeState, NodeStatus};
use muxlock::testing::{Master, Masters};
use muxlock::{LockError, LockGuard, Redlock, Released, quorum};

use super::authority::Authority;
use super::histogram::{Bucket, Latencies, bar};
use super::page::{Cell, Expectation, Page, Stop, expect};
use super::paint::{Style, count, thousands, time};
use super::stopwatch::{Stopwatch, wait_until};

pub const RESOURCE: &str = "invoice:42";
pub const TTL: Duration = Duration::from_secs(30);
/// Several times the default, so that a busy machine does not turn healthy masters into slow ones.
pub const NODE_TIMEOUT: Duration = Duration::from_millis(250);

/// How long to try an acquisition that must succeed: on a busy machine, a healthy master may miss
/// its timeout, and another round follows.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// How often an extension, or a second client, tries again if masters missed their timeout.
pub const ATTEMPTS_MAX: usize = 5;
/// How long to wait for the last answers of a round, in order to show them.
pub const LATE_ANSWERS_CAP: Duration = Duration::from_millis(5);
/// How long it may take until every master is connected: the back-off is 1 s at most.
pub const CONNECT_CAP: Duration = Duration::from_secs(5);
/// The first to be killed; the next one is frozen, and those after it are killed last.
pub const VICTIM: usize = 0;
/// The one that is frozen.
pub const SLEEPER: usize = 1;

const SAMPLE_PAIRS: usize = 50;
/// How many pairs run between two progress lines.
const PROGRESS_EVERY: usize = 100;
const BAR_WIDTH: usize = 40;

/// The output, and the masters that the demo runs on.
pub struct Demo {
    pub page: Page,
    pub masters: Masters,
    pub redlock: Redlock,
    pub urls: Vec<String>,
    // After the masters, which read its files whenever they start.
    pub authority: Option<Authority>,
}

/// A master's part in a round.
struct Answer {
    node: usize,
    outcome: String,
    style: Style,
    latency: Option<Duration>,
    note: &'static str,
}

/// The results of some acquisitions, each with its release.
#[derive(Default)]
pub struct Pairs {
    acquisitions: Vec<Duration>,
    /// The times of the acquisitions including their releases.
    pub whole: Vec<Duration>,
    /// Why the run ended early.
    pub failure: Option<String>,
}

impl Demo {
    pub fn quorum(&self) -> usize {
        quorum(self.masters.len())
    }

    /// How many masters may fail.
    pub fn spare(&self) -> usize {
        self.masters.len() - self.quorum()
    }

    /// Counts the masters for which the condition holds.
    pub fn count_masters(&self, is_so: impl Fn(&Master) -> io::Result<bool>) -> io::Result<usize> {
        let mut found = 0;
        for master in &self.masters {
            found += usize::from(is_so(master)?);
        }
        Ok(found)
    }

    /// How many keys there are on these masters, together.
    pub fn keys_on(&self, masters: &[usize]) -> io::Result<u64> {
        let sizes = masters.iter().map(|i| self.masters[*i].dbsize());
        sizes.sum()
    }

    /// The masters that run and are not frozen, once the last chapters have begun to break them.
    pub fn healthy(&mut self) -> Vec<usize> {
        let running = self.masters.iter_mut().enumerate();
        running
            .filter_map(|(i, master)| (i != SLEEPER && master.is_running()).then_some(i))
            .collect()
    }

    /// Kills masters after the frozen one until too few are left; returns which.
    pub fn kill_until_no_quorum(&mut self) -> io::Result<Vec<usize>> {
        let surplus = (self.healthy().len() + 1).saturating_sub(self.quorum());
        let killed: Vec<usize> = (SLEEPER + 1..self.masters.len()).take(surplus).collect();
        for i in &killed {
            self.masters[*i].kill()?;
        }
        Ok(killed)
    }

    /// The client reconnects only during calls: so this calls until all masters are ready.
    pub fn check_connected(&mut self) -> Result<(), Stop> {
        let is_ready = |status: &NodeStatus| status.state == NodeState::Ready;
        let all_ready = || Ok(self.redlock.nodes().iter().all(is_ready));
        let took = wait_until(CONNECT_CAP, all_ready)?;
        let all = count(self.masters.len(), "master");
        self.page.check(
            format_args!("the client is connected to all {all}"),
            expect(took.is_some(), || self.not_ready()),
        )
    }

    fn not_ready(&self) -> String {
        let statuses = self.redlock.nodes();
        let missing = statuses.iter().filter(|it| it.state != NodeState::Ready);
        let missing: Vec<String> =
            missing.map(|it| format!("{} is {:?}", name(it.node), it.state)).collect();
        format!("after {}, {}", time(CONNECT_CAP), missing.join(", "))
    }

    /// Takes the lock, and shows which masters granted it, and when. `None` if that failed, which
    /// is then reported.
    pub fn acquire_and_show(&mut self) -> Result<Option<LockGuard>, Stop> {
        let watch = Stopwatch::start();
        let attempt = self.redlock.try_lock_for(RESOURCE, TTL, PATIENCE);
        let took = watch.elapsed();
        let lock = match attempt {
            Ok(lock) => lock,
            Err(error) => {
                let claim = "a quorum of masters grants the lock";
                self.page.check(claim, Err(error.to_string()))?;
                return Ok(None);
            }
        };
        let statuses = settled(&self.redlock);
        let granted: Vec<usize> = lock.granted_by().collect();
        let answers = statuses.iter().map(|it| Answer::of(it, &granted));
        self.show_answers(&answers.collect::<Vec<_>>())?;
        self.page.check(
            format_args!(
                "{} of {} had granted the lock when the call returned, after {}",
                granted.len(),
                self.masters.len(),
                time(took)
            ),
            expect(granted.len() >= self.quorum() && lock.is_valid(), || {
                format!("{} granted it, {} remains", granted.len(), time(lock.remaining()))
            }),
        )?;
        Ok(Some(lock))
    }

    /// Releases the lock, if there is one.
    pub fn release(&mut self, lock: Option<LockGuard>) -> Result<(), Stop> {
        let Some(lock) = lock else { return Ok(()) };
        let watch = Stopwatch::start();
        let result = release(lock);
        let took = time(watch.elapsed());
        self.page.check(format_args!("a quorum released it, after {took}"), result)
    }

    /// Shows each master's answer to a failed attempt.
    pub fn show_report(&mut self, error: &LockError) -> Result<(), Stop> {
        let answers = error.nodes().iter().map(|report| {
            let (outcome, latency) = (report.outcome, report.latency);
            let is_pending = outcome == NodeOutcome::Pending;
            let note = if is_pending { "decided without it" } else { "" };
            Answer::new(report.node, outcome, latency, note)
        });
        self.show_answers(&answers.collect::<Vec<_>>())
    }

    fn show_answers(&mut self, answers: &[Answer]) -> Result<(), Stop> {
        let widths = answers.iter().map(|answer| answer.outcome.chars().count());
        let width = widths.max().unwrap_or(0);
        for answer in answers {
            let latency = answer.latency.map(time).unwrap_or_default();
            self.page.row(&[
                Cell::left(9, name(answer.node)),
                Cell::left(width, &answer.outcome).style(answer.style),
                Cell::right(9, latency),
                Cell::left(0, answer.note).style(Style::Faint),
            ])?;
        }
        Ok(())
    }

    pub fn show_released(&mut self, released: &Released) -> Result<(), Stop> {
        for (name, nodes, meaning) in [
            ("confirmed", released.confirmed, "had the lock and deleted it"),
            ("absent", released.absent, "no longer had it"),
            ("unknown", released.unknown, "had not answered when it was decided"),
        ] {
            self.page.row(&[
                Cell::left(9, name),
                Cell::right(2, nodes),
                Cell::left(0, meaning).style(Style::Faint),
            ])?;
        }
        Ok(())
    }

    /// Rows of a name, a time, and an aside.
    pub fn show_times(&mut self, rows: &[(&str, Duration, &str)]) -> Result<(), Stop> {
        let widths = rows.iter().map(|(name, ..)| name.chars().count());
        let width = widths.max().unwrap_or(0);
        for (name, duration, aside) in rows {
            self.page.row(&[
                Cell::left(width, name),
                Cell::right(9, time(*duration)),
                Cell::left(0, aside).style(Style::Faint),
            ])?;
        }
        Ok(())
    }

    /// The median of some acquisitions; checks that all succeeded.
    pub fn sample(&mut self, when: &str) -> Result<Duration, Stop> {
        let pairs = self.run_pairs(SAMPLE_PAIRS, None)?;
        let median = Latencies::new(pairs.acquisitions).median();
        let expectation = pairs.failure.map_or(Ok(()), Err);
        let claim = format!("{SAMPLE_PAIRS} more locks, {when}: all granted and released");
        self.page.check(claim, expectation)?;
        Ok(median)
    }

    /// Sets the latency now against that of healthy masters.
    pub fn compare(&mut self, healthy: Duration, now: (&str, Duration)) -> Result<(), Stop> {
        let aside = "median time to acquire";
        let rows = [("all masters healthy", healthy, aside), (now.0, now.1, "")];
        self.show_times(&rows)?;
        let cap = time(NODE_TIMEOUT);
        self.page.check(
            format_args!("no lock waits for it: it takes less than the node_timeout of {cap}"),
            expect(now.1 < NODE_TIMEOUT && !now.1.is_zero(), || match now.1 {
                Duration::ZERO => "no lock was granted".to_owned(),
                median => format!("{} each", time(median)),
            }),
        )
    }

    /// Acquires and releases until there are `wanted` pairs, `limit` is reached, or one fails.
    pub fn run_pairs(&mut self, wanted: usize, limit: Option<Duration>) -> Result<Pairs, Stop> {
        let watch = Stopwatch::start();
        let mut pairs = Pairs::default();
        for i in 0..wanted {
            if limit.is_some_and(|limit| watch.elapsed() >= limit) {
                break;
            }
            if i > 0 && i % PROGRESS_EVERY == 0 {
                let (done, all) = (thousands(i as u128), thousands(wanted as u128));
                self.page.progress(&format!("{done} of {all}"))?;
            }
            match pair(&self.redlock) {
                Ok((acquisition, whole)) => {
                    pairs.acquisitions.push(acquisition);
                    pairs.whole.push(whole);
                }
                Err(reason) => {
                    pairs.failure = Some(format!("pair {}: {reason}", i + 1));
                    break;
                }
            }
        }
        self.page.progress("")?;
        Ok(pairs)
    }

    /// Percentiles and a histogram.
    pub fn show_spread(&mut self, latencies: &Latencies) -> Result<(), Stop> {
        self.show_times(&[
            ("p50", latencies.median(), "half of the pairs took no longer"),
            ("p90", latencies.percentile(90), ""),
            ("p99", latencies.percentile(99), ""),
            ("max", latencies.max(), ""),
        ])?;
        self.page.gap()?;
        let buckets = latencies.buckets();
        let most = buckets.iter().map(|bucket| bucket.count).max();
        // Of a run of empty buckets, only the first is shown, as a gap.
        let is_empty = |i: usize| buckets.get(i).is_some_and(|bucket| bucket.count == 0);
        for (i, bucket) in buckets.iter().enumerate() {
            match (is_empty(i), i > 0 && is_empty(i - 1)) {
                (false, _) => self.show_bucket(bucket, most.unwrap_or(0))?,
                (true, false) => self.page.row(&[Cell::right(12, "...")])?,
                (true, true) => {}
            }
        }
        Ok(())
    }

    fn show_bucket(&mut self, bucket: &Bucket, most: usize) -> Result<(), Stop> {
        self.page.row(&[
            Cell::right(9, time(bucket.from)),
            Cell::left(12, format_args!("to {}", time(bucket.to))),
            Cell::right(6, thousands(bucket.count as u128)),
            Cell::left(0, bar(bucket.count, most, BAR_WIDTH)).style(Style::Good),
        ])
    }
}

impl Answer {
    /// A master's part in the round that has just ended, which `granted` decided.
    fn of(status: &NodeStatus, granted: &[usize]) -> Answer {
        let is_pending = status.state == NodeState::Ready && status.in_flight > 0;
        let (outcome, latency) = match (status.state, status.last_outcome) {
            (NodeState::Connecting | NodeState::Handshaking, _) | (_, None) => {
                (NodeOutcome::NotConnected, None)
            }
            _ if is_pending => (NodeOutcome::Pending, None),
            (_, Some((outcome, latency))) => (outcome, latency),
        };
        let is_counted = granted.contains(&status.node);
        let note = match outcome {
            NodeOutcome::Granted if !is_counted => "came after the decision",
            NodeOutcome::Pending => "not waited for",
            _ => "",
        };
        Answer::new(status.node, outcome, latency, note)
    }

    fn new(
        node: usize,
        outcome: NodeOutcome,
        latency: Option<Duration>,
        note: &'static str,
    ) -> Answer {
        // A master that is known to be down is not asked: its outcome is known from the start.
        let is_down = outcome.is_failure() && outcome != NodeOutcome::NotConnected;
        let is_unasked = latency.is_none() && is_down;
        Answer {
            node,
            outcome: outcome.to_string(),
            style: style(&outcome),
            latency,
            note: if is_unasked { "known before" } else { note },
        }
    }
}

/// All answers of the round that has just ended, except those that do not come. It polls without a
/// pause, so that the times of late answers are accurate.
fn settled(redlock: &Redlock) -> Vec<NodeStatus> {
    let watch = Stopwatch::start();
    loop {
        let statuses = redlock.nodes();
        let is_settled = statuses.iter().all(|status| status.in_flight == 0);
        if is_settled || watch.elapsed() >= LATE_ANSWERS_CAP {
            return statuses;
        }
    }
}

/// The times of an acquisition without and with its release.
fn pair(redlock: &Redlock) -> Result<(Duration, Duration), String> {
    let watch = Stopwatch::start();
    let attempt = redlock.try_lock_for(RESOURCE, TTL, PATIENCE);
    let lock = attempt.map_err(|error| error.to_string())?;
    let acquisition = watch.elapsed();
    release(lock)?;
    Ok((acquisition, watch.elapsed()))
}

/// Releases a lock that a quorum must still have held.
pub fn release(lock: LockGuard) -> Expectation {
    let released = lock.unlock().map_err(|error| error.to_string())?;
    expect(released.was_held(), || format!("{released:?}"))
}

/// Tries again if masters missed their timeout, as they may on a busy machine.
pub fn ask_again<T>(mut ask: impl FnMut() -> Result<T, LockError>) -> Result<T, LockError> {
    let mut answer = ask();
    for _ in 1..ATTEMPTS_MAX {
        match &answer {
            Err(error) if error.is_unavailable() => answer = ask(),
            _ => break,
        }
    }
    answer
}

fn style(outcome: &NodeOutcome) -> Style {
    match outcome {
        NodeOutcome::Granted => Style::Good,
        outcome if outcome.is_failure() => Style::Bad,
        NodeOutcome::Held => Style::Doubtful,
        _ => Style::Faint,
    }
}

/// People count from one.
pub fn name(master: usize) -> String {
    format!("master {}", master + 1)
}

/// `master 3 is`, `masters 1 and 3 are`, `masters 1, 3 and 4 are`.
pub fn names_are(masters: &[usize]) -> String {
    let numbers: Vec<String> = masters.iter().map(|i| (i + 1).to_string()).collect();
    match numbers.as_slice() {
        [] => "no master is".to_owned(),
        [one] => format!("master {one} is"),
        [first @ .., last] => format!("masters {} and {last} are", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_listed_as_people_do() {
        assert_eq!(names_are(&[]), "no master is");
        assert_eq!(names_are(&[2]), "master 3 is");
        assert_eq!(names_are(&[0, 2]), "masters 1 and 3 are");
        assert_eq!(names_are(&[0, 2, 3]), "masters 1, 3 and 4 are");
    }
}
