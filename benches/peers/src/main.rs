//! Measures muxlock against the floor, a loop written by hand, and against other clients.
//!
//! ```text
//! peers [--quick] [--out PAGE] [QUESTION...]
//! ```
//!
//! It starts masters of its own, and each client as a process of its own: this program once more,
//! with `worker` or `contender` as its first argument. Tables go to standard output; if every
//! question is asked and a page is named, they replace its tables as well.

mod child;
mod clients;
mod clock;
mod columns;
mod contention;
mod counts;
mod driver;
mod flight;
mod floor;
mod job;
mod machine;
mod masters;
mod memory;
mod questions;
mod report;
mod scripts;
mod stats;
mod worker;

use std::path::PathBuf;
use std::process::ExitCode;

use clients::Failure;
use questions::{Answer, Inquiry, QUESTIONS, Question};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let done = match args.split_first() {
        Some((first, rest)) if first == "worker" => worker::run(rest),
        Some((first, rest)) if first == "contender" => contention::contender::run(rest),
        _ => inquire(args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("peers: {error}");
            ExitCode::FAILURE
        }
    }
}

fn inquire(args: Vec<String>) -> Result<(), Failure> {
    let (mut quick, mut out) = (false, None);
    let mut asked: Vec<&Question> = Vec::new();
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--quick" => quick = true,
            "--out" => out = Some(PathBuf::from(args.next().ok_or("--out needs a page")?)),
            name => asked.push(Question::named(name).ok_or_else(|| unknown(name))?),
        }
    }
    let is_all = asked.is_empty();
    if is_all {
        asked.extend(&QUESTIONS);
    }
    let mut inquiry = Inquiry::new(quick)?;
    let mut answers = Vec::new();
    for question in asked {
        let begun = clock::now();
        eprintln!("{}", question.name);
        let cells = (question.ask)(&mut inquiry)?;
        eprintln!("  {} took {} s", question.name, (clock::now() - begun).as_secs());
        let answer = Answer { question, cells };
        println!("{}\n{}", question.title, report::table(&answer));
        answers.push(answer);
    }
    if let (true, Some(page)) = (is_all, out) {
        let old = std::fs::read_to_string(&page)?;
        std::fs::write(&page, report::renewed(&old, &answers, &machine::describe()))?;
        eprintln!("written: {}", page.display());
    }
    Ok(())
}

fn unknown(name: &str) -> String {
    let names: Vec<_> = QUESTIONS.iter().map(|question| question.name).collect();
    format!("there is no question {name}; there are {}", names.join(", "))
}
