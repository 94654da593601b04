//! `--output json` and `--output csv`.

use super::tasks::Answers;
use serde_json::{Map, Value, json};
use tokenrouter_dtmc::Prediction;

/// One JSON object with everything.
pub(super) fn json(answers: &Answers) -> anyhow::Result<String> {
    let mut object = Map::new();
    object.insert("best".to_owned(), serde_json::to_value(answers.best())?);
    object.insert("candidates".to_owned(), serde_json::to_value(&answers.candidates)?);
    if let Some(found) = &answers.search {
        let search = json!({
            "strategy": found.strategy,
            "exhaustive": found.exhaustive,
            "evaluated": found.evaluated,
            "feasible": found.feasible,
            "near_ties": found.near_ties,
        });
        object.insert("search".to_owned(), search);
    }
    object.insert("model".to_owned(), serde_json::to_value(&answers.system)?);
    object.insert("notes".to_owned(), serde_json::to_value(&answers.notes)?);
    let mut optional = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            object.insert(name.to_owned(), value);
        }
    };
    optional("coarse", answers.coarse.as_ref().map(serde_json::to_value).transpose()?);
    optional("uncertainty", answers.spreads.as_ref().map(serde_json::to_value).transpose()?);
    optional("table", answers.table.as_ref().map(serde_json::to_value).transpose()?);
    optional("within_latency", answers.within_latency.as_ref().map(serde_json::to_value).transpose()?);
    optional("delta_study", answers.study.as_ref().map(serde_json::to_value).transpose()?);
    optional("sensitivity", answers.sensitivity.as_ref().map(serde_json::to_value).transpose()?);
    optional("chain", answers.card.as_ref().map(serde_json::to_value).transpose()?);
    if let Some(certificate) = &answers.certificate {
        let mut value = serde_json::to_value(certificate)?;
        if let Value::Object(fields) = &mut value {
            fields.insert("gap".to_owned(), json!(certificate.gap(answers.best().throughput_tok_s())));
        }
        optional("certificate", Some(value));
    }
    Ok(serde_json::to_string_pretty(&Value::Object(object))? + "\n")
}

/// One line per candidate; per-model columns carry the model's number.
pub(super) fn csv(answers: &Answers) -> anyhow::Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let models = answers.system.models();
    let mut header: Vec<String> = (0..models).map(|index| format!("threshold_{index}")).collect();
    header.extend(
        ["throughput_tok_s", "half_width_tok_s", "time_per_token_ms", "answered_by", "states", "nonzeros", "residual"]
            .map(str::to_owned),
    );
    for index in 0..models {
        header.extend(
            ["utilisation", "mean_batch", "steps_per_s", "mean_wait_ms", "token_share"].map(|n| format!("{n}_{index}")),
        );
    }
    writer.write_record(&header)?;
    for candidate in &answers.candidates {
        writer.write_record(record(candidate))?;
    }
    Ok(String::from_utf8(writer.into_inner().map_err(|error| anyhow::anyhow!("{error}"))?)?)
}

fn record(candidate: &Prediction) -> Vec<String> {
    let mut fields: Vec<String> = candidate.thresholds().as_slice().iter().map(u32::to_string).collect();
    fields.push(candidate.throughput_tok_s().to_string());
    fields.push(candidate.half_width().to_string());
    fields.push(candidate.measures().time_per_token_ms.to_string());
    fields.extend(match candidate.solution() {
        Some(exact) => {
            ["exact".to_owned(), exact.states.to_string(), exact.nonzeros.to_string(), format!("{:e}", exact.residual)]
        }
        None => ["simulation".to_owned(), String::new(), String::new(), String::new()],
    });
    for model in &candidate.measures().models {
        let values = [model.utilisation, model.mean_batch, model.steps_per_s, model.mean_wait_ms, model.token_share];
        fields.extend(values.map(|value| value.to_string()));
    }
    fields
}
