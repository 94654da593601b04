//! Thresholds that follow the load, with the real scheduler under virtual time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokenrouter_core::emulated::EmulatedModel;
use tokenrouter_core::routing::{BatchView, Candidate, Decision, RoutingPolicy, Row};
use tokenrouter_core::scheduler::{CoreConfig, ModelStats, ThresholdTable, check_thresholds};
use tokenrouter_core::simulation::{LinkDelay, Simulator};
use tokenrouter_core::{Request, RequestId, SamplingParams};
use tokenrouter_dtmc::{SearchOptions, System, Thresholds, threshold_table};
use tokenrouter_engine::Config;
use tokenrouter_engine::adaptation::{Adapter, Change};

const ACTIVE: usize = 8;
const BLOCK: usize = 16;
const LATENCIES: [f64; 2] = [6.0, 27.9];
const PERIOD: Duration = Duration::from_secs(5);
const MAX_TOKENS: usize = 60_000;

/// Borrows one token from the large model, with a probability that changes.
#[derive(Debug)]
struct Borrow(Arc<AtomicU64>);

impl RoutingPolicy for Borrow {
    fn route(&self, batch: &mut BatchView<'_>) {
        let probability = f64::from_bits(self.0.load(Relaxed));
        batch.decide(|row, _| match row.model {
            0 if row.draw() < probability => Decision::Switch(1),
            0 => Decision::Stay,
            _ => Decision::Switch(0),
        });
    }

    fn send(&self, row: &mut Row, _to: usize) -> Candidate {
        if row.model == 0 { Candidate::Drop } else { Candidate::Commit }
    }
}

/// A closed loop under virtual time, and what follows it.
struct Bed {
    simulator: Simulator,
    probability: Arc<AtomicU64>,
    adapter: Adapter,
    changes: Vec<Change>,
}

fn config(yaml: &str) -> Config {
    let [small, large] = LATENCIES;
    let text = format!(
        "models:\n  small: {{emulated: {{latency_ms: {small}}}}}\n  large: {{emulated: {{latency_ms: {large}}}}}\n\
         routing: {{method: random}}\nsystem: {{max_active: {ACTIVE}}}\nbatching:\n  thresholds: adaptive\n{yaml}"
    );
    Config::from_yaml(&text, "test.yaml").expect("valid")
}

impl Bed {
    fn new(config: &Config, table: ThresholdTable, probability: f64, seed: u64) -> Self {
        let table = Arc::new(table);
        let blocks = ACTIVE * (MAX_TOKENS + 16).div_ceil(BLOCK);
        let core = |model| CoreConfig {
            model,
            models: 2,
            entry: 0,
            max_active: ACTIVE,
            max_batch: ACTIVE,
            max_step_tokens: 256,
            max_wait: Duration::from_secs(3600),
            thresholds: Arc::clone(&table),
            kv_blocks: blocks,
            admission_blocks: blocks,
            block_size: BLOCK,
            prefix_cache: false,
            handoff_resume: true,
            alone: false,
            eos: Vec::new(),
            texts: None,
        };
        let shared = Arc::new(AtomicU64::new(probability.to_bits()));
        let policy: Arc<dyn RoutingPolicy> = Arc::new(Borrow(Arc::clone(&shared)));
        let model = |model: usize| {
            let profile = config.models[model].emulated.as_ref().expect("emulated").latency_ms.clone();
            EmulatedModel::new(profile, 1000, blocks, BLOCK)
        };
        let mut simulator = Simulator::new(vec![core(0), core(1)], vec![model(0), model(1)], &policy, LinkDelay::NONE);
        for key in 0..ACTIVE as u64 {
            let sampling = SamplingParams { max_tokens: MAX_TOKENS, seed, ..SamplingParams::default() };
            simulator.submit(Duration::ZERO, RequestId(key), Request::new(vec![key as u32 + 1], sampling, key));
        }
        Self { simulator, probability: shared, adapter: Adapter::new(config, table), changes: Vec::new() }
    }

    fn stats(&self) -> Vec<ModelStats> {
        self.simulator.cores().iter().map(|core| core.stats().clone()).collect()
    }

    fn tokens(&self) -> u64 {
        self.stats().iter().flat_map(|stats| &stats.committed).sum()
    }

    /// Runs periods with the adapter; returns the tokens per second of the last one.
    fn adapt(&mut self, periods: u32) -> f64 {
        let mut rate = 0.0;
        for _ in 0..periods {
            rate = self.fixed(1);
            self.adapter.observe(&self.stats());
            if let Some(change) = self.adapter.reconsider(&|| false).expect("the model takes the estimates") {
                let now = self.simulator.now();
                // The models learn of it one after the other.
                self.simulator.set_thresholds(now, 0, &change.table);
                self.simulator.set_thresholds(now + Duration::from_millis(3), 1, &change.table);
                self.changes.push(change);
            }
        }
        rate
    }

