//! What a grid shows, in sentences made from the numbers.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::{Grid, Kind, breakdown};

pub(super) fn words(grid: &Grid<'_>) -> String {
    let mut out = String::new();
    let machine = match (grid.emulated(), grid.virtual_time()) {
        (true, true) => {
            "Emulated models in virtual time: step times and routing shares stand in for models, and a clock that jumps for \
             the machine's; the scheduler is the real one."
        }
        (true, false) => {
            "Emulated models: step times and routing shares stand in for models, scheduler and drivers are the real ones."
        }
        (false, _) => "Real models on this CPU.",
    };
    let requests: BTreeSet<usize> = grid.cells.iter().map(|cell| cell.summary.completed).collect();
    let trials: BTreeSet<usize> = grid.cells.iter().map(|cell| cell.summary.trials.len()).collect();
    let list = |set: &BTreeSet<usize>| set.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    let _ = writeln!(
        out,
        "{machine} {} cells of {} requests in {} trials each.",
        grid.cells.len(),
        list(&requests),
        list(&trials)
    );
    match grid.settings.draw.kind {
        Kind::Breakdown => shares(grid, &mut out),
        Kind::Frontier => points(grid, &mut out),
        Kind::Bars | Kind::Lines => ratios(grid, &mut out),
    }
    out
}

/// Every series over the baseline.
fn ratios(grid: &Grid<'_>, out: &mut String) {
    let draw = &grid.settings.draw;
    let Some(baseline) = &draw.baseline else { return };
    for metric in &draw.metrics {
        for series in grid.values(&draw.series).filter(|series| series != baseline) {
            let mut values = Vec::new();
            for panel in grid.panels() {
                for x in grid.values(&draw.x) {
                    let value = |series: &str| metric.of(&grid.find(panel, series, x)?.summary);
                    if let (Some(this), Some(base)) = (value(series), value(baseline)) {
                        values.push((this.mean / base.mean, panel, x));
                    }
                }
            }
            let least = values.iter().min_by(|a, b| a.0.total_cmp(&b.0));
            let most = values.iter().max_by(|a, b| a.0.total_cmp(&b.0));
            let (Some(least), Some(most)) = (least, most) else { continue };
            let place = |panel: &str, x: &str| [panel, x].join(" ").trim().to_owned();
            let _ = writeln!(
                out,
                "{}, {series} over {baseline}: {:.2} ({}) to {:.2} ({}).",
                metric.words(),
                least.0,
                place(least.1, least.2),
                most.0,
                place(most.1, most.2)
            );
        }
    }
}

fn points(grid: &Grid<'_>, out: &mut String) {
    let draw = &grid.settings.draw;
    for series in grid.values(&draw.series) {
        let mut best: Option<(f64, f64, &str)> = None;
        for x in grid.values(&draw.x) {
            let Some(cell) = grid.panels().first().and_then(|panel| grid.find(panel, series, x)) else { continue };
            let (Some(h), Some(v)) = (draw.metrics[0].of(&cell.summary), draw.metrics[1].of(&cell.summary)) else {
                continue;
            };
            if best.is_none_or(|best| v.mean > best.1) {
                best = Some((h.mean, v.mean, x));
            }
        }
        if let Some((h, v, x)) = best {
            let _ = writeln!(
                out,
                "{series}: highest {} {v:.3} at {x}, with {h:.3} {}.",
                draw.metrics[1].words(),
                draw.metrics[0].words()
            );
        }
    }
}

fn shares(grid: &Grid<'_>, out: &mut String) {
    let draw = &grid.settings.draw;
    for x in grid.values(&draw.x) {
        for series in grid.values(&draw.series) {
            for panel in grid.panels() {
                let cell = grid.find(panel, series, x);
                let Some(parts) = cell.and_then(|cell| breakdown::of(&cell.summary)) else { continue };
                let all: f64 = parts.iter().sum();
                let named = breakdown::PARTS.iter().zip(parts).filter(|(_, ms)| *ms >= 0.005 * all);
                let named: Vec<String> =
                    named.map(|(part, ms)| format!("{} {ms:.2} ms ({:.0} %)", part.words, 100.0 * ms / all)).collect();
                let mut place = vec![panel, x, series];
                place.retain(|name| !name.is_empty());
                place.dedup();
                let _ = writeln!(out, "{}: {all:.2} ms per token: {}.", place.join(", "), named.join("; "));
            }
        }
    }
}
