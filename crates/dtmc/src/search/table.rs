//! The best vector for every number of active requests, which a serving engine looks up as requests come and go.

use super::local::{climb_from, starts};
use super::{Progress, SearchOptions, SearchResult, Strategy, optimize, rank};
use crate::{ClosedSystem, Error, Prediction, Thresholds, count_feasible, is_feasible};

/// Feasible vectors up to which a row is searched by [`optimize`] as it is; beyond, hill climbing from the rows before.
const ENUMERATED: u64 = 150;

/// One row of the table: the search result for `active` requests.
#[derive(Debug, Clone, serde::Serialize)]
pub struct TableRow {
    /// Number of active requests `n`.
    pub active: u32,
    /// The best vector.
    pub best: Prediction,
    /// True when every feasible vector was looked at.
    pub exhaustive: bool,
}

/// The best vector for every active count `n = 1..=N`, at index `n - 1`.
///
/// # Errors
/// As [`optimize`].
pub fn threshold_table(system: &ClosedSystem, options: &SearchOptions) -> Result<Vec<Thresholds>, Error> {
    let rows = threshold_table_rows(system, options, &|_, _| ())?;
    Ok(rows.into_iter().map(|row| row.best.thresholds().clone()).collect())
}

/// As [`threshold_table`], with the throughput of every row, reporting progress in rows.
///
/// # Errors
/// As [`optimize`].
pub fn threshold_table_rows(
    system: &ClosedSystem,
    options: &SearchOptions,
    progress: Progress<'_>,
) -> Result<Vec<TableRow>, Error> {
    let mut rows: Vec<TableRow> = Vec::with_capacity(system.concurrency() as usize);
    for active in 1..=system.concurrency() {
        rows.push(threshold_table_row(&system.with_concurrency(active)?, rows.last(), options)?);
        progress(active as usize, system.concurrency() as usize);
    }
    Ok(rows)
}

/// One row of the table, for the requests of `system`: for callers that stop between rows. `before` is the row of one
/// request less, near which a large search starts.
///
/// # Errors
/// As [`optimize`].
pub fn threshold_table_row(
    system: &ClosedSystem,
    before: Option<&TableRow>,
    options: &SearchOptions,
) -> Result<TableRow, Error> {
    let found = row(system, before, options)?;
    Ok(TableRow { active: system.concurrency(), best: found.best, exhaustive: found.exhaustive })
}

/// The row with the highest throughput whose mean time between two tokens of a request is at most `bound_ms`: how many
/// requests to admit, and with which thresholds, under a latency bound.
///
/// # Errors
/// [`Error::NoneWithinBound`] when even one active request is slower than the bound.
pub fn best_within_time_per_token(rows: &[TableRow], bound_ms: f64) -> Result<&TableRow, Error> {
    let time = |row: &TableRow| row.best.measures().time_per_token_ms;
    let within = rows.iter().filter(|row| time(row) <= bound_ms);
    let best = within.max_by(|a, b| a.best.throughput_tok_s().total_cmp(&b.best.throughput_tok_s()));
    best.ok_or_else(|| {
        let closest = rows.iter().min_by(|a, b| time(a).total_cmp(&time(b)));
        Error::NoneWithinBound {
            bound: format!("a mean time per token of at most {bound_ms} ms"),
            closest: closest.map_or_else(String::new, |row| format!("{} at n = {}", row.best.thresholds(), row.active)),
            value: closest.map_or_else(String::new, |row| format!("{:.4} ms", time(row))),
        }
    })
}

fn row(system: &ClosedSystem, before: Option<&TableRow>, options: &SearchOptions) -> Result<SearchResult, Error> {
    let feasible = count_feasible(system);
    let Some(before) = before.filter(|_| feasible > ENUMERATED && options.strategy == Strategy::Auto) else {
        return optimize(system, options);
    };
    // The optimum moves by little from n - 1 to n: start there, and from each vector with one more request of slack.
    let last = before.best.thresholds().as_slice();
    let mut from: Vec<Vec<u32>> = vec![last.to_vec()];
    for index in 0..last.len() {
        let mut raised = last.to_vec();
        raised[index] = (raised[index] + 1).min(system.largest_batch(index));
        from.push(raised);
    }
    from.extend(starts(system));
    from.retain(|vector| is_feasible(vector, system.concurrency()));
    let candidates = climb_from(system, options, &|_, _| (), from, 2)?;
    rank(candidates, Strategy::Local, feasible, options)
}
