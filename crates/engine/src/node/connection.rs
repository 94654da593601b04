//! One connection: frames over TLS over TCP. One thread reads, another one writes.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};

use super::tls::UnknownKey;
use crate::keys::PublicKey;

/// Bytes that are read at a time.
const CHUNK: usize = 1 << 16;
/// Length of a frame's head.
const HEAD: usize = 4;

/// A connection whose ends have proved their keys.
pub(crate) struct Secure {
    socket: TcpStream,
    tls: Mutex<Connection>,
}

impl std::fmt::Debug for Secure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secure").field("peer", &self.socket.peer_addr().ok()).finish_non_exhaustive()
    }
}

/// What has been read and not yet taken.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    bytes: Vec<u8>,
    /// Bytes at the front that were taken.
    taken: usize,
    chunk: Vec<u8>,
}

impl Secure {
    /// The side that has connected.
    pub(super) fn connect(socket: TcpStream, config: Arc<ClientConfig>, deadline: Instant) -> io::Result<Self> {
        // Raw keys have no names; the name is not sent either.
        let name = ServerName::try_from("node").map_err(io::Error::other)?;
        let tls = ClientConnection::new(config, name).map_err(io::Error::other)?;
        Self::start(socket, tls.into(), deadline)
    }

    /// The side that has accepted.
    pub(super) fn accept(socket: TcpStream, config: Arc<ServerConfig>, deadline: Instant) -> io::Result<Self> {
        let tls = ServerConnection::new(config).map_err(io::Error::other)?;
        Self::start(socket, tls.into(), deadline)
    }

    fn start(socket: TcpStream, tls: Connection, deadline: Instant) -> io::Result<Self> {
        let secure = Self { socket, tls: Mutex::new(tls) };
        secure.handshake(deadline)?;
        Ok(secure)
    }

    /// Until `deadline` at the latest, however slowly the other end writes.
    fn handshake(&self, deadline: Instant) -> io::Result<()> {
        let (mut socket, mut tls) = (&self.socket, self.tls());
        socket.set_nodelay(true)?;
        tls.set_buffer_limit(None);
        while tls.is_handshaking() {
            set_timeouts(socket, deadline)?;
            if tls.wants_write() {
                tls.write_tls(&mut socket)?;
            } else if tls.read_tls(&mut socket)? == 0 {
                return Err(closed());
            } else if let Err(error) = tls.process_new_packets() {
                // The other end learns why.
                let _gone = tls.write_tls(&mut socket);
                return Err(explain(error));
            }
        }
        while tls.wants_write() {
            tls.write_tls(&mut socket)?;
        }
        Ok(())
    }

    /// From now on reading waits for ever, and writing for `write` at most.
    pub(super) fn established(&self, write: Duration) -> io::Result<()> {
        self.socket.set_read_timeout(None)?;
        self.socket.set_write_timeout(Some(write))
    }

    fn tls(&self) -> MutexGuard<'_, Connection> {
        self.tls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the other end has this key.
    pub(super) fn peer_has(&self, key: PublicKey) -> bool {
        let tls = self.tls();
        let shown = tls.peer_certificates().and_then(|shown| shown.first());
        shown.is_some_and(|shown| shown.as_ref() == key.to_der().as_ref())
    }

    /// Where the other end is.
    pub(super) fn peer_address(&self) -> String {
        self.socket.peer_addr().map_or_else(|_| "?".into(), |address| address.to_string())
    }

    /// Sends whole frames ([`begin_frame`], [`end_frame`]).
    pub(super) fn send(&self, frames: &[u8]) -> io::Result<()> {
        let mut sealed = Vec::with_capacity(frames.len() + 64);
        {
            let mut tls = self.tls();
            tls.writer().write_all(frames)?;
            while tls.wants_write() {
                tls.write_tls(&mut sealed)?;
            }
        }
        // Not under the lock: a full socket must not keep the reader from reading.
        (&self.socket).write_all(&sealed)
    }

