//! A step allocates nothing once its buffers have grown.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokenrouter_kernels::{
    Decoder, DecoderConfig, Format, Isa, KvCache, KvDtype, LayerWeights, PackedMatrix, Patch, Pool, RowInput,
    SignalSet, StepNeeds, StepOutput,
};

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: promised by the caller.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static GLOBAL: Counting = Counting;

const D: usize = 64;
const VOCAB: usize = 5000;

fn matrix(n: usize, k: usize) -> PackedMatrix {
    PackedMatrix::from_blocks(Format::Q8_0, n, k, &vec![0x11; n * k / 32 * 34]).expect("fits")
}

fn decoder(threads: usize) -> Decoder {
    let layer = |_| LayerWeights {
        patch: Some(Patch { weight: PackedMatrix::from_f32(D, D, &[0.1; D * D]).expect("fits"), bias: vec![0.1; D] }),
        attn_norm: vec![1.0; D],
        q: matrix(D, D),
        k: matrix(D / 2, D),
        v: matrix(D / 2, D),
        qkv_bias: None,
        qk_norm: None,
        output: matrix(D, D),
        ffn_norm: vec![1.0; D],
        gate: matrix(96, D),
        up: matrix(96, D),
        down: matrix(D, 96),
    };
    let config = DecoderConfig {
        d_model: D,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        ffn: 96,
        vocab: VOCAB,
        head_tokens: None,
        eps: 1e-5,
        cos: vec![1.0; 1024 * 8],
        sin: vec![0.0; 1024 * 8],
        rope_interleaved: false,
    };
    let pool = Pool::new(threads, None).expect("threads");
    let head = Arc::new(matrix(VOCAB, D));
    let layers = (0..2).map(layer).collect();
    Decoder::new(config, (Isa::detect(), pool), Arc::clone(&head), layers, vec![1.0; D], head).expect("a model")
}

#[test]
fn steps_allocate_nothing_once_buffers_have_grown() {
    let signals = SignalSet { softmax: true, top_k: 20 };
    let needs = StepNeeds { hidden: true, residual: true, signals, extra_row: Some(7) };
    let tables: Vec<Vec<u32>> = (0..3).map(|row| (row * 64..(row + 1) * 64).collect()).collect();
    for threads in [1, 2] {
        let mut decoder = decoder(threads);
        let mut kv = KvCache::new(2, 2, 16, (192, 16), KvDtype::F16).expect("a cache");
        let mut out = StepOutput::default();
        let mut step = |tokens: &[u32], start| {
            let row = |blocks| RowInput { tokens, start, blocks, sample: true };
            let rows = [row(&tables[0]), row(&tables[1]), row(&tables[2])];
            for rows in [&rows[..1], &rows] {
                decoder.forward(rows, &mut kv, needs, &mut out).expect("a step");
            }
        };
        step(&[3; 600], 0);
        step(&[4], 600);
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        for position in 601..640 {
            step(&[5], position);
        }
        assert_eq!(ALLOCATIONS.load(Ordering::Relaxed) - before, 0, "{threads} threads");
    }
}
