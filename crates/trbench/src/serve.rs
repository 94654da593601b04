//! `trbench serve`: a routed system over HTTP.

use std::io::Write as _;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::{Args, ValueEnum};
use tokenrouter_engine::config::ServerConfig;
use tokenrouter_engine::{Config, Engine, server};
use tracing_subscriber::filter::LevelFilter;

use crate::device::DeviceChoice;
use crate::error::usage;
use crate::fetch;
use crate::predict::Calibration;

/// Arguments of `trbench serve`.
#[derive(Debug, Clone, Args)]
pub struct ServeArgs {
    /// Configuration of the routed system.
    #[arg(long, short, env = "TRBENCH_CONFIG")]
    config: PathBuf,
    /// The model of this node, when each model of the configuration has its own (`system.peer_endpoints`).
    #[arg(long, value_name = "MODEL", env = "TRBENCH_LOCAL_MODEL")]
    local_model: Option<String>,
    /// Where all models compute, instead of what the configuration says: `cpu`, `cuda:N`, or `auto`: the first GPU, or the
    /// CPU with a warning.
    #[arg(long, env = "TRBENCH_DEVICE")]
    device: Option<DeviceChoice>,
    /// A calibration of this system: thresholds are computed from it, for every number of active requests.
    #[arg(long, env = "TRBENCH_CALIBRATION")]
    calibration: Option<PathBuf>,
    /// Take a calibration of another system as well; what differs is said.
    #[arg(long, requires = "calibration")]
    any_calibration: bool,
    /// Address to listen on, instead of `server.host`.
    #[arg(long, env = "TRBENCH_HOST")]
    host: Option<IpAddr>,
    /// Port to listen on, instead of `server.port`; 0 takes a free one.
    #[arg(long, env = "TRBENCH_PORT")]
    port: Option<u16>,
    /// A file of API keys, one a line, instead of `server.api_key_file`.
    #[arg(long, env = "TRBENCH_API_KEY_FILE")]
    api_key_file: Option<PathBuf>,
    /// Serve a public address without any API key.
    #[arg(long)]
    allow_unauthenticated: bool,
    /// Seconds that open requests may go on after SIGTERM or Ctrl-C, instead of `server.drain_timeout_s`. A second signal
    /// quits at once.
    #[arg(long, value_name = "SECONDS", env = "TRBENCH_DRAIN_TIMEOUT")]
    drain_timeout: Option<u64>,
    /// Form of the log on stderr.
    #[arg(long, value_enum, default_value_t = LogFormat::Text, env = "TRBENCH_LOG_FORMAT")]
    log_format: LogFormat,
    /// What is logged: `off`, `error`, `warn`, `info` (one line a request), `debug`, `trace`.
    #[arg(long, default_value = "info", env = "TRBENCH_LOG_LEVEL")]
    log_level: LevelFilter,
}

/// Form of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// A line per event.
    Text,
    /// A JSON object per line.
    Json,
}

/// Serves until interrupted.
pub fn run(args: &ServeArgs) -> anyhow::Result<ExitCode> {
    let mut config = Config::from_file(&args.config)?;
    crate::device::place(&mut config, args.device)?;
    if let Some(path) = &args.calibration {
        Calibration::apply(path, &mut config, args.any_calibration)?;
    }
    override_settings(&mut config.server, args);
    start_log(args);
    let keys = server::ApiKeys::load(&config.server)?;
    // Before minutes of loading, and before anything says that the server listens.
    let exposed = keys.check_exposure((config.server.host, config.server.port).into(), &config.server);
    exposed.map_err(|error| usage(error.to_string()))?;
    fetch::ensure_sources(&config)?;
    let engine = Arc::new(match &args.local_model {
        Some(model) => Engine::launch_node(&config, model)?,
        None => Engine::launch(&config)?,
    });
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start the server")?;
    let result = runtime.block_on(serve(engine, config.server, keys));
    // Nothing that still runs may hold up the end of the process.
    runtime.shutdown_background();
    result
}

fn override_settings(server: &mut ServerConfig, args: &ServeArgs) {
    server.host = args.host.unwrap_or(server.host);
    server.port = args.port.unwrap_or(server.port);
    server.api_key_file = args.api_key_file.clone().or(server.api_key_file.take());
    server.allow_unauthenticated |= args.allow_unauthenticated;
    server.drain_timeout_s = args.drain_timeout.unwrap_or(server.drain_timeout_s);
}

fn start_log(args: &ServeArgs) {
    let colors = crate::terminal::colors(&std::io::stderr());
    let log = tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(colors).with_max_level(args.log_level);
    match args.log_format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
}

async fn serve(engine: Arc<Engine>, config: ServerConfig, keys: server::ApiKeys) -> anyhow::Result<ExitCode> {
    let address = (config.host, config.port);
    let listener = tokio::net::TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {}:{}", address.0, address.1))?;
    for line in &engine.info().models {
        tracing::info!(target: "tokenrouter", "{line}");
    }
    for line in &engine.info().warnings {
        tracing::warn!(target: "tokenrouter", "{line}");
    }
    if let Some(address) = engine.peer_address() {
        tracing::info!(target: "tokenrouter", "accepting the node of the other model on tcp://{address}");
    }
    let mut signals = Signals::new()?;
    // Signals that come before this line end the process as usual. On stdout and alone, so that a script can read the port.
    writeln!(std::io::stdout(), "listening on http://{}", listener.local_addr()?)?;
    let (first, shutdown) = tokio::sync::oneshot::channel::<()>();
    let shutdown = async {
        let _received = shutdown.await;
    };
    let serving = server::serve(listener, engine, config, keys, shutdown);
    tokio::pin!(serving);
    let served = tokio::select! {
        served = &mut serving => Some(served),
        () = signals.next() => None,
    };
    if let Some(served) = served {
        served?;
        return Ok(ExitCode::SUCCESS);
    }
    let _server_listens = first.send(());
    tokio::select! {
        served = serving => served?,
        () = signals.next() => {
            tracing::warn!("second signal: quitting at once");
            return Ok(ExitCode::from(crate::error::INTERRUPTED));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// SIGTERM and Ctrl-C.
struct Signals {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    #[cfg(unix)]
    fn new() -> anyhow::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        let (terminate, interrupt) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
        Ok(Self {
            terminate: terminate.context("cannot wait for SIGTERM")?,
            interrupt: interrupt.context("cannot wait for SIGINT")?,
        })
    }

    #[cfg(unix)]
    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    #[cfg(not(unix))]
    fn new() -> anyhow::Result<Self> {
        Ok(Self {})
    }

    #[cfg(not(unix))]
    async fn next(&mut self) {
        let _ends_the_server_too = tokio::signal::ctrl_c().await;
    }
}
