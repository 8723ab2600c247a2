//! `muxlock revoke`: takes a lock from its holder.

use std::io::{self, BufRead, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use muxlock::inspection::{Holding, Inspection};
use muxlock::node::NodeOutcome;
use muxlock::testing::Value;
use muxlock::unstable_tool::{ConfigExt, printable};
use muxlock::{Config, Fingerprint, quorum};

use super::holder::Answers;
use super::inspect::{is_other_type, why_unsaid};
use super::options::Options;
use super::output;
use super::stopwatch::random;
use super::wire::{Failure, Wire, ask_each};

/// The holder remains, or the request was refused.
const NOT_GONE: u8 = 1;
/// Too few masters answered.
const UNKNOWN: u8 = 3;

/// How long all masters together may take, beside connecting.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
/// The same as of `Fingerprint`.
const FINGERPRINT_BYTES_MAX: usize = 8;
/// With `--now`: how much longer than a renewal takes to come the value stays.
const RENEWAL_SLACK: Duration = Duration::from_millis(250);

/// Returns the value that it found, and the milliseconds until the key expires: 1 if the holder
/// lost its key, 0 if there is none, -1 if it is another's, -2 if it never expires, -3 if the user
/// lacks the right to SET, -4 if the server does not know it. The other commands are those that
/// `inspect` has just run there.
///
/// The fingerprint is made as `inspect` makes it. A holder renews its lock when a third of the
/// validity has passed. So the next renewal comes within a third of the key's remaining time and
/// finds another value. The holder then notices the loss, even if it sets missing keys again.
const REVOKE: &str = r#"
local value=redis.call("GET",KEYS[1]) if not value then return {0,0} end
local left,print=redis.call("PTTL",KEYS[1]),value
if #value<24 then print=redis.sha1hex(value) end
if string.sub(print,1,8)~=ARGV[1] then return {-1,left} end
local slack=tonumber(ARGV[3])
if slack==0 then if left<0 then return {-2,left} end
else if left<0 then left=tonumber(ARGV[4]) end left=math.min(left,math.floor(left/3)+slack) end
left=math.max(left,1) local r=redis.pcall("SET",KEYS[1],ARGV[2],"PX",left)
local e=type(r)=="table" and r["err"] if not e then return {1,left} end
if string.find(e,"NOPERM") or string.find(e,"ACL failure") or string.find(e,"user executing") then
return {-3,left} end if string.find(e,"nknown") then return {-4,left} end return r"#;

/// Take a lock from its holder
///
/// On each master, the holder's value is replaced by another one, with the same
/// time to live. The holder notices at its next renewal or release. Another client
/// gets the lock only after the validity of the holder has ended.
///
/// With --now, the keys expire after a third of their remaining time. A renewed
/// lock reports its loss by then. Any other holder might work beside the next one.
///
/// Exit status: 0 if the holder is gone from a quorum of masters, 1 if it is not,
/// 2 if it could not start or write, 3 if too few masters answered.
#[derive(clap::Args)]
#[command(verbatim_doc_comment, next_line_help = true)]
pub struct Args {
    /// Name of the lock
    resource: String,

    /// Fingerprint of the holder, from inspect [default: ask]
    #[arg(long, value_name = "FINGERPRINT", value_parser = fingerprint)]
    holder: Option<Holder>,

    /// Free the lock sooner, at the risk of two holders
    #[arg(long)]
    now: bool,

    #[command(flatten)]
    options: Options,
}

/// The beginning of a holder's value, and how it is written.
#[derive(Clone)]
struct Holder {
    bytes: Vec<u8>,
    shown: String,
}

/// The result of a master.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Did {
    Replaced,
    HadNoKey,
    /// It has another holder's value.
    Other,
    /// The key never expires.
    NeverExpires,
    /// The key has no holder's value, but another type.
    OtherType,
}

/// An answer, with the time after which the key is gone, or why there is none.
type Answer = Result<(Did, Option<Duration>), String>;

