//! scratch
use std::time::Instant;
use tokenrouter_dtmc::*;
fn main() {
    let two = |n: u32| Model::builder().latencies_ms([6.0, 27.9]).routing(vec![vec![0.35, 0.65], vec![1.0, 0.0]]).commits(vec![vec![1.0, 0.0]; 2]).concurrency(n).build().unwrap();
    let three = |n: u32, q: f64| Model::builder().latencies_ms([6.0, 11.3, 27.9]).routing(vec![vec![0.6, 0.25, 0.15], vec![0.5, 0.3, 0.2], vec![0.5, 0.3, 0.2]]).quantum_ms(q).concurrency(n).build().unwrap();
    for (name, m) in [("2,16", two(16)), ("3,4", three(4, 0.1)), ("2,64", two(64)), ("3,16", three(16, 0.1)), ("3,6", three(6, 0.1))] {
        if let Some(a) = std::env::args().nth(1) { if a != name { continue } }
        let t = Instant::now(); eprintln!("{:?} {:?}", estimate_size(&m, &Thresholds::eager(m.models())), t.elapsed()); let t = Instant::now();
        let r = optimize(&m, &SearchOptions { strategy: if std::env::args().nth(2).is_some() { Strategy::Exhaustive } else { Strategy::Auto }, ..SearchOptions::default() }).unwrap();
        eprintln!("{name} {:?} {} ± {} {:?} ties {} eval {} of {}: {:?}", r.best.thresholds(), r.best.throughput_tok_s(), r.best.half_width(), r.strategy, r.near_ties, r.evaluated, r.feasible, t.elapsed());
        for c in r.candidates.iter().take(4) { eprintln!("   {} {:.5} ± {:.5}", c.thresholds(), c.throughput_tok_s(), c.half_width()); }
    }
}
