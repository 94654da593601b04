//! scratch
use tokenrouter_dtmc::*;
fn main() {
    let two = |n: u32, p: f64| Model::builder().latencies_ms([6.0, 27.9]).routing(vec![vec![1.0 - p, p], vec![1.0, 0.0]]).commits(vec![vec![1.0, 0.0]; 2]).quantum_ms(0.3).concurrency(n).build().unwrap();
    let o = SolveOptions::default();
    let run = |m: &Model| {
        let t = std::time::Instant::now();
        let best = optimize(m, &SearchOptions::default()).unwrap();
        let t1 = t.elapsed();
        let c = certify(m, best.best.thresholds(), &o).unwrap();
        println!("{} {:.2} eager {:.2} opt {:.5} ub {:.5} states {} act {} rounds {} dep {} {:.3} search {t1:?} cert {:?}", best.best.thresholds(), best.best.throughput_tok_s(), solve(m, &Thresholds::eager(m.models()), &o).unwrap().throughput_tok_s(), c.policy_tok_s, c.upper_bound_tok_s, c.states, c.actions, c.rounds, c.departures.len(), c.departure_share, t.elapsed() - t1);
    };
    for n in [4, 6, 8] { for p in [0.1, 0.3, 0.5, 0.65] { run(&two(n, p)) } }
    let b = Model::builder().latencies_ms([6.0, 11.3, 27.9]).quantum_ms(1.0).concurrency(4);
    run(&b.clone().routing(vec![vec![0.6, 0.25, 0.15]; 3]).build().unwrap());
    run(&b.clone().routing(vec![vec![0.7, 0.3, 0.0], vec![0.6, 0.0, 0.4], vec![1.0, 0.0, 0.0]]).commits(vec![vec![1.0, 0.0, 0.0]; 3]).build().unwrap());
}
