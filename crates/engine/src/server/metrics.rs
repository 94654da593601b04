//! `GET /metrics`: Prometheus text. The engine's numbers are atomics, so a scrape takes none of its locks.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use super::{ApiError, App};
use crate::meters::{Histogram, Meters, Number, StepKind};
use crate::node::PeerView;

/// Seconds to a first token, as vLLM has them: dashboards carry over.
const FIRST_TOKEN: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
];
/// Seconds between tokens.
const INTER_TOKEN: &[f64] =
    &[0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0];
/// Seconds of a request or of a part of it.
const REQUEST: &[f64] = &[
    0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0,
];

/// How an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum End {
    Stop,
    Length,
    /// Somebody asked for it.
    Cancelled,
    /// The client went away.
    Disconnected,
    Timeout,
    Rejected,
    Error,
}

impl End {
    const ALL: [Self; 7] =
        [Self::Stop, Self::Length, Self::Cancelled, Self::Disconnected, Self::Timeout, Self::Rejected, Self::Error];

    pub(super) fn of_error(error: &ApiError) -> Self {
        match error.code {
            "cancelled" => Self::Cancelled,
            "timeout" | "queue_timeout" => Self::Timeout,
            _ => Self::Error,
        }
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Cancelled => "cancelled",
            Self::Disconnected => "disconnected",
            Self::Timeout => "timeout",
            Self::Rejected => "rejected",
            Self::Error => "error",
        }
    }
}

