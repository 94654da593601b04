//! The whole engine on the real demo pair: greedy output equals the one-request reference loop, whatever the
//! concurrency, the thresholds and the order of arrival; and what happens to requests that cannot be served.

use std::sync::Arc;
use std::time::Duration;

use candle_core::Device;
use serde_json::{Value, json};
use tokenrouter_core::reference::{self, ReferenceModel};
use tokenrouter_core::routing::RoutingConfig;
use tokenrouter_core::routing::SignalNeeds;
use tokenrouter_core::routing::registry::{self, SystemView};
use tokenrouter_core::scheduler::ModelStats;
use tokenrouter_core::{CommittedToken, FinishReason, Request, SamplingParams, StreamEvent};
use tokenrouter_engine::config::{Config, ExecutionConfig, ModelConfig, ThresholdConfig, WeightDtype};
use tokenrouter_engine::model::ModelFiles;
use tokenrouter_engine::runner::{NativeRunner, RunnerOptions};
use tokenrouter_engine::{Engine, SubmitError, TokenStream};
use tokenrouter_kernels::Pool;
use tokenrouter_testing::candle_oracle::CandleDecoder;

use crate::demo;

const KV: (usize, usize) = (16, 16);
const MAX_TOKENS: usize = 20;

fn config(routing: &RoutingConfig) -> Config {
    let yaml = include_str!("../../../../config/rstitch/demo.yaml");
    let mut config = Config::from_yaml(yaml, "demo.yaml").expect("the shipped configuration");
    config.routing = routing.clone();
    if routing.options.get("weights").is_some() {
        // The heads were trained on the patched small model.
        let patch = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/draft/demo-24.safetensors");
        config.models["small"].patch = Some(patch);
    }
    for model in config.models.values_mut() {
        model.cores = None;
        // Small, so that prompts are prefilled in several chunks.
        model.scheduler.max_step_tokens = 24;
    }
    config
}

/// What the fact sheets say of a method's routing and commit matrices.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    /// `P = [[1-p, p], [1, 0]]`, `C = [[1, 0], [1, 0]]`.
    Borrow,
    /// `P = [[1-a, a], [b, 1-b]]`, `C = [[1, 0], [1, 1]]`.
    Span,
    /// Every step is committed.
    Mixture,
    /// The identity, but for the one move of a request at its beginning, which commits nothing.
    Query,
    /// Steps of several tokens, with probes that may be dropped.
    Steps,
    /// What the rules say.
    Any,
}

fn methods() -> Vec<(RoutingConfig, Form)> {
    let glimp = |probe: &str| {
        json!({"entropy_threshold": 1.5, "delimiter": " ", "think_end": "", "max_step_tokens": 4, "probe": probe,
               "max_thinking_tokens": 16})
    };
    let rules = json!({"rules": {
        "small": [{"when": "entropy > 2.5", "to": "large", "drop": true},
                  {"when": "token_text.contains(\"o\")", "to": "large"}],
        "large": {"when": "run_length >= 1 || margin > 0.5", "to": "small"},
    }});
    let head = |kind: &str| {
        let path =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../config/{kind}/demo.safetensors"));
        json!({"weights": path})
    };
    vec![
        (RoutingConfig::new("rstitch", json!({"entropy_threshold": 2.0})), Form::Span),
        (RoutingConfig::new("random", json!({"semantics": "borrow", "probability": 0.4})), Form::Borrow),
        (RoutingConfig::new("entropy", json!({"entropy_threshold": 2.5})), Form::Borrow),
        (RoutingConfig::new("aleatoric", json!({"aleatoric_threshold": 2.285})), Form::Borrow),
        (RoutingConfig::new("query", json!({"large_fraction": 0.5})), Form::Query),
        (RoutingConfig::new("glimp", glimp("discard")), Form::Steps),
        (RoutingConfig::new("glimp", glimp("keep")), Form::Steps),
        (RoutingConfig::new("ensemble", json!({"weights": [2.0, 1.0]})), Form::Mixture),
        (RoutingConfig::new("rule", rules), Form::Any),
        (RoutingConfig::new("r2r", head("r2r")), Form::Borrow),
        (RoutingConfig::new("citer", head("citer")), Form::Borrow),
        // At its own threshold the head lets nothing through in so few tokens.
        (RoutingConfig::new("collm", json!({"weights": head("collm")["weights"], "threshold": 0.45})), Form::Borrow),
    ]
}

