//! Charts as SVG that can be read in light and in dark mode.

mod scale;

use std::fmt::Write;

use crate::job::Client;
use scale::Scale;

const WIDTH: f64 = 760.0;
const LEFT: f64 = 150.0;
const RIGHT: f64 = 100.0;
/// Title and legend.
const TOP: f64 = 74.0;
/// Ticks and the name of the axis.
const BOTTOM: f64 = 56.0;
const ROW: f64 = 22.0;
const GROUP_GAP: f64 = 14.0;
const LINES_HEIGHT: f64 = 320.0;

/// Of the floor, muxlock and so on, in light and in dark mode.
const COLOURS: [(&str, &str); Client::ALL.len()] = [
    ("#6e7781", "#9198a1"),
    ("#0969da", "#4493f8"),
    ("#bc4c00", "#f0883e"),
    ("#8250df", "#ab7df8"),
    ("#1a7f37", "#3fb950"),
];

const LIGHT: &str = "\
    text { font: 13px system-ui, sans-serif; fill: #1f2328 }\n\
    .title { font-size: 16px; font-weight: 600 }\n\
    .bad { font-weight: 600 }\n\
    .small { font-size: 12px; fill: #59636e }\n\
    .grid { stroke: #d1d9e0; stroke-width: 1 }\n\
    .background { fill: #ffffff }\n\
    .line, .stem, .ring { fill: none; stroke-width: 2.5 }\n\
    .stem { opacity: 0.45 }\n";
const DARK: &str = "\
    text { fill: #f0f6fc }\n\
    .small { fill: #9198a1 }\n\
    .grid { stroke: #3d444d }\n\
    .background { fill: #0d1117 }\n";

fn style() -> String {
    let rules = |colours: &[&str]| -> String {
        let rule = |(index, colour): (usize, &&str)| {
            format!(
                ".c{index}.dot, .c{index}.bad {{ fill: {colour} }}\n\
                 .c{index}.line, .c{index}.stem, .c{index}.ring {{ stroke: {colour} }}\n"
            )
        };
        colours.iter().enumerate().map(rule).collect()
    };
    let (light, dark) = (COLOURS.map(|(light, _)| light), COLOURS.map(|(_, dark)| dark));
    let (light, dark) = (rules(&light), rules(&dark));
    format!("{LIGHT}{light}@media (prefers-color-scheme: dark) {{\n{DARK}{dark}}}\n")
}

/// A figure, or why there is none.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Mark {
    Value(f64),
    /// Shown instead of a value.
    Word(&'static str),
}

impl Mark {
    fn value(self) -> Option<f64> {
        match self {
            Mark::Value(value) if value.is_finite() && value > 0.0 => Some(value),
            Mark::Value(_) | Mark::Word(_) => None,
        }
    }
}

/// One client's figure in one case.
#[derive(Debug, Clone)]
pub struct Row {
    pub label: String,
    pub client: Client,
    pub mark: Mark,
    /// A second figure of the same unit, shown as a ring.
    pub ring: Option<f64>,
}

/// Cases, and in each of them the clients.
pub struct Rows {
    pub title: String,
    /// What the figures are, and in which unit.
    pub axis: String,
    /// What dots and rings are, if there are rings.
    pub key: Option<String>,
    pub groups: Vec<(String, Vec<Row>)>,
}

impl Rows {
    /// The chart.
    pub fn draw(&self) -> String {
        let rows = self.groups.iter().map(|(_, rows)| rows.len() as f64 * ROW + GROUP_GAP);
        let height = TOP + rows.sum::<f64>() + BOTTOM;
        let all = || self.groups.iter().flat_map(|(_, rows)| rows);
        let values = all().flat_map(|row| [row.mark.value(), row.ring]).flatten();
        let scale = Scale::over(values, LEFT, WIDTH - RIGHT);
        let mut svg = Svg::begin(height, &self.title);
        svg.text(LEFT, TOP - 26.0, "small", "start", self.key.as_deref().unwrap_or_default());
        svg.grid_down(&scale, TOP - 10.0, height - BOTTOM);
        svg.text((LEFT + WIDTH - RIGHT) / 2.0, height - 14.0, "small", "middle", &self.axis);
        let mut y = TOP;
        for (name, rows) in &self.groups {
            svg.text(12.0, y + 4.0, "", "start", name);
            // A single group needs no line of its own for its name.
            for row in rows {
                y += ROW;
                svg.row(&scale, y - 6.0, row);
            }
            y += GROUP_GAP;
        }
        svg.end()
    }
}

