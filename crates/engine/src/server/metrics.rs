//! `GET /metrics`: Prometheus text. A collector reads the snapshots that the subservers publish; the library keeps the
//! server's own numbers. No step waits for a scrape.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, prometheus_text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tokenrouter_core::scheduler::{Snapshot, StepKind, StepTimes};

use super::{ApiError, App};
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

/// A number that rises and falls.
pub(super) type Number = Gauge<u64, AtomicU64>;

/// How an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Outcome {
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

impl Outcome {
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

/// Labels of an HTTP request.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Endpoint {
    pub(super) method: &'static str,
    /// A pattern, so that there are few.
    pub(super) path: String,
    pub(super) status: u16,
}

/// The server's own numbers.
#[derive(Debug)]
pub(super) struct Metrics {
    pub(super) ttft: Histogram,
    pub(super) inter_token: Histogram,
    pub(super) e2e: Histogram,
    pub(super) queue_time: Histogram,
    pub(super) prefill_time: Histogram,
    pub(super) decode_time: Histogram,
    pub(super) prompt_tokens: Counter,
    pub(super) in_flight: Number,
    completed: [Counter; 7],
    http_requests: Family<Endpoint, Counter>,
    http_durations: Family<Endpoint, Histogram, fn() -> Histogram>,
}

impl Metrics {
    pub(super) fn new() -> Self {
        Self {
            ttft: histogram(FIRST_TOKEN),
            inter_token: histogram(INTER_TOKEN),
            e2e: histogram(REQUEST),
            queue_time: histogram(REQUEST),
            prefill_time: histogram(REQUEST),
            decode_time: histogram(REQUEST),
            prompt_tokens: Counter::default(),
            in_flight: Number::default(),
            completed: Default::default(),
            http_requests: Family::default(),
            http_durations: Family::new_with_constructor(|| histogram(REQUEST)),
        }
    }

    pub(super) fn completed(&self, outcome: Outcome) {
        self.completed[outcome as usize].inc();
    }

    pub(super) fn answered(&self, endpoint: &Endpoint, took: Duration) {
        self.http_requests.get_or_create(endpoint).inc();
        self.http_durations.get_or_create(endpoint).observe(took.as_secs_f64());
    }
}

fn histogram(bounds: &[f64]) -> Histogram {
    Histogram::new(bounds.iter().copied())
}

pub(super) async fn metrics(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let metrics = &app.metrics;
    let mut registry = Registry::with_prefix("tokenrouter");
    registry.register("http_requests", "HTTP requests answered", metrics.http_requests.clone());
    let help = "Time to the head of the response";
    registry.register("http_request_duration_seconds", help, metrics.http_durations.clone());
    registry.register_collector(Box::new(AppCollector(Arc::clone(&app))));
    let mut text = String::new();
    prometheus_text::encode(&mut text, &registry).map_err(|error| ApiError::internal(error.to_string()))?;
    Ok(([(header::CONTENT_TYPE, prometheus_text::CONTENT_TYPE)], text).into_response())
}

/// Reads all numbers that are not the library's.
struct AppCollector(Arc<App>);

impl fmt::Debug for AppCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AppCollector")
    }
}

impl Collector for AppCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = Families(encoder);
        let snapshots = self.0.engine.snapshots();
        let hosted = snapshots.iter().enumerate().filter(|(index, _)| self.0.engine.hosts(*index));
        let hosted: Hosted<'_> = hosted.collect();
        requests(&mut out, &self.0)?;
        subservers(&mut out, &self.0, &hosted)?;
        handoffs(&mut out, &self.0, &hosted)?;
        peers(&mut out, &self.0)
    }
}

/// Labels of one series.
type Labels = Vec<(&'static str, String)>;

fn label(name: &'static str, value: &str) -> Labels {
    vec![(name, value.to_owned())]
}

fn single<V>(value: V) -> [(Labels, V); 1] {
    [(Labels::new(), value)]
}

/// Writes metrics, each with its series.
struct Families<'e>(DescriptorEncoder<'e>);

impl Families<'_> {
    /// `name` is without `_total`, which is added.
    fn counters<V>(&mut self, name: &str, help: &str, series: impl IntoIterator<Item = (Labels, V)>) -> fmt::Result
    where
        ConstCounter<V>: EncodeMetric,
    {
        let series = series.into_iter().map(|(labels, value)| (labels, ConstCounter::new(value)));
        self.family(name, help, MetricType::Counter, series)
    }

    fn gauges(&mut self, name: &str, help: &str, series: impl IntoIterator<Item = (Labels, u64)>) -> fmt::Result {
        let series = series.into_iter().map(|(labels, value)| (labels, ConstGauge::new(value)));
        self.family(name, help, MetricType::Gauge, series)
    }

    fn family<M: EncodeMetric>(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricType,
        series: impl Iterator<Item = (Labels, M)>,
    ) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, None, kind)?;
        for (labels, value) in series {
            value.encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// Of counts by upper bound, the last one infinite, and the sum of all values.
    fn histograms(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = (Labels, (Vec<(f64, u64)>, f64))>,
    ) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (labels, (buckets, sum)) in series {
            let count = buckets.iter().map(|(_, count)| count).sum();
            metric.encode_family(&labels)?.encode_histogram(sum, count, &buckets, NO_EXEMPLARS)?;
        }
        Ok(())
    }
}

