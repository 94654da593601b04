//! Limits of the machine: the speed of reading memory, and of products of 8-bit integers in registers.

use std::hint::black_box;
use std::time::Instant;

use tokenrouter_kernels::Isa;

/// A large array, in huge pages where the system has them, like the weights.
pub(crate) fn array() -> Vec<[u64; 16]> {
    let mut data = Vec::<[u64; 16]>::with_capacity(4 << 20);
    #[cfg(target_os = "linux")]
    {
        unsafe extern "C" {
            fn madvise(start: *mut std::ffi::c_void, length: usize, advice: std::ffi::c_int) -> std::ffi::c_int;
        }
        const HUGE: usize = 2 << 20;
        let start = data.as_mut_ptr().cast::<u8>();
        let skipped = start.align_offset(HUGE);
        // SAFETY: within the capacity, which holds nothing yet; advice (MADV_HUGEPAGE) changes nothing else.
        let _refused = unsafe { madvise(start.wrapping_add(skipped).cast(), (data.capacity() << 7) - HUGE, 14) };
    }
    data.resize(data.capacity(), [1; 16]);
    data
}

/// Runs `work(thread)` on `threads` threads at once.
fn on_threads(threads: usize, work: impl Fn(usize) + Sync) {
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let work = &work;
            scope.spawn(move || work(thread));
        }
    });
}

/// Bytes per second of reading a large array on `threads` threads: the best of several passes, in one, two and four
/// streams per thread.
pub(crate) fn read_bandwidth(data: &[[u64; 16]], threads: usize) -> f64 {
    let part = data.len() / threads;
    let mut best = f64::INFINITY;
    for pass in 0..30 {
        let start = Instant::now();
        on_threads(threads, |thread| {
            let data = &data[thread * part..][..part];
            black_box(match pass % 3 {
                0 => read::<1>(data),
                1 => read::<2>(data),
                _ => read::<4>(data),
            });
        });
        best = best.min(start.elapsed().as_secs_f64());
    }
    (part * threads * size_of::<[u64; 16]>()) as f64 / best
}

/// Combines all of `data`, read in `STREAMS` parallel streams.
fn read<const STREAMS: usize>(data: &[[u64; 16]]) -> [u64; 16] {
    let length = data.len() / STREAMS;
    let streams: [&[[u64; 16]]; STREAMS] = std::array::from_fn(|stream| &data[stream * length..][..length]);
    let mut sums = [0u64; 16];
    for at in 0..length {
        for stream in streams {
            for (sum, value) in sums.iter_mut().zip(&stream[at]) {
                *sum ^= value;
            }
        }
    }
    sums
}

/// Multiply-adds per second that `threads` threads reach in registers: of 8-bit integers and of floats.
#[derive(Clone, Copy, Default)]
pub(crate) struct Peaks {
    pub(crate) int8: f64,
    pub(crate) f32: f64,
}

/// Measures what the processor has instructions for, and returns 0 for the rest.
pub(crate) fn peaks(threads: usize) -> Peaks {
    #[cfg(target_arch = "x86_64")]
    if Isa::detect() == Isa::Avx512Vnni {
        const ROUNDS: usize = 1_000_000;
        let rate = |lanes: usize, work: unsafe fn(usize)| {
            let mut best = f64::INFINITY;
            for _ in 0..8 {
                let start = Instant::now();
                // SAFETY: detected above.
                on_threads(threads, |_| unsafe { work(ROUNDS) });
                best = best.min(start.elapsed().as_secs_f64());
            }
            (threads * ROUNDS * 12 * lanes) as f64 / best
        };
        return Peaks { int8: rate(64, vnni), f32: rate(16, fma) };
    }
    let _ = threads;
    Peaks::default()
}

/// # Safety
/// AVX-512 VNNI.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn vnni(rounds: usize) {
    use std::arch::x86_64::*;
    let (x, y) = (_mm512_set1_epi8(3), _mm512_set1_epi8(black_box(1)));
    let mut sums = [_mm512_setzero_si512(); 12];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = _mm512_dpbusd_epi32(*sum, x, y);
        }
    }
    black_box(sums.map(|sum| _mm512_reduce_add_epi32(sum)));
}

/// # Safety
/// AVX-512 F.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn fma(rounds: usize) {
    use std::arch::x86_64::*;
    let (x, y) = (_mm512_set1_ps(0.5), _mm512_set1_ps(black_box(1.0)));
    let mut sums = [_mm512_setzero_ps(); 12];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = _mm512_fmadd_ps(*sum, x, y);
        }
    }
    black_box(sums.map(|sum| _mm512_reduce_add_ps(sum)));
}