/// One client's figures over a number that grows.
pub struct Series {
    pub label: String,
    pub client: Client,
    pub points: Vec<(f64, Mark)>,
}

/// Figures over a number that grows.
pub struct Queues {
    pub title: String,
    pub x_axis: String,
    pub y_axis: String,
    pub series: Vec<Series>,
}

impl Queues {
    /// The chart.
    pub fn draw(&self) -> String {
        let height = TOP + LINES_HEIGHT + BOTTOM;
        let (left, right) = (80.0, WIDTH - 130.0);
        let (top, bottom) = (TOP, TOP + LINES_HEIGHT);
        let points = || self.series.iter().flat_map(|series| &series.points);
        let across = Scale::over(points().map(|(x, _)| *x), left, right);
        let up = Scale::over(points().filter_map(|(_, mark)| mark.value()), bottom, top);
        let mut svg = Svg::begin(height, &self.title);
        svg.text(left, TOP - 22.0, "small", "start", &self.y_axis);
        svg.grid_across(&up, left, right);
        let mut xs: Vec<f64> = points().map(|(x, _)| *x).collect();
        xs.sort_unstable_by(f64::total_cmp);
        xs.dedup();
        svg.numbers_below(&across, &xs, bottom);
        svg.text((left + right) / 2.0, height - 14.0, "small", "middle", &self.x_axis);
        let mut labels = Vec::new();
        for series in &self.series {
            labels.extend(svg.series(&across, &up, bottom, series));
        }
        svg.labels(right + 12.0, labels);
        svg.end()
    }
}

struct Svg {
    text: String,
}

impl Svg {
    fn begin(height: f64, title: &str) -> Svg {
        let mut svg = Svg { text: String::new() };
        svg.push(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
             width=\"{WIDTH}\" height=\"{height}\" role=\"img\">"
        ));
        svg.push(format_args!("<title>{}</title>", escaped(title)));
        svg.push(format_args!("<style>\n{}</style>", style()));
        svg.push(format_args!("<rect class=\"background\" width=\"100%\" height=\"100%\"/>"));
        svg.text(12.0, 26.0, "title", "start", title);
        svg
    }

    fn end(mut self) -> String {
        self.text.push_str("</svg>\n");
        self.text
    }

    fn push(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{element}");
    }

    fn text(&mut self, x: f64, y: f64, class: &str, anchor: &str, text: &str) {
        if !text.is_empty() {
            let text = escaped(text);
            self.push(format_args!(
                "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\" text-anchor=\"{anchor}\">\
                 {text}</text>"
            ));
        }
    }

    fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        self.push(format_args!(
            "<line class=\"{class}\" x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"/>",
            from.0, from.1, to.0, to.1
        ));
    }

    fn circle(&mut self, class: &str, x: f64, y: f64) {
        self.push(format_args!("<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\"/>"));
    }

    fn grid_down(&mut self, scale: &Scale, top: f64, bottom: f64) {
        for tick in scale.ticks() {
            let x = scale.at(tick);
            self.line("grid", (x, top), (x, bottom));
            self.text(x, bottom + 16.0, "small", "middle", &short(tick));
        }
    }

    fn grid_across(&mut self, scale: &Scale, left: f64, right: f64) {
        for tick in scale.ticks() {
            let y = scale.at(tick);
            self.line("grid", (left, y), (right, y));
            self.text(left - 8.0, y + 4.0, "small", "end", &short(tick));
        }
    }

    /// The numbers that were measured, as far as they have room.
    fn numbers_below(&mut self, scale: &Scale, numbers: &[f64], bottom: f64) {
        let mut free = f64::NEG_INFINITY;
        for number in numbers {
            let (x, text) = (scale.at(*number), short(*number));
            let half = 5.0 * text.len() as f64;
            self.line("grid", (x, bottom), (x, bottom + 5.0));
            if x - half >= free {
                self.text(x, bottom + 20.0, "small", "middle", &text);
                free = x + half;
            }
        }
    }

    fn row(&mut self, scale: &Scale, y: f64, row: &Row) {
        let colour = colour(row.client);
        self.text(LEFT - 10.0, y + 4.0, "small", "end", &row.label);
        match row.mark {
            Mark::Word(word) => {
                let x = WIDTH - RIGHT;
                self.line(&format!("{colour} stem"), (LEFT, y), (x, y));
                self.text(x + 8.0, y + 4.0, &format!("{colour} bad"), "start", word);
            }
            Mark::Value(value) => {
                let Some(value) = Mark::Value(value).value() else {
                    return self.text(LEFT + 6.0, y + 4.0, "small", "start", &short(value));
                };
                let x = scale.at(value);
                let end = row.ring.map_or(x, |ring| scale.at(ring)).max(x);
                self.line(&format!("{colour} stem"), (LEFT, y), (end, y));
                if row.ring.is_some() {
                    self.circle(&format!("{colour} ring"), end, y);
                }
                self.circle(&format!("{colour} dot"), x, y);
                self.text(end + 10.0, y + 4.0, "", "start", &short(value));
            }
        }
    }

    /// A line; its label, if it has one, and where it belongs.
    fn series(
        &mut self,
        across: &Scale,
        up: &Scale,
        bottom: f64,
        series: &Series,
    ) -> Option<(f64, String, String)> {
        let colour = colour(series.client);
        let mut path = String::new();
        let mut end = None;
        for (x, mark) in &series.points {
            let x = across.at(*x);
            match (*mark, mark.value()) {
                (_, Some(value)) => {
                    let y = up.at(value);
                    let verb = if path.is_empty() { 'M' } else { 'L' };
                    let _ = write!(path, "{verb}{x:.1} {y:.1} ");
                    self.circle(&format!("{colour} dot"), x, y);
                    end = Some(y);
                }
                (Mark::Word(word), None) => {
                    self.text(x, bottom - 8.0, &format!("{colour} bad"), "middle", word);
                }
                (Mark::Value(_), None) => {}
            }
        }
        if !path.is_empty() {
            self.push(format_args!("<path class=\"{colour} line\" d=\"{}\"/>", path.trim_end()));
        }
        Some((end?, series.label.clone(), colour))
    }

    /// Labels beside the ends of their lines, moved apart where they would overlap.
    fn labels(&mut self, x: f64, mut labels: Vec<(f64, String, String)>) {
        labels.sort_by(|one, other| one.0.total_cmp(&other.0));
        let mut free = f64::NEG_INFINITY;
        for (y, label, colour) in labels {
            let y = y.max(free);
            self.text(x, y + 4.0, &format!("{colour} bad"), "start", &label);
            free = y + 17.0;
        }
    }
}

