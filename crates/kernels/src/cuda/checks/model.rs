//! The whole forward pass against the CPU's.

use std::sync::Arc;

use super::super::collective::{Alone, Collective, InProcess};
use super::super::decoder::{CudaDecoder, CudaLimits, CudaNeeds, CudaOutput};
use super::super::matrix::{DeviceMatrix, HostMatrix, MatrixKind};
use super::super::memory::Device;
use super::super::weights::{CudaLayer, CudaWeights};
use super::elementwise::blocks;
use super::{Check, Numbers};
use crate::{
    Decoder, DecoderConfig, Error, Format, Isa, KvCache, KvDtype, LayerWeights, PackedMatrix, Patch, Pool, RowInput,
    SignalSet, StepNeeds, StepOutput,
};

pub(super) fn checks(device: &Device) -> Result<Vec<Check>, Error> {
    let (mut cpu, mut batch, mut graphs, mut ranks) = (
        Check::new("model: logits as on the CPU"),
        Check::new("model: a row does not depend on its batch"),
        Check::new("model: graphs change nothing"),
        Check::new("model: tensor parallel"),
    );
    for kind in [Kind::F32, Kind::Q4, Kind::Bf16] {
        let case = format!("{kind:?}");
        let model = Model::new(kind, 1 + kind as u64)?;
        let want: Vec<f64> = model.on_cpu()?.iter().map(|x| f64::from(*x)).collect();
        let together = model.run(device, &Schedule::Together, &[])?;
        // The CPU rounds activations to 8 bits beside quantised weights, and all of them differ in order.
        let allowed = match kind {
            Kind::F32 => 1e-4,
            Kind::Q4 | Kind::Bf16 => 0.08,
        };
        cpu.close(&case, &together, &want, allowed);
        batch.same(&case, &bits(&model.run(device, &Schedule::Chunks, &[])?), &bits(&together));
        let shapes = [(1, 1), (4, 3), (16, 3)];
        graphs.same(&case, &bits(&model.run(device, &Schedule::Together, &shapes)?), &bits(&together));
        graphs.same(&case, &bits(&model.run(device, &Schedule::Chunks, &shapes)?), &bits(&together));
        let want: Vec<f64> = together.iter().map(|x| f64::from(*x)).collect();
        ranks.close(&case, &model.run_ranks(device, 2)?, &want, if kind == Kind::Bf16 { 0.05 } else { 1e-3 });
    }
    Ok(vec![cpu, batch, graphs, ranks])
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    F32,
    Q4,
    Bf16,
}

/// How two prompts and some tokens after them are computed.
enum Schedule {
    /// Each prompt in one step, with whatever else there is.
    Together,
    /// Each token in a step of its own.
    Chunks,
}

const BLOCK: usize = 16;
const VOCAB: usize = 96;
const PROMPTS: [&[u32]; 2] = [&[5, 17, 3, 90, 41, 8, 2, 77, 30, 11, 12, 13, 64, 9, 55, 21, 6], &[1, 95, 33]];

/// A model of random weights, with everything that a family may have.
struct Model {
    kind: Kind,
    config: DecoderConfig,
    numbers: u64,
}

/// One layer's weights on the host.
struct HostLayer {
    matrices: Vec<HostMatrix>,
    vectors: Vec<Vec<f32>>,
    patch: Option<(Vec<f32>, Vec<f32>)>,
}

impl Model {
    fn new(kind: Kind, seed: u64) -> Result<Self, Error> {
        let (head_dim, positions) = (32, 64);
        let angle = |i: usize| (i / (head_dim / 2)) as f32 / 10f32.powf((i % (head_dim / 2)) as f32 / 8.0);
        let table = |f: fn(f32) -> f32| (0..positions * head_dim / 2).map(|i| f(angle(i))).collect();
        let config = DecoderConfig {
            d_model: 64,
            heads: 4,
            kv_heads: 2,
            head_dim,
            ffn: 128,
            vocab: VOCAB,
            head_tokens: None,
            eps: 1e-5,
            cos: table(f32::cos),
            sin: table(f32::sin),
            rope_interleaved: kind == Kind::Q4,
        };
        Ok(Self { kind, config, numbers: seed })
    }

    fn matrix(&self, numbers: &mut Numbers, n: usize, k: usize) -> Result<HostMatrix, Error> {
        if self.kind == Kind::Q4 {
            return HostMatrix::from_blocks(Format::Q4_1, n, k, &blocks(numbers, Format::Q4_1, n * k / 32));
        }
        let scale = 2.0 / (k as f32).sqrt();
        let weights: Vec<f32> = numbers.floats(n * k).iter().map(|x| x * scale).collect();
        HostMatrix::from_f32(if self.kind == Kind::F32 { MatrixKind::F32 } else { MatrixKind::Bf16 }, n, k, &weights)
    }

