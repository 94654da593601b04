//! Specs survive being written and read; mistakes in them are named.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn path() -> impl Strategy<Value = Option<PathBuf>> {
    prop::option::of("[a-z./]{1,12}".prop_map(PathBuf::from))
}

fn name() -> impl Strategy<Value = String> {
    "[a-z][a-z0-9-]{0,8}"
}

/// Numbers as people write them: JSON keeps no others to the last bit.
fn eighths() -> impl Strategy<Value = f64> {
    (1..8_000_000u32).prop_map(|n| f64::from(n) / 8.0)
}

fn system() -> impl Strategy<Value = System> {
    prop_oneof![
        Just(System::Config),
        Just(System::Delayed),
        Just(System::Async),
        Just(System::AsyncNoResume),
        Just(System::Lockstep),
        Just(System::Standard),
        name().prop_map(System::Single),
    ]
}

fn device() -> impl Strategy<Value = DeviceChoice> {
    prop_oneof!["auto", "cpu", "cuda:[0-9]"].prop_map(|text| text.parse().expect("a device"))
}

fn workload() -> impl Strategy<Value = Workload> {
    use clap::ValueEnum as _;
    prop::sample::select(Workload::value_variants())
}

prop_compose! {
    fn what()(
        config in path(),
        set in prop::collection::vec("[a-z.]{1,8}=[\\[\\]a-z0-9 ,.'\"]{0,12}", 0..3),
        device in prop::option::of(device()),
        system in prop::collection::vec(system(), 1..4),
        workload in workload(),
        dataset_path in path(),
        num_prompts in prop_oneof![Just(NumPrompts::All), (1..1000usize).prop_map(NumPrompts::First)],
        input_len in prop::option::of((1..500usize, 0..500usize).prop_map(|(least, more)| Lengths { least, most: least + more })),
    ) -> RunSpec {
        RunSpec { config, set, device, system, workload, dataset_path, num_prompts, input_len, ..RunSpec::default() }
    }
}

prop_compose! {
    fn load()(
        repeats in 1..1000usize,
        concurrency in prop::collection::vec(1..4096usize, 1..4),
        rate in prop::option::of(eighths()),
        cv in prop::option::of((1..80u32).prop_map(|n| f64::from(n) / 8.0)),
        warmup in 0..100_000usize,
        trials in 1..1000usize,
        max_tokens in prop::option::of(1..1_000_000usize),
        ignore_eos: bool,
        temperature in (0..20u8).prop_map(|n| f32::from(n) / 10.0),
        seed: u64,
    ) -> RunSpec {
        let arrivals = rate.and(cv).map_or(Arrivals::Poisson, Arrivals::Gamma);
        RunSpec {
            repeats, concurrency, rate, arrivals, warmup, trials, max_tokens, ignore_eos, temperature, seed,
            ..RunSpec::default()
        }
    }
}

/// With an engine in this process, or with servers.
fn backend() -> impl Strategy<Value = RunSpec> {
    let flags = prop::array::uniform3(any::<bool>());
    let engine = (path(), path(), prop::option::of(name()), flags).prop_map(
        |(calibration, replay, judge, [virtual_time, trace, timeline])| RunSpec {
            calibration,
            replay,
            virtual_time,
            judge,
            trace,
            timeline,
            ..RunSpec::default()
        },
    );
    let named = |value: &'static str| {
        let one = move |model: String| Named { model, value: value.to_owned() };
        prop::collection::vec(name().prop_map(one), 0..3)
    };
    let servers = (named("http://127.0.0.1:30000/?a=b"), named("Qwen/Qwen3-8B"))
        .prop_map(|(endpoint, model)| RunSpec { endpoint, model, ..RunSpec::default() });
    prop_oneof![engine, servers]
}