/// Checks measured counts against a form: `moves[i][j]` steps, `commits[i][j]` tokens.
fn check_form(form: Form, stats: &[ModelStats], case: &str) {
    let moves = |i: usize, j: usize| stats[i].transitions[j];
    let commits = |i: usize, j: usize| stats[i].committed[j];
    let all_committed = |pairs: &[(usize, usize)]| pairs.iter().all(|(i, j)| commits(*i, *j) == moves(*i, *j));
    let fits = match form {
        Form::Borrow => moves(1, 1) == 0 && commits(0, 1) == 0 && all_committed(&[(0, 0), (1, 0)]),
        Form::Span => commits(0, 1) == 0 && all_committed(&[(0, 0), (1, 0), (1, 1)]),
        Form::Mixture => all_committed(&[(0, 0), (0, 1), (1, 0), (1, 1)]),
        Form::Query => moves(1, 0) == 0 && commits(0, 1) == 0 && all_committed(&[(0, 0), (1, 1)]),
        Form::Steps => all_committed(&[(1, 0), (1, 1)]),
        Form::Any => true,
    };
    assert!(fits, "{case}: {:?} {:?}", stats[0], stats[1]);
}

fn requests(count: usize, max_tokens: usize) -> Vec<Request> {
    let text = demo::files().text;
    let questions = ["What is 7 * 8?", "Name a prime above 90.", "Add 12 and 30.", "How many sides has a cube?"];
    (0..count)
        .map(|i| {
            let prompt = text.encode(&format!("{} ({i})\nAnswer:", questions[i % questions.len()])).expect("encodes");
            let sampling = SamplingParams { max_tokens, seed: 5, ..SamplingParams::default() };
            Request::new(prompt, sampling, i as u64)
        })
        .collect()
}

fn runner(model: &ModelConfig, needs: SignalNeeds) -> NativeRunner {
    let files = ModelFiles::open(model).expect("the demo model");
    let options = RunnerOptions { needs, eos: files.eos.clone(), kv: KV, ..RunnerOptions::default() };
    let pool = Pool::new(1, None).expect("a thread");
    NativeRunner::load(&files.arch, (&files.weights, &files.patches), model.dtype, &options, pool).expect("loads")
}

fn expected(config: &Config, requests: &[Request]) -> Vec<(Vec<CommittedToken>, FinishReason)> {
    let files = demo::files();
    let texts = Arc::new(files.text.token_texts());
    let view = SystemView {
        models: config.model_names(),
        entry: config.entry_index(),
        vocab: 49152,
        hidden: vec![576; config.models.len()],
        head_rows: vec![49152; config.models.len()],
        texts: Some(Arc::clone(&texts)),
        load_head: tokenrouter_engine::heads::load,
    };
    let policy = registry::build(&config.routing, &view).expect("valid routing");
    let models = config.models.values().enumerate();
    let mut runners: Vec<_> = models.map(|(index, model)| runner(model, policy.needs(index))).collect();
    let one = |request: &Request| {
        let mut models: Vec<_> =
            runners.iter_mut().map(|runner| ReferenceModel { runner, blocks: KV.0, block_size: KV.1 }).collect();
        let request = Arc::new(request.clone());
        reference::generate(&mut models, &*policy, config.entry_index(), (&files.eos, Some(&texts)), &request)
            .expect("computes")
    };
    requests.iter().map(one).collect()
}

