//! Colours that colour-blind readers can tell apart (Okabe and Ito 2008), the same for a thing everywhere.

use plotters::style::RGBColor;

/// For lines and points, in a fixed order.
pub(super) const SERIES: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
];

/// From light to dark blue for shares 0 to 1; falling lightness reads in grey as well.
pub(super) fn shade(share: f64) -> RGBColor {
    let share = share.clamp(0.0, 1.0);
    let mix = |from: f64, to: f64| (from + share * (to - from)).round() as u8;
    RGBColor(mix(247.0, 8.0), mix(251.0, 64.0), mix(255.0, 129.0))
}

/// The colour of a system, or the `index`-th for anything else.
pub(super) fn of(name: &str, index: usize) -> RGBColor {
    const SYSTEMS: [(&str, usize); 8] = [
        ("delayed", 0),
        ("lockstep", 1),
        ("single:small", 2),
        ("fixed thresholds", 2),
        ("async-no-resume", 3),
        ("standard", 4),
        ("async", 5),
        ("single:large", 6),
    ];
    let known = SYSTEMS.iter().find(|(system, _)| *system == name).map(|(_, index)| *index);
    SERIES[known.unwrap_or(index) % SERIES.len()]
}