    /// Runs periods with the thresholds as they are; returns the tokens per second.
    fn fixed(&mut self, periods: u32) -> f64 {
        let (before, start) = (self.tokens(), self.simulator.now());
        let end = start + PERIOD * periods;
        self.simulator.run_until(end);
        (self.tokens() - before) as f64 / (end - start).as_secs_f64()
    }

    fn set_probability(&self, probability: f64) {
        self.probability.store(probability.to_bits(), Relaxed);
    }

    /// The vectors at the full number of requests, in the order in which they were used.
    fn history(&self) -> Vec<Vec<u32>> {
        let rows = self.changes.iter().filter_map(|change| change.rows.iter().find(|row| row.active == ACTIVE));
        rows.map(|row| row.to.clone()).collect()
    }
}

/// The table that is best for a probability.
fn best(probability: f64) -> ThresholdTable {
    let routing = vec![vec![1.0 - probability, probability], vec![1.0, 0.0]];
    let system = System { commits: Some(vec![vec![1.0, 0.0]; 2]), ..System::new(LATENCIES, routing) };
    let rows =
        threshold_table(&system.closed(ACTIVE as u32).expect("valid"), &SearchOptions::default()).expect("solvable");
    let rows: Vec<_> = rows.into_iter().map(Thresholds::into_vec).collect();
    ThresholdTable::from_rows(2, &rows)
}

#[test]
fn throughput_recovers_after_the_routing_jumps() {
    let config = config("");
    let mut bed = Bed::new(&config, best(0.1), 0.1, 1);
    bed.adapt(6);
    assert_eq!(bed.history(), Vec::<Vec<u32>>::new(), "the table is the best one already");
    let before = bed.adapter.table().row(ACTIVE);
    bed.set_probability(0.5);
    bed.adapt(6);
    let recovered = bed.fixed(40);
    let after = bed.adapter.table().row(ACTIVE);

    let optimum = Bed::new(&config, best(0.5), 0.5, 1).fixed(40);
    let stale = Bed::new(&config, best(0.1), 0.5, 1).fixed(40);
    // `docs/concepts/online-adaptation.md` quotes these.
    assert_eq!((before, after), (vec![1, 2], vec![1, 6]));
    assert!(recovered > 0.98 * optimum, "{recovered:.1} of {optimum:.1} tokens/s");
    assert!(stale < 0.98 * optimum, "the jump matters: {stale:.1} of {optimum:.1} tokens/s");
    for change in &bed.changes {
        for active in 1..=ACTIVE {
            assert_eq!(check_thresholds(&change.table.row(active), 2, active), Ok(()));
        }
    }
}

#[test]
fn thresholds_settle_under_a_stationary_load() {
    for (seed, probability) in [(1, 0.05), (2, 0.2), (3, 0.35), (4, 0.5), (5, 0.65), (6, 0.8)] {
        let mut bed = Bed::new(&config(""), ThresholdTable::eager(2), probability, seed);
        bed.adapt(8);
        let settled = bed.changes.len();
        bed.adapt(60);
        let history = bed.history();
        assert_eq!(bed.changes.len(), settled, "P = {probability}: {history:?}");
        assert!(settled <= 3, "P = {probability}: {history:?}");
        let mut distinct = history.clone();
        distinct.sort();
        distinct.dedup();
        assert_eq!(distinct.len(), history.len(), "P = {probability}: a vector came back: {history:?}");
    }
}

#[test]
fn step_times_are_learned_and_bounds_kept() {
    let mut bed = Bed::new(&config(""), ThresholdTable::eager(2), 0.65, 1);
    bed.adapt(8);
    assert_eq!(bed.adapter.table().row(ACTIVE), best(0.65).row(ACTIVE), "from counters alone");
    let bounded = config("  adaptation: {max_threshold: 3}\n");
    let mut bed = Bed::new(&bounded, ThresholdTable::eager(2), 0.65, 1);
    bed.adapt(8);
    assert!(!bed.changes.is_empty());
    assert!((1..=ACTIVE).all(|active| bed.adapter.table().row(active).iter().all(|b| *b <= 3)));
}

#[test]
fn a_small_gain_changes_nothing() {
    let reluctant = config("  adaptation: {hysteresis: 1.0}\n");
    let mut bed = Bed::new(&reluctant, ThresholdTable::eager(2), 0.65, 1);
    bed.adapt(8);
    assert!(bed.changes.is_empty());
}
