//! The output: chapters, paragraphs, tables, and counted checks.

use std::fmt::Display;
use std::io::{self, IsTerminal, Stdout, Write, stdout};

use super::paint::{Paint, Style, wrap};

/// Fits a terminal of 80 columns.
const WIDTH: usize = 78;
/// Covers the longest line of progress.
const PROGRESS_WIDTH: usize = 24;
const INDENT: &str = "   ";

/// Why the demo ended early.
#[derive(Debug)]
pub enum Stop {
    /// The output was closed, or cannot be written.
    Unheard(io::Error),
    /// A process could not be started, stopped or asked.
    Failed(io::Error),
}

/// The result of a check. A failure has a text about the event that occurred instead.
pub type Expectation = Result<(), String>;

/// `otherwise` describes the event behind a failed check.
pub fn expect(is_so: bool, otherwise: impl FnOnce() -> String) -> Expectation {
    is_so.then_some(()).ok_or_else(otherwise)
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Stop {
        Stop::Failed(error)
    }
}

/// A cell of a table, filled up to its width.
pub struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    pub fn left(width: usize, text: impl Display) -> Cell {
        let text = text.to_string();
        Cell { text: format!("{text:<width$}"), style: Style::Plain }
    }

    pub fn right(width: usize, text: impl Display) -> Cell {
        let text = text.to_string();
        Cell { text: format!("{text:>width$}"), style: Style::Plain }
    }

    pub fn style(self, style: Style) -> Cell {
        Cell { style, ..self }
    }
}

/// The kind of the last line: an empty line separates two kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Block {
    Heading,
    Text,
    Table,
    Checks,
}

/// The output, chapter by chapter.
pub struct Page {
    out: Stdout,
    block: Block,
    paint: Paint,
    is_live: bool,
    chapters: u32,
    checks: u32,
    failed: u32,
}

impl Page {
    pub fn new(no_color: bool) -> Page {
        Page {
            out: stdout(),
            block: Block::Heading,
            paint: Paint::new(no_color),
            is_live: stdout().is_terminal(),
            chapters: 0,
            checks: 0,
            failed: 0,
        }
    }

    pub fn title(&mut self, text: &str) -> Result<(), Stop> {
        let text = self.paint.style(Style::Strong, text);
        self.line(&text)
    }

    /// Begins a chapter, with a number.
    pub fn chapter(&mut self, title: &str) -> Result<(), Stop> {
        self.chapters += 1;
        let title = format!("{:>2}. {title}", self.chapters);
        let title = self.paint.style(Style::Strong, &title);
        self.line("")?;
        self.block = Block::Heading;
        self.line(&title)
    }

    /// A paragraph, broken into lines that fit.
    pub fn say(&mut self, text: impl Display) -> Result<(), Stop> {
        self.begin(Block::Text)?;
        self.paragraph(INDENT, "", Style::Plain, &text.to_string())
    }

    /// A line of a table.
    pub fn row(&mut self, cells: &[Cell]) -> Result<(), Stop> {
        self.begin(Block::Table)?;
        let cells: Vec<String> =
            cells.iter().map(|cell| self.paint.style(cell.style, &cell.text)).collect();
        let line = format!("{INDENT}  {}", cells.join("  "));
        self.line(line.trim_end())
    }

    /// An empty line, between two tables.
    pub fn gap(&mut self) -> Result<(), Stop> {
        self.line("")
    }

    /// Shows whether a claim is true, and counts the check.
    pub fn check(&mut self, claim: impl Display, expectation: Expectation) -> Result<(), Stop> {
        self.checks += 1;
        self.begin(Block::Checks)?;
        let claim = claim.to_string();
        match expectation {
            Ok(()) => self.paragraph(INDENT, "ok  ", Style::Good, &claim),
            Err(happened) => {
                self.failed += 1;
                let expected = format!("expected: {claim}");
                self.paragraph(INDENT, "FAILED ", Style::Bad, &expected)?;
                let happened = format!("happened: {happened}");
                self.paragraph("          ", "", Style::Plain, &happened)
            }
        }
    }

    /// A line that the next one replaces; only on a terminal.
    pub fn progress(&mut self, text: &str) -> Result<(), Stop> {
        if !self.is_live {
            return Ok(());
        }
        // Spaces instead of an escape code, since this must also work without escape codes.
        write!(self.out, "\r{:<PROGRESS_WIDTH$}\r", format!("{INDENT}{text}"))
            .and_then(|()| self.out.flush())
            .map_err(Stop::Unheard)
    }

    pub fn has_failed(&self) -> bool {
        self.failed > 0
    }

    /// The last line: the number of checks, and of failed ones.
    pub fn sum_up(&mut self) -> Result<(), Stop> {
        let Page { checks, failed, .. } = *self;
        let summary = match failed {
            0 => self.paint.style(Style::Good, &format!("all {checks} checks passed")),
            _ => self.paint.style(Style::Bad, &format!("{failed} of {checks} checks failed")),
        };
        self.line("")?;
        self.line(&summary)
    }

    /// A paragraph after a coloured label, with all its lines aligned.
    fn paragraph(
        &mut self,
        indent: &str,
        label: &str,
        style: Style,
        text: &str,
    ) -> Result<(), Stop> {
        let room = WIDTH - indent.len() - label.len();
        for (i, line) in wrap(text, room).iter().enumerate() {
            let label = match i {
                0 => self.paint.style(style, label),
                _ => " ".repeat(label.len()),
            };
            self.line(&format!("{indent}{label}{line}"))?;
        }
        Ok(())
    }

    fn begin(&mut self, block: Block) -> Result<(), Stop> {
        let last = std::mem::replace(&mut self.block, block);
        match last == block || last == Block::Heading {
            true => Ok(()),
            false => self.line(""),
        }
    }

    fn line(&mut self, line: &str) -> Result<(), Stop> {
        writeln!(self.out, "{line}").map_err(Stop::Unheard)
    }
}
