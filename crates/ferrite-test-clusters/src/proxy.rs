//! [`Proxy`]: a network between a program and a server that a test can cut.
//!
//! Bytes that meet a cut wait for its end, as TCP repeats what a network has lost: what was sent before a partition may
//! arrive long after it.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

use crate::error::{Error, Result};

/// The bytes that pass a [`Proxy`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passing {
    /// Everything.
    Both,
    /// Those of programs; answers wait.
    Requests,
    /// Nothing.
    Neither,
}

#[derive(Default)]
struct Switch {
    /// `None`: the proxy has ended.
    passing: Mutex<Option<Passing>>,
    changed: Condvar,
}

impl Switch {
    fn set(&self, passing: Option<Passing>) {
        *self.passing.lock().unwrap_or_else(PoisonError::into_inner) = passing;
        self.changed.notify_all();
    }

    /// Waits until one direction may pass. False at the end of the proxy.
    fn wait(&self, is_request: bool) -> bool {
        let guard = self.passing.lock().unwrap_or_else(PoisonError::into_inner);
        let is_cut = |passing: &mut Option<Passing>| match passing {
            None | Some(Passing::Both) => false,
            Some(Passing::Requests) => !is_request,
            Some(Passing::Neither) => true,
        };
        let guard = self.changed.wait_while(guard, is_cut);
        guard.unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

/// See the head of this module. Dropping it ends its connections.
pub struct Proxy {
    port: u16,
    switch: Arc<Switch>,
}

impl Proxy {
    /// Starts one to a port of 127.0.0.1.
    ///
    /// # Errors
    ///
    /// The machine has no port or no thread left.
    pub fn start(to: u16) -> Result<Proxy> {
        let failed = |error: std::io::Error| Error::io(std::path::Path::new("a proxy"), &error);
        let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        let switch = Arc::new(Switch::default());
        switch.set(Some(Passing::Both));
        let accepting = Arc::clone(&switch);
        let accept = move || {
            for program in listener.incoming().flatten() {
                let ended = accepting
                    .passing
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .is_none();
                if ended {
                    return;
                }
                // Without the server the connection just ends.
                if let Ok(server) = TcpStream::connect(("127.0.0.1", to)) {
                    let _ = join(&program, &server, &accepting);
                }
            }
        };
        thread::Builder::new()
            .name("proxy".into())
            .spawn(accept)
            .map_err(failed)?;
        Ok(Proxy { port, switch })
    }

    /// Its port of 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Says what passes from now on.
    pub fn set(&self, passing: Passing) {
        self.switch.set(Some(passing));
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.switch.set(None);
        // The thread that accepts looks then.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

/// Starts a thread for each direction of a connection.
fn join(program: &TcpStream, server: &TcpStream, switch: &Arc<Switch>) -> std::io::Result<()> {
    for (from, to, is_request) in [(program, server, true), (server, program, false)] {
        let (from, to, switch) = (from.try_clone()?, to.try_clone()?, Arc::clone(switch));
        let copy = move || copy(&from, &to, &switch, is_request);
        thread::Builder::new().name("proxy".into()).spawn(copy)?;
    }
    Ok(())
}

fn copy(mut from: &TcpStream, mut to: &TcpStream, switch: &Switch, is_request: bool) {
    let mut buffer = [0; 16 << 10];
    loop {
        // The end of a connection waits at a cut, too.
        let found = from.read(&mut buffer);
        let goes_on = switch.wait(is_request);
        match found {
            Ok(len @ 1..) if goes_on && to.write_all(&buffer[..len]).is_ok() => {}
            _ => break,
        }
    }
    let _ = to.shutdown(Shutdown::Write);
    let _ = from.shutdown(Shutdown::Read);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_cut_holds_bytes_back_and_loses_none() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = Proxy::start(server.local_addr().unwrap().port()).unwrap();
        let mut program = TcpStream::connect(("127.0.0.1", proxy.port())).unwrap();
        let (mut server, _) = server.accept().unwrap();
        let mut got = [0; 1];
        let arrives = |stream: &mut TcpStream, got: &mut [u8; 1]| {
            stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
            stream.read_exact(got).is_ok()
        };
        for (passing, request, answer) in [
            (Passing::Both, true, true),
            (Passing::Requests, true, false),
            (Passing::Neither, false, false),
        ] {
            proxy.set(passing);
            program.write_all(b"q").unwrap();
            server.write_all(b"a").unwrap();
            assert_eq!(arrives(&mut server, &mut got), request, "{passing:?}");
            assert_eq!(arrives(&mut program, &mut got), answer, "{passing:?}");
        }
        proxy.set(Passing::Both);
        assert!(arrives(&mut server, &mut got) && arrives(&mut program, &mut got) && arrives(&mut program, &mut got));
        drop(program);
        assert_eq!(server.read(&mut got).unwrap(), 0, "an end passes");
    }
}
