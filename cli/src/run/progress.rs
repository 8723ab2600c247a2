//! Tells the user that the tool waits for the lock, and for which reason.

use std::io::{IsTerminal, stderr};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread;
use std::time::Duration;

use muxlock::inspection::Inspection;
use muxlock::proto::OpId;
use muxlock::unstable_tool::{in_the_tool, last_refusal, obstacle, printable};
use muxlock::{Config, LockError, Moment, Multiplexer, quorum};

use super::super::options::Wait;
use super::console::{finish, say, show};
use super::{LockArgs, Plan};

/// How often a terminal shows the time, and how long a wait is before the first line.
const SECOND: Duration = Duration::from_secs(1);
/// How often there is a line,
const MINUTE: Duration = Duration::from_secs(60);
/// and how often once the wait is longer than that.
const HOUR: Duration = Duration::from_secs(60 * 60);
/// How often to look whether the holder was found.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Why there is no lock yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    text: String,
    /// Whether it is another than a holder whose lock ends.
    is_obstacle: bool,
}

/// The lines that the user wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lines {
    None,
    /// Of a wait without end that might never get the lock.
    Obstacles,
    All,
    /// And each change of the position.
    Verbose,
}

impl Lines {
    fn wanted(args: &LockArgs) -> Lines {
        let waits = [args.wait, args.wait_masters];
        match (args.quiet, args.verbose) {
            _ if waits == [None, None] => Lines::None,
            (true, _) if waits.contains(&Some(Wait::Forever)) => Lines::Obstacles,
            (true, _) => Lines::None,
            (false, true) => Lines::Verbose,
            (false, false) => Lines::All,
        }
    }
}

/// When which line is due.
#[derive(Debug)]
struct Schedule {
    lines: Lines,
    start: Moment,
    due_at: Moment,
}

impl Schedule {
    fn new(lines: Lines, start: Moment) -> Schedule {
        let first = if lines == Lines::Obstacles { MINUTE } else { SECOND };
        Schedule { lines, start, due_at: start.after(first) }
    }

    fn due_at(&self) -> Option<Moment> {
        (self.lines != Lines::None).then_some(self.due_at)
    }

    /// The line that is due now, if there is one, and plans the next.
    fn line(
        &mut self,
        now: Moment,
        name: &str,
        reason: Option<Reason>,
        position: Option<u32>,
    ) -> Option<String> {
        let waited = now.since(self.start);
        let minutes = waited.as_secs() / MINUTE.as_secs();
        let is_obstacle = reason.as_ref().is_some_and(|reason| reason.is_obstacle);
        let reasons = reason.map(|reason| reason.text).into_iter().chain(position.map(in_queue));
        let why = reasons.collect::<Vec<_>>().join("; ");
        let colon = if why.is_empty() { "" } else { ": " };
        if minutes == 0 {
            // Until a reason is known, the masters might be about to grant.
            let next = if why.is_empty() { waited + SECOND } else { MINUTE };
            self.due_at = self.start.after(next.min(MINUTE));
            return (!why.is_empty()).then(|| format!("waiting for {name}: {why}"));
        }
        self.due_at = self.start.after(MINUTE * u32::try_from(minutes + 1).unwrap_or(u32::MAX));
        let is_wanted = match self.lines {
            Lines::None => false,
            Lines::Obstacles => is_obstacle,
            Lines::All | Lines::Verbose => {
                is_obstacle || waited < HOUR || minutes % (HOUR.as_secs() / 60) == 0
            }
        };
        is_wanted.then(|| format!("still waiting for {name} after {minutes} min{colon}{why}"))
    }
}

pub fn none_granted(slots: u32, name: &str) -> String {
    format!("none of the {slots} permits of {name} was granted")
}

fn in_queue(position: u32) -> String {
    match position {
        0 => "first in the queue".to_owned(),
        ahead => format!("{ahead} ahead in the queue"),
    }
}

/// What the tool does while it waits.
#[derive(Clone, Copy)]
pub enum Step<'a> {
    Acquiring(OpId),
    /// Until the next attempt, after this one.
    Pausing(&'a LockError),
}

/// The holder of a resource in words, and whether its lock never expires. It may block.
type Describe = fn(&Config, &[u8], &Inspection) -> Option<(String, bool)>;

/// The search for the holder, one resource after the other.
enum Look {
    Idle,
    /// The masters were asked for a resource of this index.
    Asked(OpId, usize),
    /// A thread asks for more, because that may take longer than a lock lasts.
    Described(Receiver<Option<(String, bool)>>, usize),
}

