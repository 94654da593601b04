//! The real scheduler cores under random schedules: the seven invariants of `docs/architecture.md`. The simulator checks
//! one-owner, conservation, once-only ends and progress after every event; here the streams are compared with the
//! one-request reference loop (invariants 2, 6 and 7).

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::json;
use tokenrouter_core::emulated::{EmulatedModel, LatencyProfile};
use tokenrouter_core::reference::{self, ReferenceModel};
use tokenrouter_core::routing::registry::{self, SystemView};
use tokenrouter_core::routing::{RoutingConfig, RoutingPolicy};
use tokenrouter_core::scheduler::{CoreConfig, ThresholdTable};
use tokenrouter_core::simulation::{LinkDelay, Outcome, PingPong, Simulator};
use tokenrouter_core::token_texts::TokenTexts;
use tokenrouter_core::{CommittedToken, FinishReason, Request, RequestId, SamplingParams};

const BLOCK: usize = 4;
/// A small vocabulary with one end token, so that requests end at random positions.
const VOCAB: u32 = 40;
const EOS: u32 = 7;

#[derive(Debug, Clone)]
struct Scenario {
    models: usize,
    method: usize,
    thresholds: Vec<u32>,
    max_active: usize,
    max_batch: usize,
    step_tokens: usize,
    blocks: usize,
    latencies: Vec<u32>,
    prefix_cache: bool,
    handoff_resume: bool,
    delay_us: u64,
    jitter_us: u64,
    /// Arrival in microseconds, prompt length, output length, cancellation after microseconds.
    requests: Vec<(u32, usize, usize, Option<u32>)>,
    /// Other thresholds: when, which, and how much later each next model learns of them.
    swaps: Vec<(u32, Vec<u32>, u32)>,
    seed: u64,
}

fn scenarios() -> impl Strategy<Value = Scenario> {
    let request = (0u32..60_000, 1usize..40, 1usize..25, prop::option::weighted(0.3, 0u32..120_000));
    let shape = (2usize..4, 0usize..10, prop::collection::vec(1u32..6, 3), 1usize..9, 1usize..9, 1usize..30);
    let costs =
        (prop::collection::vec(1u32..40, 3), any::<[bool; 2]>(), 0u64..2000, 0u64..4000, 17usize..200, any::<u64>());
    let swap = (0u32..90_000, prop::collection::vec(1u32..6, 3), 0u32..9000);
    let swaps = prop::collection::vec(swap, 0..4);
    (shape, costs, prop::collection::vec(request, 1..14), swaps).prop_map(|(shape, costs, requests, swaps)| {
        let (models, method, thresholds, max_active, max_batch, step_tokens) = shape;
        let (latencies, [prefix_cache, handoff_resume], delay_us, jitter_us, blocks, seed) = costs;
        // Only a mixture knows more than two models.
        let models = if method == 0 { models } else { 2 };
        Scenario {
            models,
            method,
            thresholds: thresholds[..models].to_vec(),
            max_active,
            max_batch,
            step_tokens,
            blocks,
            latencies: latencies[..models].to_vec(),
            prefix_cache,
            handoff_resume,
            delay_us,
            jitter_us,
            requests,
            swaps: swaps.into_iter().map(|(at, vector, late)| (at, vector[..models].to_vec(), late)).collect(),
            seed,
        }
    })
}

fn policy(scenario: &Scenario) -> Arc<dyn RoutingPolicy> {
    let config = match scenario.method {
        0 => RoutingConfig::new("random", json!({"semantics": "mixture"})),
        1 => RoutingConfig::new("random", json!({"semantics": "borrow", "probability": 0.6})),
        2 => RoutingConfig::new("rstitch", json!({"entropy_threshold": 0.4, "return_threshold": 0.6})),
        3 => RoutingConfig::new("entropy", json!({"entropy_threshold": 0.5})),
        4 => RoutingConfig::new("query", json!({"large_fraction": 0.5})),
        5 => RoutingConfig::new("aleatoric", json!({"aleatoric_threshold": 1.2})),
        6 => RoutingConfig::new(
            "glimp",
            json!({"entropy_threshold": 0.9, "max_step_tokens": 4, "max_thinking_tokens": 14,
                                                "max_answer_tokens": 6, "probe": "discard"}),
        ),
        7 => RoutingConfig::new("glimp", json!({"entropy_threshold": 0.9, "max_step_tokens": 5, "probe": "keep"})),
        9 => return Arc::new(PingPong),
        _ => RoutingConfig::new(
            "rule",
            json!({"rules": {
                "m0": [{"when": "top_entropy > 1.0", "to": "m1", "drop": true}, {"when": "random < 0.2", "to": "m1"}],
                "m1": {"when": "entropy < 0.3 || run_length >= 3", "to": "m0"},
            }}),
        ),
    };
    let mut view = SystemView::emulated(&["m0", "m1", "m2"][..scenario.models], VOCAB as usize);
    view.texts = Some(texts());
    Arc::from(registry::build(&config, &view).expect("valid routing"))
}

