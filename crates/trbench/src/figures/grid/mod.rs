//! Scenarios made of runs: every combination of the axes is one `trbench run`, kept in a folder of its own under `runs/`,
//! so that figures with equal cells share them and an interrupted figure goes on where it stopped.

mod breakdown;
pub(super) mod cells;
mod draw;
mod metric;
mod words;

use std::path::Path;

use indexmap::IndexMap;
use serde::Deserialize;
use serde_json::Value;

use super::Made;
use crate::error::usage;
use crate::results::Summary;
use crate::spec::Overrides;
use metric::Metric;

/// Settings of one profile.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Settings {
    /// Settings of all cells.
    run: Overrides,
    /// What varies: the values of each axis by name, and their settings.
    axes: IndexMap<String, IndexMap<String, Overrides>>,
    /// Measures step times and routing once for every configuration, and runs its cells with them.
    #[serde(default)]
    pub(super) calibrate: bool,
    draw: Draw,
}

/// What the picture shows.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Draw {
    kind: Kind,
    /// The axis along the horizontal, or whose values a frontier's points are.
    x: String,
    /// The axis with a colour for each value.
    series: String,
    /// The axis with a picture beside the others for each value.
    panels: Option<String>,
    /// One row of pictures for each; a frontier has the horizontal one first.
    metrics: Vec<Metric>,
    /// The value of `series` that the words compare the others with.
    baseline: Option<String>,
    /// Description of the horizontal of `lines`.
    x_label: Option<String>,
}

/// Kinds of pictures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    /// Groups of bars.
    Bars,
    /// Lines over numbers: the names of the values of `x`.
    Lines,
    /// One metric over another.
    Frontier,
    /// Where the time of a request goes, one bar for each value of `x` and `series`.
    Breakdown,
}

/// A measured combination: the value on each axis, in the order of the axes.
#[derive(Debug)]
pub(super) struct Measured {
    at: Vec<String>,
    summary: Summary,
}

/// Everything measured, with the axes to find it by.
#[derive(Debug)]
struct Grid<'a> {
    settings: &'a Settings,
    cells: Vec<Measured>,
}

impl Settings {
    /// For `--full`.
    pub(super) fn enlarge(&mut self) {
        for settings in self.axes.values_mut().flat_map(IndexMap::values_mut).chain([&mut self.run]) {
            if let Some(count) = settings.get("num-prompts").and_then(Value::as_u64) {
                settings.insert("num-prompts", (count * super::FULL_FACTOR).into());
            }
            settings.remove("trials");
        }
        self.run.insert("trials", super::FULL_TRIALS.into());
    }

    /// Whether axes and picture fit together.
    pub(super) fn check(&self) -> Result<(), String> {
        let known = || self.axes.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        let named = [Some(&self.draw.x), Some(&self.draw.series), self.draw.panels.as_ref()];
        if let Some(axis) = named.into_iter().flatten().find(|axis| !self.axes.contains_key(*axis)) {
            return Err(format!("draw: unknown axis `{axis}`, the axes are {}", known()));
        }
        if let Some((axis, _)) = self.axes.iter().find(|(axis, values)| {
            let drawn = [Some(&self.draw.x), Some(&self.draw.series), self.draw.panels.as_ref()].contains(&Some(axis));
            values.is_empty() || (!drawn && values.len() > 1)
        }) {
            return Err(format!("axis `{axis}` has no value, or several and no place in the picture"));
        }
        let wanted = match self.draw.kind {
            Kind::Frontier => 2..=usize::MAX,
            Kind::Breakdown => 0..=0,
            _ => 1..=usize::MAX,
        };
        if !wanted.contains(&self.draw.metrics.len()) {
            return Err("draw.metrics: bars and lines need one, a frontier two, a breakdown none".into());
        }
        let baseline = self.draw.baseline.as_ref();
        if let Some(name) = baseline.filter(|name| !self.axes[&self.draw.series].contains_key(*name)) {
            return Err(format!("draw.baseline: `{name}` is not on the axis `{}`", self.draw.series));
        }
        if self.draw.kind == Kind::Lines
            && let Some(name) = self.axes[&self.draw.x].keys().find(|name| name.parse::<f64>().is_err())
        {
            return Err(format!("draw.x: `{name}` on the axis `{}` is not a number", self.draw.x));
        }
        Ok(())
    }
}

impl<'a> Grid<'a> {
    fn values(&self, axis: &str) -> impl Iterator<Item = &'a str> + use<'a> {
        self.settings.axes[axis].keys().map(String::as_str)
    }

    /// Values of the panel axis; one empty name when there is none.
    fn panels(&self) -> Vec<&'a str> {
        match &self.settings.draw.panels {
            Some(axis) => self.values(axis).collect(),
            None => vec![""],
        }
    }

    /// The cell at these values of the panel axis, the series axis and `x`.
    fn find(&self, panel: &str, series: &str, x: &str) -> Option<&Measured> {
        let draw = &self.settings.draw;
        let is_at = |cell: &&Measured| {
            self.settings.axes.keys().zip(&cell.at).all(|(axis, value)| {
                (*axis != draw.x || value == x)
                    && (*axis != draw.series || value == series)
                    && (draw.panels.as_ref() != Some(axis) || value == panel)
            })
        };
        self.cells.iter().find(is_at)
    }

    fn emulated(&self) -> bool {
        self.cells.iter().any(|cell| cell.summary.emulated)
    }

    fn virtual_time(&self) -> bool {
        self.cells.iter().any(|cell| cell.summary.virtual_time)
    }
}

/// Measures what is missing, and draws.
pub(super) fn make(settings: &Settings, title: &str, folder: &Path, out: &Path) -> anyhow::Result<Made> {
    settings.check().map_err(usage)?;
    let grid = Grid { settings, cells: cells::measure(settings, folder, out)? };
    Ok(Made { csv: csv_of(&grid)?, svg: draw::draw(&grid, title)?, found: words::words(&grid) })
}

/// One row per cell: the axes, then every metric with its interval, then the parts of a request's time.
fn csv_of(grid: &Grid<'_>) -> anyhow::Result<Vec<u8>> {
    let mut csv = csv::Writer::from_writer(Vec::new());
    let mut head: Vec<String> = grid.settings.axes.keys().cloned().collect();
    for metric in Metric::ALL {
        head.extend([metric.name().to_owned(), format!("{}_low", metric.name()), format!("{}_high", metric.name())]);
    }
    head.extend(["completed", "failed", "trials"].map(str::to_owned));
    head.extend(breakdown::PARTS.iter().map(|part| format!("{}_ms_per_token", part.key)));
    csv.write_record(&head)?;
    let number = |value: Option<f64>| value.map(|value| format!("{value:.5}")).unwrap_or_default();
    for cell in &grid.cells {
        let mut row = cell.at.clone();
        for metric in Metric::ALL {
            let value = metric.of(&cell.summary);
            row.extend([value.map(|v| v.mean), value.map(|v| v.low), value.map(|v| v.high)].map(number));
        }
        let summary = &cell.summary;
        row.extend([summary.completed, summary.failed, summary.trials.len()].map(|count| count.to_string()));
        let parts = breakdown::of(summary);
        row.extend((0..breakdown::PARTS.len()).map(|part| number(parts.map(|parts| parts[part]))));
        csv.write_record(&row)?;
    }
    Ok(csv.into_inner()?)
}
