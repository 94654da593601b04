use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use crate::request::{FinishReason, RequestStats, RoutingOverrides};

fn bounds(from: ModelIndex, to: ModelIndex) -> Bounds {
    Bounds { from, to, entry: 0, models: 2, vocab: 50_000, token_limit: 4096 }
}

fn stats() -> impl Strategy<Value = RequestStats> {
    (prop::collection::vec(0u64..1 << 40, 2), 0u64..1 << 40, any::<u32>(), any::<u64>()).prop_map(
        |(tokens_by_model, handoffs, queue, wait)| RequestStats {
            tokens_by_model,
            handoffs,
            queue_wait: Duration::from_nanos(queue.into()),
            buffer_wait: Duration::from_nanos(wait),
        },
    )
}

fn request() -> impl Strategy<Value = Request> {
    let sampling = (0.0f32..2.0, 1usize..64, any::<u64>(), any::<bool>(), prop::collection::vec("[a-zé]{1,5}", 0..3));
    let rest = (any::<u64>(), any::<bool>(), prop::option::of(0usize..20), prop::option::of(0.0f64..9.0));
    (prop::collection::vec(0u32..50_000, 1..40), sampling, rest, any::<Index>()).prop_map(
        |(prompt, (temperature, max_tokens, seed, ignore_eos, stop), (key, trace, logprobs, threshold), resumed)| {
            let stop_token_ids = prompt.iter().take(3).copied().collect();
            let sampling = SamplingParams {
                temperature,
                max_tokens,
                seed,
                ignore_eos,
                stop,
                stop_token_ids,
                min_p: 0.25,
                ..Default::default()
            };
            let resumed = resumed.index(prompt.len());
            let routing = RoutingOverrides { threshold, seed: threshold.map(f64::to_bits) };
            Request { trace, resumed, logprobs, routing, ..Request::new(prompt, sampling, key) }
        },
    )
}

fn handoff() -> impl Strategy<Value = PeerBody> {
    let delta = prop::collection::vec(0u32..50_000, 0..20);
    (any::<(u64, u64)>(), request(), delta, prop::collection::vec(any::<u8>(), 0..9), stats(), 0u32..40).prop_map(
        |((id, hop), request, delta, state, stats, steps_without_commit)| {
            let start = request.prompt.len();
            PeerBody::Handoff(Handoff {
                id: RequestId(id),
                hop,
                start,
                known: SmallVec::from_elem(start + delta.len(), 2),
                delta: SmallVec::from_vec(delta),
                request: Arc::new(request),
                stats,
                state: RequestState::from_bytes(state),
                steps_without_commit,
            })
        },
    )
}

fn event() -> impl Strategy<Value = StreamEvent> {
    let top = prop::collection::vec((0u32..50_000, -9.0f32..0.0), 0..20);
    prop_oneof![
        (0u32..50_000, 0usize..2).prop_map(|(id, origin)| StreamEvent::Token(CommittedToken { id, origin })),
        (0usize..4096, prop::option::of(0usize..2), any::<bool>(), prop::option::of(any::<f32>())).prop_map(
            |(position, to, committed, score)| StreamEvent::Step(StepRecord {
                position,
                model: 1,
                token: 7,
                committed,
                to,
                score
            })
        ),
        (0u32..50_000, top).prop_map(|(token, top)| StreamEvent::Logprobs(TokenLogprobs { token, logprob: -0.5, top })),
    ]
}

fn message() -> impl Strategy<Value = NodeMessage> {
    let id = any::<u64>().prop_map(RequestId);
    let reason = prop_oneof![
        Just(FinishReason::Stop),
        Just(FinishReason::Length),
        Just(FinishReason::Cancelled),
        (0usize..2).prop_map(FinishReason::Lost),
        "[a-zé]{0,30}".prop_map(FinishReason::Error),
    ];
    let body = prop_oneof![
        handoff(),
        (id.clone(), any::<u64>(), reason, stats())
            .prop_map(|(id, hop, reason, s)| PeerBody::Finish(id, hop, reason, s)),
        id.clone().prop_map(PeerBody::Close),
        id.clone().prop_map(PeerBody::Cancel),
        (0usize..2, any::<bool>()).prop_map(|(model, up)| PeerBody::Reach(model, up)),
    ];
    let active = (any::<u64>(), 0usize..5000).prop_map(|(version, count)| ActiveCount { version, count });
    prop_oneof![
        (active, body).prop_map(|(active, body)| NodeMessage::Peer(PeerMessage { from: 1, active, body })),
        (id, event()).prop_map(|(id, event)| NodeMessage::Stream(id, event)),
    ]
}

fn packet(message: NodeMessage) -> Packet<NodeMessage> {
    Packet {
        version: PROTOCOL_VERSION,
        epochs: Epochs { from: u64::MAX, to: 300 },
        ack: 127,
        credit: 128,
        frame: Frame::Data { sequence: 16_384, message },
    }
}

