//! All scenarios in a table: one block per figure, one row per controller, one column per scenario.

use super::{ControllerResult, ScenarioResult, figure::Figure};
use crate::{
    simulate::chart::INDENT,
    terminal::{Paint, Tone},
};
use tidegate_simulation::guard_presets;

/// Draws the table; with several seeds, the median and the worst value of each figure.
pub(crate) fn draw(results: &[ScenarioResult], paint: Paint) -> String {
    let figures = Figure::ALL.into_iter();
    let blocks: Vec<_> =
        figures.filter(|figure| results.iter().any(|result| figure.applies_to(&result.scenario))).collect();
    let cells = |result: &ScenarioResult| -> Vec<String> {
        let of_figure = |figure: &Figure| {
            result.controllers.iter().map(|part| format_cell(*figure, result, part)).collect::<Vec<_>>()
        };
        blocks.iter().flat_map(of_figure).collect()
    };
    let columns: Vec<_> = results.iter().map(|result| (result.scenario.name, cells(result))).collect();
    let width = |(name, cells): &(&str, Vec<String>)| {
        1 + cells.iter().map(|cell| cell.chars().count()).max().unwrap_or(0).max(name.len())
    };
    let widths: Vec<_> = columns.iter().map(width).collect();
    let longest = guard_presets().iter().map(|preset| preset.name.len()).max().unwrap_or(0);

    let heads = columns.iter().zip(&widths).map(|((name, _), width)| format!("{name:>width$}"));
    let head = format!("{INDENT}{:longest$}{}", "", heads.collect::<String>());
    let mut lines = vec![paint.tone(Tone::Strong, head)];
    for (block, figure) in blocks.iter().enumerate() {
        lines.push(format!("{}{}", figure.title(), seeds_note(results)));
        for (row, preset) in guard_presets().iter().enumerate() {
            let cell = |((_, cells), width): (&(&str, Vec<String>), &usize)| {
                let cell = cells.get(block * guard_presets().len() + row).map_or("", String::as_str);
                format!("{cell:>width$}")
            };
            let cells: String = columns.iter().zip(&widths).map(cell).collect();
            lines.push(format!("{INDENT}{:longest$}{cells}", preset.name));
        }
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}

fn format_cell(figure: Figure, result: &ScenarioResult, controller: &ControllerResult) -> String {
    let ranked = figure.rank(&controller.figures);
    match (ranked.get(ranked.len() / 2), ranked.last()) {
        _ if !figure.applies_to(&result.scenario) => "-".into(),
        (Some(median), Some(worst)) => match (figure.number(median), figure.number(worst)) {
            // If the median run never settles, neither does the worst one.
            (median, _) if ranked.len() == 1 || median == "never" => median,
            (median, worst) => format!("{median} ({worst})"),
        },
        _ => String::new(),
    }
}

fn seeds_note(results: &[ScenarioResult]) -> String {
    let first = results.first().and_then(|result| result.controllers.first());
    let runs = first.map_or(0, |part| part.figures.len());
    if runs > 1 { format!(": median (worst) of {runs} seeds") } else { String::new() }
}
