//! What was measured, as tables and as a page.

use crate::columns::{Column, Ratio};
use crate::driver::{Cell, Entry, Verdict};
use crate::questions::Answer;

/// A table in Markdown, aligned so that it can be read as it is.
pub fn table(answer: &Answer) -> String {
    let columns = answer.question.columns;
    let mut rows = vec![header(columns)];
    for cell in &answer.cells {
        rows.extend(cell.entries.iter().map(|entry| row(cell, entry, columns)));
    }
    align(&rows, 2)
}

fn header(columns: &[Column]) -> Vec<String> {
    let mut row = vec!["case".to_owned(), "client".to_owned()];
    for column in columns {
        row.push(column.title.to_owned());
        if column.ratio == Ratio::Shown {
            row.push("ratio".to_owned());
        }
    }
    row
}

fn row(cell: &Cell, entry: &Entry, columns: &[Column]) -> Vec<String> {
    let mut row = vec![cell.name.clone(), entry.label.clone()];
    let word = match entry.verdict {
        Verdict::Measured => None,
        Verdict::Hangs => Some("hangs"),
        Verdict::Fails => Some("fails"),
    };
    for column in columns {
        let figure = || number(entry.median(column.figure) / column.unit, column.digits);
        row.push(word.map_or_else(figure, str::to_owned));
        if column.ratio == Ratio::Shown {
            let ratio = || number(entry.ratio(&cell.entries[0], column.figure), 2);
            row.push(word.map_or_else(ratio, |_| "–".to_owned()));
        }
    }
    row
}

/// A page with the new tables of these answers, and of the machine; its text stays.
pub fn renewed(page: &str, answers: &[Answer], machine: &[(&str, String)]) -> String {
    let mut rows = vec![vec!["machine".to_owned(), String::new()]];
    rows.extend(machine.iter().map(|(what, which)| vec![(*what).to_owned(), which.clone()]));
    let page = with_table(page, "# What locks cost, measured", &align(&rows, 2));
    answers.iter().fold(page, |page, answer| {
        with_table(&page, &format!("## {}", answer.question.title), &table(answer))
    })
}

/// A page with another first table below a heading.
fn with_table(page: &str, heading: &str, table: &str) -> String {
    let Some((before, after)) = page.split_once(&format!("{heading}\n")) else {
        return format!("{page}\n{heading}\n{table}");
    };
    let is_row = |line: &&str| line.starts_with('|');
    let text: String = after.split_inclusive('\n').take_while(|line| !is_row(line)).collect();
    let old: usize =
        after[text.len()..].split_inclusive('\n').take_while(is_row).map(str::len).sum();
    format!("{before}{heading}\n{text}{table}{}", &after[text.len() + old..])
}

/// A number with its thousands apart.
fn number(value: f64, digits: usize) -> String {
    if value == f64::INFINITY {
        return "∞".to_owned();
    } else if !value.is_finite() {
        return "–".to_owned();
    }
    let text = format!("{value:.digits$}");
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

/// A table; its first columns are aligned to the left, the others to the right.
fn align(rows: &[Vec<String>], left: usize) -> String {
    let width = |column: usize| {
        rows.iter().filter_map(|row| Some(row.get(column)?.chars().count())).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..rows.first().map_or(0, Vec::len)).map(width).collect();
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        for (column, (word, width)) in row.iter().zip(&widths).enumerate() {
            let width = *width;
            text += &match column < left {
                true => format!("| {word:width$} "),
                false => format!("| {word:>width$} "),
            };
        }
        text += "|\n";
        if index == 0 {
            for (column, width) in widths.iter().enumerate() {
                let end = if column < left { '-' } else { ':' };
                text += &format!("|{}{end}", "-".repeat(width + 1));
            }
            text += "|\n";
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
        assert_eq!(number(f64::NAN, 2), "–");
    }

    #[test]
    fn table_below_a_heading_is_replaced() {
        let page = "# A\n\n| old |\n\n## B\ntext\n\n| old |\n| old |\n\n## C\n";
        let expected = "# A\n\n| old |\n\n## B\ntext\n\n| new |\n\n## C\n";
        assert_eq!(with_table(page, "## B", "| new |\n"), expected);
    }

    #[test]
    fn tables_are_aligned() {
        let rows = [["case", "client", "µs"], ["a", "floor", "10"]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        let expected = "| case | client | µs |\n|------|--------|---:|\n| a    | floor  | 10 |\n";
        assert_eq!(align(&rows, 2), expected);
    }
}
