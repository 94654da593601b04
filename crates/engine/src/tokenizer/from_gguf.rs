//! Byte-level BPE tokenizers from GGUF metadata.
//!
//! What differs between models of the `gpt2` kind is the pre-tokenizer, which the file only names. A generic GPT-2
//! pipeline would mis-tokenise most of them, so unknown names are refused.

use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, SplitDelimiterBehavior, Tokenizer};

use crate::files::{GgufMetadata, ModelError, gguf_usize};

const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN_2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Token types of GGUF files.
const CONTROL: usize = 3;
const USER_DEFINED: usize = 4;

/// The tokenizer, and the id to put first if the file asks for one.
pub(super) fn tokenizer(metadata: &GgufMetadata<'_>) -> Result<(Tokenizer, Option<u32>), ModelError> {
    let kind = metadata.str("tokenizer.ggml.model")?;
    if kind != "gpt2" {
        return Err(metadata
            .invalid(format!("tokenizer model `{kind}` is not supported, supported is `gpt2` (byte-level BPE)")));
    }
    let invalid = |error: tokenizers::Error| metadata.invalid(format!("tokenizer: {error}"));
    let tokens = metadata.strings("tokenizer.ggml.tokens")?;
    let merges = metadata
        .strings("tokenizer.ggml.merges")?
        .iter()
        .map(|merge| merge.split_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned())))
        .collect::<Option<Vec<_>>>()
        .ok_or_else(|| metadata.invalid("`tokenizer.ggml.merges` has an entry without a space"))?;
    let vocabulary: Vocab = tokens.iter().cloned().zip(0u32..).collect();
    let pre = metadata.optional_str("tokenizer.ggml.pre")?.unwrap_or_else(|| "default".into());
    let pre_tokenizer = pre_tokenizer(&pre).ok_or_else(|| {
        metadata.invalid(format!(
            "pre-tokenizer `{pre}` is not supported, supported are `smollm`, `gpt-2`, `default`, `llama-bpe`, `qwen2`"
        ))
    })?;
    // Llama 3 takes a word that is a token as it is, even if no merges lead to it.
    let bpe = BPE::builder().vocab_and_merges(vocabulary, merges).ignore_merges(pre == "llama-bpe");
    let mut tokenizer = Tokenizer::new(bpe.build().map_err(invalid)?);
    tokenizer.with_pre_tokenizer(Some(pre_tokenizer));
    if pre == "qwen2" {
        tokenizer.with_normalizer(Some(NFC)).map_err(invalid)?;
    }
    tokenizer.with_decoder(Some(ByteLevel::new(false, true, true)));
    add_special(metadata, &tokens, &mut tokenizer).map_err(invalid)?;
    Ok((tokenizer, first_token(metadata, &pre, tokens.len())?))
}

/// The token that prompts begin with. Files of Llama 3 mean it without saying so, as llama.cpp reads them.
fn first_token(metadata: &GgufMetadata<'_>, pre: &str, tokens: usize) -> Result<Option<u32>, ModelError> {
    const FLAG: &str = "tokenizer.ggml.add_bos_token";
    const ID: &str = "tokenizer.ggml.bos_token_id";
    let (flag, id) = (metadata.optional_bool(FLAG)?, metadata.optional_usize(ID)?);
    if !flag.unwrap_or(pre == "llama-bpe") {
        return Ok(None);
    }
    match id {
        Some(id) if id < tokens => Ok(Some(id as u32)),
        Some(id) => {
            Err(metadata.invalid(format!("metadata key `{ID}` is {id}, allowed are 0 to {}", tokens.max(1) - 1)))
        }
        None if flag.is_some() => {
            Err(metadata.invalid(format!("`{FLAG}` is true, but metadata key `{ID}` is missing")))
        }
        None => Ok(None),
    }
}

fn pre_tokenizer(name: &str) -> Option<Sequence> {
    let bytes = |use_regex| PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, true, use_regex));
    let split = |pattern: &str| {
        let pattern = SplitPattern::Regex(pattern.to_owned());
        Split::new(pattern, SplitDelimiterBehavior::Isolated, false).ok().map(PreTokenizerWrapper::Split)
    };
    Some(Sequence::new(match name {
        "smollm" => vec![PreTokenizerWrapper::Digits(Digits::new(true)), bytes(true)],
        "gpt-2" | "default" => vec![bytes(true)],
        "llama-bpe" => vec![split(LLAMA_3)?, bytes(false)],
        "qwen2" => vec![split(QWEN_2)?, bytes(false)],
        _ => return None,
    }))
}

fn add_special(metadata: &GgufMetadata<'_>, tokens: &[String], tokenizer: &mut Tokenizer) -> tokenizers::Result<()> {
    let types = metadata.find("tokenizer.ggml.token_type").and_then(|value| value.to_vec().ok());
    let types = types.into_iter().flatten().map(|value| gguf_usize(value).unwrap_or(1));
    let (mut control, mut user) = (Vec::new(), Vec::new());
    for (token, kind) in tokens.iter().zip(types) {
        match kind {
            CONTROL => control.push(AddedToken::from(token.clone(), true)),
            USER_DEFINED => user.push(AddedToken::from(token.clone(), false).normalized(false)),
            _ => {}
        }
    }
    tokenizer.add_special_tokens(control)?;
    tokenizer.add_tokens(user)?;
    Ok(())
}