#[test]
fn greedy_output_equals_the_reference_loop() {
    let requests = requests(8, MAX_TOKENS);
    for (routing, form) in methods() {
        let base = config(&routing);
        let want = expected(&base, &requests);
        let origins = want.iter().flat_map(|(tokens, _)| tokens.iter().map(|token| token.origin));
        let switched = origins.clone().any(|o| o == 0) && origins.clone().any(|o| o == 1);
        assert!(switched, "{}: nothing was routed, the comparison would prove nothing", routing.method);
        // The whole grid for the methods that hand over most; two corners for the others.
        let grid =
            [(4, vec![1, 3]), (8, vec![2, 2]), (1, vec![1, 1]), (4, vec![1, 1]), (4, vec![2, 2]), (8, vec![1, 3])];
        let cases = if ["rstitch", "random"].contains(&routing.method.as_str()) { grid.len() } else { 2 };
        for (concurrency, thresholds) in grid.into_iter().take(cases) {
            let mut config = base.clone();
            config.system.max_active = concurrency;
            config.batching.thresholds = ThresholdConfig::Fixed(thresholds.clone());
            let engine = Engine::launch(&config).expect("launches");
            // Another order for every case.
            let order: Vec<usize> = (0..requests.len()).map(|i| (i * 3 + concurrency) % requests.len()).collect();
            let streams: Vec<(usize, TokenStream)> =
                order.iter().map(|i| (*i, engine.generate(requests[*i].clone()).expect("taken"))).collect();
            for (i, stream) in streams {
                let (tokens, reason, stats) = stream.collect_blocking();
                let case =
                    format!("{}, concurrency {concurrency}, thresholds {thresholds:?}, request {i}", routing.method);
                assert_eq!((&tokens, &reason), (&want[i].0, &want[i].1), "{case}");
                assert_eq!(stats.tokens(), tokens.len() as u64, "{case}");
            }
            assert!(engine.drain(Duration::from_secs(60)));
            assert_eq!(engine.stats().open_requests, 0);
            check_form(form, &engine.stats().models, &routing.method);
        }
    }
}

/// Rounds of all models, and single engines with a client that hops, do the same work: also for methods that keep a state.
#[test]
fn other_executions_reproduce_the_reference_loop() {
    let requests = requests(4, MAX_TOKENS);
    for (routing, form) in methods().into_iter().take(6) {
        let mut config = config(&routing);
        let want = expected(&config, &requests);
        config.batching.thresholds = ThresholdConfig::Eager;
        for execution in [ExecutionConfig::Lockstep, ExecutionConfig::Standard] {
            config.system.execution = execution;
            let engine = Engine::launch(&config).expect("launches");
            let streams: Vec<_> = requests.iter().map(|r| engine.generate(r.clone()).expect("taken")).collect();
            for (stream, want) in streams.into_iter().zip(&want) {
                let (tokens, reason, _) = stream.collect_blocking();
                assert_eq!((&tokens, &reason), (&want.0, &want.1), "{}, {execution:?}", routing.method);
            }
            check_form(form, &engine.stats().models, &routing.method);
        }
    }
}

/// Sampling, penalties and stop texts act on the committed stream, whoever writes it.
#[test]
fn sampled_output_equals_the_reference_loop() {
    let mut requests = requests(6, MAX_TOKENS);
    for (request, index) in requests.iter_mut().zip(0u64..) {
        request.sampling = SamplingParams {
            temperature: 0.9,
            top_p: 0.95,
            min_p: 0.01,
            repetition_penalty: 1.1,
            presence_penalty: 0.2,
            frequency_penalty: 0.1,
            seed: index,
            min_tokens: 4,
            stop: vec![".\n".into(), " is".into()],
            ..request.sampling.clone()
        };
    }
    let mut config = config(&methods()[1].0);
    let want = expected(&config, &requests);
    assert!(want.iter().any(|(_, reason)| *reason == FinishReason::Stop), "no stop text was met: {want:?}");
    let delayed = ThresholdConfig::Fixed(vec![1, 3]);
    for (thresholds, execution) in
        [(delayed, ExecutionConfig::Async), (ThresholdConfig::Eager, ExecutionConfig::Standard)]
    {
        config.batching.thresholds = thresholds;
        config.system.execution = execution;
        let engine = Engine::launch(&config).expect("launches");
        let streams: Vec<_> = requests.iter().map(|request| engine.generate(request.clone()).expect("taken")).collect();
        for (stream, want) in streams.into_iter().zip(&want) {
            let (tokens, reason, _) = stream.collect_blocking();
            assert_eq!((&tokens, &reason), (&want.0, &want.1), "{execution:?}");
        }
    }
}

