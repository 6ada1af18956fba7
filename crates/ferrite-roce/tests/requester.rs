//! One requester, response by response: what it sends, when it resends, and how work fails.

use ferrite_roce::requester::{
    Completion, Config, Failure, Outcome, PostError, RNR_RETRY_FOR_EVER, Request, Requester,
};
use ferrite_roce::wire::aeth::{self, Nak, RnrTimer, Syndrome};
use ferrite_roce::wire::cm::Mtu;
use ferrite_roce::wire::packet::{Packet, Repr};
use ferrite_roce::wire::{Opcode, Psn};

const PEER: u32 = 9;
const TIMEOUT_NS: u64 = 1_000;

fn config() -> Config {
    let mut config = Config::new(PEER, Mtu::B256, Psn::new(100));
    config.timeout_ns = TIMEOUT_NS;
    config.retry_count = 2;
    config.rnr_retry_count = 2;
    config.window_packets = 8;
    config.depth = 2;
    config
}

/// The packets that leave: opcode, number, whether an acknowledgement is requested.
fn sent(requester: &mut Requester, now_ns: u64) -> Vec<(Opcode, u32, bool)> {
    let mut packets = Vec::new();
    let mut bytes = Vec::new();
    while requester.poll(now_ns, &mut bytes) {
        let packet = Repr::parse(&Packet::without_icrc(&bytes).unwrap()).unwrap();
        packets.push((packet.bth.opcode, packet.bth.psn.value(), packet.bth.ack_request));
        bytes.clear();
    }
    packets
}

fn numbers(requester: &mut Requester, now_ns: u64) -> Vec<u32> {
    sent(requester, now_ns).into_iter().map(|(_, psn, _)| psn).collect()
}

fn answer(opcode: Opcode, psn: u32, syndrome: Syndrome) -> Repr<'static> {
    let mut packet = Repr::new(opcode, 1, Psn::new(psn));
    packet.headers.aeth = Some(aeth::Repr { syndrome, msn: 0 });
    packet
}

fn ack(psn: u32) -> Repr<'static> {
    answer(Opcode::Acknowledge, psn, Syndrome::ACK)
}

fn response(opcode: Opcode, psn: u32, payload: &[u8]) -> Repr<'_> {
    let mut packet = answer(opcode, psn, Syndrome::ACK);
    packet.payload = payload;
    packet
}

fn done(requester: &mut Requester) -> Vec<(u64, Result<Outcome, Failure>)> {
    std::iter::from_fn(|| requester.poll_completion())
        .map(|Completion { id, result }| (id, result))
        .collect()
}

fn write(len: usize) -> Request {
    Request::Write {
        key: 1,
        at: 0,
        data: vec![7; len],
        immediate: None,
    }
}

fn read(len_bytes: u32) -> Request {
    Request::Read {
        key: 1,
        at: 4_096,
        len_bytes,
    }
}

fn with(works: Vec<Request>) -> Requester {
    let mut requester = Requester::new(config());
    for (id, work) in works.into_iter().enumerate() {
        requester.post(id as u64, work).unwrap();
    }
    requester
}

#[test]
fn the_window_moves_with_acknowledgements() {
    let mut requester = with(vec![write(256 * 12)]);
    let first = sent(&mut requester, 0);
    assert_eq!(first.len(), 8);
    assert_eq!(first[0], (Opcode::WriteFirst, 100, false));
    // One packet per quarter of the window requests an acknowledgement, or nothing would move it.
    assert_eq!(first[1], (Opcode::WriteMiddle, 101, true));
    requester.handle(&ack(103), 10);
    let more = sent(&mut requester, 10);
    assert_eq!(more.len(), 4);
    assert_eq!(more[3], (Opcode::WriteLast, 111, true));
    assert_eq!(done(&mut requester), []);
    requester.handle(&ack(111), 20);
    assert_eq!(done(&mut requester), [(0, Ok(Outcome::Done))]);
    assert_eq!(requester.poll_timeout_ns(), None);
    // A second acknowledgement, and one of a packet that was never sent: both are ignored.
    requester.handle(&ack(111), 20);
    requester.handle(&ack(112), 20);
    assert_eq!(requester.counters().ignored, 2);
}

