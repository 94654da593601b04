//! The engine in virtual time: against closed forms, against the chain, against the engine in real time.

use std::time::Duration;

use serde_json::json;
use tokenrouter_core::routing::RoutingConfig;
use tokenrouter_core::{CommittedToken, FinishReason, Request, SamplingParams, StepRecord, StreamEvent};
use tokenrouter_dtmc::{Limits, SimulationOptions, System, Thresholds, predict};
use tokenrouter_engine::config::{Config, ExecutionConfig, ThresholdConfig};
use tokenrouter_engine::{Engine, Timed, VirtualEngine, VirtualStream};

fn config(models: &str, routing: &str, more: &str) -> Config {
    Config::from_yaml(&format!("models: {models}\nrouting: {routing}\n{more}"), "virtual.yaml").expect("valid")
}

fn request(key: u64, prompt: usize, max_tokens: usize) -> Request {
    let sampling = SamplingParams { max_tokens, seed: 9, ..SamplingParams::default() };
    Request::new((0..prompt as u32).map(|i| (i * 31 + key as u32) % 1000).collect(), sampling, key)
}

fn ms(ms: f64) -> Duration {
    Duration::from_secs_f64(ms / 1e3)
}

/// Keeps `concurrency` of the requests in flight; their streams in order.
fn serve(engine: &VirtualEngine, requests: Vec<Request>, concurrency: usize) -> Vec<Vec<Timed>> {
    let mut results: Vec<Option<Vec<Timed>>> = requests.iter().map(|_| None).collect();
    let mut waiting = requests.into_iter().enumerate();
    let mut open: Vec<(usize, VirtualStream)> = Vec::new();
    loop {
        while open.len() < concurrency
            && let Some((index, request)) = waiting.next()
        {
            open.push((index, engine.generate(request).expect("taken")));
        }
        if open.is_empty() {
            break;
        }
        assert!(engine.advance(), "nothing happens any more, {} are open", open.len());
        open.retain_mut(|(index, stream)| match stream.try_recv() {
            Ok(events) => {
                results[*index] = Some(events);
                false
            }
            Err(_) => true,
        });
    }
    while engine.advance() {}
    assert!(engine.is_idle(), "a model still knows of a request");
    assert!(engine.stats().held_blocks.iter().all(|held| *held == 0), "blocks are left over");
    results.into_iter().map(|events| events.expect("every request ends")).collect()
}

fn token_times(events: &[Timed]) -> Vec<Duration> {
    events.iter().filter(|(_, event)| matches!(event, StreamEvent::Token(_))).map(|(time, _)| *time).collect()
}

/// What is the same in every time: steps, tokens, the end, handoffs.
type Course = (Vec<StepRecord>, Vec<CommittedToken>, Option<FinishReason>, u64);

fn course(events: impl Iterator<Item = StreamEvent>) -> Course {
    let mut course = Course::default();
    for event in events {
        match event {
            StreamEvent::Step(step) => course.0.push(step),
            StreamEvent::Logprobs(_) => {}
            StreamEvent::Token(token) => course.1.push(token),
            StreamEvent::Finished(reason, stats) => (course.2, course.3) = (Some(reason), stats.handoffs),
        }
    }
    course
}

#[test]
fn one_request_takes_its_prompt_and_a_step_for_every_token() {
    let config = config("{a: {emulated: {latency_ms: 6, prefill_ms_per_token: 0.5}}}", "{method: ensemble}", "");
    let engine = VirtualEngine::launch(&config).expect("launches");
    let times = token_times(&serve(&engine, vec![request(0, 5, 2048)], 1)[0]);
    // The first step has five new tokens.
    let expected: Vec<_> = (0..2048).map(|k| ms(8.0 + 6.0 * f64::from(k))).collect();
    assert_eq!(times, expected);
    let stats = &engine.stats().models[0];
    assert_eq!((stats.steps, stats.busy, stats.idle), (2048, ms(8.0 + 6.0 * 2047.0), Duration::ZERO));
}

