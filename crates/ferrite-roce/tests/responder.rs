//! One responder, packet by packet: its responses, their order, and its refusals.

use ferrite_roce::memory::APPEND_AT;
use ferrite_roce::responder::{Config, Responder};
use ferrite_roce::wire::aeth::{Nak, Syndrome};
use ferrite_roce::wire::cm::Mtu;
use ferrite_roce::wire::packet::{Packet, Repr};
use ferrite_roce::wire::{Opcode, Psn, atomic, reth};

use crate::support::{Array, File};

const KEY: u32 = 5;
const OURS: u32 = 40;
const MTU: usize = 256;

/// A response: opcode, number, syndrome of its acknowledgement, length of its payload.
type Answer = (Opcode, u32, Option<Syndrome>, usize);

const ACK: Option<Syndrome> = Some(Syndrome::ACK);

fn nak(nak: Nak) -> Option<Syndrome> {
    Some(Syndrome::Nak(nak))
}

struct One {
    responder: Responder,
    memory: Array,
}

impl One {
    /// A responder that expects number 10, with a file of 2000 bytes.
    fn new() -> One {
        let mut config = Config::new(OURS, 41, Mtu::B256, Psn::new(10));
        config.resources = 2;
        config.receive_bytes_max = 600;
        config.whole_bytes_max = 600;
        let mut memory = Array::new(1);
        let file = File {
            bytes: (0..2_000).map(|byte| byte as u8).collect(),
            ..File::default()
        };
        memory.files.insert(KEY, file);
        One {
            responder: Responder::new(config),
            memory,
        }
    }

    fn handle(&mut self, packet: &Repr<'_>) {
        self.responder.handle(packet, &mut self.memory);
    }

    /// All responses.
    fn answers(&mut self) -> Vec<Answer> {
        let mut answers = Vec::new();
        let mut bytes = Vec::new();
        while self.responder.poll(&mut self.memory, &mut bytes) {
            let packet = Repr::parse(&Packet::without_icrc(&bytes).unwrap()).unwrap();
            assert_eq!(packet.bth.destination, 41);
            let syndrome = packet.headers.aeth.map(|aeth| aeth.syndrome);
            answers.push((
                packet.bth.opcode,
                packet.bth.psn.value(),
                syndrome,
                packet.payload.len(),
            ));
            bytes.clear();
        }
        answers
    }

    fn ask(&mut self, packet: &Repr<'_>) -> Vec<Answer> {
        self.handle(packet);
        self.answers()
    }
}

/// A packet that requests an acknowledgement if a message ends with it.
fn packet(opcode: Opcode, psn: u32, payload: &[u8]) -> Repr<'_> {
    let mut packet = Repr::new(opcode, OURS, Psn::new(psn));
    packet.bth.ack_request = opcode.place().is_end();
    packet.payload = payload;
    packet
}

fn with_reth(mut packet: Repr<'_>, at: u64, len_bytes: usize) -> Repr<'_> {
    packet.headers.reth = Some(reth::Repr {
        address: at,
        key: KEY,
        len_bytes: len_bytes as u32,
    });
    packet
}

fn write_only(psn: u32, at: u64, payload: &[u8]) -> Repr<'_> {
    with_reth(packet(Opcode::WriteOnly, psn, payload), at, payload.len())
}

fn read(psn: u32, at: u64, len: usize) -> Repr<'static> {
    with_reth(packet(Opcode::ReadRequest, psn, &[]), at, len)
}

fn add(psn: u32, at: u64, add: u64) -> Repr<'static> {
    let mut packet = packet(Opcode::FetchAdd, psn, &[]);
    packet.headers.atomic = Some(atomic::Repr {
        address: at,
        key: KEY,
        swap_or_add: add,
        compare: 0,
    });
    packet
}

fn ack(psn: u32) -> Answer {
    (Opcode::Acknowledge, psn, ACK, 0)
}

