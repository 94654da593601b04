//! Linear patches: what stands in for layers that a pruned model dropped.
//!
//! A safetensors file with `patch.N.weight` `[d_model, d_model]` and `patch.N.bias` `[d_model]` for every gap, `N` being
//! the layer after it in the whole model: `x += weight x + bias` on the residual stream before layer `N`. `trbench
//! make-draft` fits them. `output.token_ids` (u32, ascending) limits the head to these tokens.

use std::collections::BTreeMap;
use std::path::Path;

use super::safetensors::Shards;
use super::shards::Shard;
use super::student::check_tokens;
use super::{Arch, ModelError};

/// Name of the tensor with the tokens of the head's rows, u32.
const TOKEN_IDS: &str = "output.token_ids";

/// A gap's map.
#[derive(Debug, Clone, PartialEq)]
pub struct LinearPatch {
    /// `[d_model, d_model]`, by rows.
    pub weight: Vec<f32>,
    /// `[d_model]`.
    pub bias: Vec<f32>,
}

/// The maps of a pruned model, by the layer after the gap.
pub type LinearPatches = BTreeMap<usize, LinearPatch>;

/// Reads the patches of a model of width `d_model` that keeps the layers `keep`.
/// Also reads `output.token_ids`, the tokens of a head for a part of the vocabulary.
pub(super) fn read(path: &Path, arch: &Arch) -> Result<(LinearPatches, Option<Vec<u32>>), ModelError> {
    let (d_model, keep) = (arch.d_model, &arch.layers[..]);
    let file = Shards::open(&[Shard::whole(path.to_owned())])?;
    let mut patches = LinearPatches::new();
    let mut names: Vec<_> = file.names().collect();
    // The same error every time, whichever order a map has.
    names.sort_unstable();
    for name in names {
        if name == TOKEN_IDS {
            continue;
        }
        let layer = name.strip_prefix("patch.").and_then(|rest| rest.strip_suffix(".weight"));
        let Some(layer) = layer.and_then(|number| number.parse::<usize>().ok()) else {
            if name.starts_with("patch.") && name.ends_with(".bias") {
                continue;
            }
            let message =
                format!("tensor `{name}` is unknown, allowed are `patch.N.weight`, `patch.N.bias` and `{TOKEN_IDS}`");
            return Err(ModelError::invalid(path, message));
        };
        let at = keep.iter().position(|kept| *kept == layer);
        let first_of_gap = |at: usize| at.checked_sub(1).map_or(0, |before| keep[before] + 1);
        if at.is_none_or(|at| layer <= first_of_gap(at)) {
            let message = format!("`{name}` is for a gap before layer {layer}, but `layers` keeps {keep:?}");
            return Err(ModelError::invalid(path, message));
        }
        let weight = floats(path, &file, name, &[d_model, d_model])?;
        let bias = floats(path, &file, &format!("patch.{layer}.bias"), &[d_model])?;
        patches.insert(layer, LinearPatch { weight, bias });
    }
    let tokens = token_ids(path, &file, arch.vocab)?;
    if patches.is_empty() && tokens.is_none() {
        let message = format!("no tensor `patch.N.weight` or `{TOKEN_IDS}` in this file");
        return Err(ModelError::invalid(path, message));
    }
    Ok((patches, tokens))
}

fn token_ids(path: &Path, file: &Shards, vocab: usize) -> Result<Option<Vec<u32>>, ModelError> {
    let Some(ids) = file.load_u32(TOKEN_IDS)? else { return Ok(None) };
    let wide: Vec<usize> = ids.iter().map(|id| *id as usize).collect();
    check_tokens(&wide, vocab)
        .map_err(|problem| ModelError::invalid(path, format!("tensor `{TOKEN_IDS}` {problem}")))?;
    Ok(Some(ids))
}

fn floats(path: &Path, file: &Shards, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
    let tensor = file.load(name)?;
    let tensor = tensor.ok_or_else(|| ModelError::invalid(path, format!("tensor `{name}` is missing")))?;
    if tensor.dims() != shape {
        let message = format!("tensor `{name}` has shape {:?}, the model needs {shape:?}", tensor.dims());
        return Err(ModelError::invalid(path, message));
    }
    let values = tensor.to_f32().map_err(|error| ModelError::invalid(path, format!("tensor `{name}`: {error}")))?;
    match values.iter().position(|value| !value.is_finite()) {
        Some(at) => Err(ModelError::invalid(path, format!("tensor `{name}` holds {} at index {at}", values[at]))),
        None => Ok(values),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::safetensors::tensor::TensorView;

    fn file(tensors: &[(&str, Vec<usize>, f32)]) -> tempfile::NamedTempFile {
        let data: Vec<(String, Vec<usize>, Vec<u8>)> = tensors
            .iter()
            .map(|(name, shape, value)| {
                let count: usize = shape.iter().product();
                ((*name).to_owned(), shape.clone(), value.to_le_bytes().repeat(count))
            })
            .collect();
        let views = data.iter().map(|(name, shape, bytes)| {
            (name.clone(), TensorView::new(::safetensors::Dtype::F32, shape.clone(), bytes).expect("a tensor"))
        });
        let bytes = ::safetensors::serialize(views, None).expect("serialises");
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), bytes).expect("writable");
        file
    }

    fn arch(d_model: usize, keep: &[usize]) -> Arch {
        let known = crate::model::Shape::known("Qwen/Qwen3-0.6B").expect("known").arch;
        Arch { d_model, layers: keep.to_vec(), ..known }
    }

    #[test]
    fn patches_belong_to_gaps_and_have_the_models_width() {
        let good = file(&[("patch.3.weight", vec![2, 2], 0.5), ("patch.3.bias", vec![2], 1.0)]);
        let (patches, tokens) = read(good.path(), &arch(2, &[0, 1, 3])).expect("valid");
        assert_eq!(tokens, None);
        assert_eq!(patches[&3], LinearPatch { weight: vec![0.5; 4], bias: vec![1.0; 2] });
        let nan = file(&[("patch.3.weight", vec![2, 2], f32::NAN), ("patch.3.bias", vec![2], 1.0)]);
        let lone = file(&[("patch.3.weight", vec![2, 2], 0.5)]);
        let other = file(&[("weight", vec![2, 2], 0.5)]);
        for (file, width, keep, wanted) in [
            (&good, 2, &[0usize, 1, 2, 3][..], "keeps [0, 1, 2, 3]"),
            (&good, 2, &[0, 1, 4], "gap before layer 3"),
            (&good, 3, &[0, 1, 3], "needs [3, 3]"),
            (&nan, 2, &[0, 3], "NaN at index 0"),
            (&lone, 2, &[0, 3], "`patch.3.bias` is missing"),
            (&other, 2, &[0, 3], "`weight` is unknown"),
        ] {
            let message = read(file.path(), &arch(width, keep)).expect_err("wrong").to_string();
            assert!(message.contains(wanted), "{message}");
        }
    }
}