#[test]
fn a_batch_takes_the_time_of_its_size() {
    let config = config("{a: {emulated: {latency_ms: [1, 2, 4]}}}", "{method: ensemble}", "");
    let engine = VirtualEngine::launch(&config).expect("launches");
    // Three requests of 10, 20 and 30 tokens: ten steps of each size, the largest first.
    let streams = serve(&engine, (1..4).map(|k| request(k, 1, 10 * k as usize)).collect(), 3);
    let ends: Vec<_> = streams.iter().map(|events| *token_times(events).last().expect("tokens")).collect();
    assert_eq!(ends, [ms(40.0), ms(60.0), ms(70.0)]);
    // Arrivals open new steps at the ends of others only.
    let engine = VirtualEngine::launch(&config).expect("launches");
    let first = engine.generate(request(0, 1, 3)).expect("taken");
    let _timer = engine.timer(ms(1.5));
    assert!(engine.advance() && engine.advance(), "a step, then the timer");
    assert_eq!(engine.now(), ms(1.5));
    let second = engine.generate(request(1, 1, 3)).expect("taken");
    while engine.advance() {}
    let times = |mut stream: VirtualStream| token_times(&stream.try_recv().expect("ended"));
    assert_eq!(times(first), [ms(1.0), ms(2.0), ms(4.0)]);
    assert_eq!(times(second), [ms(4.0), ms(5.0), ms(6.0)]);
}

#[test]
fn a_certain_detour_is_the_exact_chain() {
    let yaml = "{small: {emulated: {latency_ms: 6}}, large: {emulated: {latency_ms: 28}}}";
    for requests in [1usize, 2, 4] {
        // Every token goes to the large model and back: nothing is random.
        let mut config = config(yaml, "{method: random, probability: 1.0}", "batching: {thresholds: eager}");
        config.system.max_active = requests;
        let engine = VirtualEngine::launch(&config).expect("launches");
        let tokens = 400;
        let streams = serve(&engine, (0..requests as u64).map(|key| request(key, 1, tokens)).collect(), requests);
        let times = token_times(&streams[0]);
        let measured = (requests * 200) as f64 / (times[399] - times[199]).as_secs_f64();
        let system = System {
            commits: Some(vec![vec![1.0, 0.0], vec![1.0, 0.0]]),
            ..System::new([6.0, 28.0], vec![vec![0.0, 1.0], vec![1.0, 0.0]])
        };
        let predicted = predict(&system, requests as u32, &Thresholds::new([1, 1]), &Limits::default()).expect("small");
        let exact = predicted.throughput_tok_s();
        assert!((measured / exact - 1.0).abs() < 1e-9, "{requests} requests: {measured} and {exact} tokens/s");
        if requests == 1 {
            assert!((exact - 1000.0 / 34.0).abs() < 1e-9);
        }
    }
}

#[test]
fn random_routing_is_what_the_chain_predicts() {
    let yaml = "{small: {emulated: {latency_ms: 6}}, large: {emulated: {latency_ms: 27.9}}}";
    for (probability, requests, thresholds) in [(0.13, 4usize, [1, 1]), (0.3, 4, [2, 2]), (0.65, 8, [1, 4])] {
        let routing = format!("{{method: random, probability: {probability}}}");
        let mut config = config(yaml, &routing, "");
        config.system.max_active = requests;
        config.batching.thresholds = ThresholdConfig::Fixed(thresholds.to_vec());
        let engine = VirtualEngine::launch(&config).expect("launches");
        let streams = serve(&engine, (0..requests as u64).map(|key| request(key, 1, 20_000)).collect(), requests);
        // While all are there, in twenty parts, whose means give a standard error.
        let end = streams.iter().filter_map(|events| events.last()).map(|(time, _)| *time).min().expect("streams");
        let part = end / 21;
        let mut counts = [0.0f64; 21];
        for time in streams.iter().flat_map(|events| token_times(events)).filter(|time| *time < part * 21) {
            counts[(time.as_nanos() / part.as_nanos()) as usize] += 1.0;
        }
        let rates: Vec<f64> = counts[1..].iter().map(|count| count / part.as_secs_f64()).collect();
        let mean = rates.iter().sum::<f64>() / 20.0;
        let error = (rates.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>() / (20.0 * 19.0)).sqrt();
        let system = System {
            commits: Some(vec![vec![1.0, 0.0], vec![1.0, 0.0]]),
            ..System::new([6.0, 27.9], vec![vec![1.0 - probability, probability], vec![1.0, 0.0]])
        };
        let limits = Limits {
            simulation: SimulationOptions { max_steps: 2_000_000, ..SimulationOptions::default() },
            ..Limits::default()
        };
        let predicted = predict(&system, requests as u32, &Thresholds::new(thresholds), &limits).expect("small");
        let (exact, simulated) = (predicted.throughput_tok_s(), predicted.standard_error().unwrap_or_default());
        let allowed = 4.5 * error.hypot(simulated);
        assert!((mean - exact).abs() < allowed, "p = {probability}: {mean} and {exact} tokens/s, allowed {allowed}");
        assert!(allowed < 0.03 * exact, "p = {probability}: {allowed} of {exact} proves nothing");
    }
}

