//! `muxlock bench`: how fast locks are on the user's own masters.

mod load;
mod spread;

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use muxlock::Config;
use muxlock::unstable_tool::ConfigExt;
use serde_json::{Value, json};

use self::load::{Load, Tally, in_flight, on_threads};
use self::spread::Spread;
use super::histogram::bar;
use super::options::{Options, duration};
use super::paint::{count, thousands, time};
use super::stopwatch::random;

/// Some pairs failed.
const FAILED: u8 = 1;
const LENGTH_MIN: Duration = Duration::from_millis(100);
const LENGTH_MAX: Duration = Duration::from_secs(60 * 60);
/// The TTL, unless a shorter one is the longest.
const TTL: Duration = Duration::from_secs(10);
const BAR_WIDTH: usize = 40;

/// Measure how fast locks are taken and released on your masters
///
/// It writes to them: each lock has its own key, whose name begins with the prefix
/// and muxlock:bench. All keys are deleted or expire.
///
/// With --rate, the time of a lock counts from the moment when it was due, even if
/// it started later.
///
/// Exit status: 0 if all locks were taken and released, 1 if some were not, 2 if
/// it could not start.
#[derive(clap::Args)]
#[command(verbatim_doc_comment, next_line_help = true)]
pub struct Args {
    /// Duration, at most 1h
    #[arg(long = "for", value_name = "D", value_parser = duration, default_value = "10s")]
    length: Duration,

    /// Threads that share a client, each with one lock
    #[arg(long, value_name = "K", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1_024))]
    threads: u16,

    /// Locks in flight in an event loop, instead of threads
    #[arg(long, value_name = "K", conflicts_with = "threads")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1_024))]
    in_flight: Option<u16>,

    /// Locks per second [default: as many as possible]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: Option<u32>,

    /// TTL of each lock [default: 10s, at most max-ttl]
    #[arg(long, value_name = "D", value_parser = duration)]
    ttl: Option<Duration>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    options: Options,
}

