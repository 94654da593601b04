//! TLS 1.3 with raw public keys (RFC 7250) on both sides: no certificates, no names, no authorities. The configuration says
//! which key each node has, and a connection from or to any other key fails.

use std::sync::Arc;

use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, OtherError, ServerConfig,
    SignatureScheme,
};

use crate::keys::{PrivateKey, PublicKey};

/// Accepts these keys and no others.
#[derive(Debug)]
struct Known {
    keys: Vec<SubjectPublicKeyInfoDer<'static>>,
    provider: Arc<CryptoProvider>,
}

/// Why a peer's key was refused.
#[derive(Debug, thiserror::Error)]
#[error("its key is not the `public_key` that `system.peer_endpoints` has for it")]
pub(super) struct UnknownKey;

impl Known {
    fn check(&self, key: &CertificateDer<'_>) -> Result<(), Error> {
        if self.keys.iter().any(|known| known.as_ref() == key.as_ref()) {
            return Ok(());
        }
        Err(Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(UnknownKey)))))
    }

    fn signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(key.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, signed, &self.provider.signature_verification_algorithms)
    }

    fn schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

fn only_tls13() -> Error {
    Error::General("only TLS 1.3 is spoken".into())
}

impl ServerCertVerifier for Known {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(end_entity)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(only_tls13())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for Known {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(end_entity)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(only_tls13())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

fn parts(own: &PrivateKey, peers: &[PublicKey]) -> (Arc<CryptoProvider>, Arc<Known>, Arc<CertifiedKey>) {
    let provider = Arc::new(ring::default_provider());
    let keys = peers.iter().map(|key| key.to_der()).collect();
    let known = Arc::new(Known { keys, provider: Arc::clone(&provider) });
    let own = CertifiedKey::new(vec![CertificateDer::from(own.public().to_der().as_ref().to_vec())], own.signing());
    (provider, known, Arc::new(own))
}

/// For connections to `peer`.
pub(super) fn client(own: &PrivateKey, peer: PublicKey) -> Result<Arc<ClientConfig>, Error> {
    let (provider, known, own) = parts(own, &[peer]);
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13])?;
    let builder = builder.dangerous().with_custom_certificate_verifier(known);
    let mut config = builder.with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(own)));
    config.enable_sni = false;
    config.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::new(config))
}

/// For connections from any of `peers`.
pub(super) fn server(own: &PrivateKey, peers: &[PublicKey]) -> Result<Arc<ServerConfig>, Error> {
    let (provider, known, own) = parts(own, peers);
    let builder = ServerConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13])?;
    let builder = builder.with_client_cert_verifier(known);
    let mut config = builder.with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(own)));
    // No resumption: every connection proves both keys. No answer is ever due, so that only the writer writes.
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}
