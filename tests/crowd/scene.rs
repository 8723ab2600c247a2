//! A scene: a crowd of processes that contend, and what the test does to them.

use std::io::Write;
use std::process::{ChildStdin, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use testbed::{Again, PATIENT, is_child, re_execute, within};

use crate::contender::{Event, PART_VARIABLE, Part, contend, now};
use crate::report::Report;

/// The name of a test, whose contenders are processes that run it again.
#[derive(Debug, Clone, Copy)]
pub struct Scene(&'static str);

/// Runs a test; in a process that it has started, the part of a contender.
#[track_caller]
pub fn scene(test: &'static str, body: impl FnOnce(Scene)) {
    if is_child(test) {
        return contend();
    }
    body(Scene(test));
}

impl Scene {
    /// Starts a process for each part, and lets them begin when all are connected.
    #[track_caller]
    pub fn crowd(self, parts: impl IntoIterator<Item = Part>) -> Crowd {
        let members: Vec<_> = parts.into_iter().map(|part| Member::start(self.0, part)).collect();
        for member in &members {
            within(PATIENT, "a contender is connected", || member.log().contains(&Event::Ready));
        }
        let mut crowd = Crowd { name: self.0, from: now(), members };
        for member in &mut crowd.members {
            let input = member.input.as_mut().expect("it has not ended");
            input.write_all(b"begin\n").expect("a contender waits for its sign");
        }
        crowd
    }
}

/// A contender's process.
struct Member {
    part: Part,
    process: Again,
    input: Option<ChildStdin>,
    log: Arc<Mutex<Vec<Event>>>,
    reader: Option<JoinHandle<()>>,
    is_killed: bool,
}

impl Member {
    #[track_caller]
    fn start(test: &str, part: Part) -> Member {
        let mut command = re_execute(test);
        command.env(PART_VARIABLE, part.to_string()).stdin(Stdio::piped());
        let mut process = Again::start(&mut command);
        let input = process.take_input();
        let (told, log) = (process.lines(), Arc::new(Mutex::new(Vec::new())));
        let for_reader = Arc::clone(&log);
        let reader = thread::spawn(move || {
            for event in told.filter_map(|line| Event::parse(&line)) {
                locked(&for_reader).push(event);
            }
        });
        Member { part, process, input, log, reader: Some(reader), is_killed: false }
    }

    fn log(&self) -> MutexGuard<'_, Vec<Event>> {
        locked(&self.log)
    }
}

fn locked(log: &Mutex<Vec<Event>>) -> MutexGuard<'_, Vec<Event>> {
    log.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Contenders that run.
pub struct Crowd {
    name: &'static str,
    from: Duration,
    members: Vec<Member>,
}

impl Crowd {
    /// How often this one has got the lock so far.
    pub fn grants(&self, member: usize) -> usize {
        let is_granted = |event: &&Event| matches!(event, Event::Granted { .. });
        self.members[member].log().iter().filter(is_granted).count()
    }

    /// The same of all together.
    pub fn all_grants(&self) -> usize {
        (0..self.members.len()).map(|member| self.grants(member)).sum()
    }

    /// Waits until each has got the lock again: on a busy machine, that takes longer than a fault.
    #[track_caller]
    pub fn each_gets_it(&self) {
        let grants = || (0..self.members.len()).map(|member| self.grants(member));
        let before: Vec<_> = grants().collect();
        within(PATIENT, "each gets it", || {
            grants().zip(&before).all(|(now, before)| now > *before)
        });
    }

    /// Stops a process (SIGSTOP).
    #[track_caller]
    pub fn stop(&self, member: usize) {
        self.members[member].process.signal("STOP");
    }

    /// Lets it go on (SIGCONT).
    #[track_caller]
    pub fn go_on(&self, member: usize) {
        self.members[member].process.signal("CONT");
    }

    /// Ends a process without a farewell (SIGKILL).
    #[track_caller]
    pub fn kill(&mut self, member: usize) {
        self.members[member].process.kill();
        self.members[member].is_killed = true;
    }

    /// Ends the run; no two have held the lock at the same time, and no wait has failed.
    #[track_caller]
    pub fn end(self, what: &str) -> Report {
        self.end_with(what, |_| {})
    }

    /// The same, with what else is to be in the report.
    #[track_caller]
    pub fn end_with(self, what: &str, add: impl FnOnce(&mut Report)) -> Report {
        let mut report = self.end_unchecked(what);
        add(&mut report);
        let two = report.two_holders();
        assert!(two.is_none(), "two holders: {two:?}");
        report.print();
        report
    }

    /// The same for a crowd in which two may hold the lock.
    #[track_caller]
    pub fn end_unchecked(mut self, what: &str) -> Report {
        let until = now();
        for member in &mut self.members {
            member.input = None;
        }
        let told: Vec<Vec<Event>> = self.members.iter_mut().map(Member::join).collect();
        for event in told.iter().flatten() {
            assert!(!matches!(event, Event::Failed(_)), "{}: {event}", self.name);
        }
        let parts: Vec<_> = self.members.iter().map(|member| member.part.clone()).collect();
        let name = format!("{}, {what}", self.name);
        Report::new(&name, [self.from, until], &parts, &told)
    }
}

impl Member {
    /// Waits for its end; returns all that it told.
    fn join(&mut self) -> Vec<Event> {
        if let Some(reader) = self.reader.take() {
            reader.join().expect("it reads to the end");
        }
        let status = self.process.status();
        assert!(status.success() || self.is_killed, "a contender failed: {status}; see above");
        self.log().clone()
    }
}
