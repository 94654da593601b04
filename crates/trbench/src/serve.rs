//! `trbench serve`: a routed system over HTTP.

use std::io::Write as _;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use tokenrouter_engine::{Config, Engine, server};

use crate::fetch;
use crate::predict::Calibration;

/// Arguments of `trbench serve`.
#[derive(Debug, Clone, Args)]
pub struct ServeArgs {
    /// Configuration of the routed system.
    #[arg(long, short, env = "TRBENCH_CONFIG")]
    config: PathBuf,
    /// A calibration of this system: thresholds are computed from it, for every number of active requests.
    #[arg(long, env = "TRBENCH_CALIBRATION")]
    calibration: Option<PathBuf>,
    /// Address to listen on, instead of `server.host`.
    #[arg(long, env = "TRBENCH_HOST")]
    host: Option<IpAddr>,
    /// Port to listen on, instead of `server.port`; 0 takes a free one.
    #[arg(long, env = "TRBENCH_PORT")]
    port: Option<u16>,
}

/// Serves until interrupted.
pub fn run(args: &ServeArgs) -> anyhow::Result<ExitCode> {
    let mut config = Config::from_file(&args.config)?;
    if let Some(path) = &args.calibration {
        Calibration::read(path)?.apply(&mut config)?;
    }
    config.server.host = args.host.unwrap_or(config.server.host);
    config.server.port = args.port.unwrap_or(config.server.port);
    fetch::ensure_sources(&config)?;
    let engine = Arc::new(Engine::launch(&config)?);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start the server")?;
    runtime.block_on(async {
        let address = (config.server.host, config.server.port);
        let listener = tokio::net::TcpListener::bind(address)
            .await
            .with_context(|| format!("cannot listen on {}:{}", address.0, address.1))?;
        let mut err = std::io::stderr();
        for line in engine.info().models.iter().chain(&engine.info().warnings) {
            writeln!(err, "{line}")?;
        }
        // On stdout and alone, so that a script can read the port.
        writeln!(std::io::stdout(), "listening on http://{}", listener.local_addr()?)?;
        let shutdown = async {
            let _ends_the_server_too = tokio::signal::ctrl_c().await;
        };
        server::serve(listener, engine, config.server.clone(), shutdown).await.context("the server failed")
    })?;
    Ok(ExitCode::SUCCESS)
}