    /// Embedding (which is the head, too), layers, final norm.
    fn weights(&self) -> Result<(HostMatrix, Vec<HostLayer>, Vec<f32>), Error> {
        let c = &self.config;
        let mut numbers = Numbers(self.numbers);
        let (q, kv) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        let embedding = self.matrix(&mut numbers, c.vocab, c.d_model)?;
        let mut layers = Vec::new();
        for index in 0..2 {
            let shapes = [
                (q, c.d_model),
                (kv, c.d_model),
                (kv, c.d_model),
                (c.d_model, q),
                (c.ffn, c.d_model),
                (c.ffn, c.d_model),
                (c.d_model, c.ffn),
            ];
            let matrices = shapes.iter().map(|(n, k)| self.matrix(&mut numbers, *n, *k)).collect::<Result<_, _>>()?;
            let mut vector = |n: usize| numbers.floats(n).iter().map(|x| 1.0 + 0.2 * x).collect::<Vec<f32>>();
            let vectors =
                vec![vector(c.d_model), vector(c.d_model), vector(q + 2 * kv), vector(c.head_dim), vector(c.head_dim)];
            let patch = (index == 1).then(|| {
                let weight = numbers.floats(c.d_model * c.d_model).iter().map(|x| 0.1 * x).collect();
                (weight, numbers.floats(c.d_model))
            });
            layers.push(HostLayer { matrices, vectors, patch });
        }
        let norm = numbers.floats(c.d_model).iter().map(|x| 1.0 + 0.2 * x).collect();
        Ok((embedding, layers, norm))
    }

    /// Logits after every token of every prompt, `[prompt][token][vocab]`.
    fn on_cpu(&self) -> Result<Vec<f32>, Error> {
        let c = &self.config;
        let (embedding, layers, norm) = self.weights()?;
        let pack = |m: &HostMatrix| match m.kind() {
            MatrixKind::Bf16 => PackedMatrix::bf16_from_f32(m.n(), m.k(), &m.to_f32()),
            _ => PackedMatrix::from_f32(m.n(), m.k(), &m.to_f32()),
        };
        let biased = self.kind != Kind::Q4;
        let layers = layers.iter().map(|layer| {
            let [q, k, v, output, gate, up, down] = &layer.matrices[..] else { unreachable!("seven matrices") };
            let [attn_norm, ffn_norm, bias, q_norm, k_norm] = &layer.vectors[..] else { unreachable!("five vectors") };
            let patch = layer.patch.as_ref().map(|(weight, bias)| {
                Ok(Patch { weight: PackedMatrix::from_f32(c.d_model, c.d_model, weight)?, bias: bias.clone() })
            });
            Ok(LayerWeights {
                patch: patch.transpose()?,
                attn_norm: attn_norm.clone(),
                q: pack(q)?,
                k: pack(k)?,
                v: pack(v)?,
                qkv_bias: biased.then(|| bias.clone()),
                qk_norm: biased.then(|| [q_norm.clone(), k_norm.clone()]),
                output: pack(output)?,
                ffn_norm: ffn_norm.clone(),
                gate: pack(gate)?,
                up: pack(up)?,
                down: pack(down)?,
            })
        });
        let layers = layers.collect::<Result<Vec<_>, Error>>()?;
        let embedding = Arc::new(pack(&embedding)?);
        let processor = (Isa::detect(), Pool::new(1, None)?);
        let mut cache = KvCache::new(layers.len(), c.kv_heads, c.head_dim, (8, BLOCK), KvDtype::F32)?;
        let mut decoder = Decoder::new(c.clone(), processor, Arc::clone(&embedding), layers, norm, embedding)?;
        let mut out = StepOutput::default();
        let mut logits = Vec::new();
        for (index, prompt) in PROMPTS.iter().enumerate() {
            let table = table(index);
            for (start, token) in prompt.iter().enumerate() {
                let row = RowInput { tokens: &[*token], start, blocks: &table, sample: true };
                decoder.forward(&[row], &mut cache, StepNeeds::default(), &mut out)?;
                logits.extend_from_slice(&out.logits);
            }
        }
        Ok(logits)
    }

