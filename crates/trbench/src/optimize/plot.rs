//! `--plot`: throughput over thresholds as SVG. A line for one threshold, a heat map for two.

use plotters::prelude::*;
use std::collections::BTreeMap;
use tokenrouter_dtmc::{ClosedSystem, Prediction};

/// Size of the picture in pixels.
const SIZE: (u32, u32) = (900, 600);

/// The SVG text. `over` names the models whose thresholds span the plot; by default the first two whose thresholds vary.
pub(super) fn draw(system: &ClosedSystem, candidates: &[Prediction], over: &[usize]) -> anyhow::Result<String> {
    let axes = if over.is_empty() { varying(system, candidates) } else { over.to_vec() };
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        match axes.as_slice() {
            [x, y, ..] => heat_map(&area, candidates, *x, *y)?,
            [x] => line(&area, candidates, *x)?,
            [] => line(&area, candidates, 0)?,
        }
        area.present()?;
    }
    Ok(svg)
}

fn varying(system: &ClosedSystem, candidates: &[Prediction]) -> Vec<usize> {
    let varies = |index: &usize| {
        let mut values = candidates.iter().map(|candidate| candidate.thresholds().as_slice()[*index]);
        let first = values.next();
        values.any(|value| Some(value) != first)
    };
    (0..system.models()).filter(varies).take(2).collect()
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// Best throughput for each value of the thresholds chosen by `key`.
fn best_by<K: Ord>(candidates: &[Prediction], key: impl Fn(&[u32]) -> K) -> BTreeMap<K, f64> {
    let mut best = BTreeMap::new();
    for candidate in candidates {
        let value = best.entry(key(candidate.thresholds().as_slice())).or_insert(f64::NEG_INFINITY);
        *value = f64::max(*value, candidate.throughput_tok_s());
    }
    best
}

fn line(area: &Area<'_>, candidates: &[Prediction], x: usize) -> anyhow::Result<()> {
    let points = best_by(candidates, |b| b[x]);
    let last = points.keys().next_back().copied().unwrap_or(1);
    let high = points.values().fold(0.0_f64, |high, &value| high.max(value));
    let low = points.values().fold(high, |low, &value| low.min(value));
    let margin = (0.05 * (high - low)).max(1e-6 * high);
    let mut chart = ChartBuilder::on(area)
        .caption("Predicted throughput, other thresholds at their best", ("sans-serif", 20))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(72)
        .build_cartesian_2d(0.5..f64::from(last) + 0.5, low - margin..high + margin)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_label_formatter(&whole)
        .x_desc(format!("B_{x}"))
        .y_desc("tokens per second")
        .draw()?;
    let coordinates: Vec<(f64, f64)> = points.iter().map(|(&b, &value)| (f64::from(b), value)).collect();
    chart.draw_series(LineSeries::new(coordinates.iter().copied(), BLUE.stroke_width(2)))?;
    chart.draw_series(coordinates.iter().map(|&at| Circle::new(at, 3, BLUE.filled())))?;
    let best = coordinates.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1));
    chart.draw_series(best.map(|at| Circle::new(at, 6, RED.stroke_width(2))))?;
    Ok(())
}

/// Models `x` and `y` span the map.
fn heat_map(area: &Area<'_>, candidates: &[Prediction], x: usize, y: usize) -> anyhow::Result<()> {
    let cells = best_by(candidates, |b| (b[x], b[y]));
    let last_x = cells.keys().map(|&(bx, _)| bx).max().unwrap_or(1);
    let last_y = cells.keys().map(|&(_, by)| by).max().unwrap_or(1);
    let high = cells.values().fold(0.0_f64, |high, &value| high.max(value));
    let low = cells.values().fold(high, |low, &value| low.min(value));
    let mut chart = ChartBuilder::on(area)
        .caption(format!("Predicted throughput, {low:.1} (dark) to {high:.1} tok/s (light)"), ("sans-serif", 20))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(60)
        .build_cartesian_2d(0.5..f64::from(last_x) + 0.5, 0.5..f64::from(last_y) + 0.5)?;
    chart
        .configure_mesh()
        .disable_mesh()
        .x_label_formatter(&whole)
        .y_label_formatter(&whole)
        .x_desc(format!("B_{x}"))
        .y_desc(format!("B_{y}"))
        .draw()?;
    let corner = |bx: u32, by: u32, side: f64| (f64::from(bx) + side, f64::from(by) + side);
    chart.draw_series(cells.iter().map(|(&(bx, by), &value)| {
        let share = if high > low { (value - low) / (high - low) } else { 1.0 };
        Rectangle::new([corner(bx, by, -0.5), corner(bx, by, 0.5)], shade(share).filled())
    }))?;
    let best = cells.iter().max_by(|a, b| a.1.total_cmp(b.1)).map(|(&at, _)| at);
    chart.draw_series(
        best.map(|(bx, by)| Rectangle::new([corner(bx, by, -0.5), corner(bx, by, 0.5)], RED.stroke_width(3))),
    )?;
    Ok(())
}

/// A threshold on an axis.
fn whole(value: &f64) -> String {
    format!("{value:.0}")
}

/// From dark blue over green to light yellow, with rising lightness, so that it reads in grey as well.
fn shade(share: f64) -> RGBColor {
    const STOPS: [(f64, f64, f64); 4] =
        [(26.0, 21.0, 76.0), (33.0, 102.0, 140.0), (76.0, 178.0, 120.0), (250.0, 235.0, 120.0)];
    let at = share.clamp(0.0, 1.0) * 3.0;
    let index = (at as usize).min(2);
    let part = at - index as f64;
    let mix = |from: f64, to: f64| (from + part * (to - from)).round() as u8;
    let (from, to) = (STOPS[index], STOPS[index + 1]);
    RGBColor(mix(from.0, to.0), mix(from.1, to.1), mix(from.2, to.2))
}
