//! The file of a draft's patches: safetensors with the story of the fit in its header.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use serde_json::{Map, Value, json};

use super::fit::Gap;

/// Writes the patches; whoever looks sees the old file or the new one. The same contents give the same bytes.
pub(super) fn write(path: &Path, gaps: &[Gap], about: &BTreeMap<&str, String>) -> anyhow::Result<u64> {
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
    let mut header = Value::Object(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    let bytes = [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}.{}.tmp", std::process::id()));
    let written = std::fs::write(&temporary, &bytes).and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        // Nothing to do about a leftover that cannot be removed.
        let _removed = std::fs::remove_file(&temporary);
    }
    written.with_context(|| format!("cannot write `{}`", path.display()))?;
    Ok(bytes.len() as u64)
}