fn request(scenario: &Scenario, index: usize) -> Request {
    let (_, prompt, output, _) = scenario.requests[index];
    // Stop texts act on the committed stream, wherever it is continued.
    let sampling = SamplingParams {
        max_tokens: output,
        seed: scenario.seed,
        stop: if index % 3 == 1 { vec!["1, 1".into(), "9, ".into()] } else { Vec::new() },
        ..SamplingParams::default()
    };
    // Two families of prompts, whose members begin with the same tokens.
    let prompt = (0..prompt as u32).map(|i| (i * 7 + index as u32 % 2) % VOCAB).collect();
    Request { trace: scenario.seed.is_multiple_of(2), ..Request::new(prompt, sampling, index as u64) }
}

/// Every eighth token ends a reasoning step, and stop texts can be found in the others.
fn texts() -> Arc<TokenTexts> {
    let texts: Vec<String> =
        (0..VOCAB).map(|id| if id % 8 == 0 { format!("{id}.\n\n") } else { format!("{id}, ") }).collect();
    Arc::new(TokenTexts::new(texts))
}

fn emulated(scenario: &Scenario, model: usize, blocks: usize) -> EmulatedModel {
    EmulatedModel::new(LatencyProfile::Constant(f64::from(scenario.latencies[model])), VOCAB, blocks, BLOCK)
}

fn expected(scenario: &Scenario, index: usize) -> (Vec<CommittedToken>, FinishReason) {
    let mut models: Vec<_> = (0..scenario.models).map(|model| emulated(scenario, model, 64)).collect();
    let mut models: Vec<_> =
        models.iter_mut().map(|runner| ReferenceModel { runner, blocks: 64, block_size: BLOCK }).collect();
    let request = Arc::new(request(scenario, index));
    reference::generate(&mut models, &*policy(scenario), 0, (&[EOS], Some(&texts())), &request)
        .expect("emulated models do not fail")
}

fn simulate(scenario: &Scenario) -> Simulator {
    let thresholds = Arc::new(ThresholdTable::from_vector(&scenario.thresholds, scenario.max_active));
    let configs = (0..scenario.models)
        .map(|model| CoreConfig {
            model,
            models: scenario.models,
            entry: 0,
            max_active: scenario.max_active,
            max_batch: scenario.max_batch,
            max_step_tokens: scenario.step_tokens,
            // So long that a lost wake-up or a deadlock cannot hide behind it: virtual time would show it.
            max_wait: Duration::from_secs(3600),
            thresholds: Arc::clone(&thresholds),
            kv_blocks: scenario.blocks,
            admission_blocks: scenario.blocks,
            block_size: BLOCK,
            prefix_cache: scenario.prefix_cache,
            handoff_resume: scenario.handoff_resume,
            alone: false,
            eos: vec![EOS],
            texts: Some(texts()),
        })
        .collect();
    let models = (0..scenario.models).map(|model| emulated(scenario, model, scenario.blocks)).collect();
    let delay = LinkDelay {
        base: Duration::from_micros(scenario.delay_us),
        jitter: Duration::from_micros(scenario.jitter_us),
        seed: scenario.seed,
    };
    let mut simulator = Simulator::new(configs, models, &policy(scenario), delay);
    for (index, (arrival, _, _, cancel)) in scenario.requests.iter().enumerate() {
        let (id, arrival) = (RequestId(index as u64), Duration::from_micros(u64::from(*arrival)));
        simulator.submit(arrival, id, request(scenario, index));
        if let Some(after) = cancel {
            simulator.cancel(arrival + Duration::from_micros(u64::from(*after)), id);
        }
    }
    let mut swaps = scenario.swaps.clone();
    swaps.sort();
    let mut latest = vec![0; scenario.models];
    for (at, vector, late) in &swaps {
        let table = Arc::new(ThresholdTable::from_vector(vector, scenario.max_active));
        for (model, latest) in latest.iter_mut().enumerate() {
            // Every model gets the tables in the same order, as from an inbox.
            *latest = (at + late * model as u32).max(*latest);
            simulator.set_thresholds(Duration::from_micros(u64::from(*latest)), model, &table);
        }
    }
    simulator.run(2_000_000);
    simulator
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn any_schedule_reproduces_the_reference_loop(scenario in scenarios()) {
        let simulator = simulate(&scenario);
        for (index, (id, outcome)) in simulator.outcomes().iter().enumerate() {
            let tokens: Vec<_> = outcome.tokens.iter().map(|(_, token)| *token).collect();
            let (want, reason) = expected(&scenario, index);
            let (_, got, _) = outcome.finish.as_ref().expect("checked by the simulator");
            if let (Some(after), 2) = (scenario.requests[index].3, scenario.models) {
                // A cancelled request commits nothing once the message has caught up with it: one link and one step.
                let arrival = u64::from(scenario.requests[index].0) + u64::from(after);
                let step = 1000 * u64::from(*scenario.latencies.iter().max().expect("models"));
                let last = Duration::from_micros(arrival + scenario.delay_us + scenario.jitter_us + step);
                let late = outcome.tokens.iter().filter(|(time, _)| *time > last).count();
                prop_assert_eq!(late, 0, "{} goes on after its cancellation", id);
            }
            check_trace(outcome, &tokens)?;
            match got {
                FinishReason::Cancelled => prop_assert!(want.starts_with(&tokens), "{} is not a prefix", id),
                got => {
                    prop_assert_eq!(got, &reason);
                    prop_assert_eq!(tokens, want);
                }
            }
        }
        // Nothing had to wait for the hour of `max_wait` to pass: a launch was always possible without it.
        for core in simulator.cores() {
            prop_assert_eq!(core.stats().launches_timeout, 0);
        }
    }
}

