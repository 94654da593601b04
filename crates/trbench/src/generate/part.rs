//! A file of sequences: safetensors.
//!
//! `tokens` i32 `[N]`, the sequences one after the other; `offsets` i64 `[S + 1]`, where they begin and end; `written` u8
//! `[N]`, 1 where the model sampled the token; `temperature` f32 `[S]`; `top_ids` i32 `[N, K]` and `top_logprobs` f16 `[N, K]`:
//! the likeliest tokens after each token, over the whole vocabulary and at temperature 1, natural logarithm.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use half::f16;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};

use super::shown;
use crate::error::usage;
use crate::files::write_file;

/// Sequences of one file.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Part {
    pub(super) tokens: Vec<i32>,
    offsets: Vec<i64>,
    written: Vec<u8>,
    temperature: Vec<f32>,
    top_ids: Vec<i32>,
    top_logprobs: Vec<f16>,
}

/// What a folder's files have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Story {
    pub(super) model: String,
    pub(super) seed: u64,
    pub(super) top_k: usize,
    /// Who wrote: the model, or the configuration of a routed system.
    pub(super) writer: String,
}

impl Story {
    fn metadata(&self) -> HashMap<String, String> {
        let entries = [
            ("model", self.model.clone()),
            ("seed", self.seed.to_string()),
            ("top_k", self.top_k.to_string()),
            ("writer", self.writer.clone()),
            ("command", crate::offline::command_line()),
        ];
        entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }
}

impl Part {
    pub(super) fn push(&mut self, tokens: &[u32], sampled: &[bool], temperature: f32, top: &[(u32, f32)]) {
        if self.offsets.is_empty() {
            self.offsets.push(0);
        }
        self.tokens.extend(tokens.iter().map(|token| *token as i32));
        self.offsets.push(self.tokens.len() as i64);
        self.written.extend(sampled.iter().map(|sampled| u8::from(*sampled)));
        self.temperature.push(temperature);
        self.top_ids.extend(top.iter().map(|(id, _)| *id as i32));
        self.top_logprobs.extend(top.iter().map(|(_, logprob)| f16::from_f32(*logprob)));
    }
}

pub(super) fn path(folder: &Path, number: usize) -> PathBuf {
    folder.join(format!("part-{number:05}.safetensors"))
}

pub(super) fn write(path: &Path, part: &Part, story: &Story) -> anyhow::Result<()> {
    let n = part.tokens.len();
    let bytes = |values: &[i32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let (tokens, top_ids) = (bytes(&part.tokens), bytes(&part.top_ids));
    let offsets: Vec<u8> = part.offsets.iter().flat_map(|value| value.to_le_bytes()).collect();
    let temperature: Vec<u8> = part.temperature.iter().flat_map(|value| value.to_le_bytes()).collect();
    let top_logprobs: Vec<u8> = part.top_logprobs.iter().flat_map(|value| value.to_le_bytes()).collect();
    let tensors: [(&str, Dtype, Vec<usize>, &[u8]); 6] = [
        ("tokens", Dtype::I32, vec![n], &tokens),
        ("offsets", Dtype::I64, vec![part.offsets.len()], &offsets),
        ("written", Dtype::U8, vec![n], &part.written),
        ("temperature", Dtype::F32, vec![part.temperature.len()], &temperature),
        ("top_ids", Dtype::I32, vec![n, story.top_k], &top_ids),
        ("top_logprobs", Dtype::F16, vec![n, story.top_k], &top_logprobs),
    ];
    let views = tensors
        .into_iter()
        .map(|(name, dtype, shape, data)| Ok((name, TensorView::new(dtype, shape, data)?)))
        .collect::<Result<Vec<_>, safetensors::SafeTensorError>>()
        .context("the data do not fit their shapes")?;
    let file = safetensors::serialize(views, Some(story.metadata())).context("the data cannot be serialised")?;
    write_file(path, &file)
}

/// How many files a folder has, without a gap, and how many tokens are in them. Files of another model, seed or number of
/// likeliest tokens are refused.
pub(super) fn existing(folder: &Path, story: &Story) -> anyhow::Result<(usize, usize)> {
    let (mut count, mut tokens) = (0, 0);
    loop {
        let file = path(folder, count);
        if !file.try_exists().with_context(|| format!("cannot look for `{}`", shown(&file)))? {
            return Ok((count, tokens));
        }
        let bytes = std::fs::read(&file).with_context(|| format!("cannot read `{}`", shown(&file)))?;
        let invalid = || format!("`{}` is no data of `trbench generate`", shown(&file));
        let (_, header) = SafeTensors::read_metadata(&bytes).with_context(invalid)?;
        let found = header.metadata().clone().unwrap_or_default();
        for (key, want) in story.metadata().iter().filter(|(key, _)| *key != "command") {
            match found.get(key) {
                Some(have) if have == want => {}
                Some(have) => {
                    let file = shown(&file);
                    return Err(usage(format!(
                        "`{file}` was written with {key} {have}, not {want}: use another folder"
                    )));
                }
                None => bail!("{}: metadata `{key}` is missing", invalid()),
            }
        }
        let info = header.info("tokens").with_context(invalid)?;
        tokens += info.shape.iter().product::<usize>();
        count += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_counted_and_must_belong_together() {
        let dir = tempfile::tempdir().expect("a folder");
        let story = Story { model: "demo".into(), seed: 3, top_k: 2, writer: "demo".into() };
        assert_eq!(existing(dir.path(), &story).expect("empty"), (0, 0));
        let mut part = Part::default();
        part.push(
            &[5, 6, 7],
            &[false, true, true],
            0.8,
            &[(1, -0.5), (2, -1.0), (3, -0.25), (4, -2.0), (5, 0.0), (6, -9.0)],
        );
        part.push(&[8], &[false], 0.0, &[(1, -0.5), (2, -1.0)]);
        for number in 0..2 {
            write(&path(dir.path(), number), &part, &story).expect("writable");
        }
        assert_eq!(existing(dir.path(), &story).expect("two files"), (2, 8));
        let bytes = std::fs::read(path(dir.path(), 1)).expect("readable");
        let file = SafeTensors::deserialize(&bytes).expect("a file");
        let values = |name: &str| file.tensor(name).expect("there").data().to_vec();
        assert_eq!(values("offsets"), [0i64, 3, 4].iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>());
        assert_eq!(values("written"), [0, 1, 1, 0]);
        assert_eq!(file.tensor("top_ids").expect("there").shape(), [4, 2]);
        let other = Story { seed: 4, ..story };
        let message = existing(dir.path(), &other).expect_err("another seed").to_string();
        assert!(message.contains("was written with seed 3, not 4"), "{message}");
        std::fs::write(path(dir.path(), 2), b"{}").expect("writable");
        assert!(existing(dir.path(), &Story { seed: 3, ..other }).is_err());
    }
}