fn colour(client: Client) -> String {
    let index = Client::ALL.iter().position(|known| *known == client).unwrap_or(0);
    format!("c{index}")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A number in as few characters as say it.
fn short(value: f64) -> String {
    let (value, unit) = match value {
        _ if value >= 1e6 => (value / 1e6, "M"),
        _ if value >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = match value {
        _ if value >= 100.0 || value == value.round() => 0,
        _ if value >= 10.0 => 1,
        _ => 2,
    };
    let text = format!("{value:.digits$}");
    let text = if digits > 0 { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(client: Client, mark: Mark) -> Row {
        Row { label: client.name().to_owned(), client, mark, ring: None }
    }

    #[test]
    fn numbers_are_short() {
        let shown = [0.0, 0.25, 3.0, 14.26, 153.4, 9_999.0, 12_345.0, 100_000.0, 1_001_942.7];
        let expected = ["0", "0.25", "3", "14.3", "153", "9999", "12.3k", "100k", "1M"];
        assert_eq!(shown.map(short), expected);
    }

    #[test]
    fn hung_client_is_marked_and_moves_no_scale() {
        let rows =
            vec![row(Client::Floor, Mark::Value(70.0)), row(Client::Redlock, Mark::Word("hangs"))];
        let chart = Rows {
            title: "a < b".to_owned(),
            axis: "µs".to_owned(),
            key: None,
            groups: vec![("frozen".to_owned(), rows)],
        };
        let svg = chart.draw();
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert!(svg.contains(">hangs</text>") && svg.contains("a &lt; b"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn lines_without_points_are_drawn_too() {
        let series = |points| Series { label: "x".to_owned(), client: Client::Floor, points };
        let chart = Queues {
            title: String::new(),
            x_axis: String::new(),
            y_axis: String::new(),
            series: vec![
                series(vec![(1.0, Mark::Value(10.0)), (512.0, Mark::Value(1_000.0))]),
                series(vec![(1.0, Mark::Word("fails")), (512.0, Mark::Value(f64::NAN))]),
            ],
        };
        let svg = chart.draw();
        assert_eq!(svg.matches("<path").count(), 1);
        assert!(svg.contains(">fails</text>") && !svg.contains("NaN"));
    }
}