/// Runs the command. An error means that it could not start.
pub fn run(args: &Args) -> io::Result<ExitCode> {
    let builder = args.options.builder()?;
    if !(LENGTH_MIN..=LENGTH_MAX).contains(&args.length) {
        let text = format!("--for is {:?}: it must be from 100ms to 1h", args.length);
        return Err(io::Error::other(text));
    }
    let config = builder.config().map_err(io::Error::other)?;
    let (min_ttl, max_ttl) = (config.common().min_ttl, config.common().max_ttl);
    let ttl = args.ttl.unwrap_or(TTL.min(max_ttl));
    if !(min_ttl..=max_ttl).contains(&ttl) {
        let text =
            format!("--ttl is {ttl:?}: it must be from {min_ttl:?} to {max_ttl:?} (max-ttl)");
        return Err(io::Error::other(text));
    }
    let load = Load {
        prefix: format!("muxlock:bench:{:08x}", random() as u32),
        length: args.length,
        ttl,
        rate: args.rate,
        at_once: usize::from(args.in_flight.unwrap_or(args.threads)),
    };
    say(&plan(&config, &load));
    // Connecting is not measured.
    let redlock = builder.connect().map_err(io::Error::other)?;
    let tally = match args.in_flight {
        Some(_) => in_flight(config.clone(), &load)?,
        None => on_threads(&redlock, config.nodes(), &load)?,
    };
    let text = match args.json {
        true => format!("{}\n", as_json(&config, &load, &tally)),
        false => as_text(&config, &load, &tally),
    };
    // If the output is closed, the exit code still shows the result.
    let _ = io::stdout().write_all(text.as_bytes());
    let is_well = tally.failed.is_empty() && tally.pair.count() > 0;
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

fn say(text: &str) {
    let _ = writeln!(io::stderr(), "muxlock: {text}");
}

fn addresses(config: &Config) -> Vec<&str> {
    (0..config.nodes()).map(|node| config.master(node).address).collect()
}

/// The commands, and their masters.
fn plan(config: &Config, load: &Load) -> String {
    let prefix = config.common().key_prefix.escape_ascii();
    let rate = load.rate.map_or(String::new(), |rate| format!(", {rate} a second"));
    format!(
        "for {:?}, {} at a time{rate}: keys {prefix}{}:* with a TTL of {:?} on {}",
        load.length,
        count(load.at_once, "lock"),
        load.prefix,
        load.ttl,
        addresses(config).join(", ")
    )
}

fn rows(tally: &Tally) -> [(&'static str, &Spread); 3] {
    [("acquire", &tally.acquire), ("release", &tally.release), ("pair", &tally.pair)]
}

/// How many of a thousand, and the name of that.
const PARTS: [(u64, &str); 4] = [(500, "p50"), (900, "p90"), (990, "p99"), (999, "p99.9")];

fn per_second(load: &Load, tally: &Tally) -> u64 {
    (tally.pair.count() as f64 / load.length.as_secs_f64()).round() as u64
}

fn percent(part: u64, whole: u64) -> String {
    match whole {
        0 => "-".to_owned(),
        _ => format!("{:.1} %", part as f64 * 100.0 / whole as f64),
    }
}

fn as_text(config: &Config, load: &Load, tally: &Tally) -> String {
    let mut text = format!("{:9}", "");
    for name in PARTS.map(|(_, name)| name).into_iter().chain(["max"]) {
        text.push_str(&format!("  {name:>10}"));
    }
    for (name, spread) in rows(tally) {
        text.push_str(&format!("\n{name:9}"));
        let times = PARTS.map(|(part, _)| spread.per_mille(part)).into_iter().chain([spread.max()]);
        times.for_each(|it| text.push_str(&format!("  {:>10}", time(it))));
    }
    let addresses = addresses(config);
    let width = addresses.iter().map(|it| it.chars().count()).max().unwrap_or(0).max(6);
    text.push_str(&format!(
        "\n\n{:width$}  {:>10}  {:>13}  {:>8}",
        "master", "round trip", "first quorum", "too late"
    ));
    for (node, address) in addresses.iter().enumerate() {
        text.push_str(&format!(
            "\n{address:width$}  {:>10}  {:>13}  {:>8}",
            tally.round_trips[node].map_or("-".to_owned(), time),
            percent(tally.first[node], tally.acquire.count()),
            thousands(u128::from(tally.timed_out[node]))
        ));
    }
    text.push_str("\n\n");
    let buckets = tally.pair.buckets();
    let most = buckets.iter().map(|bucket| bucket.count).max().unwrap_or(0);
    for bucket in buckets.iter().filter(|bucket| bucket.count > 0) {
        text.push_str(&format!(
            "{:>9} to {:<9}  {:>9}  {}\n",
            time(bucket.from),
            time(bucket.to),
            thousands(bucket.count as u128),
            bar(bucket.count, most, BAR_WIDTH)
        ));
    }
    for (what, times) in &tally.failed {
        text.push_str(&format!("failed {}: {what}\n", thousands(u128::from(*times))));
    }
    text.push_str(&format!(
        "{} pairs, {} a second\n",
        thousands(u128::from(tally.pair.count())),
        thousands(u128::from(per_second(load, tally)))
    ));
    text
}

fn as_json(config: &Config, load: &Load, tally: &Tally) -> Value {
    let micros = |time: Duration| time.as_nanos() as f64 / 1e3;
    let times = |spread: &Spread| {
        let [p50, p90, p99, p999] = PARTS.map(|(part, _)| micros(spread.per_mille(part)));
        json!({
            "p50_us": p50, "p90_us": p90, "p99_us": p99, "p99_9_us": p999,
            "max_us": micros(spread.max()),
        })
    };
    let master = |(node, address): (usize, &str)| {
        json!({
            "address": address,
            "round_trip_us": tally.round_trips[node].map(micros),
            "first_quorum": tally.first[node],
            "too_late": tally.timed_out[node],
        })
    };
    json!({
        "seconds": load.length.as_secs_f64(),
        "at_once": load.at_once,
        "pairs": tally.pair.count(),
        "pairs_per_second": per_second(load, tally),
        "acquire": times(&tally.acquire),
        "release": times(&tally.release),
        "pair": times(&tally.pair),
        "failed": tally.failed,
        "masters": addresses(config).into_iter().enumerate().map(master).collect::<Vec<_>>(),
    })
}
