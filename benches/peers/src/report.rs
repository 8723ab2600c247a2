//! What was measured, as tables and as a page.

use std::path::Path;
use std::{fs, io};

use crate::driver::{Cell, Entry};
use crate::presentation::{Column, word};
use crate::questions::Question;
use crate::targets::{self, Target, Tier};

const WRITTEN_BY: &str = "Written by `scripts/bench`, which measures all of this anew.";
const ABOUT_TARGETS: &str = "What users may rely on, and what is worked at. The four states are: \
    all masters healthy, one refuses, one frozen, two frozen. A target that was not measured is a \
    miss; one that the floor itself misses is impossible.";
const ABOUT_NOISE: &str = "How far the first client's figures of single turns lie apart, the \
    middle eight tenths of them, in terms of their median; how much of the machine was used by \
    processes that had no part in the measurement; and how much of it its host took away.";

/// The answer to a question.
pub struct Answer {
    pub question: Question,
    pub cells: Vec<Cell>,
}

impl Answer {
    /// A table in Markdown, aligned so that it can be read as it is.
    pub fn table(&self) -> String {
        let columns = self.question.columns();
        let mut rows = vec![header(&columns)];
        for cell in &self.cells {
            rows.extend(cell.entries.iter().map(|entry| row(cell, entry, &columns)));
        }
        align(&rows, 2)
    }
}

fn header(columns: &[Column]) -> Vec<String> {
    let mut row = vec!["case".to_owned(), "client".to_owned()];
    for column in columns {
        row.push(column.title.to_owned());
        if column.ratio {
            row.push("ratio".to_owned());
        }
    }
    row
}

fn row(cell: &Cell, entry: &Entry, columns: &[Column]) -> Vec<String> {
    let mut row = vec![cell.name.clone(), entry.label.clone()];
    let first = &cell.entries[0];
    let word = word(entry.verdict);
    for column in columns {
        row.push(word.map_or_else(|| number(column.value(entry), column.digits), str::to_owned));
        if column.ratio {
            let ratio = entry.ratio(first, column.figure);
            row.push(word.map_or_else(|| number(ratio, 2), |_| "–".to_owned()));
        }
    }
    row
}

