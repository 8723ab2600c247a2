//! Whatever form an address has, and wherever in it a password stands: no output has it.

use std::sync::{Mutex, Once};
use std::time::Duration;

use log::{LevelFilter, Log, Metadata, Record};
use muxlock::settings::RestartGuard;
use muxlock::{Builder, Redlock, Standalone};
use testbed::{TTL, alone};

/// Our forms and those of other clients, with `{}` in the place of a password. No server is there.
const FORMS: [&str; 80] = [
    // Ours.
    "redis://:{}@127.0.0.1:1",
    "redis://user:{}@127.0.0.1:1/0",
    "redis://{}@127.0.0.1:1",
    "redis://127.0.0.1:1?password={}",
    "redis://127.0.0.1:1?restart_guard={}",
    "redis://127.0.0.1:1?durable={}",
    "redis://127.0.0.1:1?{}=yes",
    "redis://127.0.0.1:1?{}",
    "redis://127.0.0.1:1#{}",
    "redis://127.0.0.1:1/0#{}",
    "redis://user:{}@127.0.0.1:0",
    "redis://user:{}@127.0.0.1:x",
    "redis://user:{}@127.0.0.1:1/x",
    "redis://user:{}@127.0.0.1:1?x=1",
    "redis://user:{}@127.0.0.1:1#x",
    "redis://user:{}@[::1:1",
    "redis://user:{}@[x]:1",
    "redis://user:{}@127.0.0.1:1, redis://:{}@127.0.0.1:2",
    "valkey://:{}@127.0.0.1:1",
    "rediss://:{}@127.0.0.1:1?verify=no",
    "rediss://:{}@127.0.0.1:1?ca=/nonexistent",
    "rediss://127.0.0.1:1?verify={}",
    "redis+sentinel://:{}@127.0.0.1:1,127.0.0.1:2/main",
    "redis+sentinel://:{}@127.0.0.1:1,:{}@127.0.0.1:2/main",
    "redis+sentinel://user:{}@127.0.0.1:1,127.0.0.1:2",
    "redis+sentinel://127.0.0.1:1/main?sentinel_password={}",
    "redis+sentinel://127.0.0.1:1/main?sentinel_password={}&x=1",
    "redis+sentinel://127.0.0.1:1/main?password={}",
    "redis+sentinel://127.0.0.1:1/main#{}",
    "unix://:{}@/nonexistent/s",
    "unix://user:{}@/nonexistent/s?db=0",
    "unix://user:{}@/nonexistent/s?db=x",
    "unix://:{}@nonexistent/s",
    "unix://{}@/nonexistent/s",
    "unix:///:{}@/nonexistent/s",
    "unix:///user:{}@nonexistent/s",
    "unix:///{}@/nonexistent/s",
    "unix://:{}/nonexistent/s",
    "unix:///:{}/nonexistent/s",
    "unix://{}",
    "unix:///nonexistent/s?password={}",
    "unix:///nonexistent/s?{}",
    "unix:///nonexistent/s#{}",
    "unix:///nonexistent/s,password={}",
    "unix:/:{}@/nonexistent/s",
    // redis-rs.
    "redis+unix:///nonexistent/s?db=0&user=u&pass={}",
    "redis+unix:///:{}@nonexistent/s?db=0",
    // redis-py, Celery.
    "unix://user@/nonexistent/s?db=0&password={}",
    "redis://127.0.0.1:1/0?username=u&password={}",
    "redis+socket://:{}@/nonexistent/s?virtual_host=0",
    "redis+socket:///nonexistent/s?password={}",
    "sentinel://:{}@127.0.0.1:1;sentinel://:{}@127.0.0.1:2",
    // node-redis, ioredis.
    "//:{}@127.0.0.1:1/4",
    "redis://:{}@127.0.0.1:1/4?family=4&password={}",
    "redis://default:{}@127.0.0.1:1/?tls=true",
    // go-redis, redsync.
    "unix://user:{}@/nonexistent/s?dial_timeout=5s",
    "redis://user:{}@127.0.0.1:1/3?dial_timeout=3&client_name=x",
    // Jedis, Lettuce, Redisson, Spring.
    "redis-socket://{}@/nonexistent/s",
    "redis-socket://user:{}@/nonexistent/s?database=1",
    "redis-sentinel://{}@127.0.0.1:1,127.0.0.1:2/0#main",
    "redis-sentinel://127.0.0.1:1?sentinelMasterId=main&password={}",
    "redis://{}@127.0.0.1:1/2?timeout=10s",
    "rediss+sentinel://:{}@127.0.0.1:1?x",
    // redis-rb, redis-store, Sidekiq.
    "redis://:{}@127.0.0.1:1/0/cache",
    "unix://user:{}@/nonexistent/s?db=1",
    // hiredis, redis-cli.
    "redis-cli -u redis://user:{}@127.0.0.1:1",
    "-a {} -h 127.0.0.1",
    // StackExchange.Redis, CSRedis, ServiceStack.
    "127.0.0.1:1,password={}",
    "127.0.0.1:1,127.0.0.1:2,ssl=true,password={},abortConnect=false",
    "127.0.0.1:1,user=u,password={},defaultDatabase=0",
    "{}@127.0.0.1:1?db=1",
    // phpredis, predis.
    "tcp://127.0.0.1:1?auth={}",
    "tcp://127.0.0.1:1?auth[user]=u&auth[pass]={}",
    "tls://127.0.0.1:1?password={}&database=0",
    "unix:///nonexistent/s?persistent=1&database=0&auth={}",
    "unix:/nonexistent/s?password={}",
    // What is no address.
    "{}",
    "user:{}",
    "http://:{}@127.0.0.1:1",
    "{\"host\":\"127.0.0.1\",\"password\":\"{}\"}",
];

