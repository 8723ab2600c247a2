//! Processes of three makes that want the same lock all the time. That no two hold it is checked;
//! how often each of them does is printed, and depends on the machine.

use std::fs::{self, File};
use std::io::{self, BufRead};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;
use std::{env, process};

use muxlock::{LockGuard, Redlock};

use crate::cases::LONG;
use crate::child::{Program, READY};
use crate::clock::{now, pause};
use crate::crates::Rslock;
use crate::plain::{Defect, Plain};
use crate::scene::{NAME, Scene, connect};
use crate::{Failure, Peer, ensure, peers};

/// How long new attempts begin.
const RUN: Duration = Duration::from_secs(2);
const REPEATS: usize = 5;
/// How long a client holds the lock.
const HOLD: Duration = Duration::from_millis(1);
/// How long a client of Rust tries before it is asked again.
const WAIT: Duration = Duration::from_millis(500);
/// rslock waits for a random part of this; its default is 200 ms.
const RSLOCK_DELAY: Duration = Duration::from_millis(8);
/// What a contender that is this binary is told: its make, and the URLs of the masters.
const MAKE_VARIABLE: &str = "MUXLOCK_INTEROP_MAKE";
const URLS_VARIABLE: &str = "MUXLOCK_INTEROP_URLS";

/// Whose client a process has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Make {
    Muxlock,
    NodeRedlock5,
    Rslock,
}

impl Make {
    const fn name(self) -> &'static str {
        match self {
            Make::Muxlock => "muxlock",
            Make::NodeRedlock5 => "node_redlock_5",
            Make::Rslock => "rslock",
        }
    }

    fn start(self, scene: &Scene) -> Result<Program, Failure> {
        if self == Make::NodeRedlock5 {
            return peers::node(scene, "redlock");
        }
        let mut command = Command::new(env::current_exe()?);
        command
            .args(["--exact", "shares::contender", "--ignored", "--nocapture", "--test-threads=1"])
            .env(MAKE_VARIABLE, self.name())
            .env(URLS_VARIABLE, scene.masters.urls().join(" "));
        Program::start(&mut command)
    }
}

/// muxlock, like any other client.
struct Muxlock {
    redlock: Redlock,
    held: Option<LockGuard>,
}

impl Muxlock {
    fn keep(&mut self, result: Result<LockGuard, muxlock::LockError>) -> Result<bool, Failure> {
        match result {
            Ok(lock) => self.held = Some(lock),
            Err(error) if error.is_contended() || error.is_timed_out() => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        Ok(true)
    }
}

impl Peer for Muxlock {
    fn lock(&mut self, key: &str, ttl: Duration) -> Result<bool, Failure> {
        let result = self.redlock.try_lock(key, ttl);
        self.keep(result)
    }

    fn lock_for(&mut self, key: &str, ttl: Duration, wait: Duration) -> Result<bool, Failure> {
        let result = self.redlock.try_lock_for(key, ttl, wait);
        self.keep(result)
    }

    fn extend(&mut self, ttl: Duration) -> Result<bool, Failure> {
        self.held.as_mut().ok_or("there is no lock")?.extend(ttl)?;
        Ok(true)
    }

    fn unlock(&mut self) -> Result<(), Failure> {
        let released = self.held.take().ok_or("there is no lock")?.unlock()?;
        ensure!(released.was_held(), "muxlock had lost the lock: {released:?}");
        Ok(())
    }
}

/// The process of a contender that is written in Rust.
#[test]
#[ignore = "the other tests of this file start it"]
fn contender() -> Result<(), Failure> {
    let Ok(make) = env::var(MAKE_VARIABLE) else { return Ok(()) };
    let urls: Vec<String> = env::var(URLS_VARIABLE)?.split(' ').map(str::to_owned).collect();
    let mut peer: Box<dyn Peer> = if make == Make::Muxlock.name() {
        Box::new(Muxlock { redlock: connect(urls, "")?, held: None })
    } else {
        Box::new(Rslock::connect(urls)?.with_retry_delay(RSLOCK_DELAY))
    };
    // The harness has begun a line.
    println!("\n{READY}");
    for line in io::stdin().lock().lines() {
        let line = line?;
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["share", key, ttl, run, holder] => {
                let [ttl, run] = [ttl.parse()?, run.parse()?].map(Duration::from_millis);
                match share(&mut *peer, key, ttl, run, holder.as_ref()) {
                    Ok(count) => println!("held {count}"),
                    Err(error) => println!("error {error}"),
                }
            }
            _ => break,
        }
    }
    Ok(())
}