/// How noisy the machine was in each case.
pub fn noise(answers: &[Answer]) -> String {
    let header = ["question", "case", "spread", "others", "stolen"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for Answer { question, cells } in answers {
        for cell in cells.iter().filter(|_| *question != Question::Counts) {
            let per_cent = |part: f64| match part.is_finite() {
                true => number(100.0 * part, 0) + " %",
                false => number(part, 0),
            };
            rows.push(vec![
                question.name().to_owned(),
                cell.name.clone(),
                per_cent(cell.spread()),
                per_cent(cell.noise.others),
                per_cent(cell.noise.stolen),
            ]);
        }
    }
    align(&rows, 2)
}

/// What was promised and what is aimed at, in a table each, and whether it was kept.
pub fn promises(targets: &[Target]) -> String {
    let tiers = [("Promised", Tier::Promised), ("Aimed at", Tier::Aimed)];
    let tables = tiers.map(|(title, tier)| {
        let targets = targets.iter().filter(|target| target.tier == tier);
        format!("### {title}\n\n{}", table_of(targets))
    });
    tables.join("\n")
}

fn table_of<'a>(targets: impl Iterator<Item = &'a Target>) -> String {
    let header = ["target", "bound", "measured", "", "the floor itself"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for target in targets {
        let Target { text, bound, figures, digits, floor, .. } = target;
        let list = |figures: &[f64]| {
            let figures: Vec<String> =
                figures.iter().map(|figure| number(*figure, *digits)).collect();
            figures.join(" · ")
        };
        let verdict = match (target.is_possible(), target.is_met()) {
            (false, _) => "**impossible**",
            (true, true) => "pass",
            (true, false) => "**miss**",
        };
        let bound = bound.text(*digits);
        let text = (*text).to_owned();
        rows.push(vec![text, bound, list(figures), verdict.to_owned(), list(floor)]);
    }
    align(&rows, 1)
}

/// Writes the page and its charts into a folder.
pub fn write(
    folder: &Path,
    answers: &[Answer],
    machine: &[(&str, String)],
    effort: &str,
) -> io::Result<()> {
    let charts = folder.join("charts");
    fs::create_dir_all(&charts)?;
    for Answer { question, cells } in answers {
        fs::write(charts.join(format!("{}.svg", question.name())), question.chart(cells))?;
    }
    fs::write(folder.join("RESULTS.md"), page(answers, machine, effort))
}

fn page(answers: &[Answer], machine: &[(&str, String)], effort: &str) -> String {
    let introduction = [
        &format!("{WRITTEN_BY} {effort}"),
        "- The **floor** is an epoll loop written by hand for one purpose, in `peers/src/floor.rs`: \
         what a quorum costs at the least, without any of the safety. muxlock has all of it on, \
         the restart guard included.",
        "- Every client is a process of its own. They take turns on the same masters, in another \
         order each time. A **ratio** is the median of the ratios to the floor in the same turn; \
         every other figure is the median over all turns.",
        "- A shared machine gives no absolute times worth keeping. What the ratios are worth says \
         the table of [noise](#noise).",
    ];
    // What belongs to a point of a list is indented.
    let [first, points @ ..] = introduction.map(|text| wrapped(text).replace('\n', "\n  ") + "\n");
    let first = first.replace("\n  ", "\n");
    let mut page = format!("# What locks cost, measured\n\n{first}\n{}\n", points.concat());
    let rows = machine.iter().map(|(what, which)| vec![(*what).to_owned(), which.clone()]);
    let header = vec!["machine".to_owned(), String::new()];
    page += &align(&[header].into_iter().chain(rows).collect::<Vec<_>>(), 2);
    let targets = promises(&targets::all(answers));
    page += &format!("\n## Targets\n{}\n\n{targets}", wrapped(ABOUT_TARGETS));
    for answer in answers {
        let (title, name) = (answer.question.title(), answer.question.name());
        let text = wrapped(answer.question.text());
        page += &format!("\n## {title}\n{text}\n\n![{title}](charts/{name}.svg)\n\n");
        page += &answer.table();
    }
    page += &format!("\n## Noise\n{}\n\n{}", wrapped(ABOUT_NOISE), noise(answers));
    page
}

/// Breaks a paragraph into lines.
fn wrapped(text: &str) -> String {
    const LINE: usize = 118;
    let mut lines = String::new();
    let mut length = 0;
    for word in text.split_whitespace() {
        let size = word.chars().count();
        if length > 0 && length + 1 + size > LINE {
            lines.push('\n');
            length = 0;
        } else if length > 0 {
            lines.push(' ');
            length += 1;
        }
        lines.push_str(word);
        length += size;
    }
    lines
}

/// A number with its thousands apart.
pub fn number(value: f64, digits: usize) -> String {
    if value == f64::INFINITY {
        return "∞".to_owned();
    } else if !value.is_finite() {
        return "–".to_owned();
    }
    let text = format!("{value:.digits$}");
    // What is rounded to zero has no sign.
    let is_zero = text.bytes().all(|byte| matches!(byte, b'-' | b'0' | b'.'));
    let text = if is_zero { text.trim_start_matches('-') } else { &text };
    let whole = text.find('.').unwrap_or(text.len());
    let mut parted = String::new();
    for (at, digit) in text.char_indices() {
        if at > 0 && at < whole && (whole - at) % 3 == 0 && !parted.ends_with('-') {
            parted.push(',');
        }
        parted.push(digit);
    }
    parted
}

/// A length of time, as people say it.
pub fn length(seconds: u64) -> String {
    match seconds {
        0..=90 => format!("{seconds} seconds"),
        _ => format!("{} minutes", seconds.div_ceil(60)),
    }
}

/// A table; its first columns are aligned to the left, the others to the right.
fn align(rows: &[Vec<String>], left: usize) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| {
        rows.iter().filter_map(|row| Some(row.get(column)?.chars().count())).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        for (column, (word, width)) in row.iter().zip(&widths).enumerate() {
            let width = *width;
            text.push_str(&match column < left {
                true => format!("| {word:width$} "),
                false => format!("| {word:>width$} "),
            });
        }
        text.push_str("|\n");
        if index == 0 {
            for (column, width) in widths.iter().enumerate() {
                let line = "-".repeat(width + 1);
                text.push_str(&if column < left {
                    format!("|{line}-")
                } else {
                    format!("|{line}:")
                });
            }
            text.push_str("|\n");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_thousands_apart() {
        assert_eq!(number(1_234_567.0, 0), "1,234,567");
        assert_eq!(number(999.95, 1), "1,000.0");
        assert_eq!(number(-1_000.0, 0), "-1,000");
        assert_eq!(number(0.5, 2), "0.50");
        assert_eq!(number(-0.04, 1), "0.0");
        assert_eq!(number(f64::NAN, 2), "–");
    }

    #[test]
    fn lengths_are_rounded_up_to_minutes() {
        assert_eq!(
            [90, 91, 600, 601].map(length),
            ["90 seconds", "2 minutes", "10 minutes", "11 minutes"]
        );
    }

    #[test]
    fn paragraphs_are_wrapped() {
        let text = "word ".repeat(50);
        let lines = wrapped(&text);
        assert!(lines.lines().count() == 3 && lines.lines().all(|line| line.len() <= 118));
        assert_eq!(lines.split_whitespace().count(), 50);
    }

    #[test]
    fn tables_are_aligned() {
        let rows = [["case", "client", "µs"], ["a", "floor", "10"]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        let expected = "| case | client | µs |\n|------|--------|---:|\n| a    | floor  | 10 |\n";
        assert_eq!(align(&rows, 2), expected);
    }
}