fn encoded(packet: &Packet<NodeMessage>, bounds: &Bounds) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(packet, bounds, &mut bytes);
    bytes
}

proptest! {
    #[test]
    fn messages_come_back_as_they_were(message in message()) {
        let bounds = bounds(1, 0);
        let bytes = encoded(&packet(message.clone()), &bounds);
        let back = decode(&bytes, &bounds).expect("what was encoded");
        prop_assert_eq!(&encoded(&back, &bounds), &bytes);
        // Handoffs to the entry model leave their request out.
        if !matches!(&message, NodeMessage::Peer(PeerMessage { body: PeerBody::Handoff(_), .. })) {
            prop_assert_eq!(format!("{back:?}"), format!("{:?}", packet(message)));
        }
    }

    #[test]
    fn first_visits_bring_their_request(body in handoff()) {
        let bounds = bounds(0, 1);
        let message = PeerMessage { from: 0, active: ActiveCount { version: 1, count: 2 }, body };
        let bytes = encoded(&packet(NodeMessage::Peer(message.clone())), &bounds);
        let back = decode(&bytes, &bounds).expect("what was encoded");
        let Frame::Data { message: NodeMessage::Peer(back), .. } = back.frame else { panic!("another kind") };
        prop_assert_eq!(format!("{back:?}"), format!("{message:?}"));
    }

    /// Whatever is cut off or changed is refused or read as another message that may be.
    #[test]
    fn broken_bytes_are_refused(message in message(), at in any::<Index>(), with in any::<u8>(), cut in any::<Index>()) {
        let bounds = bounds(1, 0);
        let mut bytes = encoded(&packet(message), &bounds);
        prop_assert!(decode(&bytes[..cut.index(bytes.len())], &bounds).is_err());
        let at = at.index(bytes.len());
        bytes[at] = with;
        if let Ok(back) = decode(&bytes, &bounds) {
            prop_assert_eq!(encoded(&back, &bounds), bytes);
        }
    }

    #[test]
    fn any_bytes_are_harmless(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _refused = decode(&bytes, &bounds(0, 1));
        let versioned: Vec<u8> = PROTOCOL_VERSION.to_le_bytes().into_iter().chain(bytes).collect();
        let _refused = decode(&versioned, &bounds(1, 0));
    }
}

#[test]
fn a_return_is_small_and_other_versions_are_named() {
    let request = Request::new((0..1000).collect(), SamplingParams::default(), 3);
    let handoff = Handoff {
        id: RequestId(7),
        hop: 3,
        start: 1001,
        delta: SmallVec::from_slice(&[5]),
        known: SmallVec::from_slice(&[1001, 1002]),
        request: Arc::new(request),
        stats: RequestStats::for_models(2),
        state: RequestState::default(),
        steps_without_commit: 0,
    };
    let (bounds, active) = (bounds(0, 1), ActiveCount { version: 1 << 40, count: 8 });
    let message = NodeMessage::Peer(PeerMessage { from: 0, active, body: PeerBody::Handoff(handoff) });
    let mut bytes = encoded(&packet(message), &bounds);
    assert!(bytes.len() < 64, "{} bytes", bytes.len());
    bytes[0] = 9;
    let error = decode(&bytes, &bounds).expect_err("another version").to_string();
    assert_eq!(error, "protocol version 9, here it is 1");
}

#[test]
fn a_huge_length_reserves_no_memory() {
    let bounds = bounds(0, 1);
    let active = ActiveCount::default();
    let message = NodeMessage::Peer(PeerMessage { from: 0, active, body: PeerBody::Close(RequestId(0)) });
    let mut bytes = encoded(&packet(message), &bounds);
    // The kind of a handoff, then numbers that go on for ever.
    let kind = bytes.len() - 4;
    bytes[kind] = 0;
    bytes.truncate(kind + 1);
    bytes.extend([0xff; 40]);
    assert!(decode(&bytes, &bounds).is_err());
}

/// Writes packets for the corpus of the fuzz target: `TR_CORPUS=fuzz/corpus/packet cargo test ... corpus`.
#[test]
fn corpus() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let Some(folder) = std::env::var_os("TR_CORPUS") else { return };
    let folder = std::path::Path::new(&folder);
    let mut runner = TestRunner::deterministic();
    let mut draw = |strategy: BoxedStrategy<NodeMessage>| strategy.new_tree(&mut runner).expect("a value").current();
    for index in 0..24 {
        let bytes = encoded(&packet(draw(message().boxed())), &bounds(1, 0));
        std::fs::write(folder.join(format!("to-entry-{index:02}")), bytes).expect("a writable folder");
    }
    let first = handoff().prop_map(|body| {
        NodeMessage::Peer(PeerMessage { from: 0, active: ActiveCount { version: 1, count: 2 }, body })
    });
    let first = first.boxed();
    for index in 0..6 {
        let bytes = encoded(&packet(draw(first.clone())), &bounds(0, 1));
        std::fs::write(folder.join(format!("first-visit-{index:02}")), bytes).expect("a writable folder");
    }
}
