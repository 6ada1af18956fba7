//! Packets as values and back: every header with random fields, and packets that other adapters sent.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ferrite_roce::wire::aeth::{self, Syndrome};
use ferrite_roce::wire::icrc::{self, Flow, Ids};
use ferrite_roce::wire::packet::{Headers, Packet, Repr};
use ferrite_roce::wire::{Error, Opcode, Psn, atomic, bth, cm, deth, mad, private, reth};
use ferrite_testkit::rng::Rng;
use ferrite_testkit::seed_from_env;

/// Random numbers whose seed is printed.
fn random() -> Rng {
    let seed = seed_from_env().unwrap_or(20);
    println!("FERRITE_SEED={seed}");
    Rng::new(seed)
}

fn some_bytes<const N: usize>(random: &mut Rng) -> [u8; N] {
    std::array::from_fn(|_| random.below(256) as u8)
}

fn some_headers(random: &mut Rng, opcode: Opcode) -> Headers {
    let syndrome = loop {
        if let Ok(syndrome) = Syndrome::from_byte(random.below(256) as u8) {
            break syndrome;
        }
    };
    Headers {
        deth: opcode.has_deth().then(|| deth::Repr {
            queue_key: random.next_u64() as u32,
            source: random.below(1 << 24) as u32,
        }),
        reth: opcode.has_reth().then(|| reth::Repr {
            address: random.next_u64(),
            key: random.next_u64() as u32,
            len_bytes: random.next_u64() as u32,
        }),
        atomic: opcode.is_atomic().then(|| atomic::Repr {
            address: random.next_u64(),
            key: random.next_u64() as u32,
            swap_or_add: random.next_u64(),
            compare: random.next_u64(),
        }),
        aeth: opcode.has_aeth().then(|| aeth::Repr {
            syndrome,
            msn: random.below(1 << 24) as u32,
        }),
        original: (opcode == Opcode::AtomicAcknowledge).then(|| random.next_u64()),
        immediate: opcode.has_immediate().then(|| random.next_u64() as u32),
        invalidate: opcode.has_invalidate().then(|| random.next_u64() as u32),
    }
}

fn some_flow(random: &mut Rng) -> Flow {
    let is_v4 = random.chance(50);
    let mut address = || -> SocketAddr {
        let ip = if is_v4 {
            IpAddr::V4(Ipv4Addr::from(some_bytes::<4>(random)))
        } else {
            IpAddr::V6(Ipv6Addr::from(some_bytes::<16>(random)))
        };
        SocketAddr::new(ip, random.below(1 << 16) as u16)
    };
    Flow {
        source: address(),
        destination: address(),
    }
}

#[test]
fn every_packet_is_read_as_it_was_written() {
    let random = &mut random();
    for round in 0..4_000 {
        let opcode = Opcode::ALL[round % Opcode::ALL.len()];
        let len = if opcode.has_payload() {
            random.below(70) as usize
        } else {
            0
        };
        let payload: Vec<u8> = (0..len).map(|_| random.below(256) as u8).collect();
        let packet = Repr {
            bth: bth::Repr {
                opcode,
                solicited: random.chance(50),
                migrated: random.chance(50),
                pad_bytes: (len.next_multiple_of(4) - len) as u8,
                partition: random.next_u64() as u16,
                fecn: random.chance(50),
                becn: random.chance(50),
                destination: random.below(1 << 24) as u32,
                ack_request: random.chance(50),
                psn: Psn::new(random.next_u64() as u32),
            },
            headers: some_headers(random, opcode),
            payload: &payload,
        };
        let mut bytes = Vec::new();
        packet.emit(&mut bytes);
        assert_eq!(bytes.len(), packet.len_bytes());
        let flow = some_flow(random);
        icrc::append(&flow, &mut bytes);
        assert!(icrc::verify(&flow, &bytes, Ids::Zero));
        let again = Repr::parse(&Packet::new_checked(&bytes).unwrap()).unwrap();
        assert_eq!(again, packet);
        // Any part of it is another packet or invalid.
        for len in 0..bytes.len() {
            if let Ok(part) = Packet::new_checked(&bytes[..len]) {
                assert!(part.payload().len() < payload.len());
            }
            assert!(
                !icrc::verify(&flow, &bytes[..len], Ids::Zero),
                "a part has its own ICRC"
            );
        }
    }
}

