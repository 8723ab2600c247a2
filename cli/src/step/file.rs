//! The file that hands a lock from one step of a pipeline to the next.
//!
//! The process that has flock(2) on the file has the lock: the renewer until it ends, the other
//! commands while they work. So the kernel shows whether a renewer lives, and the number of its
//! process, which another one may get, is for people alone. Writes replace the whole file, or add a
//! line to it.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::mem::forget;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use muxlock::error::HandOverError;
use muxlock::unstable_tool::{ConfigExt, explained, printable};
use muxlock::{Config, LockParts, Redlock};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};

use super::super::stopwatch::{Stopwatch, pause, random};

/// The first line. A later format has another number.
const HEADING: &str = "muxlock step 1";
/// A renewer that finds this line releases the lock.
const REQUEST: &str = "unlock";
const MODE: u32 = 0o600;
/// More than the longest names and hand-over text need.
const BYTES_MAX: u64 = 4 << 20;
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// How long another process may have the file, beside its time limits for masters.
const BUSY_MAX: Duration = Duration::from_secs(10);

/// How the lock has ended.
pub enum Ended {
    /// It was held until its release.
    Held,
    Lost(String),
    /// Too few masters have confirmed the release.
    Unconfirmed(String),
}

/// The lines of a file. Not `Debug`: it has a secret.
pub struct Contents {
    pub resource: String,
    masters: String,
    prefix: String,
    /// The machine that has written it; empty if that is not known.
    machine: String,
    /// The hand-over text.
    pub secret: String,
    /// The process that renews the lock, as a text for people.
    pub renewer: Option<String>,
    /// Written by a renewer that has given the lock up.
    pub ended: Option<Ended>,
}

impl Contents {
    pub fn new(config: &Config, resource: &str, secret: String) -> Contents {
        let masters: Vec<_> = (0..config.nodes()).map(|node| config.master(node).address).collect();
        let prefix = printable(&String::from_utf8_lossy(config.common().key_prefix));
        let (resource, masters) = (printable(resource), masters.join(","));
        let machine = machine();
        Contents { resource, masters, prefix, machine, secret, renewer: None, ended: None }
    }

    fn text(&self) -> String {
        let Contents { resource, masters, prefix, machine, secret, .. } = self;
        format!(
            "{HEADING}\nresource={resource}\nmasters={masters}\nprefix={prefix}\n\
             machine={machine}\nlock={secret}\n"
        )
    }

    fn parse(text: &str) -> Option<Contents> {
        // The last line has no end while it is written.
        let (text, _) = text.rsplit_once('\n')?;
        let mut lines = text.lines();
        lines.next().filter(|line| *line == HEADING)?;
        let fields: Vec<_> = lines.filter_map(|line| line.split_once('=')).collect();
        let field = |name: &str| {
            let found = fields.iter().find(|(it, _)| *it == name)?;
            Some(found.1.to_owned())
        };
        let lost = || field("lost").map(Ended::Lost);
        let unconfirmed = || field("unconfirmed").map(Ended::Unconfirmed);
        Some(Contents {
            resource: field("resource")?,
            masters: field("masters")?,
            prefix: field("prefix")?,
            machine: field("machine").unwrap_or_default(),
            secret: field("lock")?,
            renewer: field("renewer"),
            ended: field("held").map(|_| Ended::Held).or_else(lost).or_else(unconfirmed),
        })
    }

    /// Whether this machine was restarted since. Then no process of the lock lives, and how long it
    /// lasts is not known here.
    pub fn is_of_earlier_boot(&self) -> bool {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let boot = boot.trim_end().replace('-', "");
        let parsed = self.secret.parse::<LockParts>();
        // Another time namespace of the same boot has another clock too.
        let is_other_boot = matches!(parsed, Err(HandOverError::OtherClock))
            && !boot.is_empty()
            && !self.secret.contains(&format!(".{boot}-"));
        is_other_boot && !self.machine.is_empty() && self.machine == machine()
    }

    fn check(&self, path: &Path, config: &Config) -> Result<(), String> {
        let own = Contents::new(config, "", String::new());
        let different = |what: &str, here: &str, there: &str| {
            let path = path.display();
            Err(format!("{path}: the lock has the {what} {there:?}; the settings have {here:?}"))
        };
        match (own.masters == self.masters, own.prefix == self.prefix) {
            (false, _) => different("masters", &own.masters, &self.masters),
            (_, false) => different("prefix", &own.prefix, &self.prefix),
            (true, true) => Ok(()),
        }
    }
}

