//! API keys: which there are, and whether a request has one.

use std::net::SocketAddr;

use axum::http::{HeaderMap, header};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

use super::ServeError;
use crate::config::ServerConfig;

/// The keys that open the server; none means that it is open.
#[derive(Default)]
pub struct ApiKeys {
    /// Digests, so that a comparison takes the same time whatever the lengths.
    digests: Vec<[u8; 32]>,
}

impl std::fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ApiKeys({})", self.digests.len())
    }
}

impl ApiKeys {
    /// From texts; surrounding space, empty ones and lines that begin with `#` do not count.
    pub fn new<'a>(keys: impl IntoIterator<Item = &'a str>) -> Self {
        let keys = keys.into_iter().map(str::trim).filter(|key| !key.is_empty() && !key.starts_with('#'));
        Self { digests: keys.map(|key| Sha256::digest(key).into()).collect() }
    }

    /// From the configured file (one key a line) and environment variable.
    pub fn load(config: &ServerConfig) -> Result<Self, ServeError> {
        let mut keys = Self::default();
        if let Some(path) = &config.api_key_file {
            let text = std::fs::read_to_string(path)
                .map_err(|source| ServeError::Keys(format!("`server.api_key_file` {}: {source}", path.display())))?;
            keys = Self::new(text.lines());
            if keys.is_empty() {
                return Err(ServeError::Keys(format!("`server.api_key_file` {} has no key", path.display())));
            }
        }
        if let Ok(value) = std::env::var(&config.api_key_env) {
            keys.digests.extend(Self::new([value.as_str()]).digests);
        }
        Ok(keys)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.digests.is_empty()
    }

    /// Whether the headers have one of the keys, or none is needed.
    pub(super) fn allow(&self, headers: &HeaderMap) -> bool {
        if self.is_empty() {
            return true;
        }
        let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let Some((scheme, key)) = given.and_then(|value| value.split_once(' ')) else { return false };
        let digest: [u8; 32] = Sha256::digest(key.trim()).into();
        // Every key is compared, whichever fits.
        let found = self.digests.iter().fold(Choice::from(0), |found, known| found | known.ct_eq(&digest));
        scheme.eq_ignore_ascii_case("bearer") && bool::from(found)
    }

    /// Whether this address may be served with these keys.
    ///
    /// # Errors
    /// If others could reach it, without a key.
    pub fn check_exposure(&self, address: SocketAddr, config: &ServerConfig) -> Result<(), ServeError> {
        if address.ip().is_loopback() || !self.is_empty() || config.allow_unauthenticated {
            return Ok(());
        }
        Err(ServeError::Exposed { address, variable: config.api_key_env.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, value.parse().expect("a header"));
        headers
    }

    #[test]
    fn only_a_whole_key_opens() {
        let keys = ApiKeys::new("# team a\nsk-one\n\n  sk-two \n".lines());
        assert_eq!(format!("{keys:?}"), "ApiKeys(2)");
        for (value, want) in [
            ("Bearer sk-one", true),
            ("bearer sk-two", true),
            ("Bearer sk-on", false),
            ("Bearer sk-one2", false),
            ("Basic sk-one", false),
            ("Bearer # team a", false),
            ("sk-one", false),
            ("Bearer ", false),
        ] {
            assert_eq!(keys.allow(&headers(value)), want, "{value}");
        }
        assert!(!keys.allow(&HeaderMap::new()) && ApiKeys::default().allow(&HeaderMap::new()));
    }

    #[test]
    fn a_public_address_needs_a_key_or_force() {
        let public: SocketAddr = "0.0.0.0:1".parse().expect("an address");
        let local: SocketAddr = "[::1]:1".parse().expect("an address");
        let config = ServerConfig::default();
        let forced = ServerConfig { allow_unauthenticated: true, ..config.clone() };
        assert!(ApiKeys::default().check_exposure(public, &config).is_err());
        assert!(ApiKeys::default().check_exposure(public, &forced).is_ok());
        assert!(ApiKeys::default().check_exposure(local, &config).is_ok());
        assert!(ApiKeys::new(["k"]).check_exposure(public, &config).is_ok());
    }
}