/// What the user sees of a wait. Texts on a terminal disappear with it.
pub struct Progress<'a> {
    args: &'a LockArgs,
    config: &'a Config,
    schedule: Schedule,
    /// When a terminal shows the time next.
    counts_at: Option<Moment>,
    position: Option<u32>,
    look: Look,
    describe: Describe,
    has_written: bool,
}

impl<'a> Progress<'a> {
    pub fn start(plan: &'a Plan<'a>, now: Moment, describe: Describe) -> Progress<'a> {
        let Plan { args, config, .. } = plan;
        let counts = !args.quiet && stderr().is_terminal();
        Progress {
            args,
            config,
            schedule: Schedule::new(Lines::wanted(args), now),
            counts_at: counts.then(|| now.after(SECOND)),
            position: None,
            look: Look::Idle,
            describe,
            has_written: false,
        }
    }

    /// Tells the user the news that are due. Returns when there may be more.
    pub fn act(&mut self, mux: &mut Multiplexer, name: &str, step: Step<'_>) -> Option<Moment> {
        let (now, name) = (mux.now(), printable(name));
        let position = match step {
            Step::Acquiring(op) => mux.queue_position(op),
            Step::Pausing(_) => None,
        };
        if self.counts_at.is_some_and(|at| at <= now) {
            let waited = now.since(self.schedule.start).as_secs();
            let place = position.map_or_else(String::new, |it| format!("; {}", in_queue(it)));
            show(&format!("waiting for {name}: {waited} s{place}"));
            (self.counts_at, self.has_written) = (Some(now.after(SECOND)), true);
        }
        let news = position.filter(|_| position != self.position);
        if let (Lines::Verbose, Some(position)) = (self.schedule.lines, news) {
            self.say(&format!("waiting for {name}: {}", in_queue(position)));
        }
        self.position = position;
        let mut due_at = self.schedule.due_at();
        if due_at.is_some_and(|at| at <= now) {
            due_at = Some(now.after(LOOK_AGAIN));
            if let Some(reason) = self.look(mux, &name, step) {
                self.look = Look::Idle;
                if let Some(line) = self.schedule.line(now, &name, reason, position) {
                    self.say(&line);
                }
                due_at = self.schedule.due_at();
            }
        }
        [due_at, self.counts_at].into_iter().flatten().min()
    }

    fn say(&mut self, line: &str) {
        say(line);
        self.has_written = true;
    }

    /// Looks for the reason of the wait. `None` until there is an answer, which may be that there
    /// is no reason.
    fn look(
        &mut self,
        mux: &mut Multiplexer,
        name: &str,
        step: Step<'_>,
    ) -> Option<Option<Reason>> {
        let last = match step {
            Step::Acquiring(op) => last_refusal(mux, op),
            Step::Pausing(error) => Some(error),
        };
        let trouble = obstacles(mux).or_else(|| {
            let text = in_the_tool(last.filter(|error| !error.is_contended())?).to_string();
            Some(Reason { text, is_obstacle: true })
        });
        match (&self.look, self.args.slots) {
            _ if trouble.is_some() => Some(trouble),
            (_, Some(slots)) => Some(last.map(|_| {
                let text = none_granted(slots, name);
                Reason { text, is_obstacle: false }
            })),
            (Look::Idle, _) => self.ask(mux, 0),
            (Look::Asked(..), _) => None,
            (Look::Described(words, index), _) => match words.try_recv() {
                Err(TryRecvError::Empty) => None,
                Ok(Some((text, is_endless))) => {
                    Some(Some(Reason { text, is_obstacle: is_endless }))
                }
                Ok(None) | Err(TryRecvError::Disconnected) => {
                    let next = index + 1;
                    self.ask(mux, next)
                }
            },
        }
    }

    /// Asks the masters for the holder of a resource.
    fn ask(&mut self, mux: &mut Multiplexer, index: usize) -> Option<Option<Reason>> {
        let name = self.args.names().nth(index);
        let Some(Ok(op)) = name.map(|name| mux.inspect(name)) else {
            return Some(None);
        };
        mux.flush();
        self.look = Look::Asked(op, index);
        None
    }

    /// An answer of the masters might be lost.
    pub fn look_again(&mut self) {
        self.look = Look::Idle;
    }

    /// The answer of the masters.
    pub fn inspected(&mut self, op: OpId, inspection: Inspection) {
        let Look::Asked(asked, index) = self.look else {
            return;
        };
        if op != asked {
            return;
        }
        let (sender, words) = sync_channel(1);
        let name = self.args.names().nth(index).unwrap_or_default().to_owned();
        let (describe, config) = (self.describe, self.config.clone());
        let describe = move || drop(sender.send(describe(&config, name.as_bytes(), &inspection)));
        // Without a thread, the channel is closed, and no holder is found.
        drop(thread::Builder::new().name("muxlock-holder".into()).spawn(describe));
        self.look = Look::Described(words, index);
    }
}