#[test]
fn acknowledgements_come_when_they_are_wanted_and_become_one() {
    let mut one = One::new();
    let full = [1; MTU];
    assert_eq!(one.ask(&with_reth(packet(Opcode::WriteFirst, 10, &full), 0, 600)), []);
    assert_eq!(one.ask(&packet(Opcode::WriteMiddle, 11, &full)), []);
    assert_eq!(one.ask(&packet(Opcode::WriteLast, 12, &full[..88])), [ack(12)]);
    for psn in 13..20 {
        one.handle(&write_only(psn, 0, b"x"));
    }
    assert_eq!(one.answers(), [ack(19)]);
    // Of duplicates the latest counts; they are not written again.
    let parts = one.memory.parts;
    one.handle(&write_only(15, 0, b"x"));
    one.handle(&write_only(14, 0, b"x"));
    assert_eq!(one.answers(), [ack(15)]);
    assert_eq!(one.memory.parts, parts);
}

#[test]
fn a_gap_is_told_once_and_the_next_one_again() {
    let mut one = One::new();
    for psn in 11..15 {
        one.handle(&write_only(psn, 0, b"x"));
    }
    let gap = |psn| (Opcode::Acknowledge, psn, nak(Nak::Sequence), 0);
    assert_eq!(one.answers(), [gap(10)]);
    assert_eq!(one.ask(&write_only(12, 0, b"x")), []);
    assert_eq!(one.ask(&write_only(10, 0, b"x")), [ack(10)]);
    assert_eq!(one.ask(&write_only(13, 0, b"x")), [gap(11)]);
    assert_eq!(one.memory.parts, 1);
}

#[test]
fn answers_leave_in_the_order_of_requests() {
    let mut one = One::new();
    one.handle(&write_only(10, 0, b"x"));
    one.handle(&read(11, 100, 700));
    one.handle(&write_only(14, 8, b"y"));
    one.handle(&add(15, 16, 1));
    one.handle(&write_only(16, 0, b"z"));
    let mut bytes = Vec::new();
    // The READ is requested again while it is under way, from its second packet on: it continues there, in its place.
    for _ in 0..2 {
        assert!(one.responder.poll(&mut one.memory, &mut bytes));
    }
    one.handle(&read(12, 100 + MTU as u64, 700 - MTU));
    let rest = [
        (Opcode::ReadResponseFirst, 12, ACK, MTU),
        (Opcode::ReadResponseLast, 13, ACK, 700 - 2 * MTU),
        ack(14),
        (Opcode::AtomicAcknowledge, 15, ACK, 0),
        ack(16),
    ];
    assert_eq!(one.answers(), rest);
    // A part of the original range, or the same from another place, is another request: it gets no response.
    assert_eq!(one.ask(&read(12, 100, 300)), []);
    assert_eq!(one.ask(&read(11, 100, 701)), []);
    assert_eq!(one.ask(&add(15, 16, 2)), []);
    assert_eq!(one.responder.counters().dropped, 3);
    assert_eq!(
        one.ask(&read(13, 100 + 2 * MTU as u64, 10)),
        [(Opcode::ReadResponseOnly, 13, ACK, 10)]
    );
}

#[test]
fn an_atomic_is_remembered_until_others_take_its_place() {
    let mut one = One::new();
    let again = |psn| (Opcode::AtomicAcknowledge, psn, ACK, 0);
    assert_eq!(one.ask(&add(10, 0, 5)), [again(10)]);
    assert_eq!(one.ask(&add(11, 0, 5)), [again(11)]);
    let after = one.memory.files[&KEY].bytes[..8].to_vec();
    assert_eq!(one.ask(&add(10, 0, 5)), [again(10)]);
    assert_eq!(one.memory.files[&KEY].bytes[..8], after);
    assert_eq!(one.ask(&add(12, 0, 5)), [again(12)]);
    assert_eq!(one.ask(&add(10, 0, 5)), [], "two are remembered");
    assert_eq!(one.ask(&add(11, 0, 5)), [again(11)]);
}

/// Numbers recur after 2^24 packets, while old operations may still be remembered. A duplicate request gets its own
/// response, not that of an older one with the same number.
#[test]
fn an_atomic_with_a_number_that_came_again_has_its_own_answer() {
    let mut one = One::new();
    let original = |one: &mut One| {
        let mut bytes = Vec::new();
        assert!(one.responder.poll(&mut one.memory, &mut bytes));
        let packet = Repr::parse(&Packet::without_icrc(&bytes).unwrap()).unwrap();
        packet.headers.original.unwrap()
    };
    let zeros = vec![0; 8];
    one.memory.files.get_mut(&KEY).unwrap().bytes[..8].copy_from_slice(&zeros);
    one.handle(&add(10, 0, 1));
    let first = original(&mut one);
    for psn in 11..10 + (1 << 24) {
        let mut nothing = write_only(psn & 0xff_ffff, 0, b"");
        nothing.bth.ack_request = false;
        one.handle(&nothing);
    }
    one.handle(&add(10, 0, 1));
    let lost = original(&mut one);
    assert_ne!(first, lost);
    one.handle(&add(10, 0, 1));
    assert_eq!(original(&mut one), lost, "the answer was lost, and asked for again");
}

