//! The systems under comparison on emulated models: whoever steps them, they do the same work.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use tokenrouter_core::emulated::EmulatedModel;
use tokenrouter_core::emulated::LatencyProfile;
use tokenrouter_core::reference::{self, ReferenceModel};
use tokenrouter_core::routing::RoutingConfig;
use tokenrouter_core::routing::registry::{self, SystemView};
use tokenrouter_core::{CommittedToken, FinishReason, Request, SamplingParams, StepRecord, StreamEvent};
use tokenrouter_engine::config::{Config, ExecutionConfig};
use tokenrouter_engine::{Engine, SubmitError, TokenStream};

const VOCAB: usize = 32_000;

fn config(models: usize, routing: RoutingConfig, execution: ExecutionConfig) -> Config {
    let names = ["a", "b", "c"];
    let models: String =
        names[..models].iter().map(|name| format!("  {name}: {{emulated: {{latency_ms: 0.02}}}}\n")).collect();
    let yaml = format!("models:\n{models}routing: {{method: random}}\nsystem: {{max_tokens_per_request: 256}}\n");
    let mut config = Config::from_yaml(&yaml, "systems.yaml").expect("a valid configuration");
    config.routing = routing;
    config.system.execution = execution;
    config
}

fn requests(count: u64) -> Vec<Request> {
    let request = |key: u64| {
        let sampling = SamplingParams { max_tokens: 20 + key as usize, seed: 9, ..SamplingParams::default() };
        // Longer than a block, so that prefixes are found.
        let prompt = (0..40 + key as u32).map(|i| (i * 31 + key as u32 % 2) % 1000).collect();
        Request { trace: true, ..Request::new(prompt, sampling, key) }
    };
    (0..count).map(request).collect()
}

fn expected(config: &Config, request: &Request) -> (Vec<CommittedToken>, FinishReason) {
    let names = config.model_names();
    let view = SystemView::emulated(&names.iter().map(String::as_str).collect::<Vec<_>>(), VOCAB);
    let policy = registry::build(&config.routing, &view).expect("valid routing");
    let model = |_: &String| EmulatedModel::new(LatencyProfile::Constant(1.0), VOCAB as u32, 16, 16);
    let mut models: Vec<_> = names.iter().map(model).collect();
    let mut models: Vec<_> =
        models.iter_mut().map(|runner| ReferenceModel { runner, blocks: 16, block_size: 16 }).collect();
    reference::generate(&mut models, &*policy, 0, (&[], None), &Arc::new(request.clone())).expect("emulated")
}

fn collect(mut stream: TokenStream) -> (Vec<StepRecord>, Vec<CommittedToken>, FinishReason, u64) {
    let (mut steps, mut tokens) = (Vec::new(), Vec::new());
    while let Some(event) = stream.blocking_next() {
        match event {
            StreamEvent::Step(step) => steps.push(step),
            StreamEvent::Logprobs(_) => {}
            StreamEvent::Token(token) => tokens.push(token),
            StreamEvent::Finished(reason, stats) => {
                assert_eq!(stats.tokens(), tokens.len() as u64);
                return (steps, tokens, reason, stats.handoffs);
            }
        }
    }
    panic!("the stream ended without an end");
}

fn methods() -> Vec<(usize, RoutingConfig)> {
    vec![
        (3, RoutingConfig::new("random", json!({"semantics": "mixture"}))),
        (2, RoutingConfig::new("random", json!({"semantics": "borrow", "probability": 0.6}))),
        (2, RoutingConfig::new("rstitch", json!({"entropy_threshold": 0.4, "return_threshold": 0.6}))),
        (2, RoutingConfig::new("query", json!({"large_fraction": 0.5}))),
        (2, RoutingConfig::new("aleatoric", json!({"aleatoric_threshold": 1.2}))),
    ]
}

/// (execution, handoff-resume)
const SYSTEMS: [(ExecutionConfig, bool); 4] = [
    (ExecutionConfig::Async, true),
    (ExecutionConfig::Async, false),
    (ExecutionConfig::Lockstep, true),
    (ExecutionConfig::Standard, true),
];

/// Models free what they hold when the message of a request's end has reached them.
pub(crate) fn wait_until_freed(engine: &Engine) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while engine.stats().held_blocks.iter().any(|held| *held > 0) {
        assert!(Instant::now() < deadline, "blocks are held: {:?}", engine.stats().held_blocks);
        std::thread::yield_now();
    }
}