/// Three models, and a trace that tells the same story as the stream.
#[test]
fn three_models_reproduce_the_reference_loop_with_a_trace() {
    let yaml = include_str!("../../../../config/ensemble/demo.yaml");
    let config = Config::from_yaml(yaml, "demo.yaml").expect("the shipped configuration");
    let requests = requests(5, MAX_TOKENS);
    let want = expected(&config, &requests);
    let engine = Engine::launch(&config).expect("launches");
    let streams: Vec<_> = requests
        .iter()
        .map(|request| engine.generate(Request { trace: true, ..request.clone() }).expect("taken"))
        .collect();
    for (mut stream, (want, _)) in streams.into_iter().zip(want) {
        let (mut steps, mut tokens) = (Vec::new(), Vec::new());
        while let Some(event) = stream.blocking_next() {
            match event {
                StreamEvent::Step(step) => steps.push(step),
                StreamEvent::Token(token) => tokens.push(token),
                StreamEvent::Finished(..) | StreamEvent::Logprobs(_) => {}
            }
        }
        let commits = steps.iter().filter(|step| step.committed);
        let commits: Vec<_> = commits.map(|s| CommittedToken { id: s.token, origin: s.model }).collect();
        assert_eq!((&commits, &tokens), (&want, &want));
        assert!(steps.windows(2).all(|pair| pair[0].to == Some(pair[1].model)));
    }
    let stats = engine.stats();
    assert!(stats.models.iter().all(|model| model.steps > 0 && model.transitions == model.committed));
}

/// Log-probabilities of a row.
fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let z: f64 = logits.iter().map(|x| f64::from(x - max).exp()).sum::<f64>().ln();
    logits.iter().map(|x| f64::from(x - max) - z).collect()
}

/// Against llama.cpp on teacher-forced text: top-1 agreement and KL over its top 20 with the rest in one bucket. The
/// bounds leave room for what llama.cpp differs from itself between settings (its own mean KL: 0.003).
#[test]
fn logits_are_close_to_llama_cpp() {
    let fixture = demo::fixture("llamacpp_logits.json");
    let ids: Vec<u32> = serde_json::from_value(fixture["ids"].clone()).expect("ids");
    for dtype in [WeightDtype::Native, WeightDtype::F32, WeightDtype::Bf16] {
        let files = demo::files();
        let pool = Pool::new(1, None).expect("a thread");
        let options = RunnerOptions { kv: KV, ..RunnerOptions::default() };
        let mut runner =
            NativeRunner::load(&files.arch, (&files.weights, &files.patches), dtype, &options, pool).expect("loads");
        let request = Arc::new(Request::new(vec![0], SamplingParams::default(), 0));
        let blocks: Vec<u32> = (0..KV.0 as u32).collect();
        let (mut agree, mut total) = (0, 0.0);
        let positions = fixture["positions"].as_array().expect("positions");
        for (i, position) in positions.iter().enumerate() {
            let mut batch = tokenrouter_core::step::Batch::default();
            batch.push(tokenrouter_core::RequestId(0), &request, (&ids[..=i], i..i + 1), &blocks);
            let ours = log_softmax(runner.logits(&batch).expect("computes"));
            let top: Vec<(usize, f64)> = serde_json::from_value(position["top"].clone()).expect("top");
            let best = (0..ours.len()).max_by(|a, b| ours[*a].total_cmp(&ours[*b])).expect("a vocabulary");
            agree += usize::from(best == top[0].0);
            let (mut kl, mut p_rest, mut q_rest) = (0.0, 1.0, 1.0);
            for (id, theirs) in top {
                kl += theirs.exp() * (theirs - ours[id]);
                p_rest -= theirs.exp();
                q_rest -= ours[id].exp();
            }
            kl += p_rest * (p_rest / q_rest).ln();
            total += kl;
        }
        let mean = total / positions.len() as f64;
        assert!(agree * 100 >= positions.len() * 95, "{dtype:?}: top-1 agrees at {agree} of {}", positions.len());
        assert!(mean < 0.01, "{dtype:?}: mean KL {mean}");
    }
}

