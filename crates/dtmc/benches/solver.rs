//! Criterion benchmarks: building, each stationary method, searching, simulating, certifying.

mod systems;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use systems::{three, two};
use tokenrouter_dtmc::{
    Chain, Method, SearchOptions, SimulationOptions, SolveOptions, Thresholds, Tolerance, certify, optimize, simulate,
};

fn build(c: &mut Criterion) {
    let mut group = c.benchmark_group("build");
    group.sample_size(10);
    for (name, system) in [("two-16", two(16)), ("two-64", two(64)), ("three-4-coarse", three(4, 0.5))] {
        let eager = Thresholds::eager(system.models());
        group.bench_function(name, |b| {
            b.iter(|| Chain::build(&system, &eager, &SolveOptions::default()).expect("fits"));
        });
    }
    group.finish();
}

fn stationary(c: &mut Criterion) {
    let mut group = c.benchmark_group("stationary");
    group.sample_size(10);
    let cases =
        [("two-8 (3453 states)", two(8)), ("two-16 (14257 states)", two(16)), ("three-4-coarse", three(4, 0.5))];
    for (name, system) in cases {
        let chain = Chain::build(&system, &Thresholds::eager(system.models()), &SolveOptions::default()).expect("fits");
        for method in [Method::CutSet, Method::Sweeps, Method::Power, Method::SparseLu] {
            // Power iteration needs thousands of products on near-periodic chains; sparse LU fills in on large ones.
            if chain.len() > 4000 && matches!(method, Method::Power | Method::SparseLu) {
                continue;
            }
            let solver = method.solver(chain.len());
            group.bench_with_input(BenchmarkId::new(method.name(), name), &chain, |b, chain| {
                b.iter(|| black_box(solver.solve(chain.matrix(), Tolerance::default())).expect("converges"));
            });
        }
    }
    group.finish();
}

fn whole(c: &mut Criterion) {
    let mut group = c.benchmark_group("whole");
    group.sample_size(10);
    let system = two(16);
    group.bench_function("optimize two-16", |b| {
        b.iter(|| optimize(&system, &SearchOptions::default()).expect("solvable"));
    });
    let small = two(8);
    let best = Thresholds::new([1, 7]);
    group.bench_function("certify two-8", |b| {
        b.iter(|| certify(&small, &best, &SolveOptions::default()).expect("solvable"));
    });
    let options = SimulationOptions { relative_half_width: 0.0, max_steps: 1_000_000, ..SimulationOptions::default() };
    group.bench_function("simulate two-8, up to 1 M steps", |b| {
        b.iter(|| simulate(&small, &best, &options).expect("feasible"));
    });
    group.finish();
}

criterion_group!(benches, build, stationary, whole);
criterion_main!(benches);