/// Each piece of a password has this.
const MARK: &str = "zqx";
const PASSWORDS: [&str; 13] = [
    "zqx",
    "zqx=",
    "zqx zqx",
    "zqx,zqx",
    "zqx;zqx",
    "zqx:zqx",
    "zqx@zqx",
    "zqx/zqx@zqx",
    "zqx?zqx=zqx@zqx",
    "zqx#zqx",
    "zqx%zqx",
    "zqx&zqx=zqx",
    "1zqx\u{e9}\"'\\zqx",
];

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

fn addresses() -> impl Iterator<Item = String> {
    let passwords = || PASSWORDS.iter().flat_map(|raw| [(*raw).to_owned(), encoded(raw)]);
    FORMS
        .iter()
        .flat_map(move |form| passwords().map(move |password| form.replace("{}", &password)))
}

#[track_caller]
fn check(address: &str, output: &str) {
    let lower = output.to_lowercase();
    let secret = [MARK, "%7a%71", "7a7178"].iter().find(|secret| lower.contains(*secret));
    assert_eq!(secret, None, "of {address:?}, this is shown: {output}");
}

static RECORDS: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Logger;

impl Log for Logger {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        RECORDS.lock().unwrap().push(record.args().to_string());
    }

    fn flush(&self) {}
}

/// What a program may show of a builder, and of all that is made from it.
fn shown(builder: Builder) -> Vec<String> {
    let builder = builder
        .restart_guard(RestartGuard::Off)
        .connect_timeout(Duration::from_millis(2))
        .node_timeout(Duration::from_millis(1));
    let mut shown = vec![format!("{builder:?}")];
    match builder.config() {
        Err(error) => shown.push(format!("{error} {error:?}")),
        Ok(config) => {
            let standalone = Standalone::new(config.clone()).unwrap();
            shown.push(format!("{config:?} {standalone:?}"));
        }
    }
    match builder.build() {
        Err(error) => shown.push(format!("{error} {error:?}")),
        Ok(redlock) => {
            let error = redlock.try_lock("resource", TTL).unwrap_err();
            shown.push(format!("{error} {error:?} {:?}", redlock.nodes()));
            shown.push(format!("{redlock:?}"));
            let inspection = redlock.inspect("resource").unwrap();
            shown.push(format!("{inspection} {inspection:?}"));
        }
    }
    shown
}

