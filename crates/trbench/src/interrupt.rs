//! Ctrl-C, SIGTERM and SIGHUP. The first of them asks the command to end, and it keeps what it has; a second one ends the
//! process at once.

use std::sync::OnceLock;

use tokio::sync::watch;

use crate::error::INTERRUPTED;

/// Listens from the first call on; `None` where the process cannot, so that signals do what they do by default.
fn listener() -> Option<&'static watch::Receiver<bool>> {
    static LISTENER: OnceLock<Option<watch::Receiver<bool>>> = OnceLock::new();
    LISTENER.get_or_init(listen).as_ref()
}

/// From here on, a signal is kept for [`asked`] and [`was_asked`].
pub(crate) fn start() {
    listener();
}

/// Whether the command was asked to end.
pub(crate) fn was_asked() -> bool {
    listener().is_some_and(|asked| *asked.borrow())
}

/// Ends when the command is asked to end.
pub(crate) async fn asked() {
    if let Some(asked) = listener()
        && asked.clone().wait_for(|asked| *asked).await.is_ok()
    {
        return;
    }
    std::future::pending::<()>().await;
}

/// A thread of its own, because models are loaded and results written where no runtime would see a signal.
fn listen() -> Option<watch::Receiver<bool>> {
    let (sender, receiver) = watch::channel(false);
    let (ready, is_ready) = std::sync::mpsc::channel();
    let body = move || {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
        runtime.block_on(async {
            let Ok(mut signals) = Signals::new() else { return };
            let _started = ready.send(());
            signals.next().await;
            let _readers = sender.send(true);
            signals.next().await;
            #[allow(clippy::exit, reason = "whoever signals twice does not want to wait for what is being written")]
            std::process::exit(i32::from(INTERRUPTED));
        });
    };
    std::thread::Builder::new().name("signals".into()).spawn(body).ok()?;
    is_ready.recv().ok().map(|()| receiver)
}

#[cfg(unix)]
struct Signals([tokio::signal::unix::Signal; 3]);

#[cfg(unix)]
impl Signals {
    fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self([signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?, signal(SignalKind::hangup())?]))
    }

    async fn next(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self)
    }

    async fn next(&mut self) {
        let _asked = tokio::signal::ctrl_c().await;
    }
}
