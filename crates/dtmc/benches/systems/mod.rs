//! The systems of the reference table, shared by the benchmarks.

use tokenrouter_dtmc::{ClosedSystem, System};

/// Two models, `P = [[0.35, 0.65], [1, 0]]`, 6.0 and 27.9 ms, quantum 0.1 ms.
pub(crate) fn two(n: u32) -> ClosedSystem {
    let routing = vec![vec![0.35, 0.65], vec![1.0, 0.0]];
    let system = System { commits: Some(vec![vec![1.0, 0.0]; 2]), ..System::new([6.0, 27.9], routing) };
    system.closed(n).expect("a valid system")
}

/// Three models, all tokens committed, 6.0, 11.3 and 27.9 ms.
pub(crate) fn three(n: u32, quantum_ms: f64) -> ClosedSystem {
    let routing = vec![vec![0.6, 0.25, 0.15], vec![0.5, 0.3, 0.2], vec![0.5, 0.3, 0.2]];
    let system = System { quantum_ms, ..System::new([6.0, 11.3, 27.9], routing) };
    system.closed(n).expect("a valid system")
}
