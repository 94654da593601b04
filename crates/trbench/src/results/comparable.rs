//! Whether two results measured the same thing, except for the system.

use serde_json::{Value, json};

use super::manifest::{BEFORE_SPECS, CONTENTS, Difference, FREE};
use super::read::Found;
use crate::spec::{self, RunSpec};

/// Settings that say what system is measured: it is what is compared.
const SYSTEM: [&str; 3] = ["system", "endpoint", "model"];
/// The machine and the size of the workload, as manifests name them.
const PLACE: [&str; 4] = ["cpu", "cores", "os", "items"];
/// What a server of whole systems does not read.
const OF_ENGINES: [&str; 4] = ["config_sha256", "config", "set", "calibration_sha256"];

/// All settings in which two results differ, and which make them incomparable. The system may differ.
///
/// # Errors
/// Names the result without a manifest, or with one that cannot be read.
pub(crate) fn differences(a: &Found, b: &Found) -> Result<Vec<Difference>, String> {
    let mut found = of_summaries(a, b);
    let manifest = |of: &'_ Found| {
        of.manifest
            .clone()
            .ok_or_else(|| format!("`{}` has no `manifest.json`: what it measured is not known", of.path.display()))
    };
    let (a, b) = (manifest(a)?, manifest(b)?);
    let between = |keys: &[&str]| -> Vec<Difference> {
        keys.iter().filter_map(|key| difference(key, &a[*key], &b[*key])).collect()
    };
    found.extend(between(&PLACE));
    if a["spec"].is_null() || b["spec"].is_null() {
        found.extend(between(&BEFORE_SPECS));
        return Ok(found);
    }
    let read = |manifest: &Value| {
        serde_json::from_value::<RunSpec>(manifest["spec"].clone())
            .map_err(|error| format!("`spec` of a manifest: {error}"))
    };
    let (spec_a, spec_b) = (read(&a)?, read(&b)?);
    let whole_server = |spec: &RunSpec| !spec.endpoint.is_empty() && !spec.hops();
    let servers = whole_server(&spec_a) || whole_server(&spec_b);
    let (fields_a, fields_b) = (spec::fields(&spec_a), spec::fields(&spec_b));
    let of = |key: &str| difference(key, &fields_a[key], &fields_b[key]);
    for (digest, keys) in CONTENTS.iter().filter(|(digest, _)| !(servers && OF_ENGINES.contains(digest))) {
        let Some(content) = difference(digest, &a[*digest], &b[*digest]) else { continue };
        let named: Vec<_> = keys.iter().filter_map(|key| of(key)).collect();
        found.extend(if named.is_empty() { vec![content] } else { named });
    }
    let by_content = |key: &str| CONTENTS.iter().any(|(_, keys)| keys.contains(&key));
    let other = |key: &&String| {
        let key = key.as_str();
        // The summaries have compared the concurrency.
        !FREE.contains(&key) && !SYSTEM.contains(&key) && !by_content(key) && key != "concurrency"
    };
    found.extend(fields_a.keys().filter(other).filter_map(|key| of(key)));
    Ok(found)
}

/// What the summaries themselves say of the load and of how far the runs came.
fn of_summaries(a: &Found, b: &Found) -> Vec<Difference> {
    let (a, b) = (&a.summary, &b.summary);
    let per_trial = |summary: &super::Summary| -> Value {
        let mut counts: Vec<usize> = summary.trials.iter().map(|trial| trial.completed).collect();
        counts.dedup();
        if let [one] = counts[..] { json!(one) } else { json!(counts) }
    };
    let pairs = [
        ("max_concurrency", json!(a.max_concurrency), json!(b.max_concurrency)),
        ("emulated", json!(a.emulated), json!(b.emulated)),
        ("interrupted", json!(a.interrupted), json!(b.interrupted)),
        ("completed requests per trial", per_trial(a), per_trial(b)),
        ("failed", json!(a.failed), json!(b.failed)),
    ];
    pairs.into_iter().filter_map(|(field, a, b)| difference(field, &a, &b)).collect()
}

fn difference(field: &str, old: &Value, new: &Value) -> Option<Difference> {
    (old != new).then(|| Difference { field: field.to_owned(), old: old.clone(), new: new.clone() })
}