    /// The weights of a rank on a device.
    fn decoder(
        &self,
        device: &Device,
        (rank, ranks): (usize, usize),
        graphs: &[(usize, usize)],
        collective: Box<dyn Collective>,
    ) -> Result<CudaDecoder, Error> {
        let (embedding, layers, norm) = self.weights()?;
        let mut config = self.config.clone();
        (config.heads, config.kv_heads, config.ffn) =
            (config.heads / ranks, config.kv_heads / ranks, config.ffn / ranks);
        let (q, kv) = (self.config.heads * config.head_dim, self.config.kv_heads * config.head_dim);
        let biased = self.kind != Kind::Q4;
        let rows = |m: &HostMatrix| DeviceMatrix::upload(device, &m.rows(rank, ranks)?);
        let columns = |m: &HostMatrix| DeviceMatrix::upload(device, &m.columns(rank, ranks)?);
        let layers = layers.iter().map(|layer| {
            let [query, key, value, output, gate, up, down] = &layer.matrices[..] else {
                unreachable!("seven matrices")
            };
            let [attn_norm, ffn_norm, bias, q_norm, k_norm] = &layer.vectors[..] else { unreachable!("five vectors") };
            let patch = layer.patch.as_ref().map(|(weight, bias)| {
                let d = config.d_model;
                let weight = HostMatrix::from_f32(MatrixKind::F32, d, d, weight)?;
                Ok((DeviceMatrix::upload(device, &weight)?, device.upload(bias)?))
            });
            let mut biases = Vec::new();
            for (start, width) in [(0, q), (q, kv), (q + kv, kv)] {
                biases.extend_from_slice(&bias[start..][width / ranks * rank..width / ranks * (rank + 1)]);
            }
            let head_norms = || Ok([device.upload(q_norm)?, device.upload(k_norm)?]);
            Ok(CudaLayer {
                patch: patch.transpose()?,
                attn_norm: device.upload(attn_norm)?,
                qkv: [rows(query)?, rows(key)?, rows(value)?],
                qkv_bias: if biased { Some(device.upload(&biases)?) } else { None },
                qk_norm: if biased { Some(head_norms()?) } else { None },
                output: columns(output)?,
                ffn_norm: device.upload(ffn_norm)?,
                gate_up: [rows(gate)?, rows(up)?],
                down: columns(down)?,
            })
        });
        let layers = layers.collect::<Result<Vec<_>, Error>>()?;
        let embedding = DeviceMatrix::upload(device, &embedding)?;
        let weights = CudaWeights { embedding, layers, norm: device.upload(&norm)?, head: None };
        let limits =
            CudaLimits { tokens: 32, rows: 3, kv: (8, BLOCK), kv_dtype: KvDtype::F32, graphs: graphs.to_vec() };
        let needs = CudaNeeds {
            signals: SignalSet { softmax: true, top_k: 2 },
            extra_row: None,
            bound: VOCAB,
            top_on_host: true,
        };
        CudaDecoder::new(device, config, weights, limits, (needs, None), collective)
    }

    fn run(&self, device: &Device, schedule: &Schedule, graphs: &[(usize, usize)]) -> Result<Vec<f32>, Error> {
        let mut decoder = self.decoder(device, (0, 1), graphs, Box::new(Alone))?;
        let logits = logits(&mut decoder, schedule)?;
        let counts = decoder.graph_counts();
        let expected = if graphs.is_empty() { counts.hits == 0 } else { counts.hits > 0 };
        crate::check("replayed graphs", counts.hits as usize, expected, "some where there are shapes, none without")?;
        Ok(logits)
    }

    fn run_ranks(&self, device: &Device, ranks: usize) -> Result<Vec<f32>, Error> {
        let members = InProcess::new(ranks, std::time::Duration::from_secs(60));
        let results = std::thread::scope(|scope| {
            let threads: Vec<_> = members
                .into_iter()
                .enumerate()
                .map(|(rank, member)| {
                    // Ranks of their own have streams of their own.
                    let device = device.clone();
                    scope.spawn(move || {
                        let mut decoder = self.decoder(&device, (rank, ranks), &[], Box::new(member))?;
                        logits(&mut decoder, &Schedule::Together)
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("a rank does not panic")).collect::<Vec<_>>()
        });
        let mut first = None;
        for result in results {
            first.get_or_insert(result?);
        }
        Ok(first.unwrap_or_default())
    }
}

fn table(prompt: usize) -> Vec<u32> {
    if prompt == 0 { vec![6, 2, 3] } else { vec![5, 1, 0] }
}

/// Logits after every token of every prompt, whatever the steps were.
fn logits(decoder: &mut CudaDecoder, schedule: &Schedule) -> Result<Vec<f32>, Error> {
    let tables = [table(0), table(1)];
    let mut out = CudaOutput::default();
    let mut logits = PROMPTS.map(|prompt| vec![0f32; prompt.len() * VOCAB]);
    let mut step = |rows: &[(usize, usize, usize)]| -> Result<(), Error> {
        let inputs = rows.iter().map(|(prompt, start, count)| RowInput {
            tokens: &PROMPTS[*prompt][*start..start + count],
            start: *start,
            blocks: &tables[*prompt],
            sample: true,
        });
        decoder.forward(&inputs.collect::<Vec<_>>(), &[], &mut out)?;
        for (index, (prompt, start, count)) in rows.iter().enumerate() {
            let at = (start + count - 1) * VOCAB;
            let row = &mut logits[*prompt][at..at + VOCAB];
            decoder.logits(index, row)?;
            // What returned with the step is about these logits.
            let best = row.iter().enumerate().fold(0, |best, (id, logit)| if *logit > row[best] { id } else { best });
            crate::check("candidate", out.candidates[index] as usize, out.candidates[index] as usize == best, best)?;
        }
        Ok(())
    };
    match schedule {
        Schedule::Chunks => {
            for (prompt, tokens) in PROMPTS.iter().enumerate() {
                for start in 0..tokens.len() {
                    step(&[(prompt, start, 1)])?;
                }
            }
        }
        Schedule::Together => {
            // Logits of a prefix are those of its last token: prefixes of all lengths, recomputed over the same blocks,
            // beside the other prompt.
            let short = PROMPTS[1].len();
            for end in 1..=PROMPTS[0].len() {
                step(&[(1, 0, end.min(short)), (0, 0, end)])?;
            }
        }
    }
    Ok(logits.concat())
}
