//! A TCP proxy between two nodes that can be told to break connections, or to hold everything back.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};

#[derive(Default)]
struct State {
    target: Option<SocketAddr>,
    held: bool,
    connections: Vec<TcpStream>,
    accepted: usize,
    /// Bytes that passed.
    bytes: u64,
    /// Connections break when `bytes` gets there.
    break_at: u64,
    break_every: u64,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// The proxy. Its threads end with the process.
pub(crate) struct Proxy {
    shared: Arc<Shared>,
    pub(crate) address: SocketAddr,
}

impl Proxy {
    pub(crate) fn new(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let shared = Arc::new(Shared::default());
        shared.state.lock().expect("no panics").target = Some(target);
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || listener.incoming().flatten().for_each(|stream| accepting.connect(stream)));
        Self { shared, address }
    }

    /// Connections go there from now on.
    pub(crate) fn set_target(&self, target: SocketAddr) {
        self.shared.state.lock().expect("no panics").target = Some(target);
    }

    /// Breaks all connections now, and again whenever that many bytes have passed; 0 is never.
    pub(crate) fn break_every(&self, bytes: u64) {
        let mut state = self.shared.state.lock().expect("no panics");
        state.break_every = bytes;
        state.break_all();
    }

    /// Holds everything back, or lets it go on.
    pub(crate) fn hold(&self, held: bool) {
        self.shared.state.lock().expect("no panics").held = held;
        self.shared.changed.notify_all();
    }

    pub(crate) fn accepted(&self) -> usize {
        self.shared.state.lock().expect("no panics").accepted
    }
}

impl State {
    fn break_all(&mut self) {
        self.break_at = self.bytes + self.break_every;
        self.connections.drain(..).for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
    }
}

impl Shared {
    fn connect(self: &Arc<Self>, client: TcpStream) {
        let target = self.state.lock().expect("no panics").target.expect("a target");
        let Ok(server) = TcpStream::connect(target) else { return };
        for stream in [&client, &server] {
            stream.set_nodelay(true).expect("a TCP socket");
        }
        let clone = |stream: &TcpStream| stream.try_clone().expect("a file descriptor");
        let mut state = self.state.lock().expect("no panics");
        state.accepted += 1;
        state.connections.extend([clone(&client), clone(&server)]);
        for (from, to) in [(clone(&client), clone(&server)), (server, client)] {
            let shared = Arc::clone(self);
            std::thread::spawn(move || shared.pump(from, to));
        }
    }

    fn pump(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut buffer = [0; 4096];
        while let Ok(count) = from.read(&mut buffer) {
            let state = self.state.lock().expect("no panics");
            let mut state = self.changed.wait_while(state, |state| state.held).expect("no panics");
            state.bytes += count as u64;
            if state.break_every > 0 && state.bytes >= state.break_at {
                // What was read last is gone, as in a network.
                state.break_all();
            }
            drop(state);
            if count == 0 || to.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        let _closed = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    }
}