/// A remembered operation answers for its own packets only: the number behind them is another's.
#[test]
fn the_number_behind_an_operation_does_not_ask_for_it_again() {
    let mut one = One::new();
    let atomic = |psn| (Opcode::AtomicAcknowledge, psn, ACK, 0);
    assert_eq!(one.ask(&add(10, 0, 5)), [atomic(10)]);
    assert_eq!(one.ask(&write_only(11, 8, b"x")), [ack(11)]);
    assert_eq!(one.ask(&add(11, 0, 5)), [], "11 was a WRITE");
    assert_eq!(one.ask(&add(10, 0, 5)), [atomic(10)]);
    let packets = [
        (Opcode::ReadResponseFirst, 12, ACK, MTU),
        (Opcode::ReadResponseLast, 13, ACK, MTU),
    ];
    assert_eq!(one.ask(&read(12, 100, 2 * MTU)), packets);
    assert_eq!(one.ask(&write_only(14, 8, b"y")), [ack(14)]);
    assert_eq!(one.ask(&read(14, 100 + 2 * MTU as u64, 0)), [], "14 was a WRITE");
    let last = [(Opcode::ReadResponseOnly, 13, ACK, MTU)];
    assert_eq!(one.ask(&read(13, 100 + MTU as u64, MTU)), last);
    assert_eq!(one.responder.counters().dropped, 2);
}

/// Half of all numbers are earlier than the expected one, and no more.
#[test]
fn numbers_of_before_are_half_of_all() {
    const HALF: u32 = 1 << 23;
    for (distance, is_of_before) in [(HALF - 1, false), (HALF, true), (HALF + 1, true), (2 * HALF - 1, true)] {
        let mut one = One::new();
        let psn = (10 + distance) % (2 * HALF);
        let answers = one.ask(&write_only(psn, 0, b"x"));
        let counters = one.responder.counters();
        assert_eq!((counters.duplicates, counters.executed), (u64::from(is_of_before), 0));
        let expected = match is_of_before {
            true => ack(psn),
            false => (Opcode::Acknowledge, 10, nak(Nak::Sequence), 0),
        };
        assert_eq!(answers, [expected], "{distance}");
    }
}

#[test]
fn nothing_needs_no_key() {
    let mut one = One::new();
    let mut nothing = write_only(10, u64::MAX, &[]);
    nothing.headers.reth.as_mut().unwrap().key = 99;
    assert_eq!(one.ask(&nothing), [ack(10)]);
    let mut nothing = read(11, 1 << 62, 0);
    nothing.headers.reth.as_mut().unwrap().key = 99;
    assert_eq!(one.ask(&nothing), [(Opcode::ReadResponseOnly, 11, ACK, 0)]);
    let mut only = packet(Opcode::WriteOnlyImmediate, 12, &[]);
    only.headers.immediate = Some(77);
    assert_eq!(one.ask(&with_reth(only, 0, 0)), [ack(12)]);
    assert_eq!(one.memory.immediates, [(OURS, 77)]);
    assert_eq!(one.ask(&packet(Opcode::SendOnly, 13, &[])), [ack(13)]);
    assert_eq!(one.memory.received, [(OURS, vec![], None, None)]);
}

/// Whether the only response is that this packet came too early for memory.
fn is_rnr(answers: &[Answer], psn: u32) -> bool {
    let [(Opcode::Acknowledge, at, Some(Syndrome::RnrNak(_)), 0)] = answers else {
        return false;
    };
    *at == psn
}

