//! `--plot`: times over rates, or the map.

use super::answer::Plan;
use super::map::Point;
use plotters::prelude::*;

/// Size of a picture, and of a panel of the map, in pixels.
const SIZE: (u32, u32) = (900, 600);
const PANEL: (u32, u32) = (420, 340);

/// Colours that colour-blind readers can tell apart.
const COLOURS: [RGBColor; 4] =
    [RGBColor(0, 114, 178), RGBColor(213, 94, 0), RGBColor(0, 158, 115), RGBColor(204, 121, 167)];

/// Mean times over the rate of a replica, the plan's own marked.
pub(super) fn curve(plan: &Plan) -> anyhow::Result<String> {
    let of = |name: &'static str, value: fn(&tokenrouter_dtmc::serving::OpenLoop) -> f64| {
        let points: Vec<(f64, f64)> = plan.curve.iter().map(|one| (one.rate_per_s, value(one).max(1e-3))).collect();
        (name, points)
    };
    let series = [
        of("end to end", |one| one.e2e_ms),
        of("first token", |one| one.ttft_ms),
        of("wait", |one| one.wait_ms),
        of("time per token", |one| one.tpot_ms.unwrap_or(0.0)),
    ];
    let last = plan.curve.last().map_or(1.0, |one| one.rate_per_s);
    let high = series.iter().flat_map(|(_, points)| points).map(|point| point.1).fold(1.0, f64::max);
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption("Predicted mean times", ("sans-serif", 20))
            .margin(16)
            .x_label_area_size(44)
            .y_label_area_size(72)
            .build_cartesian_2d(0.0..last * 1.02, (1.0..high * 1.3).log_scale())?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_desc("requests per second and replica")
            .y_desc("ms")
            .draw()?;
        for ((name, points), colour) in series.into_iter().zip(COLOURS) {
            chart
                .draw_series(LineSeries::new(points, colour.stroke_width(2)))?
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
        }
        let own = plan.answer.rate_per_s / f64::from(plan.replicas);
        if own < last {
            chart.draw_series([PathElement::new([(own, 1.0), (own, high * 1.3)], BLACK.mix(0.4))])?;
        }
        chart.configure_series_labels().border_style(BLACK.mix(0.3)).background_style(WHITE).draw()?;
        area.present()?;
    }
    Ok(svg)
}

/// A panel for every number of requests and prefill ratio: share to the right, step ratio upwards.
pub(super) fn map(points: &[Point]) -> anyhow::Result<String> {
    let values = |of: fn(&Point) -> f64| {
        let mut all: Vec<f64> = points.iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        all.dedup();
        all
    };
    let (shares, steps) = (values(|p| p.share), values(|p| p.step_ratio));
    let (prefills, actives) = (values(|p| p.prefill_ratio), values(|p| f64::from(p.active)));
    let size = (PANEL.0 * prefills.len() as u32, PANEL.1 * actives.len() as u32 + 40);
    let mut svg = String::new();
    {
        let whole = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        whole.fill(&WHITE)?;
        let area = whole.titled(
            "Predicted tokens per second over the large model alone (blue: more, orange: less)",
            ("sans-serif", 18),
        )?;
        for (panel, (active, prefill)) in area
            .split_evenly((actives.len(), prefills.len()))
            .iter()
            .zip(actives.iter().flat_map(|active| prefills.iter().map(move |prefill| (*active, *prefill))))
        {
            let mut chart = ChartBuilder::on(panel)
                .caption(format!("{active} active, prefill {prefill} times as fast"), ("sans-serif", 15))
                .margin(8)
                .x_label_area_size(34)
                .y_label_area_size(44)
                .build_cartesian_2d(0.0..shares.len() as f64, 0.0..steps.len() as f64)?;
            let name = |all: &[f64], at: f64| {
                let fits = (at.fract() - 0.5).abs() < 1e-9;
                all.get(at as usize).filter(|_| fits).map_or_else(String::new, f64::to_string)
            };
            chart
                .configure_mesh()
                .disable_mesh()
                .x_labels(2 * shares.len() + 1)
                .y_labels(2 * steps.len() + 1)
                .x_label_formatter(&|at| name(&shares, *at))
                .y_label_formatter(&|at| name(&steps, *at))
                .x_desc("share of the large model")
                .y_desc("step ratio")
                .draw()?;
            let here = points.iter().filter(|p| f64::from(p.active) == active && p.prefill_ratio == prefill);
            let cells: Vec<(usize, usize, f64)> = here
                .filter_map(|p| {
                    let x = shares.iter().position(|share| *share == p.share)?;
                    Some((x, steps.iter().position(|step| *step == p.step_ratio)?, p.speedup_over_large))
                })
                .collect();
            chart.draw_series(cells.iter().map(|&(x, y, value)| {
                Rectangle::new([(x as f64, y as f64), (x as f64 + 1.0, y as f64 + 1.0)], shade(value).filled())
            }))?;
            chart.draw_series(cells.iter().map(|&(x, y, value)| {
                let style = ("sans-serif", 12).into_font().color(&BLACK);
                Text::new(format!("{value:.2}"), (x as f64 + 0.15, y as f64 + 0.6), style)
            }))?;
        }
        whole.present()?;
    }
    Ok(svg)
}

/// White at 1, orange below, blue above, by the logarithm.
fn shade(value: f64) -> RGBColor {
    let depth = (value.ln().abs() / 4.0_f64.ln()).min(1.0);
    let end = if value >= 1.0 { (86.0, 180.0, 233.0) } else { (230.0, 159.0, 0.0) };
    let mix = |to: f64| (255.0 + depth * (to - 255.0)).round() as u8;
    RGBColor(mix(end.0), mix(end.1), mix(end.2))
}