const NO_EXEMPLARS: Option<&std::collections::HashMap<usize, Exemplar<Labels, f64>>> = None;

fn requests(out: &mut Families<'_>, app: &App) -> fmt::Result {
    let metrics = &app.metrics;
    out.gauges("http_requests_in_flight", "HTTP requests without a response yet.", single(metrics.in_flight.get()))?;
    let entry = &app.engine.model_names()[app.engine.entry_index()];
    for (name, help, histogram) in [
        ("time_to_first_token_seconds", "From the request to its first token.", &metrics.ttft),
        ("inter_token_latency_seconds", "Between two tokens of an answer.", &metrics.inter_token),
        ("e2e_request_latency_seconds", "From the request to the end of its answer.", &metrics.e2e),
        ("request_queue_time_seconds", "In the admission queue.", &metrics.queue_time),
        ("request_prefill_time_seconds", "From admission to the first token.", &metrics.prefill_time),
        ("request_decode_time_seconds", "From the first token to the last.", &metrics.decode_time),
    ] {
        out.family(name, help, MetricType::Histogram, [(label("model", entry), histogram.clone())].into_iter())?;
    }
    let completed = Outcome::ALL.iter().zip(&metrics.completed);
    let completed = completed.map(|(outcome, count)| (label("reason", outcome.as_str()), count.get()));
    out.counters("requests_completed", "Answers by how they ended.", completed)?;
    out.gauges("requests_open", "Requests that have not ended.", single(app.open.open.get()))?;
    let limit = app.config.max_concurrent_requests as u64;
    out.gauges("requests_open_limit", "Most of them (`server.max_concurrent_requests`).", single(limit))?;
    out.gauges("healthy", "Whether all subservers run.", single(u64::from(app.engine.is_healthy())))
}

/// Snapshots of the models that run in this process, with their indices.
type Hosted<'a> = Vec<(usize, &'a Snapshot)>;

/// A number of every subserver: its name, what it is, and where it is.
type OfSnapshot = (&'static str, &'static str, fn(&Snapshot) -> u64);

const GAUGES: [OfSnapshot; 8] = [
    ("requests_waiting", "In the admission queue.", |s| s.occupancy.queued as u64),
    ("requests_ready", "Waiting for a batch.", |s| s.occupancy.ready as u64),
    ("requests_running", "In the batch that runs.", |s| s.occupancy.running as u64),
    ("requests_pending_at_peer", "At another model, with state kept here.", |s| s.occupancy.pending as u64),
    ("batch_threshold", "Ready requests that launch a batch.", |s| s.threshold as u64),
    ("kv_blocks_used", "KV blocks of requests.", |s| s.kv_held as u64),
    ("kv_blocks_cached", "KV blocks that keep prefixes of ended requests.", |s| s.kv_cached as u64),
    ("kv_blocks_total", "All KV blocks.", |s| s.kv_total as u64),
];

const COUNTERS: [OfSnapshot; 10] = [
    ("generated_tokens", "Candidates.", |s| s.stats.generated),
    ("committed_tokens", "Tokens given to clients.", |s| s.stats.emitted),
    ("batch_threshold_changes", "Tables of thresholds that replaced the one before.", |s| s.stats.threshold_changes),
    ("prefix_cache_hits", "Tokens whose keys and values were known.", |s| s.stats.prefix_hits),
    ("prefix_cache_lookups", "Tokens looked up.", |s| s.stats.prefix_tokens),
    ("cuda_graph_hits", "Steps that were one launch of a CUDA graph.", |s| s.stats.graph_hits),
    ("cuda_graph_misses", "Steps on CUDA that no captured shape held.", |s| s.stats.graph_misses),
    ("batch_rows", "Rows of all batches.", |s| s.stats.rows),
    ("handoffs_out", "Requests sent to other models.", |s| s.stats.handoffs.iter().sum()),
    ("steps", "Batches.", |s| s.stats.steps),
];

/// Upper bounds of rows per batch.
const ROWS: [u64; 16] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512];