#[test]
fn who_is_not_ready_is_asked_again() {
    let mut one = One::new();
    let full = [2; MTU];
    one.memory.not_ready_percent = 100;
    let first = with_reth(packet(Opcode::WriteFirst, 10, &full), APPEND_AT, 300);
    let answers = one.ask(&first);
    assert!(is_rnr(&answers, 10), "{answers:?}");
    // The packets right behind it are not reported as a gap.
    assert_eq!(one.ask(&packet(Opcode::WriteLast, 11, &full[..44])), []);
    one.memory.not_ready_percent = 0;
    assert_eq!(one.ask(&first), []);
    one.memory.not_ready_percent = 100;
    let answers = one.ask(&packet(Opcode::WriteLast, 11, &full[..44]));
    assert!(is_rnr(&answers, 11), "{answers:?}");
    let answers = one.ask(&read(12, 0, 10));
    assert_eq!(answers, []);
    one.memory.not_ready_percent = 0;
    assert_eq!(one.ask(&packet(Opcode::WriteLast, 11, &full[..44])), [ack(11)]);
    let log = &one.memory.files[&KEY];
    assert_eq!(
        log.committed.values().map(|(_, _, len)| *len).collect::<Vec<_>>(),
        [300]
    );
    // A READ that was allowed, and fails now.
    one.handle(&read(12, 0, 10));
    one.memory.not_ready_percent = 100;
    let answers = one.answers();
    assert!(is_rnr(&answers, 12), "{answers:?}");
    one.memory.not_ready_percent = 0;
    assert_eq!(one.ask(&read(12, 0, 10)), [(Opcode::ReadResponseOnly, 12, ACK, 10)]);
}

/// Each of these breaks the protocol or has no right; the queue pair ends with it, and repeats the refusal if it gets
/// more.
#[test]
fn requests_that_lie_end_the_queue_pair() {
    let full = [3; MTU];
    let longer = [3; MTU + 4];
    let first = |len| with_reth(packet(Opcode::WriteFirst, 10, &full), 0, len);
    let only = |len| with_reth(packet(Opcode::WriteOnly, 10, b"abc"), 0, len);
    let (invalid, access) = (Nak::InvalidRequest, Nak::Access);
    let cases: Vec<(&str, Vec<Repr<'_>>, Nak)> = vec![
        ("a payload shorter than announced", vec![only(4)], invalid),
        ("a payload longer than announced", vec![only(2)], invalid),
        (
            "a packet beyond the path MTU",
            vec![write_only(10, 0, &longer)],
            invalid,
        ),
        ("a first packet of a short message", vec![first(MTU)], invalid),
        (
            "a first packet that is not full",
            vec![with_reth(packet(Opcode::WriteFirst, 10, b"abc"), 0, 600)],
            invalid,
        ),
        (
            "a middle without a first",
            vec![packet(Opcode::WriteMiddle, 10, &full)],
            invalid,
        ),
        (
            "a last without a first",
            vec![packet(Opcode::SendLast, 10, b"abc")],
            invalid,
        ),
        ("a message in a message", vec![first(600), read(11, 0, 1)], invalid),
        (
            "a first in a message",
            vec![first(900), with_reth(packet(Opcode::WriteFirst, 11, &full), 0, 900)],
            invalid,
        ),
        (
            "a SEND in a WRITE",
            vec![first(600), packet(Opcode::SendLast, 11, b"a")],
            invalid,
        ),
        (
            "a last too early",
            vec![first(600), packet(Opcode::WriteLast, 11, &full)],
            invalid,
        ),
        (
            "a middle too late",
            vec![first(2 * MTU), packet(Opcode::WriteMiddle, 11, &full)],
            invalid,
        ),
        (
            "a last of nothing",
            vec![packet(Opcode::SendFirst, 10, &full), packet(Opcode::SendLast, 11, &[])],
            invalid,
        ),
        (
            "a SEND that is too long",
            vec![
                packet(Opcode::SendFirst, 10, &full),
                packet(Opcode::SendMiddle, 11, &full),
                packet(Opcode::SendLast, 12, &full),
            ],
            invalid,
        ),
        (
            "more than a message may have",
            vec![read(10, 0, (1 << 31) + 1)],
            invalid,
        ),
        ("an answer", vec![packet(Opcode::Acknowledge, 10, &[])], invalid),
        ("an atomic at an odd place", vec![add(10, 4, 1)], invalid),
        ("a WRITE beyond the end", vec![write_only(10, 1_999, b"ab")], access),
        (
            "a WRITE across the end of all addresses",
            vec![write_only(10, u64::MAX - 1, b"abc")],
            access,
        ),
        (
            "a READ across the end of all addresses",
            vec![read(10, u64::MAX, 2)],
            access,
        ),
        ("a READ where appends go", vec![read(10, APPEND_AT, 2)], access),
        (
            "an atomic at the end of all addresses",
            vec![add(10, u64::MAX - 7, 1)],
            access,
        ),
    ];
    for (name, packets, nak_code) in cases {
        let mut one = One::new();
        let (last, before) = packets.split_last().unwrap();
        for packet in before {
            assert_eq!(one.ask(packet), [], "{name}");
        }
        let refused = [(Opcode::Acknowledge, last.bth.psn.value(), nak(nak_code), 0)];
        assert_eq!(one.ask(last), refused, "{name}");
        assert_eq!(one.responder.broken(), Some(nak_code), "{name}");
        assert_eq!(one.ask(&write_only(10, 0, b"fine")), refused, "{name}: it is over");
        assert!(one.memory.is_quiet(), "{name}: memory waits for the rest of a message");
        let is_untouched = |bytes: &[u8]| bytes.iter().enumerate().all(|(at, byte)| *byte == at as u8 || at < MTU);
        assert!(is_untouched(&one.memory.files[&KEY].bytes), "{name}");
    }
}

