//! Servers under load against closed forms of queueing, and the formula against the simulation.

use crate::support::{cases, close, two};
use proptest::prelude::*;
use tokenrouter_dtmc::serving::{
    Arrivals, Balancer, BirthDeath, Births, Lengths, OpenLoop, RateOptions, Rates, Server, ServingOptions,
    ServingSimulation, Workload, balanced, simulate_serving,
};
use tokenrouter_dtmc::{Error, System, Thresholds, TokenCost};

fn borrow(p: f64) -> System {
    two(8, p, 0.1).to_system()
}

fn rates(system: &System, workload: &Workload, most: u32) -> Rates {
    Rates::new(system, workload, most, &RateOptions::default(), &|_| ()).expect("solvable")
}

fn server(rates: &Rates) -> Server {
    Server { system: rates.system().clone(), most: rates.most(), thresholds: rates.thresholds() }
}

fn simulated(rates: &Rates, workload: &Workload, requests: f64, seed: u64) -> ServingSimulation {
    let rate = workload.arrivals.rate_per_s().expect("open");
    let duration_ms = 1e3 * requests / rate;
    let options = ServingOptions {
        warmup_ms: 0.1 * duration_ms,
        duration_ms,
        replications: 8,
        seed,
        ..ServingOptions::default()
    };
    simulate_serving(&[server(rates)], &Balancer::Random, workload, &options).expect("runs")
}

/// Erlang's C: the share of arrivals that wait in M/M/c.
fn erlang_c(servers: u32, offered: f64) -> f64 {
    // By the recursion of Erlang's B.
    let blocked = (1..=servers).fold(1.0, |b, n| offered * b / (f64::from(n) + offered * b));
    let load = offered / f64::from(servers);
    blocked / (1.0 - load * (1.0 - blocked))
}

#[test]
fn one_server_and_several_are_erlangs() {
    for (servers, rate, mu) in [(1, 0.4, 1.0), (3, 2.4, 1.0), (8, 30.0, 4.0), (50, 47.0, 1.0), (400, 399.0, 1.0)] {
        let deaths: Vec<f64> = (1..=servers).map(|n| f64::from(n) * mu).collect();
        let queue = BirthDeath::new(Births::Open(rate), &deaths).expect("stable");
        let waiting = erlang_c(servers, rate / mu);
        assert!(close(queue.waiting_share, waiting, 1e-10), "{servers}: {} {waiting}", queue.waiting_share);
        let wait = 1e3 * waiting / (f64::from(servers) * mu - rate);
        assert!(close(queue.wait_ms(), wait, 1e-10) && close(queue.active_ms(), 1e3 / mu, 1e-10));
    }
}

#[test]
fn finite_sources_are_engsets() {
    // One server, K users: the repairman's model. p(n) = K! / (K - n)! (Z mu)^-n p(0).
    let (users, think, mu) = (7_u32, 2.0, 1.5);
    let queue = BirthDeath::new(Births::Sources { count: users, think_s: think }, &[mu]).expect("valid");
    let weights: Vec<f64> =
        (0..=users).map(|n| (0..n).map(|k| f64::from(users - k) / (think * mu)).product::<f64>()).collect();
    let total: f64 = weights.iter().sum();
    assert!(close(queue.throughput_per_s, mu * (1.0 - 1.0 / total), 1e-12));
    let mean: f64 = weights.iter().enumerate().map(|(n, w)| n as f64 * w / total).sum();
    assert!(close(queue.active + queue.queued, mean, 1e-12));
    // Little's law for users: the cycle of thinking, waiting and being served.
    let cycle = think + 1e-3 * (queue.wait_ms() + queue.active_ms());
    assert!(close(queue.throughput_per_s * cycle, f64::from(users), 1e-12));
}

#[test]
fn least_of_two_has_the_doubly_exponential_tail_of_one_server() {
    // Mitzenmacher, Vvedenskaya et al.: s_k = rho^(2^k - 1) for M/M/1 servers.
    for load in [0.5, 0.9, 0.99_f64] {
        let arrivals = Arrivals::Poisson { rate_per_s: 100.0 * load };
        let law = balanced(&arrivals, 100, &Balancer::LeastOfTwo, &[1.0]).expect("stable");
        let tails: Vec<f64> = (1..40).map(|k| load.powf(2_f64.powi(k) - 1.0)).collect();
        let mean: f64 = tails.iter().sum();
        assert!(close(law.active + law.queued, mean, 1e-9), "{load}: {} {mean}", law.active + law.queued);
        assert!(close(law.active, load, 1e-9));
    }
}