    /// Reads until there is a whole frame, of up to `most` bytes, and gives it to `take`.
    pub(super) fn receive<T>(
        &self,
        incoming: &mut Incoming,
        most: usize,
        deadline: Option<Instant>,
        take: impl FnOnce(&[u8]) -> T,
    ) -> io::Result<T> {
        loop {
            let waiting = &incoming.bytes[incoming.taken..];
            if let Some((head, rest)) = waiting.split_first_chunk::<HEAD>() {
                let length = u32::from_le_bytes(*head) as usize;
                if length > most {
                    let why = format!("a frame of {length} bytes, allowed are {most}");
                    return Err(io::Error::new(io::ErrorKind::InvalidData, why));
                }
                if let Some(frame) = rest.get(..length) {
                    let result = take(frame);
                    incoming.taken += HEAD + length;
                    return Ok(result);
                }
            }
            incoming.bytes.drain(..incoming.taken);
            incoming.taken = 0;
            if let Some(deadline) = deadline {
                set_timeouts(&self.socket, deadline)?;
            }
            self.read(incoming)?;
        }
    }

    fn read(&self, incoming: &mut Incoming) -> io::Result<()> {
        // What came along with the handshake is there already.
        if self.drain(&mut incoming.bytes, &mut &[][..])? {
            return Ok(());
        }
        incoming.chunk.resize(CHUNK, 0);
        // Not under the lock: it is held by nobody who waits.
        let count = (&self.socket).read(&mut incoming.chunk)?;
        if count == 0 {
            return Err(closed());
        }
        self.drain(&mut incoming.bytes, &mut &incoming.chunk[..count])?;
        Ok(())
    }

    /// Opens `sealed`; says whether something came out.
    fn drain(&self, plain: &mut Vec<u8>, sealed: &mut &[u8]) -> io::Result<bool> {
        let mut tls = self.tls();
        let before = plain.len();
        loop {
            if !sealed.is_empty() {
                tls.read_tls(sealed)?;
            }
            let state = tls.process_new_packets().map_err(explain)?;
            let (count, start) = (state.plaintext_bytes_to_read(), plain.len());
            plain.resize(start + count, 0);
            tls.reader().read_exact(&mut plain[start..])?;
            if state.peer_has_closed() {
                return Err(closed());
            }
            if sealed.is_empty() {
                return Ok(plain.len() > before);
            }
        }
    }

    /// Ends it; whoever reads or writes gets an error.
    pub(super) fn shutdown(&self) {
        let _closed_already = self.socket.shutdown(Shutdown::Both);
    }
}

impl Drop for Secure {
    fn drop(&mut self) {
        // Whoever ends threads has a copy of the socket, which would keep it open.
        self.shutdown();
    }
}

/// Begins a frame in `out`; its length comes later.
pub(super) fn begin_frame(out: &mut Vec<u8>) -> usize {
    out.extend_from_slice(&[0; HEAD]);
    out.len()
}

/// Ends the frame that began at `start`.
pub(super) fn end_frame(out: &mut [u8], start: usize) {
    let length = u32::try_from(out.len() - start).expect("frames are bounded by `MAX_PACKET`");
    out[start - HEAD..start].copy_from_slice(&length.to_le_bytes());
}

/// A frame of its own.
pub(super) fn frame(content: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEAD + content.len());
    let start = begin_frame(&mut out);
    out.extend_from_slice(content);
    end_frame(&mut out, start);
    out
}

fn set_timeouts(socket: &TcpStream, deadline: Instant) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::Error::new(io::ErrorKind::TimedOut, "the other end is too slow"));
    }
    socket.set_read_timeout(Some(left))?;
    socket.set_write_timeout(Some(left))
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the other end has closed the connection")
}

/// Says what a failed handshake means here.
fn explain(error: rustls::Error) -> io::Error {
    use rustls::{AlertDescription, CertificateError, Error};
    match &error {
        Error::InvalidCertificate(CertificateError::Other(_)) => io::Error::other(UnknownKey),
        Error::AlertReceived(AlertDescription::CertificateUnknown | AlertDescription::BadCertificate) => {
            io::Error::other("the other end has another `public_key` for this node in its `system.peer_endpoints`")
        }
        _ => io::Error::other(format!("TLS: {error}")),
    }
}