/// The id of this machine, or else its name, neither of which changes when it is restarted.
fn machine() -> String {
    let read = |file: &str| fs::read_to_string(file).map(|text| text.trim_end().to_owned());
    let known = |text: &String| !text.is_empty();
    let id = read("/etc/machine-id").ok().filter(known);
    printable(&id.or_else(|| read("/proc/sys/kernel/hostname").ok()).unwrap_or_default())
}

/// The lock of a hand-over text.
pub fn parts_of(secret: &str, path: &Path) -> Result<LockParts, String> {
    let advice = |error| match error {
        HandOverError::OtherClock => {
            "; unlock it there, or if this machine was restarted, remove the file"
        }
        _ => "",
    };
    secret.parse().map_err(|error| format!("{}: {error}{}", path.display(), advice(error)))
}

/// The line that a renewer leaves.
pub fn line_of(ended: &Ended) -> String {
    match ended {
        Ended::Held => "held=\n".into(),
        Ended::Lost(why) => format!("lost={}\n", printable(why)),
        Ended::Unconfirmed(why) => format!("unconfirmed={}\n", printable(why)),
    }
}

/// How a command treats a renewer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum OnRenewer {
    End,
    Refuse,
}

/// A file that this process alone has, until it ends.
pub struct StepFile {
    pub file: File,
    pub path: PathBuf,
}

impl StepFile {
    /// Waits until no other process has the file. `round` is the longest time of a release.
    pub fn claim(path: &Path, on_renewer: OnRenewer, round: Duration) -> Result<StepFile, String> {
        let started = Stopwatch::start();
        let (mut file, mut has_asked) = (open(path)?, false);
        while started.elapsed() < BUSY_MAX + round {
            if claim(&file, path)? {
                if file.metadata().map_err(|error| about(path, &error))?.nlink() > 0 {
                    return Ok(StepFile { file, path: path.to_owned() });
                }
                // Another command has removed or replaced it.
                (file, has_asked) = (open(path)?, false);
                continue;
            }
            if let (false, Some(renewer)) = (has_asked, read(&file, path)?.renewer) {
                if on_renewer == OnRenewer::Refuse {
                    let path = path.display();
                    return Err(format!("{path}: process {renewer} renews the lock already"));
                }
                has_asked = true;
                let asked = (&file).write_all(format!("{REQUEST}\n").as_bytes());
                asked.map_err(|error| about(path, &error))?;
            }
            pause(LOOK_AGAIN);
        }
        let path = path.display();
        Err(format!("{path}: another muxlock has this file and does not end; its lock expires"))
    }

    /// Other masters or keys would have no lock of this file.
    pub fn contents_for(&self, config: &Config) -> Result<Contents, String> {
        let contents = read(&self.file, &self.path)?;
        contents.check(&self.path, config)?;
        Ok(contents)
    }

    pub fn remove(&self) -> Result<(), String> {
        fs::remove_file(&self.path).map_err(|error| about(&self.path, &error))
    }
}

/// A file beside its later place. If it is dropped before it gets there, it is removed.
pub struct Draft {
    file: File,
    path: PathBuf,
    place: PathBuf,
}

impl Draft {
    /// A file for a new lock. One whose lock has ended makes room for it, and so does one of an
    /// earlier boot: the masters decide who gets the lock.
    pub fn new(place: &Path, client: &Redlock) -> Result<Draft, String> {
        if let Err(error) = fs::symlink_metadata(place) {
            match error.kind() {
                io::ErrorKind::NotFound => return Draft::beside(place),
                _ => return Err(about(place, &error)),
            }
        }
        let (file, shown) = (open(place)?, place.display());
        let unlock = format!("muxlock unlock {shown} releases it");
        if !claim(&file, place)? {
            return Err(format!("{shown} has a lock that is in use; {unlock}"));
        }
        let contents = read(&file, place)?;
        if contents.ended.is_none() && !contents.is_of_earlier_boot() {
            if let Ok(guard) = client.adopt(parts_of(&contents.secret, place)?) {
                let _held = guard.into_parts();
                return Err(format!("{shown} has the lock of {}; {unlock}", contents.resource));
            }
        }
        fs::remove_file(place).map_err(|error| about(place, &error))?;
        Draft::beside(place)
    }

