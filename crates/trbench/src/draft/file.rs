//! The file of a draft's patches: safetensors with the story of the fit in its header.
//!
//! Written here because the `safetensors` crate keeps the header's metadata in a `HashMap`: its order, and so the file's
//! bytes, would differ from run to run.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::fit::Gap;
use crate::files::write_file;

/// Writes the patches and the tokens that the draft can write, if these are not all, and returns the size of the file in bytes. The file is replaced at once; the same contents give the
/// same bytes.
pub(super) fn write(
    path: &Path,
    (gaps, tokens): (&[Gap], Option<&[u32]>),
    about: &BTreeMap<&str, String>,
) -> anyhow::Result<u64> {
    let mut header = Map::new();
    header.insert("__metadata__".into(), json!(about));
    let mut data: Vec<u8> = Vec::new();
    for gap in gaps {
        let d = gap.patch.bias.len();
        for (name, shape, values) in [("weight", vec![d, d], &gap.patch.weight), ("bias", vec![d], &gap.patch.bias)] {
            let start = data.len();
            data.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            let info = json!({"dtype": "F32", "shape": shape, "data_offsets": [start, data.len()]});
            header.insert(format!("patch.{}.{name}", gap.layer), info);
        }
    }
    if let Some(tokens) = tokens {
        let start = data.len();
        data.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
        let info = json!({"dtype": "U32", "shape": [tokens.len()], "data_offsets": [start, data.len()]});
        header.insert("output.token_ids".into(), info);
    }
    let mut header = Value::Object(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    let bytes = [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat();
    write_file(path, &bytes)?;
    Ok(bytes.len() as u64)
}