#[test]
fn every_system_makes_the_steps_of_real_time() {
    let systems = [
        (ExecutionConfig::Async, true),
        (ExecutionConfig::Async, false),
        (ExecutionConfig::Lockstep, true),
        (ExecutionConfig::Standard, true),
    ];
    let methods = [
        (3, RoutingConfig::new("random", json!({"semantics": "mixture"}))),
        (2, RoutingConfig::new("random", json!({"semantics": "borrow", "probability": 0.6}))),
        (2, RoutingConfig::new("rstitch", json!({"entropy_threshold": 0.4, "return_threshold": 0.6}))),
        (2, RoutingConfig::new("aleatoric", json!({"aleatoric_threshold": 1.2}))),
    ];
    for (models, routing) in methods {
        for (execution, handoff_resume) in systems {
            let profile = "{emulated: {latency_ms: 0.02}}";
            let models: Vec<_> = ["a", "b", "c"][..models].iter().map(|name| format!("{name}: {profile}")).collect();
            let mut config = config(&format!("{{{}}}", models.join(", ")), "{method: random}", "");
            (config.routing, config.system.execution) = (routing.clone(), execution);
            config.system.handoff_resume = handoff_resume;
            let traced = |key| Request { trace: true, ..request(key, 40 + key as usize, 20 + key as usize) };
            let engine = Engine::launch(&config).expect("launches");
            let real = |key| {
                let mut stream = engine.generate(traced(key)).expect("taken");
                course(std::iter::from_fn(|| stream.blocking_next()))
            };
            // One after the other, so that batches are the same as well.
            let real: Vec<Course> = (0..6).map(real).collect();
            let fast = VirtualEngine::launch(&config).expect("launches");
            let streams = serve(&fast, (0..6).map(traced).collect(), 1);
            let streams: Vec<Course> =
                streams.into_iter().map(|events| course(events.into_iter().map(|(_, event)| event))).collect();
            let place = format!("{}, {execution:?}, handoff-resume {handoff_resume}", routing.method);
            assert_eq!(streams, real, "{place}");
            assert!(engine.drain(Duration::from_secs(60)));
            super::systems::wait_until_freed(&engine);
            for (fast, real) in fast.stats().models.iter().zip(&engine.stats().models) {
                let counts = |stats: &tokenrouter_core::scheduler::ModelStats| {
                    (stats.steps, stats.rows, stats.fed_tokens, stats.transitions.clone(), stats.handoff_tokens.clone())
                };
                assert_eq!(counts(fast), counts(real), "{place}");
            }
            // Side by side the batches are other ones, and the requests' courses the same.
            let side_by_side = VirtualEngine::launch(&config).expect("launches");
            let streams = serve(&side_by_side, (0..6).map(traced).collect(), 4);
            let streams: Vec<Course> =
                streams.into_iter().map(|events| course(events.into_iter().map(|(_, event)| event))).collect();
            assert_eq!(streams, real, "{place}");
        }
    }
}

#[test]
fn a_round_of_lockstep_waits_for_the_slowest() {
    let yaml = "{small: {emulated: {latency_ms: 6}}, large: {emulated: {latency_ms: 28}}}";
    let certain = "{method: random, probability: 1.0}";
    let config = config(yaml, certain, "system: {execution: lockstep}");
    let engine = VirtualEngine::launch(&config).expect("launches");
    let streams = serve(&engine, (0..4).map(|key| request(key, 1, 50)).collect(), 4);
    // All four leave for the large model and come back together.
    for events in &streams {
        assert_eq!(token_times(events), (1..=50).map(|k| ms(34.0 * f64::from(k))).collect::<Vec<_>>());
    }
    let [small, large] = &engine.stats().models[..] else { panic!("two models") };
    assert_eq!((small.steps, large.steps, small.mean_batch()), (50, 50, 4.0));
    assert_eq!((small.busy, small.idle), (ms(300.0), ms(1400.0)));
}

