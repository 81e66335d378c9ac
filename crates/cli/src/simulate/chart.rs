//! A simulation as text: one row of bars per quota, over one time axis.
//!
//! ```text
//!   100/min fixed-window      admitted 200, denied 40
//!          █████    █████
//!          █████░   █████░         ░ offered, but not admitted then
//!          ├────── worst 1min: 200, bound 200 ───────┤
//! ```

use super::{
    Simulation,
    axis::{Axis, Columns},
    run::{QuotaRun, RequestCount},
    time::format_rough,
};
use crate::terminal::{self, Paint, Tone};
use tidegate_core::{AlgorithmKind, Micros};

/// The indentation of every row.
pub(crate) const INDENT: &str = "  ";
/// The height of a bar in lines.
pub(crate) const BAR_HEIGHT: u64 = 2;
/// Bars in eighths of a line.
const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Draws the simulation in at most `width` columns.
pub(crate) fn draw(simulation: &Simulation, width: usize, paint: Paint) -> String {
    // A round length may need one more column than the maximum.
    let axis = Axis::new(simulation.start, simulation.end, width.saturating_sub(INDENT.len() + 1).max(1));
    let offered = axis.offered_columns(&simulation.arrivals);
    let admitted: Vec<_> = simulation.runs.iter().map(|run| axis.admitted_columns(&run.admitted)).collect();
    let tallest = admitted.iter().map(Columns::max).chain(offered.iter().copied()).max().unwrap_or(0);
    let chart = SimulationChart { axis, offered, max_cost: tallest, width, paint };

    let mut lines = vec![paint.tone(Tone::Strong, terminal::sanitize(&simulation.title))];
    lines.push(legend(simulation, &axis, tallest, paint));
    lines.push(String::new());
    lines.extend(chart.offered_rows(simulation));
    for (run, columns) in simulation.runs.iter().zip(&admitted) {
        lines.push(String::new());
        lines.extend(chart.run_rows(run, columns));
    }
    lines.push(String::new());
    lines.extend(axis_rows(&axis, INDENT, width, paint));
    lines.iter().map(|line| format!("{}\n", line.trim_end())).collect()
}

fn legend(simulation: &Simulation, axis: &Axis, tallest: u64, paint: Paint) -> String {
    let mut parts =
        vec![paint.tone(Tone::Faint, format!("a column is {}, the tallest {tallest}", axis.bin()))];
    parts.push(format!("{} admitted", paint.tone(Tone::Admitted, '█')));
    // Without colors both look the same.
    if paint == Paint::Ansi && simulation.runs.iter().any(|run| run.delayed.requests > 0) {
        parts.push(format!("{} after a wait", paint.tone(Tone::Delayed, '█')));
    }
    parts.push(format!("{} offered, but not admitted then", paint.tone(Tone::Faint, '░')));
    parts.join("   ")
}

struct SimulationChart {
    axis: Axis,
    offered: Vec<u64>,
    max_cost: u64,
    width: usize,
    paint: Paint,
}

impl SimulationChart {
    fn offered_rows(&self, simulation: &Simulation) -> Vec<String> {
        let mut offered = RequestCount::default();
        simulation.arrivals.iter().for_each(|arrival| offered.add(arrival.cost));
        let mut lines = vec![self.heading("offered", &count_text(offered), Tone::Normal)];
        let nothing = vec![0; self.offered.len()];
        let columns = Columns { allowed: nothing.clone(), delayed: nothing };
        lines.extend(self.bar_rows(&columns));
        lines
    }

    fn run_rows(&self, run: &QuotaRun, columns: &Columns) -> Vec<String> {
        let mut lines = vec![self.heading(&quota_name(run), &totals_text(run), Tone::Strong)];
        lines.extend(self.bar_rows(columns));
        lines.push(self.bracket(run));

        lines.push(self.note(&format!("bound: {}", run.quota.bound())));
        lines.extend(wait_note(run).map(|note| self.note(&note)));
        if run.impossible.requests > 0 {
            let (count, limit) = (run.impossible.requests, run.quota.limit());
            let note = format!("{count} of the denied can never be admitted: they cost more than {limit}");
            lines.push(format!("{INDENT}{}", self.paint.tone(Tone::Problem, note)));
        }
        let end = self.axis.end();
        let late = run.admitted.len() - run.admitted.partition_point(|request| request.at < end);
        if late > 0 {
            lines.push(self.note(&format!("{late} of the delayed are admitted after the end of the axis")));
        }
        lines
    }