/// Against candle-transformers' own quantised Llama on the same file, teacher-forced: our runner, and the decoder
/// that is its oracle elsewhere.
#[test]
fn logits_are_close_to_candle_transformers() {
    let ids: Vec<u32> = serde_json::from_value(demo::fixture("llamacpp_logits.json")["ids"].clone()).expect("ids");
    let ids = &ids[..24];
    let files = demo::files();
    let mut file = std::fs::File::open(files.weights.path()).expect("the demo file");
    let content = candle_core::quantized::gguf_file::Content::read(&mut file).expect("a header");
    let mut oracle =
        candle_transformers::models::quantized_llama::ModelWeights::from_gguf(content, &mut file, &Device::Cpu)
            .expect("candle's own model");
    let candle = CandleDecoder::load(&files, WeightDtype::Native, KV).expect("our candle decoder");
    let (pool, options) = (Pool::new(1, None).expect("a thread"), RunnerOptions { kv: KV, ..RunnerOptions::default() });
    let mut native =
        NativeRunner::load(&files.arch, (&files.weights, &files.patches), WeightDtype::Native, &options, pool)
            .expect("loads");
    let request = Arc::new(Request::new(vec![0], SamplingParams::default(), 0));
    let blocks: Vec<u32> = (0..KV.0 as u32).collect();
    let mut sums = [(0usize, 0f64); 2];
    for i in 0..ids.len() {
        let input = candle_core::Tensor::from_slice(&ids[i..=i], (1, 1), &Device::Cpu).expect("a token");
        let want = oracle.forward(&input, i).and_then(|t| t.flatten_all()?.to_vec1::<f32>()).expect("logits");
        let want = log_softmax(&want);
        let mut batch = tokenrouter_core::step::Batch::default();
        batch.push(tokenrouter_core::RequestId(0), &request, (&ids[..=i], i..i + 1), &blocks);
        let tensor = candle.forward(&batch).and_then(|(_, t)| t.flatten_all()?.to_vec1::<f32>()).expect("logits");
        let kernels = native.logits(&batch).expect("logits").to_vec();
        let best = |values: &[f64]| (0..values.len()).max_by(|a, b| values[*a].total_cmp(&values[*b]));
        for ((agree, kl), ours) in sums.iter_mut().zip([tensor, kernels]) {
            let ours = log_softmax(&ours);
            *agree += usize::from(best(&ours) == best(&want));
            *kl += want.iter().zip(&ours).map(|(p, q)| p.exp() * (p - q)).sum::<f64>();
        }
    }
    // The same tensors and products, so candle's own model is near; the kernels round activations differently.
    for ((agree, kl), (name, most)) in sums.iter().zip([("candle", 0.003), ("native", 0.01)]) {
        assert!(*agree + 2 >= ids.len(), "{name}: top-1 agrees at {agree} of {}", ids.len());
        assert!(kl / ids.len() as f64 <= most, "{name}: mean KL {}", kl / ids.len() as f64);
    }
}