/// Takes the lock again and again. The file stands for its holder: there must never be two.
fn share(
    peer: &mut dyn Peer,
    key: &str,
    ttl: Duration,
    run: Duration,
    holder: &Path,
) -> Result<u64, Failure> {
    let until = now() + run;
    let mut count = 0;
    while now() < until {
        if peer.lock_for(key, ttl, WAIT)? {
            File::create_new(holder).map_err(|error| format!("two hold the lock: {error}"))?;
            pause(HOLD);
            fs::remove_file(holder)?;
            peer.unlock()?;
            count += 1;
        }
    }
    Ok(count)
}

/// Where the file of a test lies.
fn holder(test: &str) -> PathBuf {
    env::temp_dir().join(format!("interop-{test}-{}", process::id()))
}

/// Runs a process for each, and prints how often each has held the lock in each repeat.
fn contend(test: &str, makes: &[Make]) -> Result<(), Failure> {
    // They take turns, so that they have the machine for themselves.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let scene = Scene::start("")?;
    let programs = makes.iter().map(|make| make.start(&scene));
    let mut programs = programs.collect::<Result<Vec<_>, Failure>>()?;
    let holder = holder(test);
    for _ in 0..REPEATS {
        let counts = thread::scope(|scope| {
            let share = |program: &mut Program| program.share(NAME, LONG, RUN, &holder);
            let threads = programs.iter_mut().map(|program| scope.spawn(move || share(program)));
            let threads: Vec<_> = threads.collect();
            let join = |thread: thread::ScopedJoinHandle<'_, Result<u64, Failure>>| {
                thread.join().unwrap_or_else(|_| Err("a thread has panicked".into()))
            };
            threads.into_iter().map(join).collect::<Result<Vec<_>, Failure>>()
        })?;
        let fair = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
        let each = makes.iter().zip(&counts);
        let each = each.map(|(make, count)| {
            format!("{} {count} ({:.0} %)", make.name(), *count as f64 / fair * 100.0)
        });
        println!("grants, of a fair share of {fair:.0}: {}", each.collect::<Vec<_>>().join(", "));
        ensure!(counts.iter().any(|count| *count > 0), "nobody had the lock");
    }
    drop(programs);
    scene.expect_no_keys()
}

#[test]
#[cfg_attr(not(feature = "node"), ignore = "run tests/interop/run, which installs it")]
fn shares_of_two_of_each() -> Result<(), Failure> {
    use Make::{Muxlock, NodeRedlock5, Rslock};
    contend("each", &[Muxlock, Muxlock, NodeRedlock5, NodeRedlock5, Rslock, Rslock])
}

#[test]
#[cfg_attr(not(feature = "node"), ignore = "run tests/interop/run, which installs it")]
fn shares_of_one_beside_four_of_node_redlock_5() -> Result<(), Failure> {
    use Make::{Muxlock, NodeRedlock5};
    contend("node", &[Muxlock, NodeRedlock5, NodeRedlock5, NodeRedlock5, NodeRedlock5])
}

#[test]
fn shares_of_one_beside_four_of_rslock() -> Result<(), Failure> {
    use Make::{Muxlock, Rslock};
    contend("rslock", &[Muxlock, Rslock, Rslock, Rslock, Rslock])
}

/// What the file is for: a client that believes refusals is found.
#[test]
fn two_holders_are_found() -> Result<(), Failure> {
    let scene = Scene::start("")?;
    let holder = holder("two");
    let run = |defect| {
        let mut peer = Plain::new(Arc::clone(&scene.masters), defect);
        share(&mut peer, NAME, LONG, RUN, &holder)
    };
    let results = thread::scope(|scope| {
        let sound = scope.spawn(|| run(Defect::None));
        [run(Defect::BelievesRefusals), sound.join().unwrap_or(Ok(0))]
    });
    let _ = fs::remove_file(&holder);
    let found = results.iter().flat_map(|result| result.as_ref().err()).map(ToString::to_string);
    let found: Vec<_> = found.collect();
    ensure!(found.iter().any(|error| error.contains("two hold the lock")), "{found:?}");
    Ok(())
}