#[test]
fn packets_that_lie_about_their_length_are_refused() {
    let mut bytes = Vec::new();
    let mut packet = Repr::new(Opcode::WriteOnly, 1, Psn::new(1));
    packet.payload = b"12345";
    packet.emit(&mut bytes);
    assert!(Packet::without_icrc(&bytes).is_ok());
    assert!(matches!(
        Packet::without_icrc(&bytes[..bytes.len() - 1]),
        Err(Error::Length)
    ));
    assert!(matches!(
        Packet::without_icrc(&bytes[..bth::BYTES]),
        Err(Error::Truncated)
    ));
    // More padding than payload.
    bytes.truncate(bth::BYTES + reth::BYTES);
    assert!(matches!(Packet::without_icrc(&bytes), Err(Error::Length)));
    // A payload with an opcode that has none.
    bytes[0] = Opcode::Acknowledge.number();
    bytes[1] = 0;
    assert!(matches!(Packet::without_icrc(&bytes), Err(Error::Length)));
    bytes[1] = 3;
    assert!(matches!(Packet::without_icrc(&bytes), Err(Error::Version(3))));
    assert!(matches!(Packet::new_checked(&[0; 15]), Err(Error::Truncated)));
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let pairs = digits.chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

/// The flow and the datagram of an IPv4 packet.
fn of_ipv4(packet: &[u8]) -> (Flow, Vec<u8>) {
    let address = |ip: usize, port: usize| -> SocketAddr {
        let ip = Ipv4Addr::from(<[u8; 4]>::try_from(&packet[ip..ip + 4]).unwrap());
        SocketAddr::from((ip, u16::from_be_bytes([packet[port], packet[port + 1]])))
    };
    let flow = Flow {
        source: address(12, 20),
        destination: address(16, 22),
    };
    (flow, packet[28..].to_vec())
}

/// A congestion notice that a ConnectX-4 Lx sent, a SEND of an unreliable connection, both from the tests of scapy
/// (test/contrib/roce.uts): they have identifications other than 0.
#[test]
fn icrcs_of_other_adapters_are_right() {
    let notice = hex(
        "45c2 003c 718c 4000 4011 9161 0a00 1101 0a00 1201 0000 12b7 0028 0000 8100 ffff 4000 0118 0000 0000
         0000 0000 0000 0000 0000 0000 0000 0000 82fd 002a",
    );
    let send = hex(
        "4501 0040 0478 4000 4011 b4d5 c0a8 0007 c0a8 0007 c000 12b7 002c aca2 2460 ffff 0000 00d3 00cf 1710
         4630 818b e289 35d9 0e9a 9550 5401 be88 5e50 0000 78f3 53f3",
    );
    for (packet, name) in [(&notice, "notice"), (&send, "send")] {
        let (flow, mut datagram) = of_ipv4(packet);
        assert!(icrc::verify(&flow, &datagram, Ids::Any), "{name}");
        assert!(
            !icrc::verify(&flow, &datagram, Ids::Zero),
            "{name}: its identification is not 0"
        );
        for byte in 0..datagram.len() {
            datagram[byte] ^= 0x10;
            // Byte 4 of the base header is not covered.
            assert_eq!(
                icrc::verify(&flow, &datagram, Ids::Any),
                byte == 4,
                "{name}, byte {byte}"
            );
            datagram[byte] ^= 0x10;
        }
    }
}

/// CRC-32 bit by bit: independent of the code under test.
fn plain_crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            crc >> 1 ^ (0xedb8_8320 & 0u32.wrapping_sub(crc & 1))
        })
    })
}

/// A datagram as sent by an adapter whose IPv4 packets have this identification.
fn with_icrc_and_id(flow: &Flow, packet: &[u8], id: u16) -> Vec<u8> {
    let (IpAddr::V4(source), IpAddr::V4(destination)) = (flow.source.ip(), flow.destination.ip()) else {
        panic!("only IPv4 has identifications");
    };
    let mut bytes = vec![0xff; 8];
    bytes.extend([0x45, 0xff]);
    bytes.extend((packet.len() as u16 + 32).to_be_bytes());
    bytes.extend(id.to_be_bytes());
    bytes.extend([0x40, 0, 0xff, 17, 0xff, 0xff]);
    bytes.extend(source.octets());
    bytes.extend(destination.octets());
    bytes.extend(flow.source.port().to_be_bytes());
    bytes.extend(flow.destination.port().to_be_bytes());
    bytes.extend((packet.len() as u16 + 12).to_be_bytes());
    bytes.extend([0xff, 0xff]);
    let start = bytes.len();
    bytes.extend(packet);
    bytes[start + 4] = 0xff;
    [packet, &plain_crc(&bytes).to_le_bytes()].concat()
}

