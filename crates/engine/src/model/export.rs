//! Writes a model as this engine runs it, dropped layers and all, for other engines: GGUF.

use std::io::{Seek, Write};

use candle_core::quantized::ggml_file::qtensor_from_ggml;
use candle_core::quantized::gguf_file::{Value, write};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};

use super::parts::Parts;
use super::stored::candle_dtype;
use super::{ModelError, StoredTensor, locate};
use crate::config::{ModelConfig, WeightDtype};

/// Writes the model of a configuration whose weights are a GGUF file. Its tokenizer and constants are copied; the layers of
/// `layers` are renumbered; `dtype` is what the weights are written in, as they are for `native`.
pub fn export_gguf(config: &ModelConfig, out: &mut (impl Write + Seek)) -> Result<(), ModelError> {
    let path = locate(config)?;
    if path.is_dir() {
        return Err(ModelError::invalid(&path, "only models from a GGUF file can be exported, this is a folder"));
    }
    if config.patch.is_some() {
        let message = "a model with a `patch` cannot be exported: GGUF has no such layers";
        return Err(ModelError::invalid(&path, message));
    }
    if config.student.is_some() {
        let message = "a `student` cannot be exported: its embedding is in another file";
        return Err(ModelError::invalid(&path, message));
    }
    // Everything that opening checks holds from here on.
    let layers = super::ModelFiles::open(config)?.arch.layers;
    let failed = |error| ModelError::tensor(&path, error);
    let parts = Parts::open(&path)?;
    let blocks = format!("{}.block_count", parts.metadata().str("general.architecture")?);
    let count = Value::U32(layers.len() as u32);
    let mut values: Vec<(&str, &Value)> = parts.values().iter().map(|(key, value)| (key.as_str(), value)).collect();
    // The new model is in one file.
    values.retain(|(key, _)| !key.starts_with("split."));
    values.sort_unstable_by_key(|(key, _)| *key);
    for (key, value) in &mut values {
        if *key == blocks {
            *value = &count;
        }
    }
    let mut tensors: Vec<(String, QTensor)> = Vec::new();
    for name in parts.names() {
        for new in renumbered(name, &layers) {
            let Some(tensor) = parts.tensor(name)? else { continue };
            let converted = convert(&tensor, config.dtype);
            let of = |message| ModelError::invalid(&path, format!("tensor `{name}` {message}"));
            tensors.push((new, converted.map_err(of)?));
        }
    }
    tensors.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    let tensors: Vec<(&str, &QTensor)> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    write(out, &values, &tensors).map_err(failed)
}

/// The names of a tensor in the new file: none when its layer is dropped, several when it is used again.
fn renumbered(name: &str, layers: &[usize]) -> Vec<String> {
    let Some((layer, rest)) = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) else {
        return vec![name.to_owned()];
    };
    let places = layers.iter().enumerate().filter(|(_, old)| old.to_string() == layer);
    places.map(|(new, _)| format!("blk.{new}.{rest}")).collect()
}

fn convert(tensor: &StoredTensor, dtype: WeightDtype) -> Result<QTensor, String> {
    let cannot = |error: candle_core::Error| format!("cannot be written: {error}");
    let dtype = match dtype {
        WeightDtype::Native => {
            let Some(dtype) = candle_dtype(tensor.format()) else {
                let message = "cannot be written as it is: give another `dtype`, such as `bf16`";
                return Err(format!("is {}, which {message}", tensor.format()));
            };
            return qtensor_from_ggml(dtype, tensor.bytes(), tensor.dims().to_vec(), &Device::Cpu).map_err(cannot);
        }
        // Norms and other vectors are read as f32 by everyone.
        _ if tensor.dims().len() < 2 => GgmlDType::F32,
        WeightDtype::F32 => GgmlDType::F32,
        WeightDtype::Bf16 => GgmlDType::BF16,
        WeightDtype::F16 => GgmlDType::F16,
    };
    let values = tensor.to_f32().map_err(|error| format!("cannot be read: {error}"))?;
    let dense = Tensor::from_vec(values, tensor.dims(), &Device::Cpu);
    dense.and_then(|dense| QTensor::quantize(&dense, dtype)).map_err(cannot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_layers_leave_and_the_others_close_ranks() {
        let layers = [0, 4, 4];
        assert_eq!(renumbered("blk.4.attn_q.weight", &layers), ["blk.1.attn_q.weight", "blk.2.attn_q.weight"]);
        assert!(renumbered("blk.3.attn_q.weight", &layers).is_empty());
        assert_eq!(renumbered("token_embd.weight", &layers), ["token_embd.weight"]);
    }
}
