//! The whole decoder, bit for bit: the output of a row depends only on its own tokens.

use std::sync::Arc;

use tokenrouter_kernels::{
    Decoder, DecoderConfig, Format, Isa, KvCache, KvDtype, LayerWeights, PackedMatrix, Patch, Pool, RowInput,
    SignalSet, StepNeeds, StepOutput, logit_signals,
};

const VOCAB: usize = 50;
const POSITIONS: usize = 320;
const BLOCK: usize = 16;

#[derive(Debug, Clone, Copy)]
struct Shape {
    heads: usize,
    kv_heads: usize,
    dim: usize,
    quantized: bool,
    qk_norm: bool,
    kv: KvDtype,
}

const SHAPES: [Shape; 4] = [
    Shape { heads: 3, kv_heads: 1, dim: 64, quantized: true, qk_norm: false, kv: KvDtype::F32 },
    Shape { heads: 10, kv_heads: 2, dim: 32, quantized: true, qk_norm: true, kv: KvDtype::F16 },
    Shape { heads: 4, kv_heads: 4, dim: 48, quantized: false, qk_norm: false, kv: KvDtype::Bf16 },
    Shape { heads: 8, kv_heads: 1, dim: 128, quantized: false, qk_norm: true, kv: KvDtype::F16 },
];

