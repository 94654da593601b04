//! Random systems, workloads and faults, as functions of a seed.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::{LinkDelay, Network, Partition, PathFaults, Simulator};
use crate::emulated::{EmulatedModel, LatencyProfile};
use crate::keyed::{Purpose, draw_u64};
use crate::reference::{self, ReferenceModel};
use crate::request::{CommittedToken, FinishReason, ModelIndex, Request, RequestId, SamplingParams};
use crate::routing::registry::{self, SystemView};
use crate::routing::{BatchView, Candidate, Decision, RoutingConfig, RoutingPolicy, Row};
use crate::scheduler::{CoreConfig, ThresholdTable};
use crate::token_texts::TokenTexts;
use crate::transport::LinkConfig;

const BLOCK: usize = 4;
/// A small vocabulary with one end token, so that requests end at random positions.
const VOCAB: u32 = 40;
const EOS: u32 = 7;
/// Blocks of the one-request loop.
const REFERENCE_BLOCKS: usize = 64;

/// Something that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// Messages take time, at random.
    Delay,
    /// Packets get lost.
    Loss,
    /// Packets arrive twice.
    Duplicate,
    /// Packets overtake each other.
    Reorder,
    /// Models stop and start again.
    Crash,
    /// Two models do not reach each other for a while.
    Partition,
    /// Clients give up.
    Cancel,
    /// Steps take longer, at random.
    Jitter,
}

impl Fault {
    /// All of them, with their names.
    pub const ALL: [(&'static str, Self); 8] = [
        ("delay", Self::Delay),
        ("loss", Self::Loss),
        ("duplicate", Self::Duplicate),
        ("reorder", Self::Reorder),
        ("crash", Self::Crash),
        ("partition", Self::Partition),
        ("cancel", Self::Cancel),
        ("jitter", Self::Jitter),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, fault)| *fault == self).map_or("", |(name, _)| name)
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.iter().find(|(name, _)| *name == text).map(|(_, fault)| *fault).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|(name, _)| *name).collect();
            format!("there is no fault `{text}`; there are {}, `all` and `none`", names.join(", "))
        })
    }
}

/// Independent draws: of one seed, about one thing.
#[derive(Debug, Clone, Copy)]
struct Draws {
    seed: u64,
    about: u64,
}

impl Draws {
    /// Number `index`, from `range`.
    fn int(self, index: u64, range: std::ops::Range<u64>) -> u64 {
        range.start + draw_u64(self.seed, self.about, index, Purpose::Workload) % (range.end - range.start)
    }

    fn flag(self, index: u64) -> bool {
        self.int(index, 0..2) == 0
    }

    fn part(self, index: u64, most: f64) -> f64 {
        self.int(index, 0..1001) as f64 / 1000.0 * most
    }

    fn micros(self, index: u64, range: std::ops::Range<u64>) -> Duration {
        Duration::from_micros(self.int(index, range))
    }
}

/// A request of a scenario. What it is depends on the seed and its number alone, so that others can be left out.
#[derive(Debug, Clone)]
struct Arrival {
    id: RequestId,
    time: Duration,
    prompt: usize,
    output: usize,
    cancel: Option<Duration>,
}

/// A system, its workload, and what goes wrong.
#[derive(Debug, Clone)]
pub struct Scenario {
    seed: u64,
    faults: Vec<Fault>,
    models: usize,
    method: u64,
    thresholds: Vec<u32>,
    max_active: usize,
    max_batch: usize,
    step_tokens: usize,
    blocks: usize,
    latencies: Vec<u64>,
    prefix_cache: bool,
    handoff_resume: bool,
    requests: Vec<Arrival>,
}

const SYSTEM: u64 = 1;
const NETWORK: u64 = 2;
const CRASHES: u64 = 3;
const KINDS: u64 = 4;
const REQUESTS: u64 = 100;

impl Scenario {
    /// The scenario of a seed with these kinds of faults. Leaving kinds out changes nothing else.
    pub fn from_seed(seed: u64, faults: &[Fault]) -> Self {
        let draw = Draws { seed, about: SYSTEM };
        let method = draw.int(0, 0..10);
        // Only a mixture knows more than two models.
        let models = if method < 2 { 2 + draw.int(1, 0..2) as usize } else { 2 };
        let request = |index| {
            let draw = Draws { seed, about: REQUESTS + index };
            let gives_up = draw.int(3, 0..10) < 3;
            Arrival {
                id: RequestId(index),
                time: draw.micros(0, 0..80_000),
                prompt: draw.int(1, 1..40) as usize,
                output: draw.int(2, 1..30) as usize,
                cancel: gives_up.then(|| draw.micros(4, 0..150_000)),
            }
        };
        Self {
            seed,
            faults: faults.to_vec(),
            models,
            method,
            thresholds: (0..models as u64).map(|model| draw.int(10 + model, 1..6) as u32).collect(),
            max_active: draw.int(2, 1..9) as usize,
            max_batch: draw.int(3, 1..9) as usize,
            step_tokens: draw.int(4, 1..30) as usize,
            // The longest request fits in any case: 39 + 29 tokens.
            blocks: draw.int(5, 17..200) as usize,
            latencies: (0..models as u64).map(|model| draw.int(20 + model, 1..30)).collect(),
            prefix_cache: draw.flag(6),
            handoff_resume: draw.flag(7),
            requests: (0..draw.int(8, 1..16)).map(request).collect(),
        }
    }