#[test]
fn a_key_that_is_not_there_ends_the_queue_pair() {
    for opcode in [
        Opcode::WriteOnly,
        Opcode::ReadRequest,
        Opcode::FetchAdd,
        Opcode::CompareSwap,
    ] {
        let mut one = One::new();
        one.memory.files.clear();
        let mut request = with_reth(
            packet(opcode, 10, if opcode == Opcode::WriteOnly { b"abcd" } else { &[] }),
            0,
            4,
        );
        request.headers.atomic = Some(atomic::Repr::default());
        assert_eq!(one.ask(&request), [(Opcode::Acknowledge, 10, nak(Nak::Access), 0)]);
    }
    // One that goes while a READ is under way: the bytes read so far are sent, then the refusal.
    let mut one = One::new();
    one.handle(&read(10, 0, 600));
    one.handle(&write_only(13, 0, b"x"));
    let mut bytes = Vec::new();
    assert!(one.responder.poll(&mut one.memory, &mut bytes));
    one.memory.files.clear();
    assert_eq!(one.answers(), [(Opcode::Acknowledge, 11, nak(Nak::Access), 0)]);
}

/// If the connection of an append ends, memory learns how much had arrived; so it does for an assembled one.
#[test]
fn memory_hears_of_messages_that_end_early() {
    for is_whole in [false, true] {
        let mut one = One::new();
        one.memory.files.get_mut(&KEY).unwrap().is_whole = is_whole;
        let full = [4; MTU];
        one.handle(&with_reth(packet(Opcode::WriteFirst, 10, &full), APPEND_AT, 600));
        one.handle(&packet(Opcode::WriteMiddle, 11, &full));
        let parts = one.memory.parts;
        assert_eq!(parts, if is_whole { 0 } else { 2 });
        one.responder.give_up(&mut one.memory);
        let [(message, arrived)] = &one.memory.abandoned[..] else {
            panic!("{:?}", one.memory.abandoned);
        };
        assert!(message.is_append());
        assert_eq!(*arrived, 2 * MTU as u32);
        assert!(one.memory.is_quiet());
    }
    // Longer than the limit for assembly.
    let mut one = One::new();
    one.memory.files.get_mut(&KEY).unwrap().is_whole = true;
    let full = [4; MTU];
    let answers = one.ask(&with_reth(packet(Opcode::WriteFirst, 10, &full), 0, 601));
    assert_eq!(answers, [(Opcode::Acknowledge, 10, nak(Nak::InvalidRequest), 0)]);
    assert!(one.memory.is_quiet());
}

/// Whatever comes in whatever order: the queues have a bound, and memory's own checks hold.
#[test]
fn what_waits_to_be_sent_has_a_bound() {
    let mut one = One::new();
    let mut psn = 10;
    for round in 0..100_000u32 {
        match round % 4 {
            0 => one.handle(&read(psn, 0, 1_000)),
            1 => one.handle(&add(psn, 0, 1)),
            2 => one.handle(&write_only(psn + 5, 0, b"x")),
            _ => one.handle(&write_only(psn, 0, b"x")),
        }
        psn = (psn + [4, 1, 0, 1][round as usize % 4]) & 0xff_ffff;
    }
    assert!(one.answers().len() < 1_100);
}