#[test]
fn what_is_not_acknowledged_is_sent_again_and_not_for_ever() {
    let mut requester = with(vec![write(600), write(0)]);
    assert_eq!(numbers(&mut requester, 0), [100, 101, 102, 103]);
    requester.handle(&ack(100), 500);
    let mut now_ns = requester.poll_timeout_ns().unwrap();
    assert_eq!(now_ns, 500 + TIMEOUT_NS);
    for _ in 0..2 {
        requester.handle_timeout(now_ns - 1);
        assert_eq!(sent(&mut requester, now_ns - 1), []);
        requester.handle_timeout(now_ns);
        assert_eq!(numbers(&mut requester, now_ns), [101, 102, 103]);
        now_ns = requester.poll_timeout_ns().unwrap();
    }
    // Progress restores the full number of retries.
    requester.handle(&ack(102), now_ns);
    for _ in 0..3 {
        now_ns = requester.poll_timeout_ns().unwrap();
        requester.handle_timeout(now_ns);
        sent(&mut requester, now_ns);
    }
    let ends = [(0, Ok(Outcome::Done)), (1, Err(Failure::RetryExceeded))];
    assert_eq!(done(&mut requester), ends);
    assert_eq!(requester.post(2, write(1)), Err(PostError::Broken));
    assert_eq!(requester.poll_timeout_ns(), None);
}

#[test]
fn a_gap_makes_it_go_back_once() {
    let mut requester = with(vec![write(256 * 5)]);
    sent(&mut requester, 0);
    let gap = answer(Opcode::Acknowledge, 102, Syndrome::Nak(Nak::Sequence));
    requester.handle(&gap, 1);
    requester.handle(&gap, 1);
    assert_eq!(numbers(&mut requester, 1), [102, 103, 104]);
    // The same again, late: the timer would resend it, not another copy of the NAK.
    requester.handle(&gap, 2);
    assert_eq!(numbers(&mut requester, 2), []);
    // An acknowledgement of the first copies comes while the second are under way.
    requester.handle(&ack(104), 3);
    assert_eq!(done(&mut requester), [(0, Ok(Outcome::Done))]);
    // And of copies that have not left yet.
    requester.post(1, write(600)).unwrap();
    sent(&mut requester, 3);
    requester.handle(&answer(Opcode::Acknowledge, 105, Syndrome::Nak(Nak::Sequence)), 4);
    requester.handle(&ack(106), 4);
    assert_eq!(numbers(&mut requester, 4), [107]);
}

#[test]
fn a_lost_answer_to_a_read_is_asked_for_again() {
    let data = [5; 256];
    let mut requester = with(vec![write(1), read(600), write(1)]);
    assert_eq!(numbers(&mut requester, 0), [100, 101, 104]);
    // The response to the READ acknowledges everything before it.
    requester.handle(&response(Opcode::ReadResponseFirst, 101, &data), 1);
    assert_eq!(done(&mut requester), [(0, Ok(Outcome::Done))]);
    // One is missing: the requester asks for the rest, and for everything behind.
    requester.handle(&response(Opcode::ReadResponseLast, 103, &data[..88]), 2);
    let mut bytes = Vec::new();
    assert!(requester.poll(2, &mut bytes));
    let again = Repr::parse(&Packet::without_icrc(&bytes).unwrap()).unwrap();
    let reth = again.headers.reth.unwrap();
    assert_eq!(
        (again.bth.psn.value(), reth.address, reth.len_bytes),
        (102, 4_096 + 256, 344)
    );
    assert_eq!(numbers(&mut requester, 2), [104]);
    // An acknowledgement of the WRITE behind it does not finish it.
    requester.handle(&ack(104), 3);
    assert_eq!(done(&mut requester), []);
    requester.handle(&response(Opcode::ReadResponseFirst, 102, &data), 4);
    requester.handle(&response(Opcode::ReadResponseLast, 103, &data[..88]), 4);
    requester.handle(&response(Opcode::ReadResponseLast, 103, &data[..88]), 4);
    assert_eq!(done(&mut requester), [(1, Ok(Outcome::Read(vec![5; 600])))]);
    requester.handle(&ack(104), 5);
    assert_eq!(done(&mut requester), [(2, Ok(Outcome::Done))]);
}

#[test]
fn only_so_many_reads_are_under_way() {
    let mut requester = with(vec![read(1), read(1), read(1), write(1)]);
    assert_eq!(numbers(&mut requester, 0), [100, 101]);
    requester.handle(&response(Opcode::ReadResponseOnly, 100, b"a"), 1);
    assert_eq!(numbers(&mut requester, 1), [102, 103]);
}

