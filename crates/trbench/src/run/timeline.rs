//! The timeline of a run as a Chrome trace (`chrome://tracing`, Perfetto): one row per subserver.

use std::path::Path;

use serde_json::{Value, json};
use tokenrouter_engine::profile::{Activity, Span};

use crate::files::write_file;

/// Writes `timeline.json`.
pub(super) fn write(dir: &Path, names: &[String], spans: &[Vec<Span>]) -> anyhow::Result<()> {
    let mut events = Vec::new();
    for (model, (name, spans)) in names.iter().zip(spans).enumerate() {
        events.push(json!({
            "name": "thread_name", "ph": "M", "pid": 1, "tid": model, "args": {"name": format!("subserver {name}")},
        }));
        events.extend(spans.iter().map(|span| event(model, span)));
    }
    write_file(&dir.join("timeline.json"), &serde_json::to_vec(&json!({"traceEvents": events}))?)
}

fn event(model: usize, span: &Span) -> Value {
    let micros = |duration: std::time::Duration| duration.as_secs_f64() * 1e6;
    let mut event = json!({
        "name": span.activity, "ph": "X", "pid": 1, "tid": model, "ts": micros(span.start), "dur": micros(span.took),
    });
    if span.activity == Activity::Forward {
        event["args"] = json!({"rows": span.rows, "tokens": span.tokens});
    }
    event
}
