//! `muxlock evict`: takes a lock from its holder.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, BufRead, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use muxlock::testing::Value;
use muxlock::{Inspection, quorum};

use super::options::Options;
use super::wire::ask_all;

/// It still holds the lock, or it was not asked for well enough.
const REFUSED: u8 = 1;
/// Too few masters answered.
const UNKNOWN: u8 = 3;

/// Returns 1 if the holder lost its key, 0 if there is no key, -1 if the key is another's, and -2
/// if it never expires. The beginning of the value is the one that `inspect` shows.
const EVICT: &str = r#"
local value=redis.call("GET",KEYS[1]) if not value then return 0 end
if string.sub(value,1,math.min(8,math.floor(#value/3)))~=ARGV[1] then return -1 end
if ARGV[2]=="" then return redis.call("DEL",KEYS[1]) end
local left=redis.call("PTTL",KEYS[1]) if left<0 then return -2 end
redis.call("SET",KEYS[1],ARGV[2],"PX",math.max(left,1)) return 1"#;

/// Take a lock from its holder
///
/// On each master, the holder's value is replaced by another one, with the same
/// time to live. The holder learns it at its next renewal, and no other client
/// gets the lock before the validity of the holder has ended.
///
/// Exit status: 0 if the holder is gone from a quorum of masters, 1 if it is not,
/// 2 if it could not start, 3 if too few masters answered.
#[derive(clap::Args)]
#[command(verbatim_doc_comment, next_line_help = true)]
pub struct Args {
    /// The name of the lock
    resource: String,

    /// Whom to take it from, as inspect shows it; else you are asked
    #[arg(long, value_name = "FINGERPRINT")]
    holder: Option<String>,

    /// Delete the keys: there may be two holders for a while
    #[arg(long)]
    now: bool,

    #[command(flatten)]
    options: Options,
}

/// Runs the command. An error means that it could not start.
pub fn run(args: &Args) -> io::Result<ExitCode> {
    let settings = args.options.settings().map_err(io::Error::other)?;
    for warning in &settings.warnings {
        say(warning);
    }
    let config = settings.builder.config().map_err(io::Error::other)?;
    let redlock = settings.builder.build().map_err(io::Error::other)?;
    let inspection = redlock.inspect(&args.resource).map_err(io::Error::other)?;
    let holder = match args.holder(&inspection)? {
        Ok(holder) => holder,
        Err(code) => return Ok(code),
    };
    let key = config.key_of(args.resource.as_bytes());
    let value = if args.now { String::new() } else { format!("evicted:{:016x}", random()) };
    let words = [b"EVAL", EVICT.as_bytes(), b"1", &key, holder.as_bytes(), value.as_bytes()];
    let answers = ask_all(&config, |master| match master.ask(&words)? {
        Value::Integer(number) => Ok(number),
        Value::Error(text) => {
            // The text of a script error may repeat its arguments.
            Err(io::Error::other(text.split(' ').next().unwrap_or_default().to_owned()))
        }
        _ => Err(io::Error::other("this is no answer to a script")),
    });
    let mut text = String::new();
    for (address, answer) in &answers {
        let said = match answer {
            Ok(1) => "taken from it".to_owned(),
            Ok(0) => "it had no key".to_owned(),
            Ok(-2) => "its key never expires: use --now".to_owned(),
            Ok(_) => "another holder has it".to_owned(),
            Err(error) => error.to_string(),
        };
        text.push_str(&format!("{address}  {said}\n"));
    }
    let (total, count) = (answers.len(), |wanted: fn(i64) -> bool| {
        answers.iter().filter(|(_, answer)| answer.as_ref().is_ok_and(|it| wanted(*it))).count()
    });
    let (answered, gone, taken) = (count(|_| true), count(|it| it != -2), count(|it| it == 1));
    let resource = &args.resource;
    let (last, code) = if answered < quorum(total) {
        (format!("unknown: only {answered} of {total} masters answered"), UNKNOWN)
    } else if gone < quorum(total) {
        (format!("{holder} still holds {resource}"), REFUSED)
    } else if taken == 0 {
        (format!("{holder} does not hold {resource}"), REFUSED)
    } else {
        let when = match inspection.free_in().filter(|_| !args.now) {
            Some(left) => format!("; free for others in {:.1} s at the latest", left.as_secs_f64()),
            None => String::new(),
        };
        (format!("{resource} was taken from {holder} on {taken} of {total}{when}"), 0)
    };
    // If nobody reads it, the code says it all the same.
    let _ = writeln!(io::stdout(), "{text}{last}");
    Ok(ExitCode::from(code))
}

impl Args {
    /// Whom to take it from, or the exit code of a refusal.
    fn holder(&self, inspection: &Inspection) -> io::Result<Result<String, ExitCode>> {
        let shown = inspection.holder().map(|holder| holder.to_string());
        if let Some(holder) = &self.holder {
            if self.now {
                say(&self.danger(holder, inspection.free_in()));
            }
            return Ok(Ok(holder.clone()));
        }
        let Some(holder) = shown else {
            say(&format!("refused: no holder has a quorum: {inspection}"));
            return Ok(Err(ExitCode::from(if inspection.is_answered() {
                REFUSED
            } else {
                UNKNOWN
            })));
        };
        if !io::stdin().is_terminal() {
            say(&format!("refused: say --holder {holder}, which inspect shows"));
            return Ok(Err(ExitCode::from(REFUSED)));
        }
        let what = match self.now {
            true => self.danger(&holder, inspection.free_in()),
            false => format!("This takes {} from {holder}.", self.resource),
        };
        let _ = write!(io::stderr(), "{what}\nType the resource's name to go on: ");
        let mut typed = String::new();
        io::stdin().lock().read_line(&mut typed)?;
        match typed.trim_end_matches(['\r', '\n']) == self.resource {
            true => Ok(Ok(holder)),
            false => {
                say("refused: that is another name");
                Ok(Err(ExitCode::from(REFUSED)))
            }
        }
    }

    fn danger(&self, holder: &str, left: Option<Duration>) -> String {
        let left = left.map_or("long".to_owned(), |left| format!("{:.1} s", left.as_secs_f64()));
        format!(
            "This takes the lock from {holder} while it may believe for another {left} that it has \
             it.\nTwo may work on {} at once. Without --now it ends by itself, and safely, within \
             that time.",
            self.resource
        )
    }
}

fn say(text: &str) {
    let _ = writeln!(io::stderr(), "muxlock: {text}");
}

/// So that no holder has this value by chance. It is no secret.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
