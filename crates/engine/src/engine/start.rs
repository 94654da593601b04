//! Threads that drive loaded models.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use super::EngineError;
use super::plan::{Driving, Plan};
use crate::driver::{Inbound, Lockstep, ModelWorker, Outlet, Streams, Subserver};
use crate::node::{Node, NodePlan};

/// What the end of a thread by a fault changes.
#[derive(Debug, Clone, Default)]
pub(super) struct Watch {
    /// To clients, who must hear of it.
    pub(super) streams: Arc<Streams>,
    /// Whether all subservers run.
    pub(super) healthy: Arc<AtomicBool>,
    /// Who failed first.
    pub(super) failed: Arc<OnceLock<String>>,
}

impl Watch {
    pub(super) fn new() -> Self {
        Self { healthy: Arc::new(AtomicBool::new(true)), ..Self::default() }
    }
}

/// What runs.
pub(super) struct Started {
    /// By model.
    pub(super) inboxes: Vec<SyncSender<Inbound>>,
    pub(super) threads: Vec<JoinHandle<()>>,
    pub(super) node: Option<Node>,
}

/// Starts the threads that drive the workers of this process.
pub(super) fn start(
    plan: &Plan,
    mut workers: Vec<ModelWorker>,
    node: Option<&NodePlan<'_>>,
    watch: &Watch,
) -> Result<Started, EngineError> {
    let name = |model: usize| plan.models[model].name.as_str();
    if plan.driving == Driving::Lockstep {
        let (sender, inbox) = sync_channel(plan.inbox);
        let inboxes = vec![sender; workers.len()];
        let lockstep = Lockstep { workers, entry: plan.entry, inbox };
        return Ok(Started { inboxes, threads: vec![spawn("lockstep", move || lockstep.run(), watch)?], node: None });
    }
    if let Some((node_plan, worker)) = node.zip(workers.pop_if(|_| node.is_some())) {
        let (sender, inbox) = sync_channel(plan.inbox);
        let (node, links) = Node::start(node_plan, &sender, plan.inbox)?;
        let outlet =
            |link: Option<_>| link.map_or_else(|| Outlet::Inbox(sender.clone()), |link| Outlet::Node(Arc::new(link)));
        let subserver = Subserver { worker, inbox, peers: links.into_iter().map(outlet).collect() };
        let threads = vec![spawn(name(node_plan.local), move || subserver.run(), watch)?];
        return Ok(Started { inboxes: vec![sender; plan.models.len()], threads, node: Some(node) });
    }
    let (inboxes, receivers): (Vec<_>, Vec<_>) = workers.iter().map(|_| sync_channel(plan.inbox)).unzip();
    let alone = plan.driving == Driving::Alone;
    let peers: Vec<_> = inboxes.iter().filter(|_| !alone).cloned().map(Outlet::Inbox).collect();
    let threads = workers.into_iter().zip(receivers).enumerate().map(|(model, (worker, inbox))| {
        let subserver = Subserver { worker, inbox, peers: peers.clone() };
        spawn(name(model), move || subserver.run(), watch)
    });
    Ok(Started { threads: threads.collect::<Result<_, _>>()?, inboxes, node: None })
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static, watch: &Watch) -> Result<JoinHandle<()>, EngineError> {
    let (watch, label) = (watch.clone(), name.to_owned());
    let body = move || {
        // A bug in a scheduler must not leave clients waiting for ever.
        if catch_unwind(AssertUnwindSafe(body)).is_err() {
            let message = format!("the subserver of model `{label}` failed");
            let _first = watch.failed.set(label);
            watch.healthy.store(false, Ordering::Release);
            watch.streams.fail_all(&message);
        }
    };
    let builder = std::thread::Builder::new().name(format!("subserver-{name}"));
    builder.spawn(body).map_err(|error| EngineError::Thread(error.to_string()))
}
