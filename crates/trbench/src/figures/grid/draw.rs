//! Pictures of grids.

use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

use super::metric::{Metric, Value};
use super::{Grid, Kind, breakdown};
use crate::figures::palette;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// Size of one picture of several, in pixels.
const PANEL: (u32, u32) = (420, 340);
/// A figure is not narrower than this.
const LEAST_WIDTH: u32 = 820;
/// Height of the title and of a row of the legend.
const ROW: u32 = 26;
/// Width of a character, near enough to place text.
const CHARACTER: u32 = 8;

pub(super) fn draw(grid: &Grid<'_>, title: &str) -> anyhow::Result<String> {
    let settings = &grid.settings.draw;
    let panels = grid.panels();
    let rows = if matches!(settings.kind, Kind::Frontier | Kind::Breakdown) { 1 } else { settings.metrics.len() };
    let width = (PANEL.0 * panels.len() as u32).max(LEAST_WIDTH);
    let names: Vec<&str> = match settings.kind {
        Kind::Breakdown => breakdown::PARTS.iter().map(|part| part.words).collect(),
        _ => grid.values(&settings.series).collect(),
    };
    // Lines and frontiers carry their names themselves.
    let legend = match settings.kind {
        Kind::Bars | Kind::Breakdown => legend_rows(&names, width),
        Kind::Lines | Kind::Frontier => Vec::new(),
    };
    let head = ROW * (1 + legend.len() as u32) + 10;
    let height = head + PANEL.1 * rows as u32;
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (width, height)).into_drawing_area();
        area.fill(&WHITE)?;
        let (top, rest) = area.split_vertically(head);
        let emulated = match (grid.emulated(), grid.virtual_time()) {
            (true, true) => " (emulated, virtual time)",
            (true, false) => " (emulated)",
            (false, _) => "",
        };
        top.draw_text(&format!("{title}{emulated}"), &("sans-serif", 20).into_text_style(&top), (16, 8))?;
        draw_legend(&top, &legend, grid)?;
        for (index, area) in rest.split_evenly((rows, panels.len())).iter().enumerate() {
            let panel = panels[index % panels.len()];
            match settings.kind {
                Kind::Bars => bars(area, grid, panel, settings.metrics[index / panels.len()])?,
                Kind::Lines => lines(area, grid, panel, settings.metrics[index / panels.len()])?,
                Kind::Frontier => frontier(area, grid, panel)?,
                Kind::Breakdown => stacks(area, grid, panel)?,
            }
        }
        area.present()?;
    }
    Ok(svg)
}

/// Names with their index, in rows that fit.
fn legend_rows<'a>(names: &[&'a str], width: u32) -> Vec<Vec<(usize, &'a str)>> {
    let mut rows: Vec<Vec<(usize, &str)>> = vec![Vec::new()];
    let mut used = 0;
    for (index, name) in names.iter().enumerate() {
        let wide = CHARACTER * name.len() as u32 + 40;
        if used + wide > width - 32 && used > 0 {
            rows.push(Vec::new());
            used = 0;
        }
        used += wide;
        rows.last_mut().expect("begun with one").push((index, name));
    }
    rows
}

fn draw_legend(area: &Area<'_>, rows: &[Vec<(usize, &str)>], grid: &Grid<'_>) -> anyhow::Result<()> {
    for (row, names) in rows.iter().enumerate() {
        let y = (ROW * (row as u32 + 1) + 12) as i32;
        let mut x = 18;
        for (index, name) in names {
            let color = color(grid, *index, name);
            area.draw(&Rectangle::new([(x, y), (x + 14, y + 12)], color.filled()))?;
            area.draw_text(name, &("sans-serif", 14).into_text_style(area), (x + 20, y))?;
            x += (CHARACTER * name.len() as u32 + 40) as i32;
        }
    }
    Ok(())
}

fn color(grid: &Grid<'_>, index: usize, name: &str) -> RGBColor {
    match grid.settings.draw.kind {
        Kind::Breakdown => palette::SERIES[index % palette::SERIES.len()],
        _ => palette::of(name, index),
    }
}

/// The largest and the smallest number of a metric over the given cells, with room around.
fn range(values: impl Iterator<Item = Value> + Clone, metric: Metric) -> (f64, f64) {
    let high = values.clone().map(|v| v.high).fold(f64::NEG_INFINITY, f64::max);
    let low = values.map(|v| v.low).fold(f64::INFINITY, f64::min);
    if !high.is_finite() {
        return (0.0, 1.0);
    }
    if metric.begins_at_zero() {
        return (0.0, if high > 0.0 { high * 1.1 } else { 1.0 });
    }
    let room = ((high - low) * 0.15).max(1e-6);
    (low - room, high + room)
}

