//! When delayed batching pays: the predicted gain of the best thresholds over eager launching, over the share of tokens
//! that the large model writes and the ratio of step times, for flat step times and for ones that grow with the batch.

use std::fmt::Write as _;

use plotters::coord::Shift;
use plotters::prelude::*;
use serde::Deserialize;
use tokenrouter_dtmc::{Latency, SearchOptions, SolveOptions, System, certify, optimize};

use super::{Made, palette};
use crate::predict::{measured_gain, prediction};

/// Settings of one profile.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Settings {
    concurrency: usize,
    /// Shares of the small model's steps that borrow the large one.
    shares: Vec<f64>,
    /// Step time of the large model over that of the small one.
    ratios: Vec<f64>,
    /// Step time at a batch of `concurrency` over that at 1.
    slopes: Vec<f64>,
    /// Points (share, ratio) that are also measured, under the simulator's clock, with flat step times.
    measured: Vec<(f64, f64)>,
}

/// One cell of a map.
struct Cell {
    slope: f64,
    share: f64,
    ratio: f64,
    best: Vec<u32>,
    /// Best over eager, minus 1.
    gain: f64,
    /// How much the best launch policy of any kind would add, where it was computed.
    gap: Option<f64>,
    measured: Option<f64>,
}

/// Step time of the small model, in milliseconds.
const SMALL_MS: f64 = 6.0;

pub(super) fn make(settings: &Settings) -> anyhow::Result<Made> {
    let mut cells = Vec::new();
    for slope in &settings.slopes {
        for share in &settings.shares {
            for ratio in &settings.ratios {
                cells.push(cell(settings, *slope, *share, *ratio)?);
            }
        }
    }
    Ok(Made { csv: csv_of(&cells)?, svg: draw(settings, &cells)?, found: words(settings, &cells) })
}

fn cell(settings: &Settings, slope: f64, share: f64, ratio: f64) -> anyhow::Result<Cell> {
    let requests = settings.concurrency;
    let profile = |first: f64| {
        if slope == 1.0 {
            return Latency::Constant(first);
        }
        let last = (requests - 1).max(1) as f64;
        // Whole quanta, as the chain has them.
        let at = |batch: usize| (first * (1.0 + (slope - 1.0) * batch as f64 / last) * 10.0).round() / 10.0;
        Latency::by_batch((0..requests).map(at))
    };
    let latencies = [profile(SMALL_MS), profile((SMALL_MS * ratio * 10.0).round() / 10.0)];
    let routing = vec![vec![1.0 - share, share], vec![1.0, 0.0]];
    let system = System { commits: Some(vec![vec![1.0, 0.0]; 2]), ..System::new(latencies, routing) };
    let closed = system.closed(requests as u32)?;
    let found = optimize(&closed, &SearchOptions::default())?;
    let best = found.best.thresholds().clone();
    let eager = prediction(&system, requests, &[1, 1])?.throughput_tok_s();
    let top = prediction(&system, requests, best.as_slice())?.throughput_tok_s();
    let is_measured = slope == 1.0 && settings.measured.contains(&(share, ratio));
    let certified = is_measured.then(|| certify(&closed, &best, &SolveOptions::default()).ok()).flatten();
    let gap = certified.map(|certificate| certificate.gap(top));
    let measured = if is_measured { Some(measured_gain(&system, requests, best.as_slice())?) } else { None };
    Ok(Cell { slope, share, ratio, best: best.into_vec(), gain: top / eager - 1.0, gap, measured })
}

fn csv_of(cells: &[Cell]) -> anyhow::Result<Vec<u8>> {
    let mut csv = csv::Writer::from_writer(Vec::new());
    csv.write_record(["slope", "share", "latency_ratio", "best", "predicted_gain", "measured_gain", "optimality_gap"])?;
    let number = |value: Option<f64>| value.map(|value| format!("{value:.5}")).unwrap_or_default();
    for cell in cells {
        csv.write_record([
            cell.slope.to_string(),
            cell.share.to_string(),
            cell.ratio.to_string(),
            cell.best.iter().map(u32::to_string).collect::<Vec<_>>().join(","),
            format!("{:.5}", cell.gain),
            number(cell.measured),
            number(cell.gap),
        ])?;
    }
    Ok(csv.into_inner()?)
}