    fn note(&self, text: &str) -> String {
        format!("{INDENT}{}", self.paint.tone(Tone::Faint, text))
    }

    /// A name on the left and numbers on the right, or below if they do not fit.
    fn heading(&self, name: &str, numbers: &str, tone: Tone) -> String {
        let used = name.chars().count() + numbers.chars().count();
        let available = self.width.saturating_sub(INDENT.len());
        let name = self.paint.tone(tone, name);
        if used + 2 > available {
            return format!("{INDENT}{name}\n{INDENT}{numbers}");
        }
        let gap = self.axis.bins().min(available).saturating_sub(used).max(2);
        format!("{INDENT}{name}{:gap$}{numbers}", "")
    }

    /// Bars of the admitted cost, in front of the offered cost.
    fn bar_rows(&self, columns: &Columns) -> Vec<String> {
        let row = |row: u64| {
            let base = (BAR_HEIGHT - 1 - row) * 8;
            let cell = |column: usize| self.cell(columns, column, base);
            format!("{INDENT}{}", merge_cells(self.paint, (0..self.axis.bins()).map(cell)))
        };
        (0..BAR_HEIGHT).map(row).collect()
    }

    fn cell(&self, columns: &Columns, column: usize, base: u64) -> (Tone, char) {
        let share = |cost: u64| cost as f64 / self.max_cost.max(1) as f64;
        let waited = columns.delayed[column] > columns.allowed[column];
        let tone = if waited { Tone::Delayed } else { Tone::Admitted };
        cell(share(columns.total(column)), share(self.offered[column]), base, tone)
    }

    /// The bracket of the worst window, with its cost.
    fn bracket(&self, run: &QuotaRun) -> String {
        let Some(worst) = run.worst else { return self.note("nothing was admitted") };
        let bound = run.bound.map_or("no bound".into(), |bound| format!("bound {bound}"));
        let text = match run.quota.kind() {
            AlgorithmKind::Concurrency(_) => format!("most in flight: {}, {bound}", worst.cost),
            _ => format!("worst {}: {}, {bound}", run.window, worst.cost),
        };
        let tone = if run.exceeds_nominal() { Tone::Problem } else { Tone::Admitted };

        let last = self.axis.bins() - 1;
        let first = self.axis.column(worst.start).unwrap_or(last);
        let end = Micros::new(worst.start.saturating_add(run.window).get() - 1);
        let length = self.axis.column(end).unwrap_or(last) - first + 1;
        let (before, drawn) = place_label(first, length, &text, self.width.saturating_sub(INDENT.len()));
        format!("{INDENT}{:before$}{}", "", self.paint.tone(tone, drawn))
    }
}

/// One character of a bar: the filled share in its tone, shaded up to the offered share.
pub(crate) fn cell(filled: f64, offered: f64, base: u64, tone: Tone) -> (Tone, char) {
    let height = |share: f64| eighths(share).saturating_sub(base).min(8);
    match (height(filled), height(offered)) {
        (0, 0) => (Tone::Normal, ' '),
        (0, _) => (Tone::Faint, '░'),
        (filled, _) => (tone, EIGHTHS[filled as usize]),
    }
}

/// A height in eighths of a line, at least one unless the share is zero.
fn eighths(share: f64) -> u64 {
    let full = (BAR_HEIGHT * 8) as f64;
    let rounded = (share * full).round().min(full) as u64;
    if share > 0.0 { rounded.max(1) } else { 0 }
}

/// The time axis below the bars: a rule with ticks, and their labels.
pub(crate) fn axis_rows(axis: &Axis, indent: &str, width: usize, paint: Paint) -> Vec<String> {
    let bins = axis.bins();
    let mut rule = vec!['─'; bins];
    let mut labels = String::new();
    for tick in axis.ticks((bins / 10).max(1)) {
        let column = axis.column(tick.at).unwrap_or(bins);
        rule.resize(rule.len().max(column + 1), '─');
        rule[column] = '┴';
        let gap = column.saturating_sub(labels.chars().count());
        let fits = indent.len() + column + tick.label.chars().count() <= width;
        if fits && (gap > 0 || column == 0) {
            labels = format!("{labels}{:gap$}{}", "", tick.label);
        }
    }
    let mut lines = vec![
        paint.tone(Tone::Faint, format!("{indent}{}", rule.iter().collect::<String>())),
        format!("{indent}{labels}"),
    ];
    if axis.origin() != Micros::ZERO {
        let origin = format!("times are relative to {}", axis.origin());
        lines.push(format!("{indent}{}", paint.tone(Tone::Faint, origin)));
    }
    lines
}