#[test]
fn no_form_of_an_address_shows_its_password() {
    alone("no_form_of_an_address_shows_its_password", || {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| log::set_logger(&Logger).expect("there is no other logger"));
        log::set_max_level(LevelFilter::Trace);
        for address in addresses() {
            let alone = shown(Redlock::builder().node(&address));
            let second = shown(Redlock::builder().node("redis://127.0.0.1:2").node(&address));
            let listed = shown(Redlock::builder().nodes_from(&address));
            for text in alone.into_iter().chain(second).chain(listed) {
                check(&address, &text);
            }
            for record in RECORDS.lock().unwrap().drain(..) {
                check(&address, &record);
            }
        }
    });
}

#[cfg(feature = "cli")]
mod tool {
    use std::fs;

    use testbed::Folder;

    use super::{FORMS, check};
    use crate::cli::{muxlock, run};

    const QUICK: [&str; 4] = ["--connect-timeout", "2ms", "--node-timeout", "1ms"];

    /// By flag, variable and file, and in places where no address belongs.
    #[test]
    fn no_output_of_the_tool_shows_a_password() {
        let folder = Folder::create("secrets");
        let path = folder.0.join("config.toml");
        let file = path.to_str().unwrap();
        for (at, form) in FORMS.iter().enumerate() {
            let address = form.replace("{}", "zqx");
            let node = ["--node", &address];
            fs::write(&path, format!("nodes = ['''{address}''']\n")).unwrap();
            let mut commands = vec![
                muxlock(&["inspect", "resource"]),
                muxlock(&["inspect", "resource"]),
                muxlock(&["inspect", "resource", "--json"]),
            ];
            commands[0].args(node).args(QUICK);
            commands[1].env("MUXLOCK_NODES", &address).args(QUICK);
            commands[2].args(["--config", file]).args(QUICK);
            // The others print the same errors; so they take turns.
            let mut another = match at % 4 {
                0 => muxlock(&["run", "resource", "-v"]),
                1 => muxlock(&["doctor"]),
                2 => muxlock(&["doctor", "--json"]),
                _ => muxlock(&["bench", "--for", "100ms"]),
            };
            another.args(node).args(QUICK);
            if at % 4 == 0 {
                another.args(["--", "true"]);
            }
            commands.push(another);
            for command in &mut commands {
                let (_, out, err) = run(command);
                check(&format!("{command:?}"), &format!("{out}{err}"));
            }
        }
        // Mistakes in a file.
        for text in [
            "nodes = redis://:zqx@127.0.0.1:1",
            "redis://:zqx@127.0.0.1:1",
            "nodes = [\"redis://:zqx@127.0.0.1:1]",
            "nodes = \"redis://:zqx@127.0.0.1:1\"",
            "password = \"zqx\"",
            "nodes = [\"redis://127.0.0.1:1\"]\npassword_file = \"zqx\"",
            "nodes = [\"redis://127.0.0.1:1\"]\npassword_file = \"zqx/zqx\"",
            "restart_guard = \"redis://:zqx@127.0.0.1:1\"",
            "node_timeout = \"redis://:zqx@127.0.0.1:1\"",
        ] {
            fs::write(&path, text).unwrap();
            let (code, out, err) = run(&mut muxlock(&["inspect", "r", "--config", file]));
            assert_eq!(code, 2, "{text}");
            check(text, &format!("{out}{err}"));
        }
        // One word too many, or a value of another option.
        let address = "redis://:zqx@127.0.0.1:1";
        for args in [
            &["doctor", address][..],
            &["inspect", "resource", address],
            &["bench", address],
            &["demo", address],
            &["evict", "resource", address],
            &["completions", address],
            &[address],
            &["--node", address, "doctor"],
            &["doctor", "--nodes", address],
            &["doctor", "--config", address],
            &["doctor", "--max-ttl", address],
            &["doctor", "--drift-factor", address],
            &["doctor", "--restart-guard", address],
            &["doctor", "127.0.0.1:1,password=zqx"],
        ] {
            let (_, out, err) = run(&mut muxlock(args));
            check(&format!("{args:?}"), &format!("{out}{err}"));
        }
    }
}