/// One model, one request at a time: M/G/1 with steps of one quantum, by Pollaczek and Khinchine.
#[test]
fn one_request_at_a_time_is_pollaczek_khinchines_queue() {
    let system = System { quantum_ms: 1.0, ..System::new([10.0], vec![vec![1.0]]) };
    for (output, cv2) in [
        (Lengths::Fixed(50.0), 0.0),
        (Lengths::Geometric(50.0), 1.0 - 1.0 / 50.0),
        (
            Lengths::Histogram(vec![(10, 3.0), (170, 1.0)]),
            3.0 * 40.0_f64.powi(2) / 50.0_f64.powi(2) / 4.0 + 120.0_f64.powi(2) / 50.0_f64.powi(2) / 4.0,
        ),
    ] {
        let mut workload = Workload { output, ..Workload::new(1.4, 50.0) };
        workload.arrivals = Arrivals::Poisson { rate_per_s: 1.4 };
        let found = rates(&system, &workload, 1);
        assert!(close(found.max_rate_per_s(), 2.0, 1e-12));
        let expected = 500.0 * (1.4 / 2.0) / (1.0 - 1.4 / 2.0) * 0.5 * (1.0 + cv2);
        let formula = OpenLoop::new(&found, &workload, 1, &Balancer::Random).expect("stable");
        assert!(close(formula.wait_ms, expected, 0.02), "{} {expected}", formula.wait_ms);
        assert!(
            close(formula.e2e_ms, formula.wait_ms + 500.0, 1e-9) && close(formula.tpot_ms.expect("some"), 10.0, 1e-9)
        );
        let run = simulated(&found, &workload, 40_000.0, 3);
        let error = (run.wait_ms.mean.mean - expected).abs();
        assert!(error < 2.0 * run.wait_ms.mean.half_width + 1e-9, "{:?} {expected}", run.wait_ms.mean);
        assert!(close(run.tpot_ms.expect("some").mean.mean, 10.0, 1e-9));
    }
}

/// The table of the design: borrow routing, N = 8, thresholds by active count. Simulation and formula agree within 1 % of the
/// time per token and 2 % end to end.
#[test]
fn formula_and_simulation_agree() {
    for (p, output, load) in [
        (0.13, Lengths::Geometric(200.0), 0.3),
        (0.13, Lengths::Geometric(200.0), 0.8),
        (0.13, Lengths::Fixed(200.0), 0.6),
        (0.65, Lengths::Geometric(30.0), 0.6),
        (0.65, Lengths::Geometric(30.0), 0.8),
    ] {
        let mut workload = Workload { output, ..Workload::new(1.0, 1.0) };
        let found = rates(&borrow(p), &workload, 8);
        workload.arrivals = Arrivals::Poisson { rate_per_s: load * found.max_rate_per_s() };
        let formula = OpenLoop::new(&found, &workload, 1, &Balancer::Random).expect("stable");
        assert!(close(formula.load, load, 1e-9));
        let run = simulated(&found, &workload, 8000.0, 1);
        let tpot = run.tpot_ms.expect("some").mean;
        let place = format!("p {p} load {load} {:?}", workload.output);
        assert!(
            (tpot.mean - formula.tpot_ms.expect("some")).abs() < 0.012 * tpot.mean + tpot.half_width,
            "{place}: {tpot:?} {:?}",
            formula.tpot_ms
        );
        let e2e = run.e2e_ms.mean;
        assert!(
            (e2e.mean - formula.e2e_ms).abs() < 0.02 * e2e.mean + e2e.half_width,
            "{place}: {e2e:?} {}",
            formula.e2e_ms
        );
        assert!((run.active.mean - formula.active).abs() < 0.02 * formula.active + run.active.half_width, "{place}");
        let share: f64 = run.share_of_time.iter().sum();
        assert!((share - 1.0).abs() < 1e-9, "{share}");
        for (a, b) in run.utilisation[0].iter().zip(&formula.utilisation) {
            assert!((a - b).abs() < 0.03, "{place}: {a} {b}");
        }
    }
}