/// Runs the command. An error means that it could not start.
pub fn run(args: &Args) -> io::Result<ExitCode> {
    let builder = args.options.builder()?;
    let config = builder.config().map_err(io::Error::other)?;
    let redlock = builder.build().map_err(io::Error::other)?;
    let inspection = redlock.inspect(&args.resource).map_err(io::Error::other)?;
    let common = config.common();
    let key = [common.key_prefix, args.resource.as_bytes()].concat();
    let within = common.connect_timeout.saturating_add(common.node_timeout);
    let asked = has_answered(&config, &inspection);
    // Afterwards, the masters no longer have the value.
    let answers = Answers::ask(&config, &asked, &[key], within);
    let holder = match args.holder(&inspection, &answers)? {
        Ok(holder) => holder,
        Err(code) => return Ok(ExitCode::from(code)),
    };
    let revoked = ask_each(&asked, |node| match is_other_type(&inspection.nodes()[node]) {
        true => Ok((Did::OtherType, None)),
        false => args.revoke(&config, node, &holder),
    });
    let mut text = String::new();
    for (node, seen) in inspection.nodes().iter().enumerate() {
        let answer = asked.iter().position(|it| *it == node).map(|at| &revoked[at]);
        let said = answer.map_or_else(|| why_unsaid(seen), said);
        text.push_str(&format!("{}  {said}\n", printable(&seen.address)));
    }
    if let Some(client) = answers.holder_words(0, Fingerprint::new(&holder.bytes)) {
        text.push_str(&format!("{}: {}\n", printable(&holder.shown), client));
    }
    text.extend(answers.clients.obstacle().map(|why| format!("clients are unknown: {why}\n")));
    let (last, code) = args.verdict(config.nodes(), &revoked, &holder);
    // It is done, so the result must not get lost.
    output::write(format!("{text}{last}\n")).inspect_err(|_| say(&last))?;
    Ok(ExitCode::from(code))
}

/// Others are no masters of their own, or the same server as another.
fn has_answered(config: &Config, inspection: &Inspection) -> Vec<usize> {
    let is_asked = |node: &usize| {
        let outcome = inspection.nodes()[*node].outcome;
        matches!(outcome, NodeOutcome::Held | NodeOutcome::Absent)
    };
    (0..config.nodes()).filter(is_asked).collect()
}

impl Args {
    fn revoke(&self, config: &Config, node: usize, holder: &Holder) -> Answer {
        let answer = self.run_script(config, node, holder);
        let (did, left) = answer.map_err(|failure| failure.to_string())?;
        let left = u64::try_from(left).ok().map(Duration::from_millis);
        match did {
            1 => Ok((Did::Replaced, left)),
            0 => Ok((Did::HadNoKey, left)),
            -1 => Ok((Did::Other, left)),
            -2 => Ok((Did::NeverExpires, left)),
            -3 => {
                let user = config.master(node).user.unwrap_or("default");
                Err(format!("the user {user:?} lacks +set"))
            }
            -4 => Err("the server does not know set".to_owned()),
            _ => Err(Failure::Strange.to_string()),
        }
    }

    /// The two numbers that the script returns.
    fn run_script(
        &self,
        config: &Config,
        node: usize,
        holder: &Holder,
    ) -> Result<(i64, i64), Failure> {
        let common = config.common();
        let mut wire = Wire::connect(config, node, common.connect_timeout + ANSWERS_WITHIN)?;
        let key = [common.key_prefix, self.resource.as_bytes()].concat();
        let slack = match self.now {
            true => (2 * common.node_timeout).max(RENEWAL_SLACK).as_millis(),
            false => 0,
        };
        let reply = wire.ask(&[
            b"EVAL",
            REVOKE.as_bytes(),
            b"1",
            &key,
            &holder.bytes,
            format!("revoked:{:016x}", random()).as_bytes(),
            slack.to_string().as_bytes(),
            common.max_ttl.as_millis().to_string().as_bytes(),
        ])?;
        let Value::Array(parts) = reply else { return Err(Failure::Strange) };
        match parts[..] {
            [Value::Integer(did), Value::Integer(left)] => Ok((did, left)),
            _ => Err(Failure::Strange),
        }
    }