#[test]
fn costs_of_a_profile_are_those_of_its_system() {
    let profile = "step_overhead_ms: 1, prefix_ms_per_token: 0.125, hop_ms: 2, hop_ms_per_token: 0.25";
    let yaml = format!(
        "{{small: {{emulated: {{latency_ms: 6, {profile}}}}}, large: {{emulated: {{latency_ms: 28, {profile}}}}}}}"
    );
    let end = |execution: ExecutionConfig, handoff_resume: bool| {
        let mut config = config(&yaml, "{method: random, probability: 1.0}", "");
        (config.system.execution, config.system.handoff_resume) = (execution, handoff_resume);
        let engine = VirtualEngine::launch(&config).expect("launches");
        let streams = serve(&engine, vec![request(0, 16, 8)], 1);
        let scheduling: Duration = engine.stats().models.iter().map(|model| model.scheduling).sum();
        (streams[0].last().expect("an end").0.as_secs_f64() * 1e3, scheduling.as_secs_f64() * 1e3)
    };
    // Eight tokens, two steps each; each model is asked for the prompt once.
    let steps = 8.0 * (6.0 + 28.0 + 2.0 * 1.0);
    let asked_once = 0.125 * (16.0 + 16.0);
    let (async_ms, scheduling) = end(ExecutionConfig::Async, true);
    assert!((async_ms - (steps + asked_once)).abs() < 1e-6, "{async_ms}");
    assert!((scheduling - (16.0 + asked_once)).abs() < 1e-6, "{scheduling}");
    // Without resume every visit asks for the whole context: 16 + k tokens when k are there.
    let visits: f64 = (0..8).map(|k| 2.0 * f64::from(16 + k)).sum();
    let (no_resume, _) = end(ExecutionConfig::Async, false);
    assert!((no_resume - (steps + 0.125 * visits)).abs() < 1e-6, "{no_resume}");
    // A client hops fifteen times: after every step but the last, which ends the request.
    let sent: f64 = (0..8).map(|k| f64::from(16 + k)).sum::<f64>() + (1..8).map(|k| f64::from(16 + k)).sum::<f64>();
    let (standard, _) = end(ExecutionConfig::Standard, true);
    let expected = steps + 0.125 * visits + 15.0 * 2.0 + 0.25 * sent;
    assert!((standard - expected).abs() < 1e-6, "{standard}, expected {expected}");
}

#[test]
fn equal_seeds_are_equal_runs() {
    let yaml = "{small: {emulated: {latency_ms: [6, 6.5, 7]}}, large: {emulated: {latency_ms: 27.9}}}";
    let mut config = config(yaml, "{method: random, probability: 0.3}", "batching: {thresholds: auto}");
    config.system.max_active = 4;
    let run = || {
        let engine = VirtualEngine::launch(&config).expect("launches");
        let streams = serve(&engine, (0..20).map(|key| request(key, 30, 64)).collect(), 4);
        (streams, engine.stats().models)
    };
    assert_eq!(run(), run());
}

#[test]
fn thresholds_follow_the_load_in_virtual_time() {
    let yaml = "{small: {emulated: {latency_ms: 2}}, large: {emulated: {latency_ms: 30}}}";
    let mut config = config(yaml, "{method: random, probability: 0.5}", "batching: {thresholds: adaptive}");
    config.system.max_active = 4;
    // Wrong at first: the method knows its matrix, and it is told another.
    let wrong = json!({"routing": [[0.99, 0.01], [1.0, 0.0]], "commit": [[1.0, 0.0], [1.0, 0.0]]});
    config.batching.profile = Some(serde_json::from_value(wrong).expect("a profile"));
    let engine = VirtualEngine::launch(&config).expect("launches");
    serve(&engine, (0..40).map(|key| request(key, 1, 500)).collect(), 4);
    assert!(engine.stats().models.iter().all(|model| model.threshold_changes > 0), "{:?}", engine.info().thresholds);
}

#[test]
fn models_with_weights_are_refused_by_name() {
    let config = config("{a: {source: demo}}", "{method: ensemble}", "");
    let error = VirtualEngine::launch(&config).expect_err("refused").to_string();
    assert!(error.contains("virtual time") && error.contains("model `a`"), "{error}");
}