impl Drop for Progress<'_> {
    fn drop(&mut self) {
        if self.has_written {
            finish();
        }
    }
}

/// Why too few masters vote, if that is so.
fn obstacles(mux: &Multiplexer) -> Option<Reason> {
    let statuses: Vec<_> = mux.nodes().collect();
    let (total, found): (usize, Vec<_>) =
        (statuses.len(), statuses.iter().filter_map(obstacle).collect());
    let votes = total - found.len();
    if votes >= quorum(total) {
        return None;
    }
    let each = found.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    let needs = quorum(total);
    let text = format!("{votes} of {total} masters can vote, and a lock needs {needs} ({each})");
    Some(Reason { text, is_obstacle: true })
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, FromArgMatches as _};

    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(0).after(Duration::from_secs(seconds))
    }

    fn held() -> Option<Reason> {
        Some(Reason { text: "x holds r".into(), is_obstacle: false })
    }

    fn refused() -> Option<Reason> {
        Some(Reason { text: "no quorum".into(), is_obstacle: true })
    }

    /// The lines of a wait, with the minute of each.
    fn lines(lines: Lines, hours: u64, reason: fn() -> Option<Reason>) -> Vec<(u64, String)> {
        let mut schedule = Schedule::new(lines, at(0));
        let mut said = Vec::new();
        while let Some(due) = schedule.due_at().filter(|due| *due <= at(hours * 3_600)) {
            let line = schedule.line(due, "r", reason(), Some(2));
            said.extend(line.map(|line| (due.since(at(0)).as_secs() / 60, line)));
        }
        said
    }

    #[test]
    fn wait_has_a_line_at_its_begin_and_each_minute() {
        let said = lines(Lines::All, 1, held);
        assert_eq!(said[0].1, "waiting for r: x holds r; 2 ahead in the queue");
        let later = "still waiting for r after 1 min: x holds r; 2 ahead in the queue";
        assert_eq!(said[1], (1, later.to_owned()));
        assert_eq!(said.len(), 61);
        assert!(lines(Lines::None, 1, held).is_empty());
    }

    #[test]
    fn long_wait_has_a_line_each_hour_unless_only_an_operator_can_end_it() {
        let minutes = |said: Vec<(u64, String)>| said.into_iter().map(|it| it.0).skip(61);
        assert_eq!(minutes(lines(Lines::All, 3, held)).collect::<Vec<_>>(), [120, 180]);
        assert_eq!(minutes(lines(Lines::All, 3, refused)).count(), 120);
    }

    #[test]
    fn quiet_wait_without_end_tells_of_obstacles_only() {
        assert!(lines(Lines::Obstacles, 2, held).is_empty());
        let said = lines(Lines::Obstacles, 1, refused);
        assert_eq!((said.len(), said[0].0), (60, 1));
    }

    #[test]
    fn begin_is_told_once_the_reason_is_known() {
        let mut schedule = Schedule::new(Lines::All, at(0));
        assert_eq!(schedule.line(at(1), "r", None, None), None);
        assert_eq!(schedule.due_at(), Some(at(2)));
        let line = schedule.line(at(2), "r", None, Some(0));
        assert_eq!(line.as_deref(), Some("waiting for r: first in the queue"));
        assert_eq!(schedule.due_at(), Some(at(60)));
        let line = schedule.line(at(61), "r", None, None);
        assert_eq!(line.as_deref(), Some("still waiting for r after 1 min"));
        assert_eq!(schedule.due_at(), Some(at(120)));
    }

    #[test]
    fn quiet_wait_without_end_still_names_obstacles() {
        let lines = |words: &str| {
            let words = [&["run"], &words.split(' ').collect::<Vec<_>>()[..], &["r"]].concat();
            let matches = LockArgs::augment_args(Command::new("run")).get_matches_from(words);
            Lines::wanted(&LockArgs::from_arg_matches(&matches).unwrap())
        };
        assert_eq!(lines("-q -w forever"), Lines::Obstacles);
        assert_eq!(lines("-q --wait-masters forever"), Lines::Obstacles);
        assert_eq!(lines("-q -w 1m"), Lines::None);
        assert_eq!(lines("-v"), Lines::None);
        assert_eq!(lines("-v -w 1m"), Lines::Verbose);
        assert_eq!(lines("-w forever"), Lines::All);
    }
}