/// Batches by their rows: `sizes[b]` of them had `b`.
fn batch_sizes(sizes: &[u64]) -> (Vec<(f64, u64)>, f64) {
    let mut buckets: Vec<_> = ROWS.iter().map(|bound| *bound as f64).chain([f64::INFINITY]).map(|b| (b, 0)).collect();
    for (rows, count) in sizes.iter().enumerate() {
        buckets[ROWS.partition_point(|bound| *bound < rows as u64)].1 += count;
    }
    (buckets, sizes.iter().enumerate().map(|(rows, count)| rows as f64 * *count as f64).sum())
}

fn step_times(times: &StepTimes) -> (Vec<(f64, u64)>, f64) {
    let bounds = StepTimes::BOUNDS.iter().copied().chain([f64::INFINITY]);
    (bounds.zip(times.counts).collect(), times.sum.as_secs_f64())
}

fn subservers(out: &mut Families<'_>, app: &App, hosted: &Hosted<'_>) -> fmt::Result {
    let names = app.engine.model_names();
    let subserver = |index: usize| label("subserver", &names[index]);
    for (name, help, value) in GAUGES {
        out.gauges(name, help, hosted.iter().map(|(index, snapshot)| (subserver(*index), value(snapshot))))?;
    }
    for (name, help, value) in COUNTERS {
        out.counters(name, help, hosted.iter().map(|(index, snapshot)| (subserver(*index), value(snapshot))))?;
    }
    let waits = hosted.iter().map(|(index, s)| (subserver(*index), s.stats.buffer_wait.as_secs_f64()));
    out.counters("buffer_wait_seconds", "Waits of all rows between ready and launch.", waits)?;
    let capacity = app.engine.info().max_active as u64;
    let capacity = (0..names.len()).map(|index| (subserver(index), capacity));
    out.gauges("requests_capacity", "Most requests decoded at once (`system.max_active`).", capacity)?;
    let prompt_tokens = [(subserver(app.engine.entry_index()), app.metrics.prompt_tokens.get())];
    out.counters("prompt_tokens", "Prompt tokens taken in.", prompt_tokens)?;
    let launches = hosted.iter().flat_map(|(index, snapshot)| {
        let reasons = [("full", snapshot.stats.launches_full), ("timeout", snapshot.stats.launches_timeout)];
        reasons.map(|(reason, count)| ([subserver(*index), label("reason", reason)].concat(), count))
    });
    out.counters("batch_launch", "Launches, by what caused them.", launches)?;
    let sizes = hosted.iter().map(|(index, s)| (subserver(*index), batch_sizes(&s.stats.batch_sizes)));
    out.histograms("batch_size", "Rows per batch.", sizes)?;
    let steps = hosted.iter().flat_map(|(index, snapshot)| {
        let kinds = StepKind::ALL.iter().zip(&snapshot.stats.step_times);
        kinds.map(|(kind, times)| ([subserver(*index), label("kind", kind.as_str())].concat(), step_times(times)))
    });
    out.histograms("step_seconds", "Time per batch.", steps)
}

fn handoffs(out: &mut Families<'_>, app: &App, hosted: &Hosted<'_>) -> fmt::Result {
    let names = app.engine.model_names();
    let mut table = |name: &str, help: &str, of: fn(&Snapshot) -> &[u64]| {
        let pairs = hosted.iter().flat_map(|(from, snapshot)| {
            let others = of(snapshot).iter().enumerate().filter(move |(to, _)| to != from);
            let labels = move |to: usize| vec![("from", names[*from].clone()), ("to", names[to].clone())];
            others.map(move |(to, count)| (labels(to), *count))
        });
        out.counters(name, help, pairs)
    };
    table("handoffs", "Requests sent from one model to another.", |s| &s.stats.handoffs)?;
    table("handoff_tokens", "Tokens that travelled with them.", |s| &s.stats.handoff_tokens)
}

/// The nodes of the other models, where there are some.
fn peers(out: &mut Families<'_>, app: &App) -> fmt::Result {
    let peers = app.engine.peers();
    if peers.is_empty() {
        return Ok(());
    }
    let up = peers.iter().map(|peer| (label("peer", &peer.model), u64::from(peer.is_up())));
    out.gauges("peer_up", "Whether the node of a model answers.", up)?;
    type OfPeer = (&'static str, &'static str, fn(&PeerView) -> u64);
    let counters: [OfPeer; 5] = [
        ("peer_losses", "Times that it was lost.", |p| p.losses),
        ("peer_connections", "Connections with it.", |p| p.connections),
        ("peer_messages_sent", "Messages for it.", |p| p.sent.0),
        ("peer_messages_repeated", "Messages that were sent again.", |p| p.sent.1),
        ("peer_messages_received", "Messages from it.", |p| p.delivered),
    ];
    for (name, help, value) in counters {
        out.counters(name, help, peers.iter().map(|peer| (label("peer", &peer.model), value(peer))))?;
    }
    Ok(())
}