#[test]
fn it_waits_while_the_other_end_is_not_ready() {
    let mut requester = with(vec![write(1), write(1)]);
    sent(&mut requester, 0);
    let timer = RnrTimer::at_least(640_000);
    let not_ready = answer(Opcode::Acknowledge, 101, Syndrome::RnrNak(timer));
    requester.handle(&not_ready, 0);
    assert_eq!(done(&mut requester), [(0, Ok(Outcome::Done))]);
    assert_eq!(requester.poll_timeout_ns(), Some(640_000));
    requester.handle_timeout(639_999);
    assert_eq!(numbers(&mut requester, 639_999), []);
    requester.handle_timeout(640_000);
    assert_eq!(numbers(&mut requester, 640_000), [101]);
    requester.handle(&not_ready, 640_001);
    requester.handle(&not_ready, 640_001);
    assert_eq!(done(&mut requester), [(1, Err(Failure::RnrRetryExceeded))]);
}

/// An end that reports that it is not ready is alive: losses between its responses do not count as in a row.
#[test]
fn losses_between_answers_do_not_add_up() {
    let mut with_timeout = config();
    with_timeout.rnr_retry_count = RNR_RETRY_FOR_EVER;
    let mut requester = Requester::new(with_timeout);
    requester.post(0, write(1)).unwrap();
    let not_ready = answer(Opcode::Acknowledge, 100, Syndrome::RnrNak(RnrTimer::at_least(640_000)));
    assert_eq!(numbers(&mut requester, 0), [100]);
    let mut now_ns = 0;
    for _ in 0..20 {
        // Lost.
        now_ns = requester.poll_timeout_ns().unwrap();
        requester.handle_timeout(now_ns);
        assert_eq!(numbers(&mut requester, now_ns), [100]);
        requester.handle(&not_ready, now_ns);
        now_ns = requester.poll_timeout_ns().unwrap();
        requester.handle_timeout(now_ns);
        assert_eq!(numbers(&mut requester, now_ns), [100]);
    }
    requester.handle(&ack(100), now_ns);
    assert_eq!(done(&mut requester), [(0, Ok(Outcome::Done))]);
}

#[test]
fn a_refusal_fails_its_work_and_ends_the_rest() {
    for (nak, failure) in [
        (Nak::InvalidRequest, Failure::InvalidRequest),
        (Nak::Access, Failure::Access),
        (Nak::Operational, Failure::Operational),
    ] {
        let mut requester = with(vec![write(1), write(300), read(1), write(1)]);
        sent(&mut requester, 0);
        requester.handle(&answer(Opcode::Acknowledge, 102, Syndrome::Nak(nak)), 1);
        let ends = [
            (0, Ok(Outcome::Done)),
            (1, Err(failure)),
            (2, Err(Failure::Flushed)),
            (3, Err(Failure::Flushed)),
        ];
        assert_eq!(done(&mut requester), ends);
        assert_eq!((sent(&mut requester, 1), requester.poll_timeout_ns()), (vec![], None));
    }
}

/// A response that no honest responder gives ends the queue pair rather than being believed.
#[test]
fn answers_that_do_not_fit_are_not_believed() {
    let data = [5; 256];
    for lie in [
        response(Opcode::ReadResponseFirst, 100, &data[..100]),
        response(Opcode::ReadResponseOnly, 100, &data),
        response(Opcode::ReadResponseLast, 100, &data[..44]),
        response(Opcode::ReadResponseMiddle, 100, &[]),
    ] {
        let mut requester = with(vec![read(300)]);
        sent(&mut requester, 0);
        requester.handle(&lie, 1);
        assert_eq!(done(&mut requester), [(0, Err(Failure::BadResponse))], "{lie:?}");
    }
    // A response of another kind does not count.
    let mut atomic = answer(Opcode::AtomicAcknowledge, 100, Syndrome::ACK);
    atomic.headers.original = Some(3);
    let mut requester = with(vec![read(300)]);
    sent(&mut requester, 0);
    requester.handle(&atomic, 1);
    requester.handle(&ack(100), 1);
    requester.handle(&answer(Opcode::ReadResponseOnly, 100, Syndrome::Nak(Nak::Access)), 1);
    assert_eq!(done(&mut requester), []);
    let mut requester = with(vec![write(300)]);
    sent(&mut requester, 0);
    requester.handle(&response(Opcode::ReadResponseOnly, 100, &data), 1);
    assert_eq!(done(&mut requester), []);
}

#[test]
fn what_is_too_much_is_not_taken() {
    let mut requester = Requester::new(config());
    assert_eq!(requester.post(0, read((1 << 30) + 256)), Err(PostError::TooLong));
    for id in 0..4 {
        requester.post(id, read(256 << 20)).unwrap();
    }
    assert_eq!(requester.post(4, read(1)), Err(PostError::Full));
    requester.close();
    assert_eq!(done(&mut requester).len(), 4);
}