/// Among active requests it is processor sharing: the law of lengths hardly matters.
#[test]
fn lengths_do_not_matter_without_a_queue() {
    let law = |output: Lengths| {
        let workload = Workload { output, ..Workload::new(0.9, 1.0) };
        let found = rates(&borrow(0.13), &workload, 12);
        simulated(&found, &workload, 6000.0, 2).e2e_ms.mean
    };
    let fixed = law(Lengths::Fixed(200.0));
    for other in [law(Lengths::Geometric(200.0)), law(Lengths::with_cv(200.0, 1.7))] {
        let gap = (fixed.mean - other.mean).abs();
        assert!(gap < 0.015 * fixed.mean + fixed.half_width + other.half_width, "{fixed:?} {other:?}");
    }
}

/// Prompts in chunks and tokens that cost: the closed system with prompt states against the event simulation.
#[test]
fn prompts_and_catch_up_are_paid_for() {
    let cost = TokenCost { ms_per_token: 0.2, free_tokens: 0 };
    for (system, prompt) in [
        (borrow(0.3), 512.0),
        (System { token_costs: Some(vec![TokenCost { ms_per_token: 0.05, ..cost }, cost]), ..borrow(0.13) }, 0.0),
        (System { token_costs: Some(vec![TokenCost { ms_per_token: 0.05, ..cost }, cost]), ..borrow(0.3) }, 512.0),
    ] {
        let mut workload = Workload::new(1.0, 100.0);
        workload.prompt = Lengths::Fixed(prompt);
        let found = rates(&system, &workload, 6);
        let plain = rates(&borrow(system.routing[0][1]), &Workload::new(1.0, 100.0), 6);
        assert!(found.max_rate_per_s() < plain.max_rate_per_s());
        workload.arrivals = Arrivals::Poisson { rate_per_s: 0.6 * found.max_rate_per_s() };
        let formula = OpenLoop::new(&found, &workload, 1, &Balancer::Random).expect("stable");
        let run = simulated(&found, &workload, 5000.0, 5);
        let e2e = run.e2e_ms.mean;
        assert!((e2e.mean - formula.e2e_ms).abs() < 0.05 * e2e.mean + e2e.half_width, "{e2e:?} {}", formula.e2e_ms);
        let ttft = run.ttft_ms.mean;
        assert!(
            (ttft.mean - formula.ttft_ms).abs() < 0.15 * ttft.mean + ttft.half_width,
            "{ttft:?} {}",
            formula.ttft_ms
        );
    }
}

#[test]
fn balancers_agree_with_their_simulations() {
    let mut workload = Workload::new(1.0, 30.0);
    let found = rates(&borrow(0.65), &workload, 4);
    let replicas = 8;
    workload.arrivals = Arrivals::Poisson { rate_per_s: 0.75 * f64::from(replicas) * found.max_rate_per_s() };
    let servers = vec![server(&found); replicas as usize];
    let options = ServingOptions { warmup_ms: 2e5, duration_ms: 6e5, replications: 6, ..ServingOptions::default() };
    let mut waits = Vec::new();
    for balancer in [Balancer::Random, Balancer::LeastOfTwo, Balancer::LeastLoaded] {
        let formula = OpenLoop::new(&found, &workload, replicas, &balancer).expect("stable");
        let run = simulate_serving(&servers, &balancer, &workload, &options).expect("runs");
        let e2e = run.e2e_ms.mean;
        assert!(
            (e2e.mean - formula.e2e_ms).abs() < 0.03 * e2e.mean + e2e.half_width,
            "{balancer:?}: {e2e:?} {}",
            formula.e2e_ms
        );
        waits.push(run.wait_ms.mean.mean);
    }
    assert!(waits[0] > waits[1] && waits[1] > waits[2], "{waits:?}");
}

#[test]
fn users_close_the_loop() {
    let workload = Workload { arrivals: Arrivals::Users { users: 20, think_ms: 5000.0 }, ..Workload::new(1.0, 100.0) };
    let found = rates(&borrow(0.13), &workload, 8);
    let formula = OpenLoop::new(&found, &workload, 1, &Balancer::Random).expect("always stable");
    let options = ServingOptions { warmup_ms: 2e5, duration_ms: 2e6, replications: 6, ..ServingOptions::default() };
    let run = simulate_serving(&[server(&found)], &Balancer::Random, &workload, &options).expect("runs");
    assert!(close(run.rate_per_s.mean, formula.rate_per_s, 0.02), "{:?} {}", run.rate_per_s, formula.rate_per_s);
    assert!(close(run.e2e_ms.mean.mean, formula.e2e_ms, 0.03), "{:?} {}", run.e2e_ms.mean, formula.e2e_ms);
    // Little's law over the whole cycle.
    let cycle = 5000.0 + run.e2e_ms.mean.mean;
    assert!(close(run.rate_per_s.mean * cycle / 1e3, 20.0, 0.02));
}

