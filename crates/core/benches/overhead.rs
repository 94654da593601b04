//! Time of scheduling, routing and handoff together, per request and step: everything a subserver does besides the
//! forward pass and the threads' messages. The target is 5 microseconds.

#[path = "../tests/ring/mod.rs"]
mod ring;

use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

fn overhead(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("request_step");
    for requests in [1usize, 8, 64] {
        group.throughput(Throughput::Elements(1));
        group.bench_with_input(BenchmarkId::from_parameter(requests), &requests, |bencher, requests| {
            bencher.iter_custom(|iterations| {
                let (mut done, mut took) = (0u64, Duration::ZERO);
                while done < iterations {
                    // A fresh ring now and then: contexts stay at a few hundred tokens.
                    let mut ring = ring::Ring::new(*requests, 1024);
                    (0..100).for_each(|_| ring.round());
                    let (start, before) = (Instant::now(), ring.rows);
                    for _ in 0..800 {
                        ring.round();
                        if done + ring.rows - before >= iterations {
                            break;
                        }
                    }
                    took += start.elapsed();
                    done += ring.rows - before;
                }
                // As many request-steps as were asked for, on average.
                took.mul_f64(iterations as f64 / done as f64)
            });
        });
    }
    group.finish();
}

criterion_group!(benches, overhead);
criterion_main!(benches);
