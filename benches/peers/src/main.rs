//! Measures muxlock against the floor, a loop written by hand, and against other clients.
//!
//! ```text
//! peers [--quick] [--out FOLDER] [QUESTION...]
//! ```
//!
//! It starts masters of its own, and each client as a process of its own: this program once more,
//! with `worker` as its first argument. Tables go to standard output; if every question is asked
//! and a folder is named, a page and charts go there, too.

mod arguments;
mod chart;
mod child;
mod clients;
mod clock;
mod contention;
mod counts;
mod driver;
mod flight;
mod floor;
mod job;
mod machine;
mod masters;
mod memory;
mod noise;
mod presentation;
mod proxy;
mod questions;
mod report;
mod scripts;
mod stats;
mod targets;
mod worker;

use std::process::ExitCode;

use arguments::Arguments;
use clients::Failure;
use questions::{Inquiry, Question};
use report::Answer;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let done = match args.split_first() {
        Some((first, rest)) if first == "worker" => worker::run(rest),
        Some((first, rest)) if first == "contender" => contention::contender::run(rest),
        _ => Arguments::parse(&args).and_then(|arguments| inquire(&arguments)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("peers: {error}");
            ExitCode::FAILURE
        }
    }
}

fn inquire(arguments: &Arguments) -> Result<(), Failure> {
    let start = clock::now();
    let seconds = arguments.questions.iter().map(|question| question.seconds(arguments.quick));
    eprintln!("measuring takes about {}", report::length(seconds.sum()));
    let mut inquiry = Inquiry::new(arguments.quick)?;
    let mut answers = Vec::new();
    for question in &arguments.questions {
        let begun = clock::now();
        eprintln!("{}", question.name());
        let cells = inquiry.ask(*question, &arguments.states)?;
        eprintln!("  {} took {} s", question.name(), (clock::now() - begun).as_secs());
        answers.push(Answer { question: *question, cells });
    }
    for answer in &answers {
        println!("{}\n{}", answer.question.title(), answer.table());
    }
    println!("Noise\n{}", report::noise(&answers));
    let is_all = Question::ALL.into_iter().all(|question| arguments.questions.contains(&question));
    if !is_all {
        eprintln!("not every question was asked: no page is written");
        return Ok(());
    }
    println!("Targets\n{}", report::promises(&targets::all(&answers)));
    if let Some(folder) = &arguments.out {
        let took = (clock::now() - start).as_secs().div_ceil(60);
        let effort = inquiry.effort(took);
        report::write(folder, &answers, &machine::describe(), &effort)?;
        eprintln!("written: {}", folder.join("RESULTS.md").display());
    }
    Ok(())
}