    /// A file that will replace the one at its place.
    pub fn beside(place: &Path) -> Result<Draft, String> {
        let path = place.with_file_name(format!(".muxlock-{:016x}", random()));
        let failed = |error| about(&path, &error);
        let file = options().create_new(true).mode(MODE).open(&path);
        let file = file.map_err(|error| not_created(place, &error))?;
        let draft = Draft { file, path: path.clone(), place: place.to_owned() };
        // Even if the mask of new files takes rights from the owner.
        draft.file.set_permissions(Permissions::from_mode(MODE)).map_err(failed)?;
        if claim(&draft.file, &path)? { Ok(draft) } else { Err(not_ours(&path)) }
    }

    /// Puts a new file into its place, where none may be.
    pub fn place(self, contents: &Contents) -> Result<StepFile, String> {
        self.write(contents)?;
        fs::hard_link(&self.path, &self.place).map_err(|error| about(&self.place, &error))?;
        self.placed()
    }

    /// Replaces the file.
    pub fn replace(self, contents: &Contents) -> Result<StepFile, String> {
        self.write(contents)?;
        fs::rename(&self.path, &self.place).map_err(|error| about(&self.place, &error))?;
        self.placed()
    }

    fn write(&self, contents: &Contents) -> Result<(), String> {
        let written = (&self.file).write_all(contents.text().as_bytes());
        written.map_err(|error| about(&self.path, &error))
    }

    fn placed(&self) -> Result<StepFile, String> {
        let file = self.file.try_clone().map_err(|error| about(&self.place, &error))?;
        Ok(StepFile { file, path: self.place.clone() })
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // After a rename, it is no longer there.
        let _ = fs::remove_file(&self.path);
    }
}

/// Each write extends the file, so that two processes cannot overwrite each other's lines.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    // A pipe is opened without waiting for its other end.
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    options.read(true).append(true).custom_flags(flags.bits());
    options
}

/// Opens the file that `muxlock lock` has created.
pub fn open(path: &Path) -> Result<File, String> {
    let file =
        options().open(path).map_err(|error| match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::ELOOP) => {
                format!("{} is a symbolic link, which is not followed", path.display())
            }
            Some(Errno::ENOENT) => format!(
                "{} is missing: lock has not written it, or unlock has removed it",
                path.display()
            ),
            _ => about(path, &error),
        })?;
    match file.metadata() {
        Ok(metadata) if metadata.is_file() => Ok(file),
        Ok(_) => Err(not_ours(path)),
        Err(error) => Err(about(path, &error)),
    }
}

/// Returns whether no other process has the file. Then this one has it until its end.
fn claim(file: &File, path: &Path) -> Result<bool, String> {
    let copy = file.try_clone().map_err(|error| about(path, &error))?;
    match Flock::lock(copy, FlockArg::LockExclusiveNonblock) {
        // Its drop would take the file from a renewer that has got it from this process.
        Ok(lock) => forget(lock),
        Err((_, Errno::EWOULDBLOCK)) => return Ok(false),
        Err((_, error)) => return Err(about(path, &error.into())),
    }
    Ok(true)
}

fn read(file: &File, path: &Path) -> Result<Contents, String> {
    let failed = |error| about(path, &error);
    let bytes = file.metadata().map_err(failed)?.len();
    let mut text = vec![0; bytes.min(BYTES_MAX) as usize];
    file.read_exact_at(&mut text, 0).map_err(failed)?;
    let text = String::from_utf8(text).ok();
    text.and_then(|text| Contents::parse(&text)).ok_or_else(|| not_ours(path))
}

/// The name of a draft says nothing to the user.
fn not_created(place: &Path, error: &io::Error) -> String {
    let folder = match place.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let (place, shown) = (place.display(), folder.display());
    match (folder.is_dir(), folder.exists()) {
        (true, _) => format!("{place}: no file can be created in {shown}: {}", explained(error)),
        (false, true) => format!("{place}: {shown} is not a folder"),
        (false, false) => format!("{place}: there is no folder {shown}: create it first"),
    }
}

fn not_ours(path: &Path) -> String {
    format!("{} exists, and is no file of muxlock lock", path.display())
}

fn about(path: &Path, error: &io::Error) -> String {
    format!("{}: {}", path.display(), explained(error))
}