/// Deterministic numbers in -0.5..0.5.
fn noise(seed: usize, count: usize) -> Vec<f32> {
    let mut state = (seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    (0..count).map(|_| next()).collect()
}

fn matrix(quantized: bool, seed: usize, n: usize, k: usize) -> PackedMatrix {
    let values: Vec<f32> = noise(seed, n * k).iter().map(|x| x / 4.0).collect();
    if !quantized {
        return PackedMatrix::bf16_from_f32(n, k, &values).expect("fits");
    }
    let mut bytes = Vec::new();
    for block in values.chunks(32) {
        bytes.extend(half::f16::from_f32(0.001).to_le_bytes());
        bytes.extend(block.iter().map(|x| (x * 1000.0) as i8 as u8));
    }
    PackedMatrix::from_blocks(Format::Q8_0, n, k, &bytes).expect("fits")
}

fn decoder(shape: Shape, isa: Isa, threads: usize) -> Decoder {
    let (d, ffn) = (64, 96);
    let (q, kv) = (shape.heads * shape.dim, shape.kv_heads * shape.dim);
    let m = |seed, n, k| matrix(shape.quantized, seed, n, k);
    let patch = |i: usize| Patch { weight: matrix(shape.qk_norm, 10 * i + 8, d, d), bias: noise(10 * i + 9, d) };
    let layer = |i: usize| LayerWeights {
        patch: (i == 1).then(|| patch(i)),
        attn_norm: vec![1.0; d],
        q: m(10 * i, q, d),
        k: m(10 * i + 1, kv, d),
        v: m(10 * i + 2, kv, d),
        qkv_bias: shape.qk_norm.then(|| noise(10 * i + 3, q + 2 * kv)),
        qk_norm: shape.qk_norm.then(|| [vec![1.5; shape.dim], vec![0.5; shape.dim]]),
        output: m(10 * i + 4, d, q),
        ffn_norm: vec![1.0; d],
        gate: m(10 * i + 5, ffn, d),
        up: m(10 * i + 6, ffn, d),
        down: m(10 * i + 7, d, ffn),
    };
    let angles: Vec<f32> = (0..POSITIONS * shape.dim / 2).map(|i| i as f32 * 0.37).collect();
    let config = DecoderConfig {
        d_model: d,
        heads: shape.heads,
        kv_heads: shape.kv_heads,
        head_dim: shape.dim,
        ffn,
        vocab: VOCAB,
        head_tokens: None,
        eps: 1e-5,
        cos: angles.iter().map(|x| x.cos()).collect(),
        sin: angles.iter().map(|x| x.sin()).collect(),
        rope_interleaved: shape.quantized,
    };
    let head = Arc::new(m(99, VOCAB, d));
    let pool = Pool::new(threads, None).expect("threads");
    let layers = (0..2).map(layer).collect();
    Decoder::new(config, (isa, pool), Arc::clone(&head), layers, vec![1.0; d], head).expect("a valid model")
}

const NEEDS: StepNeeds =
    StepNeeds { hidden: true, residual: true, signals: SignalSet { softmax: true, top_k: 5 }, extra_row: Some(3) };

/// Bits of all outputs of a step for row `index` of its results.
fn bits(out: &StepOutput, index: usize) -> Vec<u32> {
    let d = out.hidden.len() / out.signals.len();
    let signals = out.signals[index];
    let top = &out.top[index * 5..(index + 1) * 5];
    let floats = [out.extra[index], signals.max, signals.log_sum_exp, signals.entropy];
    let floats = floats.iter().chain(&out.logits[index * VOCAB..(index + 1) * VOCAB]);
    let floats = floats.chain(&out.hidden[index * d..(index + 1) * d]).chain(top.iter().map(|(logit, _)| logit));
    floats.map(|x| x.to_bits()).chain(top.iter().map(|(_, id)| *id)).chain([signals.argmax]).collect()
}

/// The outputs after the last token of each prompt. Prompts advance together, by up to `chunk` tokens per step.
fn results(shape: Shape, isa: Isa, threads: usize, prompts: &[Vec<u32>], chunk: usize) -> Vec<Vec<u32>> {
    let mut decoder = decoder(shape, isa, threads);
    let per_prompt = POSITIONS / BLOCK;
    let mut kv =
        KvCache::new(2, shape.kv_heads, shape.dim, (prompts.len() * per_prompt, BLOCK), shape.kv).expect("a cache");
    // Block tables in descending order, interleaved over the prompts.
    let table = |i: usize| (0..per_prompt).map(|b| ((per_prompt - 1 - b) * prompts.len() + i) as u32).collect();
    let tables: Vec<Vec<u32>> = (0..prompts.len()).map(table).collect();
    let mut results = vec![Vec::new(); prompts.len()];
    let mut out = StepOutput::default();
    // The last steps have no rows at all, which is not an error.
    for start in (0..POSITIONS).step_by(chunk) {
        let live: Vec<usize> = (0..prompts.len()).filter(|i| prompts[*i].len() > start).collect();
        let inputs: Vec<RowInput<'_>> = live
            .iter()
            .map(|&i| {
                let end = prompts[i].len().min(start + chunk);
                let sample = end == prompts[i].len();
                RowInput { tokens: &prompts[i][start..end], start, blocks: &tables[i], sample }
            })
            .collect();
        decoder.forward(&inputs, &mut kv, NEEDS, &mut out).expect("a step");
        let sampled = live.iter().filter(|i| prompts[**i].len() <= start + chunk);
        for (index, i) in sampled.enumerate() {
            results[*i] = bits(&out, index);
        }
    }
    results
}

#[test]
fn results_do_not_depend_on_batch_chunks_threads_or_instruction_set() {
    let prompts: Vec<Vec<u32>> = [1usize, 17, 300, 5, 40]
        .iter()
        .enumerate()
        .map(|(i, length)| (0..*length).map(|t| ((t * 7 + i * 13) % VOCAB) as u32).collect())
        .collect();
    for shape in SHAPES {
        let alone =
            |prompt: &Vec<u32>| results(shape, Isa::Baseline, 1, std::slice::from_ref(prompt), POSITIONS).remove(0);
        let reference: Vec<Vec<u32>> = prompts.iter().map(alone).collect();
        let finite =
            |results: &Vec<u32>| results.iter().filter(|bits| !f32::from_bits(**bits).is_finite()).count() == 1;
        assert!(reference.iter().all(finite), "all numbers are finite but the logit of the extra row");
        assert_ne!(reference[0], reference[3]);
        for isa in Isa::available() {
            for (threads, chunk) in [(1, 1), (1, POSITIONS), (2, 3), (3, 60)] {
                let got = results(shape, isa, threads, &prompts, chunk);
                assert_eq!(got, reference, "{shape:?}, {isa:?}, {threads} threads, chunks of {chunk}");
            }
        }
    }
}

/// A decoder of the second shape whose layers do nothing.
fn idle_decoder(head_tokens: Option<&[u32]>) -> Decoder {
    let zero = |n, k| PackedMatrix::from_f32(n, k, &vec![0.0; n * k]).expect("fits");
    let (d, dim) = (64, 32);
    let layer = |patch| LayerWeights {
        patch,
        attn_norm: vec![1.0; d],
        q: zero(dim, d),
        k: zero(dim, d),
        v: zero(dim, d),
        qkv_bias: None,
        qk_norm: None,
        output: zero(d, dim),
        ffn_norm: vec![1.0; d],
        gate: zero(32, d),
        up: zero(32, d),
        down: zero(d, 32),
    };
    let config = DecoderConfig {
        d_model: d,
        heads: 1,
        kv_heads: 1,
        head_dim: dim,
        ffn: 32,
        vocab: VOCAB,
        head_tokens: head_tokens.map(<[u32]>::to_vec),
        eps: 1e-5,
        cos: vec![1.0; POSITIONS * dim / 2],
        sin: vec![0.0; POSITIONS * dim / 2],
        rope_interleaved: false,
    };
    let weight = PackedMatrix::from_f32(d, d, &noise(7, d * d)).expect("fits");
    let layers = vec![layer(None), layer(Some(Patch { weight, bias: noise(8, d) }))];
    let embedding = Arc::new(PackedMatrix::from_f32(VOCAB, d, &noise(9, VOCAB * d)).expect("fits"));
    let pool = Pool::new(2, None).expect("threads");
    let head = match head_tokens {
        Some(tokens) => {
            let rows = noise(9, VOCAB * d);
            let rows: Vec<f32> = tokens.iter().flat_map(|token| &rows[*token as usize * d..][..d]).copied().collect();
            Arc::new(PackedMatrix::from_f32(tokens.len(), d, &rows).expect("fits"))
        }
        None => Arc::clone(&embedding),
    };
    Decoder::new(config, (Isa::detect(), pool), embedding, layers, vec![1.0; d], head).expect("a valid model")
}

#[test]
fn patches_hidden_states_and_signals_match_plain_arithmetic() {
    let mut decoder = idle_decoder(None);
    let mut kv = KvCache::new(2, 1, 32, (8, BLOCK), KvDtype::F32).expect("a cache");
    let (weight, bias, embedding) = (noise(7, 64 * 64), noise(8, 64), noise(9, VOCAB * 64));
    let row = |blocks, sample| RowInput { tokens: &[11, 4], start: 0, blocks, sample };
    let rows = [row(&[0], false), row(&[1], true), row(&[2], true)];
    let mut out = StepOutput::default();
    decoder.forward(&rows, &mut kv, NEEDS, &mut out).expect("a step");
    assert_eq!((out.hidden.len(), out.signals.len(), out.top.len(), out.extra.len()), (2 * 64, 2, 2 * 5, 2));
    assert_eq!(bits(&out, 0), bits(&out, 1));

    let mut x = vec![0.0; 64];
    decoder.embedding_row(4, &mut x).expect("a token");
    assert_eq!(x, embedding[4 * 64..5 * 64]);
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let patched: Vec<f64> =
        (0..64).map(|i| f64::from(x[i]) + dot(&weight[i * 64..(i + 1) * 64], &x) + f64::from(bias[i])).collect();
    let rms = (patched.iter().map(|x| x * x).sum::<f64>() / 64.0 + 1e-5).sqrt();
    for (got, want) in out.hidden.iter().zip(&patched) {
        assert!((f64::from(*got) - want / rms).abs() < 1e-5, "{got} instead of {}", want / rms);
    }
    for (token, logit) in out.logits[..VOCAB].iter().enumerate() {
        let want = dot(&embedding[token * 64..(token + 1) * 64], &out.hidden[..64]);
        let got = if token == 3 { out.extra[0] } else { *logit };
        assert!((f64::from(got) - want).abs() < 1e-5, "{got} instead of {want}");
    }
    assert_eq!(out.logits[3], f32::NEG_INFINITY);
    let mut top = Vec::new();
    assert_eq!(logit_signals(Isa::detect(), &out.logits[..VOCAB], NEEDS.signals, &mut top), out.signals[0]);
    assert_eq!(top, out.top[..5]);

    decoder.forward(&rows[..1], &mut kv, StepNeeds::default(), &mut out).expect("a step");
    assert!(out.logits.is_empty() && out.hidden.is_empty() && out.signals.is_empty() && out.extra.is_empty());
    let bad = StepNeeds { extra_row: Some(VOCAB as u32), ..StepNeeds::default() };
    assert!(decoder.forward(&rows, &mut kv, bad, &mut out).is_err());
    assert!(decoder.embedding_row(VOCAB as u32, &mut x).is_err());
}

#[test]
fn what_does_not_fit_the_cache_is_refused() {
    let mut decoder = idle_decoder(None);
    let mut out = StepOutput::default();
    let row = |blocks, start| RowInput { tokens: &[1, 2], start, blocks, sample: true };
    let mut step = |kv: &mut KvCache, rows: &[RowInput<'_>]| decoder.forward(rows, kv, StepNeeds::default(), &mut out);
    let mut kv = KvCache::new(2, 1, 32, (8, BLOCK), KvDtype::F16).expect("a cache");
    assert!(step(&mut kv, &[row(&[3, 5], 15)]).is_ok());
    assert!(step(&mut kv, &[row(&[3, 5], 2), row(&[3, 4], 16)]).is_ok(), "they share a block, but no new position");
    for rows in [[row(&[3, 5], 2), row(&[3, 4], 3)], [row(&[3], 0), row(&[8], 0)], [row(&[3], 0), row(&[4], 15)]] {
        assert!(step(&mut kv, &rows).is_err(), "{rows:?}");
    }
    for (layers, heads, dim) in [(3, 1, 32), (2, 2, 32), (2, 1, 16)] {
        let mut kv = KvCache::new(layers, heads, dim, (8, BLOCK), KvDtype::F32).expect("a cache");
        assert!(step(&mut kv, &[row(&[0], 0)]).is_err());
    }
    assert!(KvCache::new(2, 1, 32, (8, 24), KvDtype::F32).is_err());
}

#[test]
fn layers_can_be_left_out_and_patches_replaced() {
    let shape = SHAPES[2];
    let mut decoder = decoder(shape, Isa::detect(), 1);
    let mut kv = KvCache::new(2, shape.kv_heads, shape.dim, (1, BLOCK), KvDtype::F32).expect("a cache");
    let mut run = |decoder: &mut Decoder| {
        let mut out = StepOutput::default();
        // Rows that are neighbours in one text, as tools read it.
        let row = |start: usize, token: &'static [u32]| RowInput { tokens: token, start, blocks: &[0], sample: true };
        decoder.forward(&[row(0, &[7]), row(1, &[9])], &mut kv, NEEDS, &mut out).expect("a step");
        out
    };
    let whole = run(&mut decoder);
    for (stream, hidden) in whole.residual.chunks(64).zip(whole.hidden.chunks(64)) {
        let scale = (stream.iter().map(|x| x * x).sum::<f32>() / 64.0 + 1e-5).sqrt();
        assert!(stream.iter().zip(hidden).all(|(x, h)| (x / scale - h).abs() < 1e-5));
    }
    decoder.select_layers(&[]).expect("no layer");
    let embedded = run(&mut decoder).residual;
    let mut row = vec![0.0; 64];
    decoder.embedding_row(9, &mut row).expect("a token");
    assert_eq!(embedded[64..], row);
    decoder.select_layers(&[0]).expect("one layer");
    let first = run(&mut decoder).residual;
    assert_ne!(first, embedded);
    decoder.select_layers(&[0, 1]).expect("all layers");
    assert_eq!(bits(&run(&mut decoder), 1), bits(&whole, 1));
    let patch = |bias| Patch { weight: PackedMatrix::from_f32(64, 64, &[0.0; 4096]).expect("fits"), bias };
    decoder.set_patch(1, Some(patch(vec![0.0; 64]))).expect("a patch");
    let neutral = run(&mut decoder).residual;
    decoder.set_patch(1, None).expect("no patch");
    assert_eq!(run(&mut decoder).residual, neutral);
    decoder.set_patch(0, Some(patch(vec![0.5; 64]))).expect("a patch");
    assert_ne!(run(&mut decoder).residual, neutral);
    assert!(decoder.select_layers(&[2]).is_err() && decoder.select_layers(&[1, 0]).is_err());
    assert!(decoder.set_patch(2, None).is_err() && decoder.set_patch(0, Some(patch(vec![0.0; 63]))).is_err());
}

#[test]
fn a_head_for_a_part_of_the_vocabulary_gives_the_same_numbers_for_its_tokens() {
    let tokens = [0, 3, 4, 17, VOCAB as u32 - 1];
    let row = |blocks, sample| RowInput { tokens: &[11, 4], start: 0, blocks, sample };
    let rows = [row(&[0], false), row(&[1], true), row(&[2], true)];
    let run = |head_tokens, extra_row| {
        let mut decoder = idle_decoder(head_tokens);
        let mut kv = KvCache::new(2, 1, 32, (8, BLOCK), KvDtype::F32).expect("a cache");
        let mut out = StepOutput { logits: vec![7.0; 3], ..StepOutput::default() };
        decoder.forward(&rows, &mut kv, StepNeeds { extra_row, ..NEEDS }, &mut out).map(|()| out)
    };
    let whole = run(None, Some(3)).expect("a step");
    let part = run(Some(&tokens), Some(3)).expect("a step");
    let mut top = Vec::new();
    for at in 0..2 {
        let (whole, got) = (&whole.logits[at * VOCAB..][..VOCAB], &part.logits[at * VOCAB..][..VOCAB]);
        for (token, (got, whole)) in (0u32..).zip(got.iter().zip(whole)) {
            let want = if tokens.contains(&token) { *whole } else { f32::NEG_INFINITY };
            assert_eq!(got.to_bits(), want.to_bits(), "token {token}");
        }
        let want = logit_signals(Isa::detect(), got, NEEDS.signals, &mut top);
        let signals = part.signals[at];
        assert_eq!((signals.argmax, signals.max), (want.argmax, want.max));
        assert!((signals.entropy - want.entropy).abs() < 1e-5 && (signals.log_sum_exp - want.log_sum_exp).abs() < 1e-5);
        assert_eq!(part.top[at * 5..][..4], top[..4]);
        assert_eq!(part.top[at * 5 + 4], (f32::NEG_INFINITY, 3), "the extra row: no other row is left");
    }
    assert_eq!(part.extra, whole.extra);
    assert_eq!((part.hidden, part.logits.len()), (whole.hidden, 2 * VOCAB));
    let message = run(Some(&tokens), Some(5)).expect_err("token 5 has no row").to_string();
    assert!(message.contains("extra row of the head is 5, expected one of the head's 5 rows"), "{message}");
}

#[test]
fn tokens_of_a_head_ascend_and_exist() {
    let config = |tokens: &[u32]| {
        let d = 64;
        let config = DecoderConfig {
            d_model: d,
            heads: 1,
            kv_heads: 1,
            head_dim: 32,
            ffn: 32,
            vocab: VOCAB,
            head_tokens: Some(tokens.to_vec()),
            eps: 1e-5,
            cos: vec![1.0; 16],
            sin: vec![0.0; 16],
            rope_interleaved: false,
        };
        let matrix = |n| Arc::new(PackedMatrix::from_f32(n, d, &vec![0.0; n * d]).expect("fits"));
        let pool = Pool::new(1, None).expect("threads");
        Decoder::new(config, (Isa::detect(), pool), matrix(VOCAB), vec![], vec![1.0; d], matrix(2)).map(|_| ())
    };
    assert!(config(&[2, 7]).is_ok());
    for (tokens, wanted) in [
        (&[2, 2][..], "token of the head is 2, expected above the one before it"),
        (&[2, VOCAB as u32], "expected below"),
        (&[2, 3, 4], "head is 2, expected 3"),
    ] {
        let message = config(tokens).expect_err("wrong").to_string();
        assert!(message.contains(wanted), "{message}");
    }
}