/// Places text inside a bracket if it fits, otherwise after, before or below it. Also returns the number of spaces before both.
pub(crate) fn place_label(first: usize, length: usize, text: &str, width: usize) -> (usize, String) {
    let size = text.chars().count();
    let inner = length.saturating_sub(2);
    if size + 2 <= inner {
        let left = (inner - size - 2) / 2;
        let right = inner - size - 2 - left;
        return (first, format!("├{} {text} {}┤", "─".repeat(left), "─".repeat(right)));
    }
    let bracket = match length {
        1 => "│".to_string(),
        _ => format!("├{}┤", "─".repeat(inner)),
    };
    if first + length + 1 + size <= width {
        return (first, format!("{bracket} {text}"));
    }
    match first.checked_sub(size + 1) {
        Some(before) => (before, format!("{text} {bracket}")),
        None => (first, format!("{bracket}\n{INDENT}{text}")),
    }
}

/// Renders cells, with one color code per run of the same tone.
pub(crate) fn merge_cells(paint: Paint, cells: impl Iterator<Item = (Tone, char)>) -> String {
    let mut text = String::new();
    let mut stretch: Option<(Tone, String)> = None;
    for (tone, cell) in cells {
        match &mut stretch {
            Some((last, cells)) if *last == tone => cells.push(cell),
            _ => {
                let done = stretch.replace((tone, cell.to_string()));
                text.extend(done.map(|(tone, cells)| paint.tone(tone, cells)));
            }
        }
    }
    text.extend(stretch.map(|(tone, cells)| paint.tone(tone, cells)));
    text
}

/// The text of a quota, with the algorithm if the text omits it.
pub(super) fn quota_name(run: &QuotaRun) -> String {
    let (text, algorithm) = (run.quota.to_string(), run.quota.kind().name());
    match run.quota.kind() {
        AlgorithmKind::TokenBucket(_) => format!("{text} ({algorithm})"),
        _ => text,
    }
}

/// The totals of a run.
fn totals_text(run: &QuotaRun) -> String {
    let delayed = match run.delayed.requests {
        0 => String::new(),
        some => format!(" ({some} delayed)"),
    };
    format!(
        "admitted {}{delayed}, denied {}",
        count_text(run.allowed.plus(run.delayed)),
        count_text(run.denied)
    )
}

/// Describes how long callers may wait, and how long they did.
fn wait_note(run: &QuotaRun) -> Option<String> {
    let max_wait = match (run.max_wait, run.quota.kind()) {
        (_, AlgorithmKind::Concurrency(_)) => {
            return Some(format!("each request holds its slot for {}", run.window));
        }
        (Micros::ZERO, _) => return None,
        (Micros::MAX, _) => "as long as the queue allows".into(),
        (max_wait, _) => format!("for up to {max_wait}"),
    };
    match run.longest_wait {
        Micros::ZERO => Some(format!("callers wait {max_wait}")),
        longest => Some(format!("callers wait {max_wait}; the longest wait is {}", format_rough(longest))),
    }
}

/// The number of requests, and their cost if it differs.
fn count_text(count: RequestCount) -> String {
    let RequestCount { requests, cost } = count;
    if requests == cost { requests.to_string() } else { format!("{requests} (cost {cost})") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bar_heights_are_capped_and_never_hide_a_value() {
        let heights: Vec<_> = [0.0, 0.000_1, 0.5, 0.7, 1.0, 10.0].into_iter().map(eighths).collect();
        assert_eq!(heights, [0, 1, 8, 11, 16, 16]);
    }

    #[test]
    fn label_is_placed_inside_or_beside_its_bracket() {
        for (first, length, drawn) in [
            (0, 12, "├─ worst ──┤"),
            (0, 4, "├──┤ worst"),
            (3, 1, "   │ worst"),
            (9, 4, "   worst ├──┤"),
            (5, 8, "     ├──────┤\n  worst"),
        ] {
            let (before, text) = place_label(first, length, "worst", 14);
            assert_eq!(format!("{:before$}{text}", ""), drawn);
        }
    }
}
