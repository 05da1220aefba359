//! Two sessions, and a network between them that cuts, holds back and splits what it carries.

use proptest::prelude::*;

use super::*;
use crate::id::ProcId;
use crate::message::Parts;
use crate::region::BLOCK_MIN_BYTES;
use crate::wire::{Header, Kind};

fn proc(rank: u32) -> ProcId {
    ProcId { mesh: 7, rank }
}

/// The content of frame `number` of a lane; whoever knows both can check it.
fn content(lane: u32, number: u64, len: usize) -> Vec<u8> {
    let seed = (u64::from(lane) << 32 | number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (0..len).map(|at| (seed.rotate_left((at % 61) as u32) as u8).wrapping_add(at as u8)).collect()
}

struct Side {
    session: Session,
    pool: Arc<Pool>,
    /// Bytes on their way to the other side.
    pipe: Vec<u8>,
    sent: Vec<(u32, u64, Vec<usize>)>,
    arrived: Vec<Arrival>,
}

impl Side {
    fn new(pulse: Pulse, now: Instant) -> Self {
        let pool = Arc::new(Pool::new(1 << 30));
        let session = Session::new(pulse, Arc::clone(&pool), now);
        Self { session, pool, pipe: Vec::new(), sent: Vec::new(), arrived: Vec::new() }
    }

    fn send(&mut self, lane: u32, sizes: &[usize]) {
        let number = self.sent.iter().filter(|(other, _, _)| *other == lane).count() as u64;
        let bytes: Vec<Vec<u8>> = sizes.iter().map(|len| content(lane, number, *len)).collect();
        let slices: Vec<&[u8]> = bytes.iter().map(Vec::as_slice).collect();
        let header =
            Header { kind: Kind::Cast, src: proc(lane), dest: proc(1000), call: number, ..Header::default() };
        let parts = Parts::place(&slices, &self.pool, 1);
        self.session.send(Outgoing::of_parts(&header, &parts, Arc::clone(&self.pool)));
        self.sent.push((lane, number, sizes.to_vec()));
    }

    fn hello(&self) -> Hello {
        let (received, dead_ms) = self.session.state();
        Hello { agent: 1, session: 1, epoch: 1, received, dead_ms, ..Hello::default() }
    }
}

struct Network {
    sides: [Side; 2],
    now: Instant,
}

impl Network {
    fn new() -> Self {
        let now = Instant::now();
        let mut network =
            Self { sides: [Side::new(Pulse::default(), now), Side::new(Pulse::default(), now)], now };
        network.heal();
        network
    }

    fn cut(&mut self) {
        for side in &mut self.sides {
            side.pipe.clear();
            side.session.suspend();
        }
    }

    fn heal(&mut self) {
        self.cut();
        let hellos = [self.sides[0].hello(), self.sides[1].hello()];
        for (side, hello) in self.sides.iter_mut().zip(hellos.iter().rev()) {
            side.session.resume(hello, self.now).expect("both tell the truth");
        }
    }

    /// Carries up to `count` bytes from one side to the other, in pieces of `piece`.
    fn carry(&mut self, from: usize, count: usize, piece: usize) -> bool {
        let (left, right) = self.sides.split_at_mut(1);
        let (side, other) =
            if from == 0 { (&mut left[0], &mut right[0]) } else { (&mut right[0], &mut left[0]) };
        if side.pipe.is_empty() {
            side.session.output(CHUNK_BYTES, self.now, &mut side.pipe);
        }
        if !other.session.is_up() {
            return false;
        }
        let moved: Vec<u8> = side.pipe.drain(..count.min(side.pipe.len())).collect();
        for piece in moved.chunks(piece.max(1)) {
            other.session.input(piece, self.now, &mut other.arrived).expect("sense");
        }
        !moved.is_empty()
    }

    fn settle(&mut self) {
        self.heal();
        for _ in 0..10_000 {
            self.carry(0, usize::MAX, 1 << 20);
            self.carry(1, usize::MAX, 1 << 20);
            if self.sides.iter().all(|side| side.session.is_flushed() && side.pipe.is_empty()) {
                return;
            }
            self.now += Duration::from_millis(500);
        }
        panic!("it never settles");
    }

    /// Everything sent by one side has arrived at the other once, whole, and in order.
    fn check(&mut self, from: usize) {
        let sent = self.sides[from].sent.clone();
        let arrived: Vec<_> = self.sides[1 - from].arrived.drain(..).collect();
        assert_eq!(arrived.len(), sent.len());
        let mut next = [0u64; 16];
        for arrival in arrived {
            let message = arrival.into_message();
            let lane = message.header.src.rank;
            let number = message.header.call;
            assert_eq!(number, next[lane as usize], "lane {lane}");
            next[lane as usize] += 1;
            let known = sent.iter().find(|(other, count, _)| (*other, *count) == (lane, number));
            let (_, _, sizes) = known.expect("was sent");
            assert_eq!(message.parts.len(), sizes.len());
            for (part, size) in sizes.iter().enumerate() {
                assert!(message.part(part) == content(lane, number, *size), "part {part} of {size}");
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Send(usize, u32, Vec<usize>),
    Carry(usize, usize, usize),
    Cut,
    Heal,
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let size =
        prop_oneof![4 => 0usize..200, 1 => BLOCK_MIN_BYTES - 2..BLOCK_MIN_BYTES + 2, 1 => 0usize..400_000];
    prop_oneof![
        5 => (0usize..2, 0u32..5, prop::collection::vec(size, 0..4)).prop_map(|(a, b, c)| Step::Send(a, b, c)),
        6 => (0usize..2, 0usize..200_000, 1usize..100_000).prop_map(|(a, b, c)| Step::Carry(a, b, c)),
        1 => Just(Step::Cut),
        2 => Just(Step::Heal),
        1 => (0u64..2000).prop_map(Step::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn everything_arrives_once_and_in_order_however_the_connection_breaks(steps in prop::collection::vec(step(), 0..60)) {
        let mut network = Network::new();
        for step in steps {
            match step {
                Step::Send(from, lane, sizes) => network.sides[from].send(lane, &sizes),
                Step::Carry(from, count, piece) => _ = network.carry(from, count, piece),
                Step::Cut => network.cut(),
                Step::Heal => network.heal(),
                Step::Wait(millis) => network.now += Duration::from_millis(millis),
            }
        }
        network.settle();
        network.check(0);
        network.check(1);
        prop_assert!(network.sides.iter().all(|side| side.session.is_flushed()));
        // Whoever has sent a block, and whoever has got one, gives it back.
        prop_assert!(network.sides.iter().all(|side| side.pool.stats().used_blocks == 0));
    }

    #[test]
    fn garbage_ends_a_session_or_waits_for_more_and_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..4000)) {
        let mut network = Network::new();
        let _ = Hello::decode(&bytes);
        let side = &mut network.sides[0];
        let mut arrivals = Vec::new();
        let _ = side.session.input(&bytes, network.now, &mut arrivals);
        prop_assert!(arrivals.is_empty());
        prop_assert!(side.session.input.capacity() <= 2 * MAX_RECORD_BYTES);
    }

    #[test]
    fn a_changed_byte_is_an_error_or_changes_content_only(at in 0usize..600, flip in 1u8..=255) {
        let mut network = Network::new();
        network.sides[0].send(1, &[40, 200]);
        network.sides[0].send(2, &[10]);
        let mut bytes = Vec::new();
        network.sides[0].session.output(1 << 20, network.now, &mut bytes);
        let at = at % bytes.len();
        bytes[at] ^= flip;
        let mut arrivals = Vec::new();
        let _ = network.sides[1].session.input(&bytes, network.now, &mut arrivals);
        prop_assert!(arrivals.len() <= 2);
    }
}

#[test]
fn a_record_that_is_too_long_is_refused_from_its_head_alone() {
    let mut network = Network::new();
    let mut head = Vec::new();
    record(&mut head, CHUNK, false, 1, (1, 0), u32::MAX as usize);

    let end = network.sides[0].session.input(&head, network.now, &mut Vec::new());

    assert_eq!(end, Err(SessionError::Oversized(u32::MAX as usize)));
}

#[test]
fn a_frame_that_announces_too_much_is_refused_before_memory_is_taken() {
    let mut network = Network::new();
    let header = Header { kind: Kind::Cast, ..Header::default() };
    let entry = crate::wire::Entry::Block { slab: 1, offset: 0, len: u64::MAX };
    let mut frame = Vec::new();
    crate::wire::encode(&mut frame, &header, &[entry]);
    let mut bytes = Vec::new();
    record(&mut bytes, CHUNK, false, 1, (1, 0), frame.len());
    bytes.extend_from_slice(&frame);
    let side = &mut network.sides[0];

    let end = side.session.input(&bytes, network.now, &mut Vec::new());

    assert_eq!(end, Err(SessionError::Lane(LaneError::Large(u64::MAX))));
    assert_eq!(side.pool.stats().reserved_bytes, 0);
}

#[test]
fn a_small_frame_does_not_wait_for_a_huge_one() {
    let mut network = Network::new();
    network.sides[0].send(1, &[16 << 20]);
    network.sides[0].send(2, &[10]);

    for _ in 0..4 {
        network.carry(0, usize::MAX, usize::MAX);
    }

    assert_eq!(network.sides[1].arrived.len(), 1);
    assert_eq!(network.sides[1].arrived[0].header.src, proc(2));
}

#[test]
fn no_more_is_kept_for_a_silent_peer_than_the_buffer_holds() {
    let mut network = Network::new();
    network.sides[0].send(1, &[64 << 20]);
    let mut bytes = Vec::new();

    network.sides[0].session.output(usize::MAX >> 1, network.now, &mut bytes);

    assert!(bytes.len() < RESEND_BYTES + 4 * CHUNK_BYTES, "{} bytes", bytes.len());
    network.settle();
    network.check(0);
}

#[test]
fn a_peer_is_dead_when_it_has_been_silent_for_its_time_and_a_quiet_one_says_something_before() {
    let mut network = Network::new();
    network.now += Duration::from_millis(1500);
    assert!(network.carry(0, usize::MAX, 1000), "a sign of life");
    network.now += Duration::from_millis(3600);

    assert_eq!(network.sides[0].session.check(network.now), Err(SessionError::Silent(5.1)));
    assert_eq!(network.sides[1].session.check(network.now), Ok(()));
}

#[test]
fn whoever_lacks_what_was_acknowledged_cannot_go_on() {
    let mut network = Network::new();
    network.sides[0].send(1, &[10]);
    network.settle();
    let mut other = Side::new(Pulse::default(), network.now);
    let hello = other.hello();

    assert_eq!(network.sides[0].session.resume(&hello, network.now), Err(SessionError::Sequence(2, 1)));
    let ahead = Hello { received: 5, ..hello };
    assert_eq!(other.session.resume(&ahead, network.now), Err(SessionError::Ack(5)));
}

#[test]
fn a_farewell_comes_behind_what_was_queued() {
    let mut network = Network::new();
    network.sides[0].send(1, &[300_000]);
    network.sides[0].session.leave("enough");
    let mut bytes = Vec::new();
    network.sides[0].session.output(1 << 22, network.now, &mut bytes);
    let side = &mut network.sides[1];

    let end = side.session.input(&bytes, network.now, &mut side.arrived);

    assert_eq!(end, Err(SessionError::Bye("enough".into())));
    network.check(0);
}
