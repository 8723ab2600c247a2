//! What TLS adds to a pair, for each master.

use std::fs;

use muxlock::testing::{Master, TlsFiles};
use testbed::{Folder, heavy};

use crate::allocations::allocations;
use crate::tools::{OneCpu, Tool, instructions};
use crate::work::{Job, Kind, client, once};
use crate::{NODES, PAIRS, is_there, row};

/// One for each record of TLS: rustls makes a buffer for each.
const ALLOCATIONS_MAX: u64 = 4;
/// Mostly AES-256-GCM over two commands and two replies.
const INSTRUCTIONS_MAX: u64 = 9_500;
/// Two commands may leave apart that usually leave together, or a ticket may come: one in twenty on
/// a busy machine. One more for each record would be a quarter.
const ODD_PART_MAX: u64 = 20;

/// Masters with a certificate that signs itself.
struct Encrypted {
    masters: Vec<Master>,
    files: TlsFiles,
    _folder: Folder,
}

impl Encrypted {
    fn start() -> Encrypted {
        let folder = Folder::create("costs-tls");
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]);
        let made = made.expect("a certificate");
        let files = TlsFiles::in_folder(&folder.0);
        for (path, text) in [
            (&files.ca, made.cert.pem()),
            (&files.cert, made.cert.pem()),
            (&files.key, made.signing_key.serialize_pem()),
        ] {
            fs::write(path, text).expect("the folder can be written");
        }
        let start = || Master::start_with_tls(&files, &[]);
        let masters = (0..NODES).map(|_| start().unwrap_or_else(|error| panic!("{error}")));
        Encrypted { masters: masters.collect(), files: files.clone(), _folder: folder }
    }

    fn urls(&self) -> Vec<String> {
        let ca = self.files.ca.display();
        let url = |master: &Master| {
            let url = master.tls_url().expect("it has TLS");
            format!("{url}?ca={ca}&restart_guard=off")
        };
        self.masters.iter().map(url).collect()
    }

    fn plain_urls(&self) -> Vec<String> {
        let url = |master: &Master| format!("redis://{}?restart_guard=off", master.addr());
        self.masters.iter().map(url).collect()
    }
}

#[test]
fn slow_alone_tls_allocates_once_for_each_record() {
    let _alone = heavy();
    let encrypted = Encrypted::start();
    let redlock = client(&encrypted.urls());
    let pairs = || (0..PAIRS).for_each(|_| once(&redlock, Kind::Pair));
    pairs();
    let counted = allocations(pairs);
    let allowed = ALLOCATIONS_MAX * (NODES * PAIRS) as u64;
    let each = counted as f64 / (NODES * PAIRS) as f64;
    let what = "allocations, Pair over TLS, each master";
    row(what, format!("{each:.3}"), format!("at most {ALLOCATIONS_MAX}"));
    assert!(counted <= allowed + allowed / ODD_PART_MAX, "{counted} in {PAIRS} pairs");
}

#[test]
#[cfg_attr(debug_assertions, ignore = "without optimisation the numbers say nothing")]
fn tls_adds_so_many_instructions_at_most() {
    let _alone = heavy();
    let what = "instructions, Pair over TLS, more for each master";
    if !is_there(Tool::Valgrind, what) || !is_there(Tool::Taskset, what) {
        return;
    }
    let _one = OneCpu::take();
    let encrypted = Encrypted::start();
    let count = |urls| instructions(&Job { kind: Kind::Pair, urls }, &mut drop);
    let (plain, tls) = (count(encrypted.plain_urls()), count(encrypted.urls()));
    let more = tls.saturating_sub(plain) / NODES as u64;
    row(what, more, format!("at most {INSTRUCTIONS_MAX}"));
    assert!(more <= INSTRUCTIONS_MAX, "{plain} without TLS, {tls} with it");
}
