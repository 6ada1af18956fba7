//! The sources of connections, as bounds count them; and log lines that a peer can cause, at a bounded rate.
//!
//! Contents: [`Source`], the unit in which a server counts the resources of one machine; [`BoundedPeers`], which keeps
//! state for a bounded number of peers; [`Throttle`], which keeps a flood of events from becoming a flood of log lines.

mod bounded_peers;

use std::net::IpAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

pub use bounded_peers::BoundedPeers;

/// The origin of a connection. All loopback addresses are one source, and so is a network of 64 bits of IPv6: a single
/// host can use every address of either.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Source(u128);

impl Source {
    /// The source that an address belongs to.
    pub fn of(address: IpAddr) -> Source {
        const LOOPBACK: u128 = 1;
        const NETWORK: u128 = !(u64::MAX as u128);
        match address.to_canonical() {
            address if address.is_loopback() => Source(LOOPBACK),
            // As IPv6 writes them, below a prefix that no other host has.
            IpAddr::V4(address) => Source(u128::from(address.to_ipv6_mapped())),
            IpAddr::V6(address) => Source(u128::from(address) & NETWORK),
        }
    }
}

/// How often the events behind one [`Throttle`] become a line.
const PERIOD: Duration = Duration::from_secs(1);

/// Admits one log line of a kind per second, and counts the suppressed ones.
#[derive(Debug, Default)]
pub struct Throttle {
    /// When the last line was admitted, and how many were suppressed since.
    state: Mutex<(Option<Instant>, u64)>,
}

impl Throttle {
    /// A throttle that has admitted nothing yet.
    pub const fn new() -> Throttle {
        Throttle {
            state: Mutex::new((None, 0)),
        }
    }

    /// Whether to write a line now; if so, how many were suppressed since the last one.
    pub fn admit(&self) -> Option<u64> {
        let mut state = self.state.lock();
        let now = Instant::now();
        match state.0 {
            Some(last) if now.duration_since(last) < PERIOD => {
                state.1 += 1;
                None
            }
            _ => {
                state.0 = Some(now);
                Some(std::mem::take(&mut state.1))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_host_is_one_source_whichever_of_its_addresses_it_uses() {
        let of = |text: &str| Source::of(text.parse().unwrap());
        assert_eq!(of("127.0.0.1"), of("127.9.8.7"));
        assert_eq!(of("127.0.0.1"), of("::1"));
        assert_eq!(of("192.0.2.1"), of("::ffff:192.0.2.1"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1:2:3"));
        for (one, other) in [
            ("192.0.2.1", "192.0.2.2"),
            ("2001:db8::1", "2001:db8:0:1::1"),
            ("127.0.0.1", "0.0.0.0"),
            ("192.0.2.1", "::"),
        ] {
            assert_ne!(of(one), of(other), "{one} {other}");
        }
    }

    #[test]
    fn a_flood_of_events_is_one_line_a_second() {
        let throttle = Throttle::new();
        assert_eq!(throttle.admit(), Some(0));
        assert!((0..1000).all(|_| throttle.admit().is_none()));
        throttle.state.lock().0 = Some(Instant::now() - PERIOD);
        assert_eq!(throttle.admit(), Some(1000), "the next line says how many there were");
    }
}
