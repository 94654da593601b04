//! scratch
use std::time::Instant;
use tokenrouter_dtmc::*;
fn main() {
    let two = |n: u32| Model::builder().latencies_ms([6.0, 27.9]).routing(vec![vec![0.35, 0.65], vec![1.0, 0.0]]).commits(vec![vec![1.0, 0.0]; 2]).concurrency(n).build().unwrap();
    let m = two(64);
    let (mut tb, mut tc, mut ts, mut it, mut nnz) = (0.0, 0.0, 0.0, 0, 0);
    for (k, b) in enumerate_feasible(&m).into_iter().enumerate() {
        if k % 16 != 0 { continue }
        let mut o = SolveOptions::default(); o.tolerance.residual = std::env::args().nth(1).unwrap().parse().unwrap();
        let t = Instant::now();
        let c = Chain::build(&m, &b, &o).unwrap();
        let b1 = t.elapsed().as_secs_f64(); tb += b1;
        let t = Instant::now();
        let cl = classes(c.matrix());
        tc += t.elapsed().as_secs_f64();
        let t = Instant::now();
        let s = solve_chain(&m, &b, &c, &o).unwrap();
        let s1 = t.elapsed().as_secs_f64(); ts += s1;
        it += s.iterations; nnz += s.nonzeros;
        if k % 160 == 0 { eprintln!("{b} states {} nnz {} it {} build {:.1} ms solve {:.1} ms thr {:.2} trans {} {}", s.states, s.nonzeros, s.iterations, b1*1e3, s1*1e3, s.throughput_tok_s(), s.transient, cl.communicating); }
    }
    eprintln!("build {tb:.2} classes {tc:.2} solve+classes {ts:.2} it {it} nnz {nnz}");
}