fn values_of<'a>(grid: &'a Grid<'_>, panel: &'a str, metric: Metric) -> impl Iterator<Item = Value> + Clone + 'a {
    let draw = &grid.settings.draw;
    let pairs = grid.values(&draw.series).flat_map(move |series| grid.values(&draw.x).map(move |x| (series, x)));
    pairs
        .filter_map(move |(series, x)| metric.of(&grid.find(panel, series, x)?.summary))
        .collect::<Vec<_>>()
        .into_iter()
}

fn chart<'a, 'b>(
    area: &'a Area<'b>,
    caption: &str,
    x: std::ops::Range<f64>,
    y: std::ops::Range<f64>,
) -> anyhow::Result<Chart<'a, 'b>> {
    let mut builder = ChartBuilder::on(area);
    builder.margin(10).x_label_area_size(44).y_label_area_size(64);
    if !caption.is_empty() {
        builder.caption(caption, ("sans-serif", 16));
    }
    Ok(builder.build_cartesian_2d(x, y)?)
}

/// As many digits as tell the labels of an axis apart.
fn number(value: f64, span: f64) -> String {
    let digits = (1.0 - span.abs().max(1e-9).log10().floor()).clamp(0.0, 4.0) as usize;
    format!("{value:.digits$}")
}

/// Names of groups, centred under them: axis coordinates are group numbers.
fn group_axis(chart: &mut Chart<'_, '_>, names: &[&str], y: &str, span: f64) -> anyhow::Result<()> {
    let label = |at: &f64| {
        let index = (at - 0.5).round();
        let centred = (at - 0.5 - index).abs() < 0.01 && index >= 0.0;
        names.get(index as usize).filter(|_| centred).map(|name| (*name).to_owned()).unwrap_or_default()
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .x_labels(2 * names.len() + 1)
        .x_label_formatter(&label)
        .y_label_formatter(&|value| number(*value, span))
        .y_desc(y)
        .draw()?;
    Ok(())
}

fn bars(area: &Area<'_>, grid: &Grid<'_>, panel: &str, metric: Metric) -> anyhow::Result<()> {
    let settings = &grid.settings.draw;
    let groups: Vec<&str> = grid.values(&settings.x).collect();
    let series: Vec<&str> = grid.values(&settings.series).collect();
    let (low, high) = range(values_of(grid, panel, metric), metric);
    let mut chart = chart(area, panel, 0.0..groups.len() as f64, low..high)?;
    group_axis(&mut chart, &groups, metric.words(), high - low)?;
    let wide = 0.8 / series.len() as f64;
    for (group, x) in groups.iter().enumerate() {
        for (index, name) in series.iter().enumerate() {
            let value = grid.find(panel, name, x).and_then(|cell| metric.of(&cell.summary));
            let Some(value) = value else { continue };
            let left = group as f64 + 0.1 + index as f64 * wide;
            let color = palette::of(name, index);
            let bar = Rectangle::new([(left, low), (left + 0.92 * wide, value.mean)], color.filled());
            chart.draw_series([bar])?;
            interval(&mut chart, left + 0.46 * wide, value, &BLACK)?;
        }
    }
    Ok(())
}

fn interval(chart: &mut Chart<'_, '_>, x: f64, value: Value, color: &RGBColor) -> anyhow::Result<()> {
    if value.high > value.low {
        chart.draw_series([ErrorBar::new_vertical(x, value.low, value.mean, value.high, color.filled(), 5)])?;
    }
    Ok(())
}

fn lines(area: &Area<'_>, grid: &Grid<'_>, panel: &str, metric: Metric) -> anyhow::Result<()> {
    let settings = &grid.settings.draw;
    let xs: Vec<f64> = grid.values(&settings.x).filter_map(|x| x.parse().ok()).collect();
    let (first, last) = (xs.iter().copied().fold(f64::INFINITY, f64::min), xs.iter().copied().fold(0.0, f64::max));
    let (low, high) = range(values_of(grid, panel, metric), metric);
    // Room on the right for the names.
    let wide = last - first.min(0.0);
    let mut chart = chart(area, panel, first.min(0.0)..last + 0.38 * wide, low..high)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc(settings.x_label.as_deref().unwrap_or(&settings.x))
        .y_desc(metric.words())
        .x_label_formatter(&|x| if *x > last { String::new() } else { number(*x, last) })
        .y_label_formatter(&|y| number(*y, high - low))
        .draw()?;
    let mut labels = Vec::new();
    for (index, name) in grid.values(&settings.series).enumerate() {
        let color = palette::of(name, index);
        let points: Vec<(f64, Value)> = grid
            .values(&settings.x)
            .filter_map(|x| Some((x.parse().ok()?, metric.of(&grid.find(panel, name, x)?.summary)?)))
            .collect();
        chart.draw_series(LineSeries::new(points.iter().map(|(x, v)| (*x, v.mean)), color.stroke_width(2)))?;
        chart.draw_series(points.iter().map(|(x, v)| Circle::new((*x, v.mean), 3, color.filled())))?;
        for (x, value) in &points {
            interval(&mut chart, *x, *value, &color)?;
        }
        if let Some((x, value)) = points.last() {
            labels.push((*x + 0.02 * wide, value.mean, name, color));
        }
    }
    place_labels(&mut chart, labels, (high - low) * 0.06)
}

/// Names at the ends of lines, moved apart where they would overlap.
fn place_labels(
    chart: &mut Chart<'_, '_>,
    mut labels: Vec<(f64, f64, &str, RGBColor)>,
    apart: f64,
) -> anyhow::Result<()> {
    labels.sort_by(|a, b| a.1.total_cmp(&b.1));
    let mut floor = f64::NEG_INFINITY;
    for (x, y, name, color) in labels {
        let y = y.max(floor);
        floor = y + apart;
        let style = ("sans-serif", 14).into_font().color(&color).pos(plotters::style::text_anchor::Pos::new(
            plotters::style::text_anchor::HPos::Left,
            plotters::style::text_anchor::VPos::Center,
        ));
        chart.draw_series([Text::new(name.to_owned(), (x, y), style)])?;
    }
    Ok(())
}

fn frontier(area: &Area<'_>, grid: &Grid<'_>, panel: &str) -> anyhow::Result<()> {
    let settings = &grid.settings.draw;
    let (across, up) = (settings.metrics[0], settings.metrics[1]);
    let (left, right) = range(values_of(grid, panel, across), across);
    let (low, high) = range(values_of(grid, panel, up), up);
    let mut chart = chart(area, panel, left..right + 0.15 * (right - left), low..high)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc(across.words())
        .y_desc(up.words())
        .x_label_formatter(&|x| number(*x, right - left))
        .y_label_formatter(&|y| number(*y, high - low))
        .draw()?;
    let mut labels = Vec::new();
    for (index, name) in grid.values(&settings.series).enumerate() {
        let color = palette::of(name, index);
        let mut points: Vec<(f64, Value)> = grid
            .values(&settings.x)
            .filter_map(|x| {
                let summary = &grid.find(panel, name, x)?.summary;
                Some((across.of(summary)?.mean, up.of(summary)?))
            })
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        chart.draw_series(LineSeries::new(points.iter().map(|(x, v)| (*x, v.mean)), color.stroke_width(2)))?;
        chart.draw_series(points.iter().map(|(x, v)| Circle::new((*x, v.mean), 4, color.filled())))?;
        for (x, value) in &points {
            interval(&mut chart, *x, *value, &color)?;
        }
        if let Some((x, value)) = points.last() {
            labels.push((*x + 0.01 * (right - left), value.mean, name, color));
        }
    }
    place_labels(&mut chart, labels, (high - low) * 0.05)
}

/// One bar for each value of `x` and `series`, made of the parts of a request's time.
fn stacks(area: &Area<'_>, grid: &Grid<'_>, panel: &str) -> anyhow::Result<()> {
    let settings = &grid.settings.draw;
    let mut bars = Vec::new();
    for x in grid.values(&settings.x) {
        for series in grid.values(&settings.series) {
            let parts = grid.find(panel, series, x).and_then(|cell| breakdown::of(&cell.summary));
            bars.extend(parts.map(|parts| (if x == series { x.to_owned() } else { format!("{x} {series}") }, parts)));
        }
    }
    let top = bars.iter().map(|(_, parts)| parts.iter().sum::<f64>()).fold(1e-9, f64::max) * 1.1;
    let names: Vec<&str> = bars.iter().map(|(name, _)| name.trim()).collect();
    let mut chart = chart(area, panel, 0.0..bars.len().max(1) as f64, 0.0..top)?;
    group_axis(&mut chart, &names, "ms of a request's time per token", top)?;
    for (index, (_, parts)) in bars.iter().enumerate() {
        let mut from = 0.0;
        for (part, ms) in parts.iter().enumerate() {
            let color = palette::SERIES[part % palette::SERIES.len()];
            let at = index as f64;
            chart.draw_series([Rectangle::new([(at + 0.2, from), (at + 0.8, from + ms)], color.filled())])?;
            from += ms;
        }
        let text = Text::new(format!("{from:.1}"), (index as f64 + 0.42, from + 0.04 * top), ("sans-serif", 14));
        chart.draw_series([text])?;
    }
    Ok(())
}