#[test]
fn every_identification_is_accepted_and_little_else() {
    let random = &mut random();
    let flow = Flow {
        source: "10.1.2.3:49152".parse().unwrap(),
        destination: "10.1.2.4:4791".parse().unwrap(),
    };
    let mut accepted_wrongly = 0;
    for len in [0, 1, 3, 4, 500, 1024, 4096] {
        let payload = vec![0xa5; len];
        let mut packet = Repr::new(Opcode::SendOnly, 77, Psn::new(3));
        packet.payload = &payload;
        let mut bytes = Vec::new();
        packet.emit(&mut bytes);
        for id in [0, 1, 0x100, 0x8000, 0xffff, random.below(1 << 16) as u16] {
            let with_icrc = with_icrc_and_id(&flow, &bytes, id);
            assert!(
                icrc::verify(&flow, &with_icrc, Ids::Any),
                "{len} bytes, identification {id}"
            );
            assert_eq!(icrc::verify(&flow, &with_icrc, Ids::Zero), id == 0);
        }
        for _ in 0..10_000 {
            let mut with_icrc = with_icrc_and_id(&flow, &bytes, 7);
            let at = with_icrc.len() - 4;
            with_icrc[at..].copy_from_slice(&some_bytes::<4>(random));
            accepted_wrongly += u32::from(icrc::verify(&flow, &with_icrc, Ids::Any));
        }
    }
    // One in 65536 of 70,000.
    assert!(accepted_wrongly < 10, "{accepted_wrongly} random ICRCs accepted");
}

/// The layout of IPv6 is that of rxe, the Linux driver (rxe_icrc.c): the CRC is taken bit by bit over bytes written
/// here.
#[test]
fn the_icrc_of_ipv6_covers_what_routers_do_not_change() {
    let flow = Flow {
        source: "[fd00::1]:49200".parse().unwrap(),
        destination: "[fd00::2]:4791".parse().unwrap(),
    };
    let packet = hex("1140 ffff 0000 0012 0000 0005 1f00 0001");
    let covered = hex(
        "ffff ffff ffff ffff 6fff ffff 001c 11ff fd00 0000 0000 0000 0000 0000 0000 0001
         fd00 0000 0000 0000 0000 0000 0000 0002 c030 12b7 001c ffff 1140 ffff ff00 0012 0000 0005 1f00 0001",
    );
    let mut with_icrc = packet.clone();
    icrc::append(&flow, &mut with_icrc);
    assert_eq!(with_icrc[packet.len()..], plain_crc(&covered).to_le_bytes());
    let mixed = Flow {
        source: "10.1.2.3:49152".parse().unwrap(),
        ..flow
    };
    let mut with_icrc = packet.clone();
    icrc::append(&mixed, &mut with_icrc);
    assert!(!icrc::verify(&mixed, &with_icrc, Ids::Any));
}

fn some_message(random: &mut Rng) -> cm::Repr {
    let names = cm::Names {
        local: random.next_u64() as u32,
        remote: random.next_u64() as u32,
    };
    let qpn = random.below(1 << 24) as u32;
    let psn = Psn::new(random.next_u64() as u32);
    match random.below(7) {
        0 => cm::Repr::Req(Box::new(cm::Req {
            local: names.local,
            service: random.next_u64(),
            guid: random.next_u64(),
            qpn,
            responder_resources: random.below(256) as u8,
            initiator_depth: random.below(256) as u8,
            remote_timeout: random.below(32) as u8,
            transport: random.below(4) as u8,
            flow_control: random.chance(50),
            psn,
            local_timeout: random.below(32) as u8,
            retry_count: random.below(8) as u8,
            partition: random.next_u64() as u16,
            mtu: random.below(16) as u8,
            rnr_retry_count: random.below(8) as u8,
            cm_retries: random.below(16) as u8,
            local_gid: some_bytes(random),
            remote_gid: some_bytes(random),
            hop_limit: random.below(256) as u8,
            ack_timeout: random.below(32) as u8,
            private: some_bytes(random),
        })),
        1 => cm::Repr::Mra {
            names,
            answered: random.below(4) as u8,
            timeout: random.below(32) as u8,
        },
        2 => cm::Repr::Rej(Box::new(cm::Rej {
            local: names.local,
            remote: names.remote,
            refused: random.below(4) as u8,
            reason: cm::Reason(random.next_u64() as u16),
            guid: random.chance(50).then(|| random.next_u64()),
            private: some_bytes(random),
        })),
        3 => cm::Repr::Rep(Box::new(cm::Rep {
            local: names.local,
            remote: names.remote,
            qpn,
            psn,
            responder_resources: random.below(256) as u8,
            initiator_depth: random.below(256) as u8,
            ack_delay: random.below(32) as u8,
            flow_control: random.chance(50),
            rnr_retry_count: random.below(8) as u8,
            guid: random.next_u64(),
            private: some_bytes(random),
        })),
        4 => cm::Repr::Rtu(names),
        5 => cm::Repr::Dreq { names, remote_qpn: qpn },
        _ => cm::Repr::Drep(names),
    }
}

