//! Two resources that refuse a holder whose lock is over: a file, and a value in Redis.
//!
//! ```text
//! cargo run --example fenced -- redis://10.0.0.{1,2,3}
//! ```
//!
//! With masters that were just started, write `'redis://10.0.0.1?restart_guard=off'` and so on. The
//! value is on the first master, and is deleted at the end.

use std::error::Error;
use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::thread::yield_now;
use std::time::Duration;

use muxlock::{FencingToken, Redlock};

/// Writes a value if no greater number was there before, in one step. `KEYS` value; `ARGV` number,
/// new value.
const WRITE: &str = r#"
local mark = redis.call("HGET", KEYS[1], "fence")
if mark and tonumber(mark) > tonumber(ARGV[1]) then return 0 end
redis.call("HSET", KEYS[1], "fence", ARGV[1], "value", ARGV[2])
return 1
"#;
const VALUE: &str = "muxlock-example:report";

fn main() -> Result<(), Box<dyn Error>> {
    let urls: Vec<String> = std::env::args().skip(1).collect();
    if urls.is_empty() {
        eprintln!("usage: fenced redis://10.0.0.1 redis://10.0.0.2 redis://10.0.0.3");
        std::process::exit(2);
    }
    let mut store = Store::connect(&urls[0])?;
    let folder = std::env::temp_dir().join(format!("muxlock-fenced-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let file = folder.join("report");

    let fenced = Redlock::connect(urls)?.fenced();
    let (short, long) = (Duration::from_millis(200), Duration::from_secs(10));
    let older = fenced.try_lock_for("report:daily", short, long)?;
    // Its holder is paused here, and does not notice that its lock is over. Another one gets it.
    let newer = fenced.try_lock_for("report:daily", long, long)?;
    let holders = [("newer", newer.fencing_token()), ("older", older.fencing_token())];
    for (name, number) in holders {
        let is_written = write_file(&file, number, name)?;
        println!("{name} holder, file: {}", said(is_written));
        println!("{name} holder, value: {}", said(store.write(number, name)?));
    }

    println!("the file has {:?}", fs::read_to_string(&file)?.lines().nth(1).unwrap_or_default());
    store.ask(&["DEL", VALUE])?;
    fs::remove_dir_all(folder)?;
    Ok(())
}

fn said(is_written: bool) -> &'static str {
    // A holder that is refused stops. To try again with the same number is of no use.
    if is_written { "written" } else { "refused" }
}

/// Writes a file, unless its first line has a greater number: nothing else may write it. What was
/// there is replaced in one step.
fn write_file(path: &Path, number: FencingToken, text: &str) -> io::Result<bool> {
    let _locked = FileLock::take(path)?;
    let mark = match fs::read_to_string(path) {
        Ok(text) => text.lines().next().and_then(|line| line.parse().ok()).unwrap_or(u64::MAX),
        Err(error) if error.kind() == ErrorKind::NotFound => 0,
        Err(error) => return Err(error),
    };
    if number.get() < mark {
        return Ok(false);
    }
    let new = path.with_extension("new");
    fs::write(&new, format!("{number}\n{text}\n"))?;
    fs::rename(new, path)?;
    Ok(true)
}

/// Is held while one process looks at the number and writes. It is a file beside the other one; in
/// your program, use `flock`, which ends with its process (`std::fs::File::lock`, from Rust 1.89).
struct FileLock(PathBuf);

impl FileLock {
    fn take(path: &Path) -> io::Result<FileLock> {
        let path = path.with_extension("lock");
        loop {
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(_) => return Ok(FileLock(path)),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => yield_now(),
                Err(error) => return Err(error),
            }
        }
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// A connection to a Redis server, with as much of its protocol as this needs.
struct Store(BufReader<TcpStream>);

impl Store {
    fn connect(url: &str) -> io::Result<Store> {
        let rest = url.strip_prefix("redis://").unwrap_or(url);
        let address = rest.split(['/', '?']).next().unwrap_or(rest);
        let address =
            if address.contains(':') { address.into() } else { format!("{address}:6379") };
        Ok(Store(BufReader::new(TcpStream::connect(address)?)))
    }

    /// Returns whether it was written.
    fn write(&mut self, number: FencingToken, text: &str) -> io::Result<bool> {
        let reply = self.ask(&["EVAL", WRITE, "1", VALUE, &number.to_string(), text])?;
        Ok(reply == ":1")
    }

    /// Returns the first line of the reply.
    fn ask(&mut self, words: &[&str]) -> io::Result<String> {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request += &format!("${}\r\n{word}\r\n", word.len());
        }
        self.0.get_mut().write_all(request.as_bytes())?;
        let mut reply = String::new();
        self.0.read_line(&mut reply)?;
        match reply.starts_with('-') {
            true => Err(io::Error::other(reply)),
            false => Ok(reply.trim_end().to_owned()),
        }
    }
}
