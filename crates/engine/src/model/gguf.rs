//! Opens GGUF files.

use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use candle_core::quantized::gguf_file::Content;

use super::arch::layers;
use super::{Arch, Family, ModelError, ModelFiles, RopeScaling, Slot, Weights};
use crate::files::{GgufMetadata, gguf_usize};
use crate::tokenizer::TextCodec;

pub(super) fn open(path: &Path) -> Result<ModelFiles, ModelError> {
    let file = File::open(path).map_err(|error| ModelError::io(path, error))?;
    let mut reader = BufReader::new(file);
    let mut magic = [0u8; 4];
    reader.read_exact(&mut magic).map_err(|_| ModelError::invalid(path, "not a GGUF file: shorter than 4 bytes"))?;
    if &magic != b"GGUF" {
        return Err(ModelError::invalid(path, format!("not a GGUF file: it starts with {magic:?}, not with `GGUF`")));
    }
    reader.rewind().map_err(|error| ModelError::io(path, error))?;
    // An alignment of 0 makes the reader divide by it.
    let content = catch_unwind(AssertUnwindSafe(|| Content::read(&mut reader)))
        .map_err(|_| ModelError::invalid(path, "GGUF header cannot be read: it is inconsistent"))?
        .map_err(|error| ModelError::invalid(path, format!("GGUF header cannot be read: {error}")))?;
    check_extent(path, &content)?;
    let metadata = GgufMetadata { path, values: &content.metadata };
    let mut arch = read_arch(&metadata)?;
    let text = TextCodec::from_gguf(&metadata)?;
    let mut eos = vec![metadata.usize("tokenizer.ggml.eos_token_id")? as u32];
    if let Some(eot) = metadata.find("tokenizer.ggml.eot_token_id").and_then(gguf_usize) {
        eos.push(eot as u32);
        eos.dedup();
    }
    if content.tensor_infos.contains_key("rope_freqs.weight") {
        let divisors = content
            .tensor(&mut reader, "rope_freqs.weight", &candle_core::Device::Cpu)
            .and_then(|tensor| tensor.dequantize(&candle_core::Device::Cpu)?.to_vec1::<f32>())
            .map_err(|error| ModelError::tensor(path, error))?;
        if divisors.len() != arch.head_dim / 2 {
            return Err(metadata.invalid(format!("`rope_freqs.weight` has {} entries", divisors.len())));
        }
        arch.rope_scaling = RopeScaling::Divisors(divisors);
    }
    let weights = Weights::gguf(path.to_owned(), content, reader);
    let embedding = weights.find(Slot::Embedding)?;
    let embedding = embedding.ok_or_else(|| ModelError::invalid(path, "tensor `token_embd.weight` is missing"))?;
    arch.vocab = *embedding.dims().first().unwrap_or(&0);
    arch.check().map_err(|message| ModelError::invalid(path, message))?;
    Ok(ModelFiles { arch, patches: super::LinearPatches::new(), weights, text, eos })
}

/// Refuses a truncated file before anything is allocated for its tensors.
fn check_extent(path: &Path, content: &Content) -> Result<(), ModelError> {
    let length = std::fs::metadata(path).map_err(|error| ModelError::io(path, error))?.len();
    for (name, info) in &content.tensor_infos {
        let block = info.ggml_dtype.block_size() as u64;
        let elements = info.shape.dims().iter().try_fold(1u64, |product, dim| product.checked_mul(*dim as u64));
        let bytes = elements.and_then(|n| (n / block).checked_mul(info.ggml_dtype.type_size() as u64));
        let end = bytes.and_then(|n| n.checked_add(info.offset)?.checked_add(content.tensor_data_offset));
        if end.is_none_or(|end| end > length) {
            return Err(ModelError::invalid(
                path,
                format!("the file is truncated or corrupt: tensor `{name}` ends after the file's {length} bytes"),
            ));
        }
    }
    Ok(())
}

fn read_arch(metadata: &GgufMetadata<'_>) -> Result<Arch, ModelError> {
    let name = metadata.str("general.architecture")?;
    let family = match name.as_str() {
        "llama" => Family::Llama,
        "qwen2" => Family::Qwen2,
        "qwen3" => Family::Qwen3,
        other => {
            let message = format!("architecture `{other}` is not supported, supported are `llama`, `qwen2`, `qwen3`");
            return Err(metadata.invalid(message));
        }
    };
    let key = |suffix: &str| format!("{name}.{suffix}");
    let (d_model, heads) =
        (metadata.usize(&key("embedding_length"))?, metadata.usize(&key("attention.head_count"))?.max(1));
    let head_dim = metadata.find(&key("attention.key_length")).and_then(gguf_usize).unwrap_or(d_model / heads);
    let scaling = match metadata.find(&key("rope.scaling.type")).and_then(|v| v.to_string().ok()).map(String::as_str) {
        None | Some("none") => RopeScaling::None,
        Some("linear") => RopeScaling::Linear(metadata.f32(&key("rope.scaling.factor"))?),
        Some(other) => return Err(metadata.invalid(format!("rope scaling `{other}` is not supported"))),
    };
    Ok(Arch {
        family,
        layers: layers(metadata.usize(&key("block_count"))?).map_err(|message| metadata.invalid(message))?,
        d_model,
        heads,
        kv_heads: metadata.find(&key("attention.head_count_kv")).and_then(gguf_usize).unwrap_or(heads).max(1),
        head_dim,
        ffn: metadata.usize(&key("feed_forward_length"))?,
        vocab: 0,
        context: metadata.usize(&key("context_length"))?,
        eps: metadata.f32(&key("attention.layer_norm_rms_epsilon"))?,
        rope_theta: metadata.find(&key("rope.freq_base")).and_then(|v| v.to_f32().ok()).unwrap_or(10_000.0),
        rope_scaling: scaling,
        rope_interleaved: family == Family::Llama,
    })
}