    /// Numbers of the requests.
    pub fn requests(&self) -> Vec<u64> {
        self.requests.iter().map(|request| request.id.0).collect()
    }

    /// Leaves out all requests but these.
    pub fn keep(&mut self, requests: &[u64]) {
        self.requests.retain(|request| requests.contains(&request.id.0));
    }

    fn has(&self, fault: Fault) -> bool {
        // Half of them in every scenario: one hides what another would find.
        self.faults.contains(&fault) && (Draws { seed: self.seed, about: KINDS }).flag(fault as u64)
    }

    /// The system at time zero, with its workload and faults to come.
    pub fn simulator(&self) -> Simulator {
        let configs = (0..self.models).map(|model| self.core_config(model)).collect();
        let models = (0..self.models).map(|model| self.model(model, self.blocks)).collect();
        let policy = self.policy();
        let draw = Draws { seed: self.seed, about: NETWORK };
        let most = if self.has(Fault::Delay) { 3000 } else { 1 };
        let delay = LinkDelay { base: draw.micros(0, 0..most), jitter: draw.micros(1, 0..most), seed: self.seed };
        let mut simulator = Simulator::new(configs, models, &policy, delay);
        if self.has(Fault::Jitter) {
            simulator.set_step_jitter(draw.part(2, 1.0));
        }
        let over_network = [Fault::Loss, Fault::Duplicate, Fault::Reorder, Fault::Crash, Fault::Partition];
        // Some systems stay in one process.
        if over_network.iter().any(|fault| self.has(*fault)) && draw.int(3, 0..10) < 8 {
            simulator.set_network(self.network(draw, (delay.base, delay.jitter)));
            self.crash(&mut simulator);
        }
        for request in &self.requests {
            self.submit(&mut simulator, &*policy, request);
        }
        simulator
    }

    fn network(&self, draw: Draws, (delay, jitter): (Duration, Duration)) -> Network {
        let part = |fault, index| if self.has(fault) { draw.part(index, 0.3) } else { 0.0 };
        let faults = PathFaults {
            delay,
            jitter,
            loss: part(Fault::Loss, 4),
            duplicate: part(Fault::Duplicate, 5),
            reorder: part(Fault::Reorder, 6),
        };
        let partition = |index: u64| {
            let draw = Draws { seed: self.seed, about: CRASHES + 10 + index };
            let from = draw.int(0, 0..self.models as u64) as ModelIndex;
            let to = (from + draw.int(1, 1..self.models as u64) as ModelIndex) % self.models;
            let start = draw.micros(2, 0..150_000);
            Partition { models: (from, to), span: (start, start + draw.micros(3, 10_000..900_000)) }
        };
        let partitions = if self.has(Fault::Partition) { draw.int(7, 0..3) } else { 0 };
        let config = LinkConfig {
            window: draw.int(8, 2..64) as u32,
            max_queued: 4096,
            retransmit: Duration::from_millis(10),
            heartbeat: Duration::from_millis(20),
            peer_timeout: Duration::from_millis(300),
        };
        let partitions = (0..partitions).map(partition).collect();
        Network::new(self.models, config, (faults, partitions))
    }

    fn crash(&self, simulator: &mut Simulator) {
        if !self.has(Fault::Crash) {
            return;
        }
        let draw = Draws { seed: self.seed, about: CRASHES };
        let mut time = Duration::ZERO;
        for index in 0..draw.int(0, 0..4) {
            // One after the other, so that nobody stops twice.
            time += draw.micros(10 + index, 0..120_000);
            let down = draw.micros(20 + index, 1000..800_000);
            simulator.crash(time, draw.int(30 + index, 0..self.models as u64) as ModelIndex, down);
            time += down + Duration::from_micros(1);
        }
    }

