//! What a handoff between nodes costs: the same message back and forth, in process and over a link.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::{LinkInput, Node, NodeError, NodePlan};
use crate::config::Config;
use crate::driver::{Inbound, Outlet};
use tokenrouter_core::request::{Request, RequestId, RequestStats, SamplingParams};
use tokenrouter_core::routing::RequestState;
use tokenrouter_core::scheduler::{ActiveCount, Event, Handoff, PeerBody, PeerMessage};

/// Times of one way, sorted.
#[derive(Debug, Clone)]
pub struct LinkLatency {
    /// Between two threads of a process.
    pub in_process: Vec<Duration>,
    /// Between two nodes on this machine.
    pub over_link: Vec<Duration>,
}

/// Tokens of the prompt; it travels on the first visit only.
const PROMPT: usize = 512;

/// Room in every channel.
const ROOM: usize = 64;

/// Sends a handoff back and forth `rounds` times. `small` and `large` are the configurations of the two nodes; `large` gets
/// the address of the other one.
pub fn link_latency(small: &Config, large: &Config, rounds: usize) -> Result<LinkLatency, NodeError> {
    let (to_large, large_inbox) = sync_channel(ROOM);
    let (to_small, small_inbox) = sync_channel(ROOM);
    let outlets = (Outlet::Inbox(to_large), Outlet::Inbox(to_small));
    let in_process = ping_pong(outlets, (&small_inbox, large_inbox), rounds)?;

    let (to_small, small_inbox) = sync_channel(ROOM);
    let (to_large, large_inbox) = sync_channel(ROOM);
    let (small_node, links) = Node::start(&plan(small, 0), &to_small, ROOM)?;
    let small_out = link(links, 1)?;
    let mut large = large.clone();
    if let (Some(address), Some(endpoint)) = (small_node.address(), large.system.peer_endpoints.get_index_mut(0)) {
        endpoint.1.advertise = format!("tcp://{address}");
    }
    let (large_node, links) = Node::start(&plan(&large, 1), &to_large, ROOM)?;
    let large_out = link(links, 0)?;
    let outlets = (Outlet::Node(Arc::new(small_out)), Outlet::Node(Arc::new(large_out)));
    let over_link = ping_pong(outlets, (&small_inbox, large_inbox), rounds)?;
    // Their threads may wait for an inbox that nobody empties any more.
    drop(small_inbox);
    drop((small_node, large_node));
    Ok(LinkLatency { in_process, over_link })
}

fn plan(config: &Config, local: usize) -> NodePlan<'_> {
    let facts = super::NodeFacts::new();
    NodePlan { config, local, vocab: 32_000, token_limit: 1 << 16, facts, start: Instant::now() }
}

fn link(mut links: super::Outlets, peer: usize) -> Result<SyncSender<LinkInput>, NodeError> {
    links[peer].take().ok_or_else(|| NodeError::Config("there must be two models".into()))
}

/// A message as it is in the middle of a request.
fn message(from: usize, hop: u64) -> Inbound {
    let start = PROMPT + hop as usize % 64;
    let request = Request::new(vec![7; PROMPT], SamplingParams::default(), 1);
    let handoff = Handoff {
        id: RequestId(1),
        hop,
        request: Arc::new(request),
        start,
        delta: SmallVec::from_slice(&[5, 6]),
        known: SmallVec::from_elem(start + 2, 2),
        stats: RequestStats::for_models(2),
        state: RequestState::default(),
        steps_without_commit: 0,
    };
    let active = ActiveCount { version: 1 << 60, count: 8 };
    Inbound::Event(Event::Peer(PeerMessage { from, active, body: PeerBody::Handoff(handoff) }))
}

/// Waits for a handoff; others are passed over.
fn receive(inbox: &Receiver<Inbound>) -> Result<(), NodeError> {
    loop {
        match inbox.recv_timeout(Duration::from_secs(30)) {
            Ok(Inbound::Event(Event::Peer(_))) => return Ok(()),
            Ok(_) => {}
            Err(_) => return Err(NodeError::System("the other node does not answer".into())),
        }
    }
}

fn ping_pong(
    (out, back): (Outlet, Outlet),
    (inbox, other): (&Receiver<Inbound>, Receiver<Inbound>),
    rounds: usize,
) -> Result<Vec<Duration>, NodeError> {
    let warm_up = rounds / 10 + 10;
    let full = |_| NodeError::System("a message waits where there should be none".into());
    std::thread::scope(|scope| {
        let echo = scope.spawn(move || {
            for hop in 0..rounds + warm_up {
                receive(&other)?;
                back.try_send(message(1, 2 * hop as u64 + 2)).map_err(full)?;
            }
            Ok::<_, NodeError>(other)
        });
        let mut times = Vec::with_capacity(rounds);
        for hop in 0..rounds + warm_up {
            let ping = message(0, 2 * hop as u64 + 1);
            let start = Instant::now();
            out.try_send(ping).map_err(full)?;
            receive(inbox)?;
            if hop >= warm_up {
                times.push(start.elapsed() / 2);
            }
        }
        let _other = echo.join().unwrap_or_else(|_| Err(NodeError::System("a thread panicked".into())))?;
        times.sort_unstable();
        Ok(times)
    })
}
