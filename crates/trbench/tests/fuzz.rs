//! The fuzz targets on their corpus and on seeded mutations of it: no panic, no hang, no large allocation, whatever a
//! file holds. `fuzz/` has the same bodies for `cargo fuzz`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use tokenrouter_core::keyed::{Purpose, draw_u64};

#[path = "../../../fuzz/bodies.rs"]
mod bodies;

/// Mutations of every file of the corpus.
const MUTATIONS: u64 = 60;
/// Longest time for one input, on a busy machine.
const MAX_TIME: Duration = Duration::from_secs(20);
/// Most memory for one input.
const MAX_BYTES: u64 = 256 << 20;

/// Numbers that break arithmetic.
const EXTREMES: [u64; 6] = [0, u64::MAX, 1 << 63, 1 << 40, 0xffff_ffff, 0x7fff_ffff];

fn mutate(data: &[u8], seed: u64) -> Vec<u8> {
    let draw = |what: u64, below: usize| (draw_u64(seed, what, 0, Purpose::Workload) % below.max(1) as u64) as usize;
    let mut data = data.to_vec();
    for round in 0..1 + draw(0, 3) as u64 {
        let draw = |what: u64, below: usize| draw(10 * (round + 1) + what, below);
        let at = draw(0, data.len());
        match draw(1, 7) {
            0 => data.truncate(at),
            1 if !data.is_empty() => data[at] ^= 1 << draw(2, 8),
            2 if !data.is_empty() => data[at] = draw(2, 256) as u8,
            3 => data.insert(at, draw(2, 256) as u8),
            4 => {
                let number = EXTREMES[draw(2, EXTREMES.len())].to_le_bytes();
                let end = (at + [4, 8][draw(3, 2)]).min(data.len());
                data[at..end].copy_from_slice(&number[..end - at]);
            }
            5 => {
                let end = (at + draw(2, 64)).min(data.len());
                let part = data[at..end].to_vec();
                data.splice(at..at, part.repeat(1 + draw(3, 4)));
            }
            // A number of a text grows.
            _ => {
                if let Some(digit) = data.iter().skip(at).position(u8::is_ascii_digit) {
                    data.splice(at + digit..=at + digit, b"99999999999999999999".iter().take(1 + draw(2, 20)).copied());
                }
            }
        }
    }
    data
}

/// The problem with an input, if there is one.
fn check(body: bodies::Body, data: &[u8]) -> Result<(), String> {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let start = Instant::now();
    let mut result = Ok(());
    let used = allocation_counter::measure(|| {
        result = catch_unwind(AssertUnwindSafe(|| body(dir.path(), data)));
    });
    let took = start.elapsed();
    match result {
        Err(_) => Err("panics".into()),
        Ok(()) if took > MAX_TIME => Err(format!("takes {took:?}")),
        Ok(()) if used.bytes_max > MAX_BYTES => Err(format!("takes {} bytes", used.bytes_max)),
        Ok(()) => Ok(()),
    }
}

#[test]
fn hostile_input_is_refused_without_a_panic_a_hang_or_a_large_allocation() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let mut problems = Vec::new();
    for (target, body) in bodies::TARGETS {
        let mut files: Vec<_> = std::fs::read_dir(corpus.join(target))
            .expect("every target has a corpus")
            .map(|entry| entry.expect("a readable folder").path())
            .collect();
        files.sort();
        assert!(!files.is_empty(), "the corpus of `{target}` is empty");
        for file in files {
            let data = std::fs::read(&file).expect("a readable file");
            for seed in 0..=MUTATIONS {
                let input = if seed == 0 { data.clone() } else { mutate(&data, seed) };
                if let Err(problem) = check(body, &input) {
                    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
                    problems.push(format!("{target}/{name}, mutation {seed}: {problem}"));
                }
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
