//! The time of a load: that of the machine, or that of an engine in virtual time.

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use tokenrouter_engine::VirtualEngine;

/// Time since the beginning of a load.
#[derive(Debug, Clone)]
pub(super) enum Clock {
    /// Of the machine.
    Real(Instant),
    /// Of this engine, where the load began at this time.
    Virtual(Rc<VirtualEngine>, Duration),
}

impl Clock {
    /// How long ago the load began.
    pub(super) fn now(&self) -> Duration {
        match self {
            Self::Real(start) => start.elapsed(),
            Self::Virtual(engine, start) => engine.now().saturating_sub(*start),
        }
    }

    /// Ends at this time.
    pub(super) async fn sleep_until(&self, time: Duration) {
        match self {
            Self::Real(start) => tokio::time::sleep_until((*start + time).into()).await,
            Self::Virtual(engine, start) => {
                // An engine that is gone wakes everybody.
                let _gone = engine.timer(*start + time).await;
            }
        }
    }
}

/// Whether one of the clients has something to do.
#[derive(Debug, Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Lets clients run until all have ended. Whenever none of them has anything to do, the clock of the engine jumps to its
/// next event; `between` is called before it does.
pub(super) fn run(engine: &VirtualEngine, clients: impl Future<Output = ()>, mut between: impl FnMut()) {
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    // A budget of the runtime would let time go on before a client has said what it wants.
    let mut clients = pin!(tokio::task::unconstrained(clients));
    while clients.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
        while !woken.0.swap(false, Ordering::Relaxed) {
            between();
            let goes_on = engine.advance();
            if !goes_on && !woken.0.load(Ordering::Relaxed) {
                return;
            }
        }
    }
}