    /// The last line, and the exit code.
    fn verdict(&self, total: usize, answers: &[Answer], holder: &Holder) -> (String, u8) {
        let (resource, holder) = (printable(&self.resource), printable(&holder.shown));
        let quorum = quorum(total);
        let count = |wanted: &[Did]| {
            answers.iter().filter(|it| it.as_ref().is_ok_and(|it| wanted.contains(&it.0))).count()
        };
        let answered = answers.iter().filter(|answer| answer.is_ok()).count();
        let (taken, others) = (count(&[Did::Replaced]), count(&[Did::Other]));
        if answered < quorum {
            return (format!("unknown: only {answered} of {total} masters answered"), UNKNOWN);
        }
        let endless = count(&[Did::NeverExpires]);
        if taken + endless == 0 {
            return (format!("{holder} does not hold {resource}"), NOT_GONE);
        }
        if taken == 0 {
            let text = format!(
                "{holder} keeps {resource} on {endless} of {total}, where its key never expires: use \
                 --now"
            );
            return (text, NOT_GONE);
        }
        // A holder may still set a key where there is none.
        if taken + others < quorum {
            let text = format!(
                "{resource} was taken from {holder} on {taken} of {total}, which is not enough to \
                 keep it from a quorum: try again"
            );
            return (text, NOT_GONE);
        }
        let text = format!("{resource} was taken from {holder} on {taken} of {total}");
        let when = match free_in(answers, quorum) {
            Some(left) if others < quorum => {
                format!("; free for others in {:.1} s at the latest", left.as_secs_f64())
            }
            _ => String::new(),
        };
        (format!("{text}{when}"), 0)
    }

    /// The holder to take it from, or the exit code of a refusal.
    fn holder(&self, inspection: &Inspection, answers: &Answers) -> io::Result<Result<Holder, u8>> {
        let left = inspection.free_in();
        if let Some(holder) = &self.holder {
            let has_it = |found: Holding| found.holder().as_bytes() == holder.bytes;
            let holds = inspection.nodes().iter().any(|node| node.holding.is_some_and(has_it));
            if self.now && holds {
                say(&self.danger(holder, left));
            }
            return Ok(Ok(holder.clone()));
        }
        let Some(found) = inspection.holder() else {
            say(&format!("refused: no holder has a quorum: {inspection}"));
            return Ok(Err(if inspection.is_answered() { NOT_GONE } else { UNKNOWN }));
        };
        let holder = Holder { bytes: found.as_bytes().to_vec(), shown: found.to_string() };
        if !io::stdin().is_terminal() {
            let shown = &holder.shown;
            say(&format!("refused: pass --holder '{shown}', the holder that inspect shows"));
            return Ok(Err(NOT_GONE));
        }
        let what = match self.now {
            true => self.danger(&holder, left),
            false => format!("This takes {} from {}.", printable(&self.resource), holder.shown),
        };
        let client = answers.holder_words(0, found);
        let client = client.map_or_else(String::new, |it| format!("\n{}: {it}", holder.shown));
        let _ = write!(io::stderr(), "{what}{client}\nType the resource's name to go on: ");
        let mut typed = String::new();
        io::stdin().lock().read_line(&mut typed)?;
        if typed.trim_end_matches(['\r', '\n']) == self.resource {
            return Ok(Ok(holder));
        }
        say("refused: the typed name differs");
        Ok(Err(NOT_GONE))
    }

    fn danger(&self, holder: &Holder, left: Option<Duration>) -> String {
        let (resource, holder) = (printable(&self.resource), printable(&holder.shown));
        let (left, end) = match left {
            Some(left) => (
                format!("for another {:.1} s", left.as_secs_f64()),
                "Without --now, the lock expires safely within that time.",
            ),
            None => ("forever".to_owned(), "Its key never expires, so only --now takes it."),
        };
        format!(
            "This takes the lock from {holder}, which can use it {left}.\nTwo holders might work \
             on {resource} at once. {end}"
        )
    }
}

/// When a quorum of masters will have no key.
fn free_in(answers: &[Answer], quorum: usize) -> Option<Duration> {
    let mut waits: Vec<_> = answers.iter().filter_map(|answer| answer.as_ref().ok()?.1).collect();
    waits.sort_unstable();
    waits.get(quorum - 1).copied()
}

fn said(answer: &Answer) -> String {
    match answer {
        Ok((Did::Replaced, _)) => "taken from the holder".to_owned(),
        Ok((Did::HadNoKey, _)) => "it had no key".to_owned(),
        Ok((Did::Other, _)) => "another holder has it".to_owned(),
        Ok((Did::NeverExpires, _)) => "its key never expires: use --now".to_owned(),
        Ok((Did::OtherType, _)) => "it has read locks, or is no lock".to_owned(),
        Err(why) => printable(why),
    }
}

