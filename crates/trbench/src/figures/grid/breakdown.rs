//! Where the time of a request goes.

use crate::results::Summary;

/// A part of a request's time.
#[derive(Debug)]
pub(super) struct Part {
    /// In files.
    pub(super) key: &'static str,
    /// In pictures.
    pub(super) words: &'static str,
}

/// All parts, in the order of the bars.
pub(super) const PARTS: [Part; 6] = [
    Part { key: "entry_decode", words: "decode steps, entry model" },
    Part { key: "entry_extend", words: "prefill and extend steps, entry model" },
    Part { key: "other_decode", words: "decode steps, other models" },
    Part { key: "other_extend", words: "prefill and extend steps, other models" },
    Part { key: "buffer", words: "held back for a batch" },
    Part { key: "between", words: "busy model, moves, admission, client" },
];

/// Milliseconds per committed token, by part; `None` where the models are not known.
///
/// A request's steps are all the steps that it had a row in, each counted with its whole time. What the models cannot
/// account for of the requests' time from sending to the end is the last part.
pub(super) fn of(summary: &Summary) -> Option<[f64; PARTS.len()]> {
    let tokens = summary.total_output_tokens as f64;
    let mean = summary.latency.get("mean_e2el_ms")?.as_f64()?;
    if summary.models.is_empty() || tokens == 0.0 || summary.failed > 0 {
        return None;
    }
    let mut parts = [0.0; PARTS.len()];
    for (index, model) in summary.models.iter().enumerate() {
        let first = if index == summary.entry { 0 } else { 2 };
        parts[first] += 1e3 * (model.row_s - model.extend_row_s);
        parts[first + 1] += 1e3 * model.extend_row_s;
        parts[4] += model.buffer_wait_ms * model.rows as f64;
    }
    let all = mean * summary.completed as f64;
    parts[5] = (all - parts.iter().sum::<f64>()).max(0.0);
    Some(parts.map(|part| part / tokens))
}
