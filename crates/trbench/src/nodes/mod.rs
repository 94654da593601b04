//! Two nodes: `trbench keygen` makes their keys, `trbench bench-link` measures what the network between them costs.

mod bench;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use tokenrouter_engine::Config;
use tokenrouter_engine::config::PeerEndpoint;
use tokenrouter_engine::node::PrivateKey;

pub use bench::{BenchLinkArgs, run as run_bench_link};

/// Arguments of `trbench keygen`.
#[derive(Debug, Args)]
pub struct KeygenArgs {
    /// The file for the private key; it must not exist. Only its owner will be able to read it.
    file: PathBuf,
}

/// Makes a key, and prints what belongs in the configuration.
pub fn run_keygen(args: &KeygenArgs) -> anyhow::Result<ExitCode> {
    let key = PrivateKey::generate(&args.file)?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "public_key: {}", key.public())?;
    Ok(ExitCode::SUCCESS)
}

/// Gives both nodes of a configuration keys and a free port on this machine.
fn on_this_machine(config: &mut Config, folder: &std::path::Path) -> anyhow::Result<()> {
    config.system.peer_endpoints.clear();
    for (index, name) in config.model_names().into_iter().enumerate() {
        let path = folder.join(format!("{index}.key"));
        let key = PrivateKey::generate(&path)?;
        let endpoint = PeerEndpoint {
            bind: "tcp://127.0.0.1:0".into(),
            advertise: String::new(),
            public_key: key.public().to_string(),
            key_file: Some(path),
        };
        config.system.peer_endpoints.insert(name, endpoint);
    }
    Ok(())
}