/// A fingerprint as it is shown, with escaped bytes.
fn fingerprint(text: &str) -> Result<Holder, String> {
    let bytes = unescaped(text).ok_or("it has a \\ that begins no escaped byte, such as \\x00")?;
    match bytes.len() {
        1..=FINGERPRINT_BYTES_MAX => Ok(Holder { bytes, shown: text.to_owned() }),
        length => Err(format!("it has {length} bytes, and inspect shows 1 to 8 of them")),
    }
}

fn unescaped(text: &str) -> Option<Vec<u8>> {
    let (mut bytes, mut rest) = (Vec::new(), text.bytes());
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'\\' => match rest.next()? {
                b't' => b'\t',
                b'r' => b'\r',
                b'n' => b'\n',
                same @ (b'\'' | b'"' | b'\\') => same,
                b'x' => {
                    let mut digit = || char::from(rest.next()?).to_digit(16);
                    u8::try_from(16 * digit()? + digit()?).ok()?
                }
                _ => return None,
            },
            byte => byte,
        });
    }
    Some(bytes)
}

fn say(text: &str) {
    let _ = writeln!(io::stderr(), "muxlock: {text}");
}

#[cfg(test)]
mod tests {
    use muxlock::Fingerprint;

    use super::*;

    #[test]
    fn fingerprints_are_read_as_they_are_shown() {
        let table: [&[u8]; 4] = [b"3f9a1c02", b"\x00\xff\r\n\t\\'\"", b"a", b"revoked:"];
        for bytes in table {
            let shown = Fingerprint::new(bytes).to_string();
            assert_eq!(fingerprint(&shown).map(|it| it.bytes), Ok(bytes.to_vec()), "{shown}");
        }
        for wrong in ["", "123456789", "\\", "\\x0", "\\x+1", "\\y", "ab\\"] {
            assert!(fingerprint(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn another_holders_keys_count_and_missing_ones_do_not() {
        let args = Args {
            resource: "deploy".to_owned(),
            holder: None,
            now: false,
            options: Options::default(),
        };
        let seconds = |did, seconds| Ok((did, Some(Duration::from_secs(seconds))));
        let (taken, none) = (|left| seconds(Did::Replaced, left), || seconds(Did::HadNoKey, 0));
        let other = |left| seconds(Did::Other, left);
        let lost = || Err("it did not answer in time".to_owned());
        let forever = || Ok((Did::NeverExpires, None));
        let table: [(Vec<Answer>, u8, &str); 11] = [
            (vec![taken(8), taken(7), taken(9)], 0, "on 3 of 3; free for others in 8.0 s"),
            (vec![taken(8), taken(7), none()], 0, "on 2 of 3; free for others in 7.0 s"),
            (vec![taken(8), other(20), none()], 0, "on 1 of 3; free for others in 8.0 s"),
            (vec![taken(8), other(20), other(21)], 0, "deploy was taken from it on 1 of 3"),
            (vec![taken(8), taken(7)], 0, "on 2 of 3; free for others in 8.0 s"),
            (vec![taken(8), none(), none()], NOT_GONE, "on 1 of 3, which is not enough"),
            (vec![none(), none(), none()], NOT_GONE, "it does not hold deploy"),
            (vec![other(9), other(9), other(9)], NOT_GONE, "it does not hold deploy"),
            (vec![forever(), forever(), forever()], NOT_GONE, "it keeps deploy on 3 of 3, where"),
            (vec![forever(), other(9), other(9)], NOT_GONE, "it keeps deploy on 1 of 3, where"),
            (vec![taken(8), lost(), lost()], UNKNOWN, "unknown: only 1 of 3 masters answered"),
        ];
        let holder = Holder { bytes: b"it".to_vec(), shown: "it".to_owned() };
        for (answers, code, text) in table {
            let (said, found) = args.verdict(3, &answers, &holder);
            assert_eq!(found, code, "{said}");
            assert!(said.contains(text), "{said}");
            let is_said = text.contains("free for others");
            assert_eq!(said.contains("free for others"), is_said, "{said}");
        }
    }
}
