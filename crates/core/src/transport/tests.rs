use proptest::prelude::*;

use super::*;

fn config() -> LinkConfig {
    LinkConfig {
        window: 4,
        max_queued: 1000,
        retransmit: Duration::from_millis(5),
        heartbeat: Duration::from_millis(10),
        peer_timeout: Duration::from_millis(200),
    }
}

const MILLISECOND: Duration = Duration::from_millis(1);

/// Two ends and a path whose every packet meets a fate.
struct Path {
    now: Duration,
    ends: [Link<u32>; 2],
    /// Arrival and packet, for each end.
    wire: [Vec<(Duration, Packet<u32>)>; 2],
    events: [Vec<LinkEvent<u32>>; 2],
}

impl Path {
    fn new() -> Self {
        let end = |epoch| Link::new(config(), epoch, Duration::ZERO);
        Self { now: Duration::ZERO, ends: [end(1), end(1)], wire: Default::default(), events: Default::default() }
    }

    /// A millisecond passes. `fate`: copies of a packet, and their delays in milliseconds.
    fn tick(&mut self, mut fate: impl FnMut(usize) -> Vec<u32>) {
        self.now += MILLISECOND;
        for end in 0..2 {
            let mut packets = Vec::new();
            self.ends[end].poll(self.now, &mut packets, &mut self.events[end]);
            for packet in packets {
                assert!(self.ends[end].sent.len() <= 4, "more than the window is on the way");
                for delay in fate(end) {
                    self.wire[1 - end].push((self.now + MILLISECOND * delay, packet.clone()));
                }
            }
            let now = self.now;
            let (due, later): (Vec<_>, Vec<_>) =
                std::mem::take(&mut self.wire[end]).into_iter().partition(|(time, _)| *time <= now);
            self.wire[end] = later;
            for (_, packet) in due {
                self.ends[end].receive(self.now, packet, &mut self.events[end]);
                assert!(self.ends[end].early.len() <= 4, "the receiver keeps more than the window");
            }
        }
    }

    fn delivered(&self, end: usize) -> Vec<u32> {
        let message = |event: &LinkEvent<u32>| match event {
            LinkEvent::Deliver(message) => Some(*message),
            _ => None,
        };
        self.events[end].iter().filter_map(message).collect()
    }
}

proptest! {
    /// Loss, repetition and reordering do not show, and never more than a window is on the way or kept.
    #[test]
    fn messages_arrive_once_and_in_order(fates in prop::collection::vec(prop::collection::vec(1u32..30, 0..3), 50..200)) {
        let mut fates = fates.into_iter().cycle();
        let mut packets = [0; 2];
        // Enough of both directions works for both ends to stay up.
        let mut fate = |end: usize| {
            packets[end] += 1;
            let fate = fates.next().expect("endless");
            if packets[end] % 3 == 0 { vec![2] } else { fate }
        };
        let mut path = Path::new();
        let want: Vec<u32> = (0..60).collect();
        for message in &want {
            path.ends[0].send(*message).expect("there is room");
            path.ends[1].send(*message).expect("there is room");
        }
        for _ in 0..3000 {
            path.tick(&mut fate);
        }
        for end in 0..2 {
            prop_assert_eq!(path.delivered(end), want.clone());
            prop_assert_eq!(path.ends[end].state(), LinkState::Up);
            prop_assert_eq!(path.ends[end].unacknowledged(), 0);
            prop_assert_eq!(path.ends[end].counters().losses, 0);
        }
    }
}

#[test]
fn silence_is_noticed_by_both_ends_and_nothing_of_the_old_conversation_arrives() {
    let mut path = Path::new();
    (0..20).for_each(|_| path.tick(|_| vec![1]));
    path.ends[0].send(1).expect("up");
    (0..400).for_each(|_| path.tick(|_| Vec::new()));
    assert_eq!(path.ends[0].state(), LinkState::Lost);
    assert_eq!(path.ends[0].send(2), Err(SendError::Lost(2)));
    (0..50).for_each(|_| path.tick(|_| vec![1]));
    path.ends[0].send(3).expect("up again");
    (0..20).for_each(|_| path.tick(|_| vec![1]));
    assert_eq!(path.delivered(1), [3]);
    for end in 0..2 {
        let news: Vec<_> = path.events[end].iter().filter(|e| !matches!(e, LinkEvent::Deliver(_))).cloned().collect();
        assert_eq!(news[..2], [LinkEvent::Up, LinkEvent::Lost]);
        assert_eq!(news.last(), Some(&LinkEvent::Up));
    }
}

#[test]
fn a_restarted_peer_is_accepted_and_its_predecessor_is_not() {
    let mut path = Path::new();
    (0..20).for_each(|_| path.tick(|_| vec![1]));
    path.ends[1].send(7).expect("up");
    // Its last words come late.
    path.tick(|_| vec![60]);
    path.ends[1] = Link::new(config(), 2, path.now);
    (0..100).for_each(|_| path.tick(|_| vec![1]));
    assert_eq!(path.delivered(0), [0u32; 0]);
    assert!(path.events[0].ends_with(&[LinkEvent::Lost, LinkEvent::Up]));
    assert!(path.ends[0].counters().stale > 0);
    path.ends[1].send(8).expect("up");
    (0..20).for_each(|_| path.tick(|_| vec![1]));
    assert_eq!(path.delivered(0), [8]);
}

#[test]
fn another_version_is_refused_and_a_full_queue_gives_the_message_back() {
    let mut link = Link::new(LinkConfig { max_queued: 1, ..config() }, 1, Duration::ZERO);
    let mut events = Vec::new();
    let epochs = Epochs { from: 1, to: 1 };
    let packet = Packet { version: PROTOCOL_VERSION + 1, epochs, ack: 0, credit: 4, frame: Frame::Header };
    link.receive(Duration::ZERO, packet, &mut events);
    assert_eq!((link.state(), link.counters().incompatible, events.len()), (LinkState::Connecting, 1, 0));
    link.send(1u32).expect("room for one");
    assert_eq!(link.send(2), Err(SendError::Full(2)));
}

#[test]
fn hostile_numbers_are_harmless() {
    let mut link: Link<u32> = Link::new(config(), 1, Duration::ZERO);
    let mut events = Vec::new();
    for sequence in [u64::MAX, u64::MAX - 1, 4, 1 << 63] {
        let frame = Frame::Data { sequence, message: 0 };
        let epochs = Epochs { from: 1, to: 1 };
        let packet = Packet { version: PROTOCOL_VERSION, epochs, ack: u64::MAX, credit: u32::MAX, frame };
        link.receive(Duration::ZERO, packet, &mut events);
    }
    assert_eq!((events, link.early.len()), (vec![LinkEvent::Up], 0));
}
