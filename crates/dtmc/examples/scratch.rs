//! scratch
use std::time::Instant;
use tokenrouter_dtmc::*;
fn main() {
    let two = |n: u32| Model::builder().latencies_ms([6.0, 27.9]).routing(vec![vec![0.35, 0.65], vec![1.0, 0.0]]).commits(vec![vec![1.0, 0.0]; 2]).concurrency(n).build().unwrap();
    let three = |n: u32, q: f64| Model::builder().latencies_ms([6.0, 11.3, 27.9]).routing(vec![vec![0.6, 0.25, 0.15], vec![0.5, 0.3, 0.2], vec![0.5, 0.3, 0.2]]).quantum_ms(q).concurrency(n).build().unwrap();
    let cases: Vec<(Model, Vec<u32>)> = vec![
        (two(1), vec![1, 1]), (two(4), vec![1, 1]), (two(4), vec![1, 4]), (two(8), vec![1, 1]), (two(8), vec![1, 7]), (two(16), vec![1, 1]), (two(16), vec![1, 13]), (two(16), vec![1, 12]),
        (three(2, 0.1), vec![1, 1, 1]), (three(2, 0.1), vec![1, 1, 2]), (three(4, 0.1), vec![1, 2, 3]), (three(6, 1.0), vec![1, 1, 1]), (two(64), vec![1, 1]), (three(4, 0.1), vec![1, 1, 1])];
    let method = std::env::args().nth(1).map_or(Method::Auto, |m| Method::NAMES.iter().find(|x| x.0 == m).unwrap().1);
    for (model, b) in cases {
        let o = SolveOptions { method, ..SolveOptions::default() };
        let t0 = Instant::now();
        let chain = Chain::build(&model, &b.clone().into(), &o).unwrap();
        let t1 = Instant::now();
        let c = classes(chain.matrix());
        let t2 = Instant::now();
        let s = match solve_chain(&model, &b.clone().into(), &chain, &o) { Ok(s) => s, Err(e) => { eprintln!("{e}"); continue } };
        eprintln!("{b:?} {:.10} states {} nnz {} trans {} cls {} it {} res {:.1e} {} build {:?} tarjan {:?} total-solve {:?}", s.throughput_tok_s(), s.states, s.nonzeros, s.transient, c.recurrent.len(), s.iterations, s.residual, s.method, t1 - t0, t2 - t1, t2.elapsed());
    }
}
