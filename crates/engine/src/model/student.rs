//! Students: small models whose layers are in a file of their own, and whose embedding, tokenizer and end tokens are
//! those of another model, usually the large one that they learned from.
//!
//! The file is GGUF without `token_embd.weight`. `python -m tokenrouter.distill` writes it. Its own metadata keys:
//!
//! - `tokenrouter.output.token_ids`: the tokens that the student can write, ascending; absent: all.
//! - `tokenrouter.embedding.sha256`: digest of the embedding's bytes that the student was trained with.
//!
//! The head is `output.weight` with a row for each of these tokens, or, if it is absent, the embedding's rows.

use std::path::Path;

use candle_core::quantized::gguf_file::Value;
use sha2::{Digest, Sha256};

use super::gguf::{check_keys, read_arch};
use super::parts::Parts;
use super::{Arch, LinearPatches, ModelError, ModelFiles, Slot, StoredTensor, Weights};
use crate::files::{GgufMetadata, gguf_usize};

pub(super) const TOKEN_IDS: &str = "tokenrouter.output.token_ids";
const EMBEDDING_DIGEST: &str = "tokenrouter.embedding.sha256";

/// Puts the student at `path` in the place of `base`'s layers.
pub(super) fn open(path: &Path, base: ModelFiles) -> Result<ModelFiles, ModelError> {
    if path.is_dir() {
        return Err(ModelError::invalid(path, "a student is a GGUF file, this is a folder"));
    }
    let parts = Parts::open(path)?;
    let metadata = parts.metadata();
    if parts.has("token_embd.weight") {
        let message = "tensor `token_embd.weight` is there: a model with an embedding of its own goes under `path`, a \
                       student has none";
        return Err(ModelError::invalid(path, message));
    }
    let mut warnings = base.warnings;
    let mut arch = read_arch(&metadata, &parts, Some(base.arch.vocab), &mut warnings)?;
    warnings.extend(check_keys(&metadata)?);
    check_sizes(&metadata, &arch, &base.arch)?;
    arch.head_tokens = head_tokens(&metadata, arch.vocab)?;
    arch.check().map_err(|message| metadata.invalid(message))?;
    if let Some(trained) = metadata.optional_str(EMBEDDING_DIGEST)?
        && trained != digest_of_embedding(&base.weights)?
    {
        warnings.push(format!(
            "student `{}` was trained with another embedding than that of `{}` (their SHA-256 differ)",
            path.display(),
            base.weights.path().display()
        ));
    }
    let weights = Weights::gguf(path.to_owned(), parts);
    warnings.extend(weights.check_names(&arch)?);
    let weights = weights.with_embedding_of(base.weights);
    Ok(ModelFiles { arch, patches: LinearPatches::new(), weights, text: base.text, eos: base.eos, warnings })
}

fn check_sizes(metadata: &GgufMetadata<'_>, arch: &Arch, base: &Arch) -> Result<(), ModelError> {
    let vocab = metadata.optional_usize(&format!("{}.vocab_size", metadata.str("general.architecture")?))?;
    for (what, have, want) in
        [("embedding length", arch.d_model, base.d_model), ("vocabulary size", vocab.unwrap_or(base.vocab), base.vocab)]
    {
        if have != want {
            let message = format!("{what} is {have}, the model whose embedding it shares has {want}");
            return Err(metadata.invalid(message));
        }
    }
    Ok(())
}

/// The tokens of the head's rows.
fn head_tokens(metadata: &GgufMetadata<'_>, vocab: usize) -> Result<Option<Vec<u32>>, ModelError> {
    let Some(value) = metadata.find(TOKEN_IDS) else { return Ok(None) };
    let Value::Array(values) = value else {
        return Err(metadata.invalid(format!("metadata key `{TOKEN_IDS}` is no list of token ids")));
    };
    let ids: Option<Vec<usize>> = values.iter().map(gguf_usize).collect();
    let ids = ids.ok_or_else(|| metadata.invalid(format!("metadata key `{TOKEN_IDS}` holds what is no token id")))?;
    check_tokens(&ids, vocab).map_err(|problem| metadata.invalid(format!("metadata key `{TOKEN_IDS}` {problem}")))?;
    Ok(Some(ids.into_iter().map(|id| id as u32).collect()))
}

/// Token ids of a head: ascending and in the vocabulary.
pub(super) fn check_tokens(ids: &[usize], vocab: usize) -> Result<(), String> {
    if ids.is_empty() {
        return Err("is empty, at least 1 token is needed".into());
    }
    if let Some(at) = ids.windows(2).position(|pair| pair[0] >= pair[1]) {
        return Err(format!("must ascend, but {} is followed by {}", ids[at], ids[at + 1]));
    }
    match ids.iter().find(|id| **id >= vocab) {
        Some(id) => Err(format!("holds {id}, allowed are ids below {vocab}")),
        None => Ok(()),
    }
}

/// SHA-256 of the embedding as the files hold it.
fn digest_of_embedding(weights: &Weights) -> Result<String, ModelError> {
    let embedding = weights.find(Slot::Embedding)?;
    let digest = Sha256::digest(embedding.as_ref().map_or(&[][..], StoredTensor::bytes));
    Ok(digest.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_ids_ascend_and_exist() {
        assert_eq!(check_tokens(&[0, 5, 9], 10), Ok(()));
        assert!(check_tokens(&[], 10).expect_err("empty").contains("at least 1"));
        assert!(check_tokens(&[5, 5], 10).expect_err("equal").contains("5 is followed by 5"));
        assert!(check_tokens(&[5, 10], 10).expect_err("large").contains("holds 10, allowed are ids below 10"));
    }
}
