//! Candidates for the link between nodes: a message of the size of a handoff back and forth over loopback, one thread at each
//! end. `docs/decisions/0006-peer-transport.md` has the results.
//!
//!     cargo run --release --example bench_transports

#![allow(clippy::print_stdout, reason = "an example")]

use std::error::Error;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring::{default_provider, sign::any_eddsa_type};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::version::TLS13;
use rustls::{ClientConnection, DigitallySignedStruct, ServerConnection, SignatureScheme, StreamOwned};

const MESSAGE: usize = 64;
const ROUNDS: usize = 20_000;
const WARM_UP: usize = 2_000;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Takes any key: only the time of messages is of interest here.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

fn tls() -> Result<(rustls::ServerConfig, rustls::ClientConfig)> {
    let head = b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20";
    let key = any_eddsa_type(&PrivatePkcs8KeyDer::from([&head[..], &[7; 32]].concat()))?;
    let public = key.public_key().ok_or("no public key")?;
    let key = rustls::sign::CertifiedKey::new(vec![CertificateDer::from(public.to_vec())], key);
    let provider = Arc::new(default_provider());
    let server = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&TLS13])?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(Arc::new(key))));
    let client = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody))
        .with_no_client_auth();
    Ok((server, client))
}

fn echo(mut stream: impl Read + Write) {
    let mut message = [0; MESSAGE];
    while stream.read_exact(&mut message).is_ok() && stream.write_all(&message).is_ok() {}
}

fn ping(mut stream: impl Read + Write) -> Result<Vec<Duration>> {
    let mut times = Vec::with_capacity(ROUNDS);
    let mut message = [7; MESSAGE];
    for round in 0..ROUNDS + WARM_UP {
        let start = Instant::now();
        stream.write_all(&message)?;
        stream.read_exact(&mut message)?;
        if round >= WARM_UP {
            times.push(start.elapsed() / 2);
        }
    }
    Ok(times)
}

fn sockets() -> Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let client = TcpStream::connect(listener.local_addr()?)?;
    let (server, _) = listener.accept()?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    Ok((client, server))
}

fn over_tcp() -> Result<Vec<Duration>> {
    let (client, server) = sockets()?;
    std::thread::spawn(move || echo(server));
    ping(client)
}

fn over_tls() -> Result<Vec<Duration>> {
    let (server_config, client_config) = tls()?;
    let (client, server) = sockets()?;
    let server = StreamOwned::new(ServerConnection::new(Arc::new(server_config))?, server);
    std::thread::spawn(move || echo(server));
    ping(StreamOwned::new(ClientConnection::new(Arc::new(client_config), ServerName::try_from("node")?)?, client))
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

fn over_quic() -> Result<Vec<Duration>> {
    let (server_config, client_config) = tls()?;
    let config = quinn::ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(server_config)?));
    let (tell, address) = std::sync::mpsc::channel::<SocketAddr>();
    std::thread::spawn(move || -> Result<()> {
        runtime()?.block_on(async {
            let endpoint = quinn::Endpoint::server(config, SocketAddr::from(([127, 0, 0, 1], 0)))?;
            tell.send(endpoint.local_addr()?)?;
            let connection = endpoint.accept().await.ok_or("closed")?.await?;
            let (mut send, mut receive) = connection.accept_bi().await?;
            let mut message = [0; MESSAGE];
            while receive.read_exact(&mut message).await.is_ok() && send.write_all(&message).await.is_ok() {}
            Ok(())
        })
    });
    let address = address.recv()?;
    runtime()?.block_on(async {
        let mut endpoint = quinn::Endpoint::client(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        let config = QuicClientConfig::try_from(client_config)?;
        endpoint.set_default_client_config(quinn::ClientConfig::new(Arc::new(config)));
        let connection = endpoint.connect(address, "node")?.await?;
        let (mut send, mut receive) = connection.open_bi().await?;
        let mut times = Vec::with_capacity(ROUNDS);
        let mut message = [7; MESSAGE];
        for round in 0..ROUNDS + WARM_UP {
            let start = Instant::now();
            send.write_all(&message).await?;
            receive.read_exact(&mut message).await?;
            if round >= WARM_UP {
                times.push(start.elapsed() / 2);
            }
        }
        Ok(times)
    })
}

fn main() -> Result<()> {
    println!("one way of {MESSAGE} bytes over loopback, microseconds: median, 90 %, 99 %");
    type Candidate = fn() -> Result<Vec<Duration>>;
    let candidates: [(&str, Candidate); 3] = [("TCP", over_tcp), ("TLS 1.3 over TCP", over_tls), ("QUIC", over_quic)];
    for (name, measure) in candidates {
        let mut times = measure()?;
        times.sort_unstable();
        let at = |part: f64| times[(times.len() as f64 * part) as usize].as_secs_f64() * 1e6;
        println!("{name:>18} {:>8.1} {:>8.1} {:>8.1}", at(0.5), at(0.9), at(0.99));
    }
    Ok(())
}