#[test]
fn all_systems_make_the_same_steps() {
    let requests = requests(8);
    for (models, routing) in methods() {
        let method = routing.method.clone();
        let mut first = None;
        for (execution, handoff_resume) in SYSTEMS {
            let mut config = config(models, routing.clone(), execution);
            config.system.handoff_resume = handoff_resume;
            let engine = Engine::launch(&config).expect("launches");
            let streams: Vec<_> = requests.iter().map(|r| engine.generate(r.clone()).expect("taken")).collect();
            let results: Vec<_> = streams.into_iter().map(collect).collect();
            for (request, (_, tokens, reason, _)) in requests.iter().zip(&results) {
                assert_eq!((tokens.clone(), reason.clone()), expected(&config, request), "{method}, {execution:?}");
            }
            assert!(engine.drain(Duration::from_secs(60)));
            assert_eq!(engine.stats().open_requests, 0, "{method}, {execution:?}");
            wait_until_freed(&engine);
            // Steps, tokens, ends and handoffs.
            let results_first = first.get_or_insert_with(|| results.clone());
            assert_eq!(&results, results_first, "{method}, {execution:?}, handoff-resume {handoff_resume}");
        }
    }
}

#[test]
fn cancelled_requests_leave_nothing_behind_in_any_system() {
    for (execution, _) in SYSTEMS {
        let config = config(2, methods()[1].1.clone(), execution);
        let engine = Engine::launch(&config).expect("launches");
        let mut streams: Vec<_> = requests(8).into_iter().map(|r| engine.generate(r).expect("taken")).collect();
        for (index, stream) in streams.iter_mut().enumerate() {
            (0..=index).for_each(|_| drop(stream.blocking_next()));
        }
        let aborted = streams.pop().expect("eight streams");
        engine.abort(aborted.id());
        drop(streams);
        let (_, _, reason, _) = {
            let (mut tokens, mut end) = (0u64, None);
            let mut stream = aborted;
            while let Some(event) = stream.blocking_next() {
                match event {
                    StreamEvent::Finished(reason, stats) => end = Some((0, tokens, reason, stats.handoffs)),
                    StreamEvent::Token(_) => tokens += 1,
                    StreamEvent::Step(_) | StreamEvent::Logprobs(_) => {}
                }
            }
            end.expect("an end")
        };
        // It may have reached its end before it was met.
        assert!(matches!(reason, FinishReason::Cancelled | FinishReason::Length), "{execution:?}: {reason:?}");
        assert!(engine.drain(Duration::from_secs(60)), "{execution:?}");
        wait_until_freed(&engine);
    }
}

#[test]
fn a_resumed_request_goes_on_where_it_was() {
    let config = config(2, methods()[1].1.clone(), ExecutionConfig::Async);
    let engine = Engine::launch(&config).expect("launches");
    let whole = &requests(3)[2];
    let (steps, tokens, reason, _) = collect(engine.generate(whole.clone()).expect("taken"));
    // Where the small model holds the request again after a commit.
    let cut = steps.windows(2).position(|pair| pair[0].committed && pair[0].model == 1).expect("a return") + 1;
    let resumed = steps[cut].position;
    let mut rest = whole.clone();
    rest.prompt.extend(tokens[..resumed].iter().map(|token| token.id));
    rest.resumed = resumed;
    let (rest_steps, rest_tokens, rest_reason, _) = collect(engine.generate(rest.clone()).expect("taken"));
    assert_eq!((&rest_steps[..], &rest_tokens[..], rest_reason), (&steps[cut..], &tokens[resumed..], reason));
    for wrong in [rest.prompt.len(), rest.sampling.max_tokens] {
        let error = engine.generate(Request { resumed: wrong, ..rest.clone() }).expect_err("refused");
        assert!(matches!(&error, SubmitError::Invalid(message) if message.contains("`resumed` is")), "{error}");
    }
}

#[test]
fn thresholds_and_other_executions_exclude_each_other() {
    let yaml = "models:\n  a: {emulated: {latency_ms: 1}}\n  b: {emulated: {latency_ms: 1}}\nrouting: {method: random}\n\
                batching: {thresholds: [1, 2]}\nsystem:\n  execution: lockstep\n";
    let error = Config::from_yaml(yaml, "bad.yaml").expect_err("a bad configuration").to_string();
    assert!(
        error.starts_with("bad.yaml:5:12:") && error.contains("`lockstep`") && error.contains("`eager`"),
        "{error}"
    );
}