#[test]
fn requests_that_cannot_be_served_are_refused_with_reasons() {
    let mut config = config(&methods()[1].0);
    config.system.max_tokens_per_request = 100;
    config.system.max_queued = 1;
    config.system.max_active = 3;
    let engine = Engine::launch(&config).expect("launches");
    let request = |prompt: Vec<u32>| Request::new(prompt, SamplingParams::default(), 0);
    assert_eq!(engine.generate(request(vec![5; 100])).err(), Some(SubmitError::TooLong { prompt: 100, limit: 100 }));
    assert!(matches!(engine.generate(request(Vec::new())), Err(SubmitError::Invalid(_))));
    assert!(matches!(engine.generate(request(vec![49152])), Err(SubmitError::Invalid(_))));
    let mut open: Vec<_> = (0..4).map(|_| engine.generate(request(vec![5; 20])).expect("taken")).collect();
    assert!(matches!(engine.generate(request(vec![5; 20])), Err(SubmitError::Overloaded { open: 4, limit: 4 })));
    // A client that goes away frees its place; an aborted one hears of it.
    drop(open.pop());
    let id = open[0].id();
    engine.abort(id);
    let (_, reason, _) = open.remove(0).collect_blocking();
    assert_eq!(reason, FinishReason::Cancelled);
    for stream in open {
        let (tokens, reason, _) = stream.collect_blocking();
        assert!(reason == FinishReason::Stop || tokens.len() == 80, "{reason:?} after {} tokens", tokens.len());
    }
    assert!(engine.drain(Duration::from_secs(60)));
    assert!(matches!(engine.generate(request(vec![5])), Err(SubmitError::ShuttingDown)));
}

#[test]
fn models_without_a_common_vocabulary_are_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let tiny = tokenrouter_testing::tiny::config("llama");
    tokenrouter_testing::tiny::write(dir.path(), &tiny, &tokenrouter_testing::tiny::tensors(&tiny, 1));
    let mut config = config(&methods()[1].0);
    config.models["large"] = ModelConfig { path: Some(dir.path().to_owned()), ..ModelConfig::default() };
    let message = Engine::launch(&config).expect_err("different vocabularies").to_string();
    assert!(message.contains("`small` and `large` do not share a vocabulary"), "{message}");
}

#[test]
fn damaged_files_are_refused_with_their_names() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).expect("writable");
        ModelConfig { path: Some(path), ..ModelConfig::default() }
    };
    let whole = std::fs::read(demo::files().weights.path()).expect("the demo file");
    let mut flipped = whole[..4_000_000].to_vec();
    flipped[8..16].fill(0xff);
    for (config, wanted) in [
        (file("text.gguf", b"hello, this is not a model"), "not a GGUF file"),
        (file("short.gguf", b"GG"), "shorter than 4 bytes"),
        (file("half.gguf", &whole[..whole.len() / 2]), "truncated or corrupt"),
        (file("header.gguf", &whole[..1000]), "GGUF header cannot be read"),
        (file("counts.gguf", &flipped), "GGUF header cannot be read"),
    ] {
        let message = ModelFiles::open(&config).expect_err("damaged").to_string();
        let name = config.path.expect("a path");
        assert!(message.contains(wanted) && message.contains(&*name.to_string_lossy()), "{message}");
    }
    let missing = ModelConfig { path: Some("/no/such/model.gguf".into()), ..ModelConfig::default() };
    assert!(ModelFiles::open(&missing).expect_err("missing").to_string().contains("/no/such/model.gguf"));
}

#[test]
fn a_stream_gives_tokens_before_the_end() {
    let engine = Engine::launch(&config(&methods()[0].0)).expect("launches");
    let mut stream = engine.generate(requests(1, 5).remove(0)).expect("taken");
    let mut events = Vec::new();
    while let Some(event) = stream.blocking_next() {
        events.push(event);
    }
    assert!(matches!(events.first(), Some(StreamEvent::Token(_))));
    assert!(matches!(events.last(), Some(StreamEvent::Finished(..))));
    let _: Value = serde_json::to_value(engine.stats()).expect("serialises");
}