#[test]
fn bad_input_names_the_value() {
    let system = borrow(0.13);
    let options = RateOptions::default();
    let refused =
        |workload: Workload| Rates::new(&system, &workload, 4, &options, &|_| ()).expect_err("refused").to_string();
    let good = Workload::new(1.0, 20.0);
    let with = |arrivals| Workload { arrivals, ..good.clone() };
    for (workload, expected) in [
        (with(Arrivals::Poisson { rate_per_s: -1.0 }), "-1 requests per second"),
        (with(Arrivals::Poisson { rate_per_s: f64::NAN }), "NaN requests per second"),
        (with(Arrivals::Gamma { rate_per_s: 1.0, cv: -0.5 }), "variation of -0.5"),
        (with(Arrivals::Users { users: 0, think_ms: 1.0 }), "`users`: 0"),
        (with(Arrivals::Users { users: 3, think_ms: f64::INFINITY }), "inf ms"),
        (Workload { output: Lengths::Geometric(0.5), ..good.clone() }, "0.5 tokens"),
        (Workload { output: Lengths::Gamma { mean: 5.0, cv: -1.0 }, ..good.clone() }, "variation of -1"),
        (Workload { prompt: Lengths::Fixed(-3.0), ..good.clone() }, "-3 tokens"),
        (Workload { output: Lengths::Histogram(vec![]), ..good.clone() }, "without weight"),
        (Workload { step_tokens: 0, ..good.clone() }, "step tokens"),
    ] {
        let message = refused(workload);
        assert!(message.contains(expected), "{message}");
    }
    let found = rates(&system, &good, 4);
    let rate = 1.01 * found.max_rate_per_s();
    let unstable = with(Arrivals::Poisson { rate_per_s: rate });
    let error = OpenLoop::new(&found, &unstable, 1, &Balancer::Random).expect_err("unstable");
    assert!(matches!(error, Error::InvalidOption { .. }) && error.to_string().contains("below"), "{error}");
    let short = Server { thresholds: vec![Thresholds::new([5, 5])], ..server(&found) };
    let error = simulate_serving(&[short], &Balancer::Random, &good, &ServingOptions::default()).expect_err("deadlock");
    assert!(matches!(error, Error::Infeasible { .. }), "{error}");
    let costs = System { token_costs: Some(vec![TokenCost { ms_per_token: -1.0, free_tokens: 0 }; 2]), ..system };
    assert!(costs.closed(2).expect_err("refused").to_string().contains("-1 ms"));
}

proptest! {
    #![proptest_config(cases(60))]

    /// Probabilities sum to 1, flows balance, and everything grows with the rate.
    #[test]
    fn laws_are_laws(steps in prop::collection::vec(0.0_f64..2.0, 1..12), loads in (0.05_f64..0.5, 0.5_f64..0.97)) {
        let mut deaths: Vec<f64> = steps.iter().scan(0.3, |sum, step| { *sum += step; Some(*sum) }).collect();
        if let Some(first) = deaths.first_mut() { *first = first.max(0.1); }
        let last = deaths[deaths.len() - 1];
        for balancer in [Balancer::Random, Balancer::LeastOfTwo, Balancer::LeastLoaded] {
            let law = |load: f64| {
                let arrivals = Arrivals::Poisson { rate_per_s: 4.0 * load * last };
                balanced(&arrivals, 4, &balancer, &deaths).expect("stable")
            };
            let (low, high) = (law(loads.0), law(loads.1));
            for one in [&low, &high] {
                prop_assert!((one.active_shares.iter().sum::<f64>() - 1.0).abs() < 1e-9);
                prop_assert!((one.found_shares.iter().sum::<f64>() - 1.0).abs() < 1e-9);
                prop_assert!(one.active_shares.iter().all(|&p| (-1e-12..=1.0).contains(&p)));
                // What comes is what ends.
                let ends: f64 = one.active_shares.iter().skip(1).zip(&deaths).map(|(p, mu)| p * mu).sum();
                prop_assert!((ends - one.throughput_per_s).abs() < 1e-6 * ends, "{:?}: {ends} {}", balancer, one.throughput_per_s);
            }
            prop_assert!(high.active >= low.active && high.queued >= low.queued);
        }
    }
}
