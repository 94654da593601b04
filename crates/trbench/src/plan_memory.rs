//! `trbench plan-memory`: what weights, activations and KV take on each device, and how many tokens fit.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use tokenrouter_core::kv::plan::{DeviceMemory, ModelMemory, common_capacity};
use tokenrouter_engine::Config;
use tokenrouter_engine::config::{KvDtypeConfig, ModelConfig};
use tokenrouter_engine::memory::devices;
use tokenrouter_engine::model::{ModelFiles, Shape, locate};

use crate::cli::usage;
use crate::report::{Format, plain_table};

/// Arguments of `trbench plan-memory`.
#[derive(Debug, Clone, Args)]
pub struct PlanArgs {
    /// Configuration of the routed system. Models whose files are not here are taken from their published shapes.
    #[arg(long, short)]
    config: PathBuf,
    /// Memory of each device, such as `80GiB`; also of devices that are not here.
    #[arg(long, default_value = "80GiB")]
    device_memory: Bytes,
    /// Share of it that may be used: the rest is for the driver, other processes and fragmentation.
    #[arg(long, default_value_t = 0.9)]
    utilization: f64,
    /// How keys and values are held, instead of what the engine would do: `f32`, `f16` or `bf16`.
    #[arg(long, value_parser = kv_dtype)]
    kv_dtype: Option<KvDtypeConfig>,
    /// Output format.
    #[arg(long, default_value = "table")]
    output: Format,
}

/// An amount of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes(u64);

impl std::str::FromStr for Bytes {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let units = [("GiB", 1u64 << 30), ("MiB", 1 << 20), ("GB", 1_000_000_000), ("MB", 1_000_000)];
        let split = units.iter().find_map(|(unit, size)| Some((text.strip_suffix(unit)?.trim(), *size)));
        let number = split.and_then(|(number, size)| Some(number.parse::<f64>().ok()? * size as f64));
        number
            .filter(|bytes| (1.0..1e18).contains(bytes))
            .map(|bytes| Self(bytes as u64))
            .ok_or_else(|| "expected a number with `GiB`, `MiB`, `GB` or `MB`, such as `80GiB`".into())
    }
}

fn kv_dtype(text: &str) -> Result<KvDtypeConfig, String> {
    serde_json::from_value(json!(text)).map_err(|_| "expected `f32`, `f16` or `bf16`".into())
}

/// Prints the plan.
pub fn run(args: &PlanArgs) -> anyhow::Result<ExitCode> {
    if !(args.utilization > 0.0 && args.utilization <= 1.0) {
        return Err(usage(format!("--utilization {} is not allowed, allowed is above 0 up to 1", args.utilization)));
    }
    let config = Config::from_file(&args.config)?;
    let budget = (args.device_memory.0 as f64 * args.utilization) as u64;
    let shapes = config.models.iter().map(|(name, model)| shape(name, model)).collect::<anyhow::Result<Vec<_>>>()?;
    let devices = devices(&config, &shapes, args.kv_dtype, |_| budget);
    let block_size = config.kv.block_size as u64;
    let capacity = common_capacity(&devices, block_size).map_err(|why| usage(why.to_string()))?;
    print(&devices, (capacity.blocks, capacity.tokens, block_size), args.output)?;
    Ok(ExitCode::SUCCESS)
}

/// The shape of a model whose files are here, or whose shape is known.
fn shape(name: &str, model: &ModelConfig) -> anyhow::Result<Shape> {
    if model.emulated.is_some() {
        return Err(usage(format!("model `{name}` is emulated, it takes no memory")));
    }
    let known = model.source.as_deref().and_then(Shape::known);
    // A hub id is not downloaded to plan for it.
    match known.filter(|_| model.path.is_none()) {
        Some(mut shape) => {
            if let Some(keep) = &model.layers {
                shape.arch.layers.clone_from(keep);
            }
            Ok(shape)
        }
        None if model.path.is_some() || model.source.as_deref() == Some("demo") => {
            locate(model)?;
            Ok(Shape::of(&ModelFiles::open(model)?)?)
        }
        None => {
            let ids: Vec<&str> = Shape::known_ids().collect();
            let source = model.source.as_deref().unwrap_or_default();
            Err(usage(format!(
                "model `{name}`: the shape of `{source}` is not known here, known are {}",
                ids.join(", ")
            )))
        }
    }
}

fn print(
    devices: &[DeviceMemory],
    (blocks, tokens, block_size): (u64, u64, u64),
    format: Format,
) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    if format == Format::Json {
        let models = |device: &DeviceMemory| -> Vec<_> {
            let model = |m: &ModelMemory| {
                json!({"name": m.name, "weights_bytes": m.weights, "workspace_bytes": m.workspace,
                       "kv_bytes_per_token": m.kv_per_token, "kv_bytes": m.kv_per_token * tokens})
            };
            device.models.iter().map(model).collect()
        };
        let devices: Vec<_> = (devices.iter())
            .map(|device| json!({"device": device.name, "budget_bytes": device.budget, "models": models(device)}))
            .collect();
        let plan = json!({"devices": devices, "blocks": blocks, "block_size": block_size, "tokens": tokens});
        writeln!(out, "{}", serde_json::to_string_pretty(&plan)?)?;
        return Ok(());
    }
    let gib = |bytes: u64| format!("{:.2}", bytes as f64 / f64::from(1 << 30));
    let rows = devices.iter().flat_map(|device| {
        device.models.iter().map(move |model| {
            [
                device.name.clone(),
                gib(device.budget),
                model.name.clone(),
                gib(model.weights),
                gib(model.workspace),
                format!("{:.1}", model.kv_per_token as f64 / 1024.0),
                gib(model.kv_per_token * tokens),
            ]
        })
    });
    let headings = ["device", "budget GiB", "model", "weights GiB", "workspace GiB", "KV KiB/token", "KV GiB"];
    if format == Format::Csv {
        let mut csv = csv::Writer::from_writer(out);
        csv.write_record(headings)?;
        for row in rows {
            csv.write_record(row)?;
        }
        csv.flush()?;
        return Ok(());
    }
    writeln!(out, "{}", plain_table(&headings, rows, format))?;
    writeln!(out, "\nevery model holds {tokens} tokens ({blocks} blocks of {block_size})")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_units() {
        assert_eq!("80GiB".parse(), Ok(Bytes(80 << 30)));
        assert_eq!("1.5 GB".parse(), Ok(Bytes(1_500_000_000)));
        for bad in ["80", "GiB", "-1GiB", "0MiB", "1e30GiB", "NaNGB"] {
            assert!(bad.parse::<Bytes>().is_err(), "{bad}");
        }
    }
}
