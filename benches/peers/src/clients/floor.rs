//! The floor as a client.

use super::{Failure, Locks};
use crate::floor::threads::{self, Member};
use crate::floor::{Asked, Floor, Kind};
use crate::job::{Job, PERMITS, Work};

impl Floor {
    /// For what the job says.
    pub fn for_job(job: &Job) -> Result<Floor, Failure> {
        let kind = match job.work {
            Work::Fenced => Kind::Fenced,
            Work::Share => Kind::Share,
            Work::Permit => Kind::Permit(PERMITS),
            Work::Set => Kind::Set,
            _ => Kind::Plain,
        };
        Ok(Floor::connect(&job.ports, &job.keys(), job.ttl_ms(), kind)?)
    }
}

/// New connections for each lock.
pub struct Anew {
    job: Job,
    keys: Vec<String>,
}

impl Anew {
    /// One resource.
    pub fn for_job(job: &Job) -> Anew {
        Anew { job: job.clone(), keys: job.keys() }
    }
}

impl Locks for Anew {
    type Held = Floor;

    fn lock(&mut self) -> Option<Floor> {
        let (ports, ttl_ms) = (&self.job.ports, self.job.ttl_ms());
        let mut floor = Floor::connect(ports, &self.keys, ttl_ms, Kind::Plain).ok()?;
        Locks::lock(&mut floor).map(|()| floor)
    }

    fn unlock(&mut self, mut floor: Floor) -> bool {
        Locks::unlock(&mut floor, ())
    }
}

impl Locks for Floor {
    type Held = ();

    fn lock(&mut self) -> Option<()> {
        match self.acquire() {
            Ok(true) => Some(()),
            // A minority may have granted it.
            Ok(false) | Err(_) => {
                self.let_go();
                None
            }
        }
    }

    fn unlock(&mut self, (): ()) -> bool {
        self.release().unwrap_or(false)
    }

    fn surprises(&self) -> u64 {
        self.unexpected()
    }
}

impl Member {
    /// One for each of several threads, each with a resource of its own.
    pub fn for_threads(job: &Job) -> Result<Vec<Member>, Failure> {
        Ok(threads::members(&job.ports, job.size, job.ttl_ms())?)
    }
}

impl Locks for Member {
    type Held = ();

    fn lock(&mut self) -> Option<()> {
        let is_won = self.ask(Asked::Set);
        if !is_won {
            // A minority may have granted it.
            self.ask(Asked::Release);
        }
        is_won.then_some(())
    }

    fn unlock(&mut self, (): ()) -> bool {
        self.ask(Asked::Release)
    }
}