/// Any run that a command line can ask for.
pub(crate) fn specs() -> impl Strategy<Value = RunSpec> {
    let limits = prop::array::uniform3(prop::option::of(eighths()));
    let metrics = prop::sample::subsequence(LatencyMetric::ALL.to_vec(), 1..4);
    let output = (limits, metrics, any::<bool>(), any::<bool>());
    (what(), load(), backend(), output).prop_map(|(what, load, backend, (limits, metrics, detailed, any))| RunSpec {
        repeats: load.repeats,
        concurrency: load.concurrency,
        rate: load.rate,
        arrivals: load.arrivals,
        warmup: load.warmup,
        trials: load.trials,
        max_tokens: load.max_tokens,
        ignore_eos: load.ignore_eos,
        temperature: load.temperature,
        seed: load.seed,
        calibration: backend.calibration.clone(),
        replay: backend.replay,
        virtual_time: backend.virtual_time,
        judge: backend.judge,
        trace: backend.trace,
        timeline: backend.timeline,
        endpoint: backend.endpoint,
        model: backend.model,
        slo_ttft_ms: limits[0],
        slo_tpot_ms: limits[1],
        slo_e2el_ms: limits[2],
        percentile_metrics: metrics,
        save_detailed: detailed,
        any_calibration: any && backend.calibration.is_some(),
        ..what
    })
}

/// The settings of a run that are not the defaults.
pub(crate) fn overrides_of(spec: &RunSpec) -> Overrides {
    let (mut given, defaults) = (fields(spec), fields(&RunSpec::default()));
    given.retain(|key, value| defaults.get(key) != Some(&*value));
    serde_json::from_value(given.into()).expect("a map")
}

proptest! {
    #[test]
    fn a_spec_that_is_written_and_read_is_the_same(spec in specs()) {
        let text = serde_json::to_string(&spec).expect("written");
        prop_assert_eq!(&serde_json::from_str::<RunSpec>(&text).expect("read"), &spec);
        // What differs from the defaults is the whole of it.
        let overrides = overrides_of(&spec);
        prop_assert_eq!(&overrides.spec().expect("known keys"), &spec);
        let file = serde_json::to_string(&overrides.file()).expect("written");
        let read: Overrides = serde_saphyr::from_str(&file).expect("JSON is YAML");
        prop_assert_eq!(&read.spec().expect("known keys"), &spec);
    }
}

fn read(value: serde_json::Value) -> Result<RunSpec, String> {
    serde_json::from_value::<Overrides>(value).expect("a map").spec()
}

#[test]
fn values_may_be_written_as_on_a_command_line() {
    let loose = json!({"concurrency": "4,8", "system": "async", "num-prompts": "all", "input-len": 256, "trials": "2", "rate": 2});
    let strict = RunSpec {
        concurrency: vec![4, 8],
        system: vec![System::Async],
        num_prompts: NumPrompts::All,
        input_len: Some(Lengths { least: 256, most: 256 }),
        trials: 2,
        rate: Some(2.0),
        ..RunSpec::default()
    };
    assert_eq!(read(loose).expect("valid"), strict);
    let set = read(json!({"set": "routing={method: rstitch, entropy_threshold: 0.8}"})).expect("valid").set;
    assert_eq!(set.len(), 1, "commas are part of the YAML");
}

#[test]
fn mistakes_in_a_spec_are_named() {
    for (spec, says) in [
        (json!({"max-token": 3}), "unknown key `max-token`, did you mean `max-tokens`? Known are version, config,"),
        (json!({"zzz": 3}), "unknown key `zzz`. Known are"),
        (json!({"concurrency": "four"}), "`concurrency`: invalid value 'four'"),
        (json!({"workload": "aim"}), "`workload`: invalid value 'aim': expected one of `aime`, `aime-8k`"),
        (json!({"trials": [1]}), "`trials`: invalid type: sequence, expected a value"),
        (json!({"system": {"a": 1}}), "`system`: invalid type: map, expected a value or a list of values"),
    ] {
        let why = read(spec.clone()).expect_err("refused");
        assert!(why.contains(says), "{spec}: {why}");
    }
    for (spec, says) in [
        (json!({"version": 2}), "`version` 2 of a spec is not known, known is 1"),
        (json!({"concurrency": 0}), "--concurrency 0 is not allowed, allowed are 1 to 4096"),
        (json!({"trials": 1001}), "--trials 1001 is not allowed"),
        (json!({"rate": -1}), "--rate -1 is not allowed, allowed is above 0 up to 1000000"),
        (json!({"arrivals": "gamma:2"}), "--arrivals"),
        (json!({"trace": true, "trials": 2}), "--trace"),
        (json!({"endpoint": "http://x", "judge": "large"}), "--judge"),
        (json!({"endpoint": "http://x", "virtual-time": true}), "--virtual-time"),
    ] {
        let why = read(spec.clone()).expect("known keys").check().expect_err("refused").to_string();
        assert!(why.contains(says), "{spec}: {why}");
    }
}