/// Method, path and status.
type Endpoint = (String, &'static str, u16);

/// The server's own numbers.
#[derive(Debug)]
pub(super) struct Metrics {
    pub(super) ttft: Histogram,
    pub(super) inter_token: Histogram,
    pub(super) e2e: Histogram,
    pub(super) queue_time: Histogram,
    pub(super) prefill_time: Histogram,
    pub(super) decode_time: Histogram,
    pub(super) prompt_tokens: Number,
    pub(super) in_flight: Number,
    completed: [Number; 7],
    /// The server's, not the engine's: no step waits for it. Paths are patterns, so that it stays small.
    http: Mutex<BTreeMap<Endpoint, Arc<Histogram>>>,
}

impl Metrics {
    pub(super) fn new() -> Self {
        Self {
            ttft: Histogram::new(FIRST_TOKEN),
            inter_token: Histogram::new(INTER_TOKEN),
            e2e: Histogram::new(REQUEST),
            queue_time: Histogram::new(REQUEST),
            prefill_time: Histogram::new(REQUEST),
            decode_time: Histogram::new(REQUEST),
            prompt_tokens: Number::default(),
            in_flight: Number::default(),
            completed: Default::default(),
            http: Mutex::default(),
        }
    }

    pub(super) fn completed(&self, end: End) {
        self.completed[end as usize].add(1);
    }

    pub(super) fn answered(&self, method: &str, path: &'static str, status: u16, took: Duration) {
        let mut http = self.http.lock().unwrap_or_else(PoisonError::into_inner);
        let endpoint = (method.to_owned(), path, status);
        let histogram = Arc::clone(http.entry(endpoint).or_insert_with(|| Arc::new(Histogram::new(REQUEST))));
        drop(http);
        histogram.observe_time(took);
    }
}

pub(super) async fn metrics(State(app): State<Arc<App>>) -> Response {
    let headers = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (headers, render(&app)).into_response()
}

fn render(app: &App) -> String {
    let mut out = Text::default();
    http(&mut out, app);
    requests(&mut out, app);
    subservers(&mut out, app);
    handoffs(&mut out, app);
    peers(&mut out, app);
    out.0
}

fn http(out: &mut Text, app: &App) {
    let metrics = &app.metrics;
    let by_endpoint: Vec<(Endpoint, Arc<Histogram>)> = {
        let http = metrics.http.lock().unwrap_or_else(PoisonError::into_inner);
        http.iter().map(|(endpoint, histogram)| (endpoint.clone(), Arc::clone(histogram))).collect()
    };
    let labels = |(method, path, status): &Endpoint| {
        format!("method=\"{}\",path=\"{path}\",status=\"{status}\"", escaped(method))
    };
    out.head("http_requests_total", "counter", "HTTP requests answered.");
    for (endpoint, histogram) in &by_endpoint {
        out.line("http_requests_total", &labels(endpoint), histogram.cumulative().1 as f64);
    }
    out.head("http_request_duration_seconds", "histogram", "Time to the head of the response.");
    for (endpoint, histogram) in &by_endpoint {
        out.histogram("http_request_duration_seconds", &labels(endpoint), histogram);
    }
    out.single("http_requests_in_flight", "gauge", "HTTP requests without a response yet.", "", &metrics.in_flight);
}

fn requests(out: &mut Text, app: &App) {
    let metrics = &app.metrics;
    let entry = format!("model=\"{}\"", escaped(&app.engine.model_names()[app.engine.entry_index()]));
    for (name, help, histogram) in [
        ("time_to_first_token_seconds", "From the request to its first token.", &metrics.ttft),
        ("inter_token_latency_seconds", "Between two tokens of an answer.", &metrics.inter_token),
        ("e2e_request_latency_seconds", "From the request to the end of its answer.", &metrics.e2e),
        ("request_queue_time_seconds", "In the admission queue.", &metrics.queue_time),
        ("request_prefill_time_seconds", "From admission to the first token.", &metrics.prefill_time),
        ("request_decode_time_seconds", "From the first token to the last.", &metrics.decode_time),
    ] {
        out.head(name, "histogram", help);
        out.histogram(name, &entry, histogram);
    }
    out.head("requests_completed_total", "counter", "Answers by how they ended.");
    for end in End::ALL {
        let count = metrics.completed[end as usize].get();
        out.line("requests_completed_total", &format!("reason=\"{}\"", end.as_str()), count as f64);
    }
    out.single("requests_open", "gauge", "Requests that have not ended.", "", &app.open.open);
    let capacity = app.config.max_concurrent_requests as f64;
    out.head("requests_open_limit", "gauge", "Most of them (`server.max_concurrent_requests`).");
    out.line("requests_open_limit", "", capacity);
    out.head("healthy", "gauge", "Whether all subservers run.");
    out.line("healthy", "", f64::from(u8::from(app.engine.is_healthy())));
}

/// One number of every subserver.
type OfMeters = fn(&Meters) -> f64;

const SUBSERVERS: [(&str, &str, &str, OfMeters); 19] = [
    ("requests_waiting", "gauge", "In the admission queue.", |m| m.queued.get() as f64),
    ("requests_ready", "gauge", "Waiting for a batch.", |m| m.ready.get() as f64),
    ("requests_running", "gauge", "In the batch that runs.", |m| m.running.get() as f64),
    ("requests_pending_at_peer", "gauge", "At another model, with state kept here.", |m| m.pending.get() as f64),
    ("generated_tokens_total", "counter", "Candidates.", |m| m.generated.get() as f64),
    ("committed_tokens_total", "counter", "Tokens given to clients.", |m| m.committed.get() as f64),
    ("batch_threshold", "gauge", "Ready requests that launch a batch.", |m| m.threshold.get() as f64),
    ("batch_threshold_changes_total", "counter", "Tables of thresholds that replaced the one before.", |m| {
        m.threshold_changes.get() as f64
    }),
    ("kv_blocks_used", "gauge", "KV blocks of requests.", |m| m.kv_used.get() as f64),
    ("kv_blocks_cached", "gauge", "KV blocks that keep prefixes of ended requests.", |m| m.kv_cached.get() as f64),
    ("kv_blocks_total", "gauge", "All KV blocks.", |m| m.kv_total.get() as f64),
    ("prefix_cache_hits_total", "counter", "Tokens whose keys and values were known.", |m| m.prefix_hits.get() as f64),
    ("prefix_cache_lookups_total", "counter", "Tokens looked up.", |m| m.prefix_lookups.get() as f64),
    ("cuda_graph_hits_total", "counter", "Steps that were one launch of a CUDA graph.", |m| m.graph_hits.get() as f64),
    ("cuda_graph_misses_total", "counter", "Steps on CUDA that no captured shape held.", |m| {
        m.graph_misses.get() as f64
    }),
    ("batch_rows_total", "counter", "Rows of all batches.", |m| m.rows.get() as f64),
    ("batch_admission_wait_seconds_total", "counter", "Waits of all rows between ready and launch.", |m| {
        m.buffer_wait_nanos.get() as f64 / 1e9
    }),
    ("handoffs_out_total", "counter", "Requests sent to other models.", |m| {
        m.handoffs.iter().map(Number::get).sum::<u64>() as f64
    }),
    ("steps_total", "counter", "Batches.", |m| m.batch_size.cumulative().1 as f64),
];

/// Numbers of the models that run in this process.
fn hosted(app: &App) -> impl Iterator<Item = (usize, &Meters)> {
    app.engine.meters().enumerate().filter(|(index, _)| app.engine.hosts(*index))
}

/// The nodes of the other models, where there are some.
fn peers(out: &mut Text, app: &App) {
    let peers = app.engine.peers();
    if peers.is_empty() {
        return;
    }
    for (name, kind, help, value) in [
        (
            "peer_up",
            "gauge",
            "Whether the node of a model answers.",
            (|p| u64::from(p.is_up())) as fn(&PeerView) -> u64,
        ),
        ("peer_losses_total", "counter", "Times that it was lost.", |p| p.losses),
        ("peer_connections_total", "counter", "Connections with it.", |p| p.connections),
        ("peer_messages_sent_total", "counter", "Messages for it.", |p| p.sent.0),
        ("peer_messages_repeated_total", "counter", "Messages that were sent again.", |p| p.sent.1),
        ("peer_messages_received_total", "counter", "Messages from it.", |p| p.delivered),
    ] {
        out.head(name, kind, help);
        for peer in &peers {
            out.line(name, &format!("peer=\"{}\"", escaped(&peer.model)), value(peer) as f64);
        }
    }
}

fn subservers(out: &mut Text, app: &App) {
    let names = app.engine.model_names();
    let label = |index: usize| format!("subserver=\"{}\"", escaped(&names[index]));
    for (name, kind, help, value) in SUBSERVERS {
        out.head(name, kind, help);
        for (index, meters) in hosted(app) {
            out.line(name, &label(index), value(meters));
        }
    }
    let info = app.engine.info();
    out.head("requests_capacity", "gauge", "Most requests decoded at once (`system.max_active`).");
    (0..names.len()).for_each(|index| out.line("requests_capacity", &label(index), info.max_active as f64));
    out.head("prompt_tokens_total", "counter", "Prompt tokens taken in.");
    out.line("prompt_tokens_total", &label(app.engine.entry_index()), app.metrics.prompt_tokens.get() as f64);
    out.head("batch_launch_total", "counter", "Launches, by what caused them.");
    for (index, meters) in hosted(app) {
        for (reason, count) in [("full", &meters.launches_full), ("timeout", &meters.launches_timeout)] {
            out.line("batch_launch_total", &format!("{},reason=\"{reason}\"", label(index)), count.get() as f64);
        }
    }
    out.head("batch_size", "histogram", "Rows per batch.");
    for (index, meters) in hosted(app) {
        out.histogram("batch_size", &label(index), &meters.batch_size);
    }
    out.head("step_seconds", "histogram", "Time per batch.");
    for (index, meters) in hosted(app) {
        for (kind, histogram) in StepKind::ALL.iter().zip(&meters.step_seconds) {
            out.histogram("step_seconds", &format!("{},kind=\"{}\"", label(index), kind.as_str()), histogram);
        }
    }
}

fn handoffs(out: &mut Text, app: &App) {
    let names = app.engine.model_names();
    let mut table = |name: &str, help: &str, of: fn(&Meters) -> &[Number]| {
        out.head(name, "counter", help);
        for (from, meters) in hosted(app) {
            for (to, count) in of(meters).iter().enumerate().filter(|(to, _)| *to != from) {
                let labels = format!("from=\"{}\",to=\"{}\"", escaped(&names[from]), escaped(&names[to]));
                out.line(name, &labels, count.get() as f64);
            }
        }
    };
    table("handoffs_total", "Requests sent from one model to another.", |m| &m.handoffs);
    table("handoff_tokens_total", "Tokens that travelled with them.", |m| &m.handoff_tokens);
}

fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Prometheus text.
#[derive(Default)]
struct Text(String);

impl Text {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP tokenrouter_{name} {help}\n# TYPE tokenrouter_{name} {kind}");
    }

    fn line(&mut self, name: &str, labels: &str, value: f64) {
        let _ = match labels {
            "" => writeln!(self.0, "tokenrouter_{name} {value}"),
            labels => writeln!(self.0, "tokenrouter_{name}{{{labels}}} {value}"),
        };
    }

    fn single(&mut self, name: &str, kind: &str, help: &str, labels: &str, value: &Number) {
        self.head(name, kind, help);
        self.line(name, labels, value.get() as f64);
    }

    fn histogram(&mut self, name: &str, labels: &str, histogram: &Histogram) {
        let (below, all) = histogram.cumulative();
        for (bound, count) in below {
            self.line(&format!("{name}_bucket"), &format!("{labels},le=\"{bound}\""), count as f64);
        }
        self.line(&format!("{name}_bucket"), &format!("{labels},le=\"+Inf\""), all as f64);
        self.line(&format!("{name}_sum"), labels, histogram.sum());
        self.line(&format!("{name}_count"), labels, all as f64);
    }
}
