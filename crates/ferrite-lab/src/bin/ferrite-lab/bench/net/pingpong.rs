//! The raw transport: a process that answers messages of any length with messages of any length.
//!
//! A message is the length of its payload (32 bits), the length of the answer's payload (32 bits), and the payload. An
//! answer is its payload. Neither side looks at payloads.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};

use crate::{FAILED, Failure, Outcome, say};

const HEAD_BYTES: usize = 8;
/// Longest payload.
const PAYLOAD_BYTES_MAX: usize = 8 << 20;

/// The answering process: serves connections, one at a time, until it is killed.
pub(crate) fn echo() -> Outcome {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    say(format_args!("{}", listener.local_addr()?));
    let mut buf = vec![0; HEAD_BYTES + PAYLOAD_BYTES_MAX];
    for stream in listener.incoming() {
        let stream = stream?;
        stream.set_nodelay(true)?;
        // After a client disconnects, the next one can connect.
        let _ = serve(&stream, &mut buf);
    }
    Ok(0)
}

fn serve(mut stream: &TcpStream, buf: &mut [u8]) -> io::Result<()> {
    loop {
        let mut filled = 0;
        let mut wanted = HEAD_BYTES;
        let mut answer_bytes = 0;
        while filled < wanted {
            let count = stream.read(&mut buf[filled..])?;
            if count == 0 {
                return Ok(());
            }
            filled += count;
            if let Some(&[a, b, c, d, e, f, g, h]) = buf[..filled].first_chunk::<HEAD_BYTES>() {
                wanted = HEAD_BYTES + u32::from_le_bytes([a, b, c, d]) as usize;
                answer_bytes = u32::from_le_bytes([e, f, g, h]) as usize;
                if wanted > buf.len() || answer_bytes > buf.len() {
                    return Err(io::ErrorKind::InvalidData.into());
                }
            }
        }
        stream.write_all(&buf[..answer_bytes])?;
    }
}

/// The asking side.
pub(super) struct PingPong {
    stream: TcpStream,
    buf: Vec<u8>,
}

impl PingPong {
    pub(super) fn connect(address: &str) -> Result<PingPong, Failure> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(PingPong {
            stream,
            buf: vec![0; HEAD_BYTES + PAYLOAD_BYTES_MAX],
        })
    }

    /// Sends a message of `payload_bytes`, and receives an answer of `answer_bytes`.
    pub(super) fn exchange(&mut self, payload_bytes: usize, answer_bytes: usize) -> Result<(), Failure> {
        let too_long = || Failure::new(FAILED, "a message of the benchmark is too long");
        let head = [payload_bytes, answer_bytes].map(|len| (len as u32).to_le_bytes());
        self.buf[..HEAD_BYTES].copy_from_slice(&head.concat());
        let message = self.buf.get(..HEAD_BYTES + payload_bytes).ok_or_else(too_long)?;
        self.stream.write_all(message)?;
        let answer = self.buf.get_mut(..answer_bytes).ok_or_else(too_long)?;
        Ok(self.stream.read_exact(answer)?)
    }
}
