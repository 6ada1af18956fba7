//! Everything together: two hosts connect by rdma_cm over queue pair 1, exchange data, and part, on a bad network.

use ferrite_roce::cm::{self, Event, Id, Manager, Offer, Target};
use ferrite_roce::endpoint::Connection;
use ferrite_roce::requester::{self, Failure, Outcome, Request};
use ferrite_roce::responder;
use ferrite_roce::wire::cm::Mtu;
use ferrite_roce::wire::icrc::Ids;
use ferrite_roce::wire::{Psn, Qpn};
use ferrite_testkit::rng::pattern;
use ferrite_testkit::seed_from_env;

use crate::support::{APPEND, File, Hosts, NetworkFaults};

const PORT: u16 = 4_420;

/// Each end's offer for its queue pair.
fn offer(qpn: Qpn) -> Offer<'static> {
    Offer {
        qpn,
        psn: Psn::new(qpn ^ 0xff_ff00),
        responder_resources: 4,
        initiator_depth: 4,
        rnr_retry_count: 7,
        private: b"",
    }
}

/// The state that both ends share once a connection is made.
struct Peer {
    end: usize,
    ours: Qpn,
    theirs: Qpn,
    psn: Psn,
    mtu: Mtu,
}

fn connect(hosts: &mut Hosts, peer: &Peer) {
    let mut requester = requester::Config::new(peer.theirs, peer.mtu, offer(peer.ours).psn);
    (requester.timeout_ns, requester.retry_count) = (200_000, 30);
    let responder = responder::Config::new(peer.ours, peer.theirs, peer.mtu, peer.psn);
    let (local, other) = (hosts.address(peer.end), hosts.address(1 - peer.end));
    let connected = hosts.ends[peer.end].connect(Connection {
        local,
        peer: other,
        ids: Ids::Any,
        requester,
        responder,
    });
    connected.expect("a number of its own");
}

/// Carries datagrams and handles events, until `is_done`.
fn run(
    hosts: &mut Hosts,
    managers: &mut [Manager; 2],
    numbers: &mut [Option<(Id, Qpn)>; 2],
    is_done: impl Fn(&Hosts, &[Option<(Id, Qpn)>; 2]) -> bool,
) {
    for _ in 0..100_000 {
        if is_done(hosts, numbers) {
            return;
        }
        for (end, manager) in managers.iter_mut().enumerate() {
            while let Some((local, peer, datagram)) = manager.poll_transmit() {
                hosts.ends[end].send_management(local, peer, datagram);
            }
        }
        if !hosts.step() {
            let next_ns = managers.iter().filter_map(Manager::poll_timeout_ns).min();
            hosts.now_ns = next_ns.expect("something is waited for");
        }
        for (end, peer, datagram) in std::mem::take(&mut hosts.management) {
            let _ = managers[end].handle(hosts.now_ns, hosts.address(end), peer, &datagram);
        }
        for end in 0..2 {
            managers[end].handle_timeout(hosts.now_ns);
            while let Some(event) = managers[end].poll_event() {
                match event {
                    Event::Requested { id, request, .. } => {
                        let ours = hosts.ends[end].allocate();
                        let mtu = Mtu::from_code(request.mtu).expect("the manager checks that");
                        let (theirs, psn) = (request.qpn, request.psn);
                        connect(
                            hosts,
                            &Peer {
                                end,
                                ours,
                                theirs,
                                psn,
                                mtu,
                            },
                        );
                        managers[end].accept(hosts.now_ns, id, &offer(ours)).unwrap();
                        numbers[end] = Some((id, ours));
                    }
                    Event::Connected { id, reply } => {
                        let (_, ours) = numbers[end].expect("it asked");
                        let (theirs, psn, mtu) = (reply.qpn, reply.psn, Mtu::B512);
                        connect(
                            hosts,
                            &Peer {
                                end,
                                ours,
                                theirs,
                                psn,
                                mtu,
                            },
                        );
                        numbers[end] = Some((id, ours));
                    }
                    Event::Closed { .. } => {
                        let (_, ours) = numbers[end].take().expect("a connection");
                        let memory = &mut hosts.memories[end];
                        for one in hosts.ends[end].remove(ours, memory) {
                            assert_eq!(one.result, Err(Failure::Flushed));
                        }
                    }
                    Event::Established { .. } => {}
                    other => panic!("{other:?}"),
                }
            }
        }
    }
    panic!("it does not come to an end");
}

#[test]
fn hosts_connect_work_and_part() {
    let seeds = match seed_from_env() {
        Some(seed) => seed..seed + 1,
        None => 0..10,
    };
    for seed in seeds {
        println!("FERRITE_SEED={seed}");
        let mut hosts = Hosts::new(seed, seed % 2 == 0);
        hosts.network_faults = NetworkFaults {
            loss: 5,
            duplication: 5,
            reordering: 5,
            corruption: 3,
        };
        hosts.memories[1].files.insert(1, File::default());
        let config = |end: u64| cm::Config {
            seed: (seed * 10 + end) as u32,
            response_timeout_ns: 1_000_000,
            retries: 30,
            ..cm::Config::default()
        };
        let mut managers = [Manager::new(config(1)), Manager::new(config(5))];
        managers[1].listen(PORT);
        let ours = hosts.ends[0].allocate();
        let target = Target {
            local: hosts.address(0),
            peer: hosts.address(1).ip(),
            port: PORT,
            mtu: Mtu::B512,
            retry_count: 7,
            ack_timeout: 10,
        };
        let id = managers[0].connect(hosts.now_ns, &target, &offer(ours)).unwrap();
        let mut numbers = [Some((id, ours)), None];
        run(&mut hosts, &mut managers, &mut numbers, |hosts, _| {
            hosts.ends[0].get(ours).is_some()
        });
        let data = pattern(9, 5_000);
        let (key, at, immediate) = (1, APPEND, None);
        let append = Request::Write {
            key,
            at,
            data: data.clone(),
            immediate,
        };
        hosts.ends[0].post(ours, 0, append).unwrap();
        let read = Request::Read {
            key,
            at: 0,
            len_bytes: 5_000,
        };
        hosts.ends[0].post(ours, 1, read).unwrap();
        let done = hosts.run(0, ours, 2);
        assert_eq!(done[0].result, Ok(Outcome::Done));
        assert_eq!(done[1].result, Ok(Outcome::Read(data)));
        if let Some((theirs, _)) = numbers[1] {
            // A packet counts as the RTU, which may have been lost.
            managers[1].data_arrived(theirs);
        }
        managers[0].disconnect(hosts.now_ns, id).unwrap();
        run(&mut hosts, &mut managers, &mut numbers, |_, numbers| {
            numbers.iter().all(Option::is_none)
        });
        assert!(hosts.memories[1].is_quiet());
    }
}