/// A trace tells the same story as the stream: its commits are the tokens, and every step is made where the one before
/// it says.
fn check_trace(outcome: &Outcome, tokens: &[CommittedToken]) -> Result<(), TestCaseError> {
    if outcome.steps.is_empty() {
        return Ok(());
    }
    let commits = outcome.steps.iter().filter(|step| step.committed);
    let commits: Vec<_> = commits.map(|step| CommittedToken { id: step.token, origin: step.model }).collect();
    prop_assert_eq!(&commits[..], tokens);
    for pair in outcome.steps.windows(2) {
        prop_assert_eq!(pair[0].to, Some(pair[1].model));
        prop_assert_eq!(pair[1].position, pair[0].position + usize::from(pair[0].committed));
    }
    Ok(())
}

#[test]
fn a_request_that_can_never_fit_is_refused_and_the_next_one_served() {
    let mut scenario = Scenario {
        models: 2,
        method: 1,
        thresholds: vec![1, 2],
        max_active: 2,
        max_batch: 4,
        step_tokens: 8,
        blocks: 17,
        latencies: vec![5, 20],
        prefix_cache: false,
        handoff_resume: true,
        delay_us: 0,
        jitter_us: 0,
        requests: vec![(0, 30, 24, None), (1, 39, 24, None), (2, 60, 24, None), (3, 3, 5, None)],
        swaps: Vec::new(),
        seed: 1,
    };
    scenario.requests[2].1 = 100;
    let simulator = simulate(&scenario);
    let reasons: Vec<_> = simulator.outcomes().values().map(|o| o.finish.clone().expect("ended").1).collect();
    assert!(
        matches!(&reasons[2], FinishReason::Error(message) if message.contains("124 tokens") && message.contains("68"))
    );
    assert!(reasons.iter().enumerate().all(|(i, reason)| i == 2 || !matches!(reason, FinishReason::Error(_))));
}

#[test]
fn throughput_in_virtual_time_equals_the_chain_in_closed_form_cases() {
    // One request at a time: v = (1, p) visits, sum(v_i * tokens) / sum(v_i * L_i) with measured p.
    let scenario = Scenario {
        models: 2,
        method: 1,
        thresholds: vec![1, 1],
        max_active: 1,
        max_batch: 1,
        step_tokens: 64,
        blocks: 64,
        latencies: vec![6, 28],
        prefix_cache: false,
        handoff_resume: true,
        delay_us: 0,
        jitter_us: 0,
        requests: vec![(0, 5, 24, None); 12],
        swaps: Vec::new(),
        seed: 3,
    };
    let simulator = simulate(&scenario);
    let stats: Vec<_> = simulator.cores().iter().map(|core| core.stats().clone()).collect();
    let steps = stats[0].steps * 6 + stats[1].steps * 28;
    assert_eq!(simulator.now(), Duration::from_millis(steps), "steps follow each other without gaps");
    assert_eq!(stats[0].transitions[1], stats[1].rows);
    // The small model tries every position, and handoff-resume feeds it every token once: all but the last.
    let length = |outcome: &Outcome| 5 + outcome.tokens.len() as u64 - 1;
    assert_eq!(stats[0].fed_tokens, simulator.outcomes().values().map(length).sum::<u64>());
}
