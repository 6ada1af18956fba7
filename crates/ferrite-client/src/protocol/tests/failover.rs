//! Several servers, one of which owns the volume: the order of attempts, and the time until the client has found the
//! owner.
//!
//! Contents: [`World`], servers in virtual time, each of which answers an attempt in its way.

use std::collections::BTreeMap;

use super::*;

/// How a server answers an attempt.
#[derive(Debug, Clone)]
enum Server {
    Owner,
    /// It names the owner, or nothing.
    Standby(&'static str),
    /// Its machine answers that no program listens.
    Down,
    /// Its machine does not answer.
    Dead,
    /// It takes connections and answers nothing.
    Stopped,
    Refuses(FsError),
}

/// See the head of this module.
struct World {
    now: Instant,
    servers: BTreeMap<&'static str, Server>,
    protocol: Protocol<u64>,
    /// The addresses of attempts, with the time of each since the beginning.
    attempts: Vec<(String, Duration)>,
    began: Instant,
}

impl World {
    /// A client that is connected to the first of the servers, which then change to these.
    fn new(servers: &[(&'static str, Server)]) -> World {
        let now = Instant::now();
        let names: Vec<&str> = servers.iter().map(|(name, _)| *name).collect();
        let mut protocol = Protocol::new(list(&names.join(",")), now);
        protocol.begin_attempts(now);
        let first = protocol.first_attempt(10_000 * MS);
        assert_eq!(&*first.address, names[0]);
        protocol.welcomed(&welcome(7, SessionState::New, 30_000));
        protocol.established(1);
        // The connection lasts.
        let now = now + 60_000 * MS;
        World {
            now,
            servers: servers.iter().cloned().collect(),
            protocol,
            attempts: Vec::new(),
            began: now,
        }
    }

    /// The answer to an attempt, after the time that it takes.
    fn attempt(&mut self, attempt: &Attempt) -> Option<Failure> {
        let address = attempt.address.to_string();
        self.attempts.push((address.clone(), self.now - self.began));
        let server = self
            .servers
            .get(&*address)
            .expect("it connects to servers of the list only");
        let (took, failure) = match server {
            Server::Owner => (MS, None),
            Server::Standby(named) => (MS, Some(Failure::NotOwner((*named).to_owned()))),
            Server::Down => (Duration::ZERO, Some(Failure::Transient)),
            Server::Dead => (attempt.connect, Some(Failure::Transient)),
            Server::Stopped => (attempt.limit, Some(Failure::Transient)),
            Server::Refuses(why) => (MS, Some(Failure::Refused(why.clone()))),
        };
        self.now += took;
        failure
    }

    /// The connection ends, and a caller connects until `end`, or until it gives up.
    fn connect(&mut self, loss: &Loss, end: Duration) -> Result<(), FsError> {
        assert!(self.protocol.lost(&1, loss));
        self.seek(end)
    }

    /// Connects until `end`.
    fn seek(&mut self, end: Duration) -> Result<(), FsError> {
        let seeker = self.protocol.seeker(true);
        assert_eq!(self.protocol.seek(&seeker), Seek::Connect);
        let deadline = self.began + end;
        let mut at = self.protocol.begin_attempts(self.now);
        loop {
            self.now = self.now.max(at);
            let attempt = self.protocol.attempt().expect("the client is open");
            let Some(failure) = self.attempt(&attempt) else {
                self.protocol.welcomed(&welcome(7, SessionState::ToReclaim, 30_000));
                self.protocol.established(1);
                return Ok(());
            };
            match self.protocol.attempt_failed(failure, Some(deadline), self.now, LATEST) {
                AfterFailure::RetryAt(next) => at = next,
                AfterFailure::GiveUp(why) => return Err(why),
            }
        }
    }

    fn order(&self) -> Vec<&str> {
        self.attempts.iter().map(|(address, _)| &**address).collect()
    }

    /// The longest time between two attempts at a server.
    fn longest_wait(&self, server: &str) -> Duration {
        let times: Vec<Duration> = self
            .attempts
            .iter()
            .filter(|it| it.0 == server)
            .map(|it| it.1)
            .collect();
        times
            .windows(2)
            .map(|two| two[1] - two[0])
            .max()
            .expect("it was tried twice")
    }
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn each_server_is_tried_in_turn_from_the_last_that_worked() {
    let mut world = World::new(&[("a:1", Server::Down), ("b:1", Server::Down), ("c:1", Server::Owner)]);
    assert_eq!(world.connect(&Loss::Broken, SECOND), Ok(()));
    assert_eq!(world.order(), ["a:1", "b:1", "c:1"]);
    assert!(world.now - world.began < 5 * MS, "no pause within a round");
    world.attempts.clear();
    *world.servers.get_mut("c:1").unwrap() = Server::Down;
    *world.servers.get_mut("b:1").unwrap() = Server::Owner;
    assert_eq!(world.connect(&Loss::Broken, SECOND), Ok(()));
    assert_eq!(world.order(), ["c:1", "a:1", "b:1"]);
    assert_eq!(world.protocol.reconnects(), 2);
}

/// Of all that wait, one gives up; the next continues with the server that was due.
#[test]
fn another_caller_continues_the_round() {
    let mut world = World::new(&[("a:1", Server::Dead), ("b:1", Server::Owner)]);
    assert_eq!(world.connect(&Loss::Broken, SECOND / 2), Err(FsError::TimedOut));
    assert_eq!(world.seek(5 * SECOND), Ok(()));
    assert_eq!(world.order(), ["a:1", "b:1"]);
}

#[test]
fn a_named_owner_is_tried_at_once_and_only_if_the_list_has_it() {
    let standby = || Server::Standby("C");
    let servers = [
        ("a:1", Server::Standby("c")),
        ("b:1", standby()),
        ("c:7447", Server::Owner),
    ];
    let mut world = World::new(&servers);
    assert_eq!(world.connect(&Loss::Broken, SECOND), Ok(()));
    assert_eq!(world.order(), ["a:1", "c:7447"]);
    for named in ["elsewhere:1", "c:1", "", "b:1,c:7447", "\u{fffd}"] {
        let servers = [
            ("a:1", Server::Standby(named)),
            ("b:1", standby()),
            ("c:7447", Server::Owner),
        ];
        let mut world = World::new(&servers);
        assert_eq!(world.connect(&Loss::Broken, SECOND), Ok(()));
        assert_eq!(world.order(), ["a:1", "b:1", "c:7447"], "{named}");
    }
    let protocol: Protocol<u64> = Protocol::new(list("a,b:2"), Instant::now());
    assert!(protocol.has_server("A:7447") && protocol.has_server("b:2") && !protocol.has_server("b"));
}

/// The owner hands over, and says so on the connection: the client begins with the server that it names.
#[test]
fn the_reply_to_a_request_names_where_the_next_attempt_goes() {
    for (named, expected) in [
        ("c", &["c:7447"][..]),
        ("", &["b:1", "c:7447"]),
        ("a:1", &["b:1", "c:7447"]),
    ] {
        let servers = [
            ("a:1", Server::Standby("c")),
            ("b:1", Server::Down),
            ("c:7447", Server::Owner),
        ];
        let mut world = World::new(&servers);
        assert_eq!(world.connect(&Loss::NotOwner(named.to_owned()), SECOND), Ok(()));
        assert_eq!(world.order(), expected, "{named}");
        assert!(
            world.now - world.began < 5 * MS,
            "a connection that lasted is followed by the next at once"
        );
    }
}

#[test]
fn servers_that_name_each_other_cost_no_more_than_others() {
    let mut world = World::new(&[("a:1", Server::Standby("b:1")), ("b:1", Server::Standby("a:1"))]);
    assert_eq!(world.connect(&Loss::Broken, 60 * SECOND), Err(FsError::TimedOut));
    let count = world.attempts.len();
    assert!((120..160).contains(&count), "{count} attempts in a minute");
    assert!(world.longest_wait("a:1") <= SECOND && world.longest_wait("b:1") <= SECOND);
    // A third server, which neither names, gets its turn.
    let servers = [
        ("a:1", Server::Standby("b:1")),
        ("b:1", Server::Standby("a:1")),
        ("c:1", Server::Owner),
    ];
    let mut world = World::new(&servers);
    assert_eq!(world.connect(&Loss::Broken, SECOND), Ok(()));
    assert_eq!(world.order(), ["a:1", "b:1", "c:1"]);
}

/// Servers that welcome the client, and answer its first request with the name of another.
#[test]
fn servers_that_welcome_and_then_disown_the_client_do_not_keep_it_busy() {
    let mut world = World::new(&[("a:1", Server::Owner), ("b:1", Server::Owner), ("c:1", Server::Owner)]);
    let named = |address: &str| Loss::NotOwner(if address == "a:1" { "b:1" } else { "a:1" }.to_owned());
    let mut last = "a:1".to_owned();
    while world.now - world.began < 60 * SECOND {
        assert_eq!(world.connect(&named(&last), 100 * SECOND), Ok(()));
        last = world.attempts.last().unwrap().0.clone();
    }
    let count = world.attempts.len();
    assert!((60..80).contains(&count), "{count} connections in a minute");
    assert!(world.order()[..4].contains(&"c:1"), "{:?}", &world.order()[..4]);
    // After the next loss of another kind it is as before.
    world.now += SECOND;
    let before = world.now;
    assert_eq!(world.connect(&Loss::Broken, 1000 * SECOND), Ok(()));
    assert_eq!(world.connect(&Loss::Broken, 1000 * SECOND), Ok(()));
    assert!(world.now - before <= 25 * MS);
}

/// The owner's machine dies, and a standby owns the volume ten seconds later: two more are the client's own.
#[test]
fn a_successor_is_found_within_two_seconds_of_its_takeover() {
    for old in [Server::Down, Server::Dead, Server::Stopped] {
        for takeover_ms in (9_000..11_000).step_by(37) {
            let loss = match old {
                Server::Down => Loss::Broken,
                _ => Loss::Silent,
            };
            let servers = [
                ("a:1", old.clone()),
                ("b:1", Server::Standby("a:1")),
                ("c:1", Server::Dead),
            ];
            let mut world = World::new(&servers);
            if loss == Loss::Silent {
                let Turn::Watch(_, lease) = world.protocol.turn() else {
                    panic!("there is a connection to watch");
                };
                world.now += 6 * SECOND + lease.tick();
                assert_eq!(
                    lease.health(world.now - world.began),
                    Health::Gone,
                    "however long the session lasts"
                );
            }
            let takeover = takeover_ms * MS;
            assert!(world.protocol.lost(&1, &loss));
            // Callers come and give up, as the watcher does.
            while world
                .seek((takeover).min(world.now - world.began + 5 * SECOND))
                .is_err()
            {
                if world.now - world.began >= takeover {
                    *world.servers.get_mut("b:1").unwrap() = Server::Owner;
                    assert_eq!(world.seek(takeover + 20 * SECOND), Ok(()));
                    break;
                }
            }
            let found = world.now - world.began;
            assert!(
                found <= takeover + 2 * SECOND,
                "{old:?}: {found:?} after a takeover at {takeover:?}"
            );
            assert!(found >= takeover, "{found:?}");
        }
    }
}

/// A machine that is down costs a second now and then, and no more.
#[test]
fn servers_that_do_not_answer_rest() {
    let servers = [
        ("a:1", Server::Dead),
        ("b:1", Server::Stopped),
        ("c:1", Server::Standby("a:1")),
        ("d:1", Server::Dead),
    ];
    let mut world = World::new(&servers);
    assert_eq!(world.connect(&Loss::Broken, 120 * SECOND), Err(FsError::TimedOut));
    let count = |server: &str| world.order().into_iter().filter(|address| *address == server).count();
    assert!((10..=24).contains(&count("a:1")) && (10..=24).contains(&count("d:1")));
    assert!((3..=6).contains(&count("b:1")), "{}", count("b:1"));
    assert!(count("c:1") > 60, "{}", count("c:1"));
    // All are dead: the client still tries.
    let mut world = World::new(&[("a:1", Server::Dead), ("b:1", Server::Dead)]);
    assert_eq!(world.connect(&Loss::Broken, 60 * SECOND), Err(FsError::TimedOut));
    assert!(world.longest_wait("a:1") <= 5 * SECOND && world.longest_wait("b:1") <= 5 * SECOND);
}

#[test]
fn an_owner_that_comes_back_is_found() {
    for down in [Server::Down, Server::Dead, Server::Standby(""), Server::Standby("b:1")] {
        let mut world = World::new(&[("a:1", down.clone()), ("b:1", Server::Standby("a:1"))]);
        assert_eq!(world.connect(&Loss::Broken, 30 * SECOND), Err(FsError::TimedOut));
        *world.servers.get_mut("a:1").unwrap() = Server::Owner;
        let back = world.now;
        assert_eq!(world.seek(60 * SECOND), Ok(()));
        assert_eq!(world.order().last(), Some(&"a:1"));
        let found = world.now - back;
        assert!(found <= 5 * SECOND, "{down:?}: {found:?}");
    }
    // The only server of the list, too.
    let mut world = World::new(&[("a:1", Server::Standby("elsewhere:1"))]);
    assert_eq!(world.connect(&Loss::Broken, 30 * SECOND), Err(FsError::TimedOut));
    *world.servers.get_mut("a:1").unwrap() = Server::Owner;
    assert_eq!(world.seek(32 * SECOND), Ok(()));
}

/// A refusal ends the calls that wait if no server is left that may accept the client.
#[test]
fn a_refusal_is_final_if_no_other_server_can_be_the_owner() {
    let refuses = || Server::Refuses(FsError::AccessDenied);
    let full = Server::Refuses(FsError::TooManySessions(SessionsOf::Export));
    for (other, is_final) in [
        (refuses(), true),
        (Server::Standby("b:1"), true),
        (Server::Standby(""), false),
        (Server::Standby("elsewhere:1"), false),
        (Server::Down, false),
        (Server::Dead, false),
        (full, false),
    ] {
        let mut world = World::new(&[("a:1", other.clone()), ("b:1", refuses())]);
        let expected = if is_final {
            FsError::AccessDenied
        } else {
            FsError::TimedOut
        };
        assert_eq!(world.connect(&Loss::Broken, 10 * SECOND), Err(expected), "{other:?}");
        if is_final {
            assert_eq!(world.order(), ["a:1", "b:1"]);
        }
    }
    let mut world = World::new(&[("a:1", refuses()), ("b:1", Server::Owner)]);
    assert_eq!(world.connect(&Loss::Broken, SECOND), Ok(()), "the other accepts it");
}

/// Connects for the first time, within ten seconds.
fn connect_first(world: &mut World) -> bool {
    let names: Vec<&str> = world.servers.keys().copied().collect();
    let deadline = world.now + 10 * SECOND;
    world.protocol = Protocol::new(list(&names.join(",")), world.now);
    let mut at = world.protocol.begin_attempts(world.now);
    loop {
        world.now = world.now.max(at);
        let attempt = world.protocol.first_attempt(deadline - world.now);
        let Some(failure) = world.attempt(&attempt) else {
            return true;
        };
        match world.protocol.first_failed(&failure, deadline, world.now, LATEST) {
            Some(next) => at = next,
            None => return false,
        }
    }
}

#[test]
fn the_first_connection_tries_all_and_waits_for_an_owner_only() {
    let connect = |servers: &[(&'static str, Server)]| {
        let mut world = World::new(servers);
        let is_connected = connect_first(&mut world);
        let took = world.now - world.began;
        assert!(took <= 11 * SECOND, "{servers:?}: {took:?}");
        (is_connected, world.attempts.len(), took)
    };
    let (stopped, dead, owner) = (Server::Stopped, Server::Dead, Server::Owner);
    let (is_connected, _, took) = connect(&[("a:1", stopped), ("b:1", dead.clone()), ("c:1", owner)]);
    assert!(is_connected && took < 6 * SECOND, "{took:?}");
    // No server that answers expects an owner: each is tried once.
    let refuses = Server::Refuses(FsError::AccessDenied);
    for (servers, attempts) in [
        (vec![("a:1", Server::Down)], 1),
        (vec![("a:1", Server::Down), ("b:1", dead.clone())], 2),
        (vec![("a:1", Server::Down), ("b:1", refuses.clone())], 2),
        (vec![("a:1", refuses)], 1),
    ] {
        let (is_connected, count, _) = connect(&servers);
        assert!(!is_connected && count == attempts, "{servers:?}: {count}");
    }
    for servers in [
        vec![("a:1", Server::Standby(""))],
        vec![("a:1", dead), ("b:1", Server::Standby("a:1"))],
    ] {
        let (is_connected, count, took) = connect(&servers);
        assert!(
            !is_connected && count > 10 && took >= 9 * SECOND,
            "{servers:?}: {count} in {took:?}"
        );
    }
}
