//! Predicted and measured throughput over the threshold of the large model.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use plotters::prelude::*;
use serde::Deserialize;

use super::{Made, palette};
use crate::predict::{Validation, ValidationTask, csv_of};

/// Settings of one profile.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Settings {
    config: PathBuf,
    concurrency: Vec<usize>,
    seconds: f64,
    #[serde(default)]
    virtual_time: bool,
}

impl Settings {
    /// For `--full`.
    pub(super) fn enlarge(&mut self) {
        self.seconds *= super::FULL_FACTOR as f64;
    }
}

pub(super) fn make(settings: &Settings, folder: &Path) -> anyhow::Result<Made> {
    let task = ValidationTask {
        config: folder.join(&settings.config),
        concurrency: settings.concurrency.clone(),
        seconds: settings.seconds,
        virtual_time: settings.virtual_time,
        ..ValidationTask::default()
    };
    let validation = task.run()?;
    Ok(Made { csv: csv_of(&validation.points)?, svg: draw(&validation)?, found: words(&validation, settings) })
}

fn words(validation: &Validation, settings: &Settings) -> String {
    let mut out = String::new();
    let on = match (validation.emulated, validation.virtual_time) {
        (true, true) => "emulated models in virtual time",
        (true, false) => "emulated models in real time",
        _ => "real models on this CPU, after a calibration of the same system",
    };
    let _ = writeln!(
        out,
        "`{}`, {on}: {} points, error of the prediction median {:.2} %, largest {:.2} %; with the step times of each run itself \
         median {:.2} %, largest {:.2} %.",
        settings.config.display(),
        validation.points.len(),
        100.0 * validation.median_error,
        100.0 * validation.max_error,
        100.0 * validation.in_run_median_error,
        100.0 * validation.in_run_max_error
    );
    let agreeing = validation.best.iter().filter(|best| best.agrees).count();
    let _ = writeln!(
        out,
        "The predicted best threshold is the measured best, or within its interval, for {agreeing} of {} numbers of requests.",
        validation.best.len()
    );
    out
}

fn draw(validation: &Validation) -> anyhow::Result<String> {
    let mut by_n: BTreeMap<usize, Vec<_>> = BTreeMap::new();
    for point in &validation.points {
        by_n.entry(point.n).or_default().push(point);
    }
    let widest = by_n.keys().next_back().copied().unwrap_or(1);
    let top = validation.points.iter().map(|p| p.predicted_tok_s.max(p.ci[1])).fold(0.0, f64::max);
    let emulated = if validation.emulated { " (emulated)" } else { "" };
    let caption = if validation.emulated {
        format!("Predicted (lines) and measured (points) throughput{emulated}")
    } else {
        "Throughput: predicted (lines; crosses: with the run's own step times) and measured (points)".to_owned()
    };
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (900, 560)).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(caption, ("sans-serif", 20))
            .margin(16)
            .x_label_area_size(44)
            .y_label_area_size(64)
            // Room on the right for labels.
            .build_cartesian_2d(0.5..widest as f64 * 1.12 + 0.6, 0.0..top * 1.08)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_desc("threshold of the large model (requests)")
            .y_desc("tokens per second")
            .x_label_formatter(&|x| format!("{x:.0}"))
            .y_label_formatter(&|y| format!("{y:.0}"))
            .draw()?;
        for (index, (n, points)) in by_n.iter().enumerate() {
            let color = palette::SERIES[index % palette::SERIES.len()];
            let x = |thresholds: &[u32]| f64::from(thresholds.last().copied().unwrap_or(1));
            let line = points.iter().map(|p| (x(&p.thresholds), p.predicted_tok_s));
            chart.draw_series(LineSeries::new(line, color.stroke_width(2)))?;
            chart.draw_series(points.iter().map(|p| {
                let at = x(&p.thresholds);
                ErrorBar::new_vertical(at, p.ci[0], p.measured_tok_s, p.ci[1], color.filled(), 7)
            }))?;
            // Real machines change their speed after a calibration.
            chart.draw_series(
                points
                    .iter()
                    .filter(|_| !validation.emulated)
                    .map(|p| Cross::new((x(&p.thresholds), p.in_run_tok_s), 5, color.stroke_width(2))),
            )?;
            if let Some(last) = points.last() {
                let at = (x(&last.thresholds) + 0.25, last.predicted_tok_s);
                let style = ("sans-serif", 15).into_font().color(&color);
                chart.draw_series(std::iter::once(Text::new(format!("N = {n}"), at, style)))?;
            }
        }
        area.present()?;
    }
    Ok(svg)
}