fn words(settings: &Settings, cells: &[Cell]) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "Emulated, N = {}, small model {SMALL_MS} ms, borrow routing.", settings.concurrency);
    for slope in &settings.slopes {
        let here = || cells.iter().filter(|cell| cell.slope == *slope);
        let Some(best) = here().max_by(|a, b| a.gain.total_cmp(&b.gain)) else { continue };
        let little = here().filter(|cell| cell.gain < 0.02).count();
        let _ = writeln!(
            out,
            "Step times that grow {slope} times to the largest batch: the largest gain is {:.1} % at p = {} and a latency \
             ratio of {}; below 2 % in {little} of {} cells.",
            100.0 * best.gain,
            best.share,
            best.ratio,
            here().count()
        );
    }
    for cell in cells.iter().filter(|cell| cell.measured.is_some()) {
        let _ = writeln!(
            out,
            "p = {}, ratio {}: predicted {:.1} %, measured in virtual time {:.1} %, the best policy of any kind would add {}.",
            cell.share,
            cell.ratio,
            100.0 * cell.gain,
            100.0 * cell.measured.unwrap_or_default(),
            cell.gap.map_or_else(|| "an unknown share".into(), |gap| format!("{:.2} %", 100.0 * gap)),
        );
    }
    out
}

fn draw(settings: &Settings, cells: &[Cell]) -> anyhow::Result<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (1000, 520)).into_drawing_area();
        area.fill(&WHITE)?;
        let title = format!(
            "Gain of the best thresholds over eager launching in %, predicted (measured), N = {} (emulated)",
            settings.concurrency
        );
        let area = area.titled(&title, ("sans-serif", 20))?;
        for (panel, slope) in area.split_evenly((1, settings.slopes.len())).iter().zip(&settings.slopes) {
            map(panel, settings, cells, *slope)?;
        }
        area.present()?;
    }
    Ok(svg)
}

fn map(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    settings: &Settings,
    cells: &[Cell],
    slope: f64,
) -> anyhow::Result<()> {
    let (columns, rows) = (settings.shares.len(), settings.ratios.len());
    let top = cells.iter().map(|cell| cell.gain).fold(1e-9, f64::max);
    let caption = if slope == 1.0 {
        "step time does not depend on the batch".to_owned()
    } else {
        format!("step time grows {slope} times to a batch of {}", settings.concurrency)
    };
    let mut chart = ChartBuilder::on(area)
        .caption(caption, ("sans-serif", 16))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..columns as f64, 0.0..rows as f64)?;
    // Cells are numbered on both axes: label i stands in the middle of cell i.
    let label = |values: &[f64], at: &f64| {
        let index = (at - 0.5).round();
        let centred = (at - 0.5 - index).abs() < 0.01 && index >= 0.0;
        values.get(index as usize).filter(|_| centred).map(f64::to_string).unwrap_or_default()
    };
    chart
        .configure_mesh()
        .disable_mesh()
        .x_labels(2 * columns + 1)
        .y_labels(2 * rows + 1)
        .x_label_formatter(&|at| label(&settings.shares, at))
        .y_label_formatter(&|at| label(&settings.ratios, at))
        .x_desc("p: share of small-model steps that borrow the large model")
        .y_desc("step time, large over small")
        .draw()?;
    for cell in cells.iter().filter(|cell| cell.slope == slope) {
        let place = |values: &[f64], value: f64| values.iter().position(|v| *v == value).unwrap_or(0) as f64;
        let (x, y) = (place(&settings.shares, cell.share), place(&settings.ratios, cell.ratio));
        let share = (cell.gain / top).max(0.0);
        let color = palette::shade(share);
        chart.draw_series(std::iter::once(Rectangle::new([(x, y), (x + 1.0, y + 1.0)], color.filled())))?;
        let ink = if share > 0.55 { WHITE } else { BLACK };
        let text = match cell.measured {
            Some(measured) => format!("{:.0} ({:.0})", 100.0 * cell.gain, 100.0 * measured),
            None => format!("{:.0}", 100.0 * cell.gain),
        };
        let style = ("sans-serif", 13).into_font().color(&ink);
        chart.draw_series(std::iter::once(Text::new(text, (x + 0.12, y + 0.62), style)))?;
    }
    Ok(())
}