#[test]
fn every_message_of_connections_is_read_as_it_was_written() {
    let random = &mut random();
    for _ in 0..2_000 {
        let message = some_message(random);
        let transaction = random.next_u64();
        let bytes = message.emit(transaction);
        let packet = mad::Packet::new_checked(&bytes).unwrap();
        assert_eq!(cm::Repr::parse(&packet).unwrap(), (transaction, message));
        assert_eq!(mad::Packet::new_checked(&bytes[1..]).unwrap_err(), Error::Truncated);
        for (byte, wrong) in [
            (0, Error::Version(9)),
            (1, Error::Class(9)),
            (2, Error::Version(9)),
            (3, Error::Reserved(9)),
            (17, Error::Reserved(9)),
        ] {
            let mut bytes = bytes;
            bytes[byte] = 9;
            let packet = mad::Packet::new_checked(&bytes).unwrap();
            assert_eq!(cm::Repr::parse(&packet).unwrap_err(), wrong);
        }
    }
}

/// Places of a few fields, counted by hand from the standard's tables and Linux's `ibta_vol1_c12.h`.
#[test]
fn fields_of_a_request_are_where_the_standard_has_them() {
    let mut request = vec![0; mad::BYTES];
    request[..4].copy_from_slice(&[1, 7, 2, 3]);
    request[17] = 0x10;
    let content = mad::HEADER_BYTES;
    request[content + 8..][..8].copy_from_slice(&private::service_of_port(4_420).to_be_bytes());
    request[content + 33..][..2].copy_from_slice(&[0x12, 0x34]);
    request[content + 43] = 20 << 3 | 1;
    request[content + 47] = 19 << 3 | 5;
    request[content + 50] = 3 << 4 | 6;
    request[content + 51] = 15 << 4;
    request[content + 95] = 18 << 3;
    let packet = mad::Packet::new_checked(&request).unwrap();
    let (_, cm::Repr::Req(req)) = cm::Repr::parse(&packet).unwrap() else {
        panic!("not a request");
    };
    assert_eq!((req.service, req.qpn), (0x0106_1144, 0x1234));
    assert_eq!((req.remote_timeout, req.transport, req.flow_control), (20, 0, true));
    assert_eq!((req.local_timeout, req.retry_count), (19, 5));
    assert_eq!(cm::Mtu::from_code(req.mtu), Some(cm::Mtu::B1024));
    assert_eq!((req.rnr_retry_count, req.cm_retries, req.ack_timeout), (6, 15, 18));
    assert_eq!(cm::Mtu::B4096.bytes(), 4096);
    assert_eq!(cm::Mtu::B256.bytes(), 256);
    assert_eq!(cm::Mtu::from_code(0), None);
}

#[test]
fn addresses_before_private_data_are_read_as_they_were_written() {
    let pairs = [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")];
    for (source, destination) in pairs {
        let header = private::Repr {
            source_port: 51_000,
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
        };
        let mut bytes = [0xee; private::BYTES];
        header.emit(&mut bytes);
        let packet = private::Packet::new_checked(&bytes).unwrap();
        assert_eq!(private::Repr::parse(&packet), Ok(header));
        bytes[1] = 0x50;
        let packet = private::Packet::new_checked(&bytes).unwrap();
        assert_eq!(private::Repr::parse(&packet), Err(Error::Version(5)));
        bytes[0] = 0x20;
        let packet = private::Packet::new_checked(&bytes).unwrap();
        assert_eq!(private::Repr::parse(&packet), Err(Error::Version(2)));
    }
}