    fn submit(&self, simulator: &mut Simulator, policy: &dyn RoutingPolicy, arrival: &Arrival) {
        let index = arrival.id.0;
        // Stop texts act on the committed stream, wherever it is continued.
        let sampling = SamplingParams {
            max_tokens: arrival.output,
            seed: self.seed,
            stop: if index % 3 == 1 { vec!["1, 1".into(), "9, ".into()] } else { Vec::new() },
            ..SamplingParams::default()
        };
        // Two families of prompts, whose members begin with the same tokens.
        let prompt = (0..arrival.prompt as u32).map(|i| (i * 7 + index as u32 % 2) % VOCAB).collect();
        let request = Request::new(prompt, sampling, index);
        let (tokens, reason) = self.expected(policy, &request);
        simulator.expect(arrival.id, tokens, reason);
        simulator.submit(arrival.time, arrival.id, request);
        if let Some(after) = arrival.cancel.filter(|_| self.has(Fault::Cancel)) {
            simulator.cancel(arrival.time + after, arrival.id);
        }
    }

    fn expected(&self, policy: &dyn RoutingPolicy, request: &Request) -> (Vec<CommittedToken>, FinishReason) {
        let mut models: Vec<_> = (0..self.models).map(|model| self.model(model, REFERENCE_BLOCKS)).collect();
        let reference = |runner| ReferenceModel { runner, blocks: REFERENCE_BLOCKS, block_size: BLOCK };
        let mut models: Vec<_> = models.iter_mut().map(|model| reference(model)).collect();
        let ends: (&[u32], _) = (&[EOS], Some(&*texts()));
        reference::generate(&mut models, policy, 0, ends, &Arc::new(request.clone()))
            .expect("emulated models do not fail")
    }

    fn model(&self, model: ModelIndex, blocks: usize) -> EmulatedModel {
        EmulatedModel::new(LatencyProfile::Constant(self.latencies[model] as f64), VOCAB, blocks, BLOCK)
    }

    fn core_config(&self, model: ModelIndex) -> CoreConfig {
        CoreConfig {
            model,
            models: self.models,
            entry: 0,
            max_active: self.max_active,
            max_batch: self.max_batch,
            max_step_tokens: self.step_tokens,
            // So long that a lost wake-up or a deadlock cannot hide behind it.
            max_wait: Duration::from_secs(3600),
            thresholds: Arc::new(ThresholdTable::from_vector(&self.thresholds, self.max_active)),
            kv_blocks: self.blocks,
            admission_blocks: self.blocks,
            block_size: BLOCK,
            prefix_cache: self.prefix_cache,
            handoff_resume: self.handoff_resume,
            alone: false,
            eos: vec![EOS],
            texts: Some(texts()),
        }
    }

    fn policy(&self) -> Arc<dyn RoutingPolicy> {
        let config = match self.method {
            0 | 1 => RoutingConfig::new("random", json!({"semantics": "mixture"})),
            2 | 3 => RoutingConfig::new("random", json!({"semantics": "borrow", "probability": 0.6})),
            4 => RoutingConfig::new("rstitch", json!({"entropy_threshold": 0.4, "return_threshold": 0.6})),
            5 => RoutingConfig::new("entropy", json!({"entropy_threshold": 0.5})),
            6 => RoutingConfig::new("query", json!({"large_fraction": 0.5})),
            7 => RoutingConfig::new("aleatoric", json!({"aleatoric_threshold": 1.2})),
            8 => RoutingConfig::new(
                "glimp",
                json!({"entropy_threshold": 0.9, "max_step_tokens": 4, "max_thinking_tokens": 14, "max_answer_tokens": 6,
                       "probe": "discard"}),
            ),
            _ => return Arc::new(PingPong),
        };
        let mut view = SystemView::emulated(&["m0", "m1", "m2"][..self.models], VOCAB as usize);
        view.texts = Some(texts());
        Arc::from(registry::build(&config, &view).expect("valid routing"))
    }
}

/// Every eighth token ends a reasoning step, and stop texts can be found in the others.
fn texts() -> Arc<TokenTexts> {
    static TEXTS: std::sync::OnceLock<Arc<TokenTexts>> = std::sync::OnceLock::new();
    let texts = TEXTS.get_or_init(|| {
        let text = |id: u32| if id.is_multiple_of(8) { format!("{id}.\n\n") } else { format!("{id}, ") };
        Arc::new(TokenTexts::new((0..VOCAB).map(text)))
    });
    Arc::clone(texts)
}

/// Every third position goes back and forth before anybody writes it.
#[derive(Debug)]
pub struct PingPong;

impl RoutingPolicy for PingPong {
    fn route(&self, batch: &mut BatchView<'_>) {
        batch.decide(|row, _| {
            let drops = row.state.get::<u32>();
            *drops = if row.position % 3 == 1 && *drops < 4 { *drops + 1 } else { 0 };
            if *drops > 0 { Decision::Switch(1 - row.model) } else { Decision::Stay }
        });
    }

    fn send(&self, _row: &mut Row, _to: ModelIndex) -> Candidate {
        Candidate::Drop
    }
}
