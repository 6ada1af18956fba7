//! The baseline of a provider: round trips without this crate's transport.
//!
//! Contents: [`ping_pong`], the baseline for a transport, which also shows whether a provider works on this machine at
//! all.

use std::time::{Duration, Instant};

use ferrite_buffers::Pool;

use crate::FabricError;
use crate::ofi::{Completion, Endpoint, Kind, PeerId, Provider, Reach};

/// How long the other side may be silent.
const SILENCE: Duration = Duration::from_secs(10);
/// Messages in flight.
const DEPTH: usize = 16;

struct Side {
    endpoint: Endpoint,
    pool: Pool,
    done: Vec<Completion>,
}

impl Side {
    fn open(provider: Provider, host: &str, bytes: usize) -> Result<Side, FabricError> {
        let pool = Pool::new(DEPTH * bytes.max(1)).ok_or(FabricError::Io(std::io::ErrorKind::OutOfMemory.into()))?;
        let mut endpoint = Endpoint::open(provider, Some(host), DEPTH, &pool, Reach::Remote)?;
        for _ in 0..2 {
            if let Some(buffer) = pool.take(bytes) {
                endpoint.receive(buffer)?;
            }
        }
        Ok(Side {
            endpoint,
            pool,
            done: Vec::new(),
        })
    }

    fn send(&mut self, peer: PeerId, bytes: &[u8]) -> Result<(), FabricError> {
        let began = Instant::now();
        loop {
            let is_sent = match bytes.len() <= self.endpoint.inject_bytes() {
                true => self.endpoint.inject(peer, bytes)?,
                false => match self.pool.take(bytes.len()) {
                    Some(mut buffer) => {
                        buffer.copy_from_slice(bytes);
                        self.endpoint.send(peer, buffer, 0)?.is_none()
                    }
                    None => false,
                },
            };
            if is_sent {
                return Ok(());
            }
            self.endpoint.poll(&mut self.done)?;
            self.pause(began)?;
        }
    }

    fn receive(&mut self, bytes: usize) -> Result<(), FabricError> {
        let began = Instant::now();
        loop {
            self.endpoint.poll(&mut self.done)?;
            while let Some(completion) = self.done.pop() {
                if completion.kind == Kind::Received {
                    let is_ok = completion.is_ok && completion.buffer.len() == bytes;
                    let mut buffer = completion.buffer;
                    buffer.set_len(buffer.capacity());
                    self.endpoint.receive(buffer)?;
                    return is_ok.then_some(()).ok_or(FabricError::Foreign);
                }
            }
            self.pause(began)?;
        }
    }

    fn pause(&self, began: Instant) -> Result<(), FabricError> {
        std::thread::yield_now();
        match began.elapsed() < SILENCE {
            true => Ok(()),
            false => Err(FabricError::Stuck(SILENCE)),
        }
    }
}

/// The mean time of a round trip of `bytes` each way between two threads, over `rounds`. `host` is an address of this
/// host; `verbs` needs an adapter's.
pub fn ping_pong(provider: Provider, host: &str, bytes: usize, rounds: u32) -> Result<Duration, FabricError> {
    exchange(provider, host, (bytes, bytes), rounds, || {})
}

/// The same with separate sizes for the two directions. The other thread calls `begin` first, which may choose its
/// core.
pub fn exchange(
    provider: Provider,
    host: &str,
    (bytes_there, bytes_back): (usize, usize),
    rounds: u32,
    begin: impl FnOnce() + Send,
) -> Result<Duration, FabricError> {
    let open = || Side::open(provider, host, bytes_there.max(bytes_back));
    let (mut here, mut there) = (open()?, open()?);
    let to_there = here.endpoint.insert(&there.endpoint.name()?)?;
    let to_here = there.endpoint.insert(&here.endpoint.name()?)?;
    let message = vec![7; bytes_there.max(bytes_back)];
    // The first round trip makes connections.
    let all = rounds + 1;
    std::thread::scope(|scope| {
        let (there, reply) = (&mut there, &message[..bytes_back]);
        let other = scope.spawn(move || {
            begin();
            (0..all).try_for_each(|_| {
                there.receive(bytes_there)?;
                there.send(to_here, reply)
            })
        });
        let mut began = Instant::now();
        for round in 0..all {
            here.send(to_there, &message[..bytes_there])?;
            here.receive(bytes_back)?;
            if round == 0 {
                began = Instant::now();
            }
        }
        let taken = began.elapsed();
        // The other endpoint finishes its operations in its own turns, without this one's help.
        other.join().unwrap_or(Err(FabricError::Closed))?;
        Ok(taken / rounds.max(1))
    })
}
