//! Keys of nodes: Ed25519, the private one in a file that only its owner can read, the public ones in the configuration.

use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use ed25519::pkcs8::{DecodePublicKey as _, EncodePrivateKey as _, KeypairBytes, PublicKeyBytes};
use rustls::crypto::ring::{default_provider, sign::any_eddsa_type};
use rustls::pki_types::{PrivatePkcs8KeyDer, SubjectPublicKeyInfoDer, alg_id};
use rustls::sign::{SigningKey, public_key_to_spki};

/// A key file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("key file {path}: {why}")]
pub struct KeyError {
    path: String,
    why: String,
}

impl KeyError {
    pub(crate) fn new(path: &Path, why: impl Into<String>) -> Self {
        Self { path: path.display().to_string(), why: why.into() }
    }
}

const HEADER: &str = "# Private key of a TokenRouter node. Keep it to that node.\n";

/// A node's public key: 64 hexadecimal digits in the configuration.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PublicKey([u8; 32]);

impl PublicKey {
    /// From 64 hexadecimal digits.
    pub fn from_hex(text: &str) -> Result<Self, String> {
        let bytes = from_hex(text).ok_or_else(|| {
            format!("`{text}` is not a public key: it must be 64 hexadecimal digits (`trbench keygen`)")
        })?;
        Ok(Self(bytes))
    }

    /// As a SubjectPublicKeyInfo (RFC 8410).
    pub(crate) fn to_der(self) -> SubjectPublicKeyInfoDer<'static> {
        public_key_to_spki(&alg_id::ED25519, self.0)
    }
}

impl std::fmt::Display for PublicKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl std::fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

/// A node's private key.
#[derive(Clone)]
pub struct PrivateKey {
    signing: Arc<dyn SigningKey>,
    public: PublicKey,
}

impl std::fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PrivateKey of {}", self.public)
    }
}

impl PrivateKey {
    fn from_seed(seed: &[u8; 32]) -> Result<Self, String> {
        let pair = KeypairBytes { secret_key: *seed, public_key: None };
        let pkcs8 = pair.to_pkcs8_der().map_err(|error| error.to_string())?;
        let signing = any_eddsa_type(&PrivatePkcs8KeyDer::from(pkcs8.as_bytes())).map_err(|error| error.to_string())?;
        let info = signing.public_key().ok_or("the key has no public half")?;
        let public = PublicKeyBytes::from_public_key_der(&info).map_err(|error| error.to_string())?;
        Ok(Self { signing, public: PublicKey(public.to_bytes()) })
    }

    /// The public half.
    pub fn public(&self) -> PublicKey {
        self.public
    }

    pub(crate) fn signing(&self) -> Arc<dyn SigningKey> {
        Arc::clone(&self.signing)
    }

    /// Makes a key and writes it to a new file that only the user of this process can read.
    pub fn generate(path: &Path) -> Result<Self, KeyError> {
        let mut seed = [0; 32];
        let provider = default_provider();
        provider.secure_random.fill(&mut seed).map_err(|_| KeyError::new(path, "the system gives no randomness"))?;
        let key = Self::from_seed(&seed).map_err(|error| KeyError::new(path, error))?;
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(path).map_err(|error| KeyError::new(path, error.to_string()))?;
        let text = format!("{HEADER}{}\n", hex::encode(seed));
        file.write_all(text.as_bytes()).map_err(|error| KeyError::new(path, error.to_string()))?;
        Ok(key)
    }

    /// Reads a key; one that others may read is refused.
    pub fn load(path: &Path) -> Result<Self, KeyError> {
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            let metadata = std::fs::metadata(path).map_err(|error| KeyError::new(path, error.to_string()))?;
            let mode = metadata.permissions().mode() & 0o777;
            if mode & 0o077 != 0 {
                let why =
                    format!("others may use it (mode {mode:03o}), allowed is 600: `chmod 600 {}`", path.display());
                return Err(KeyError::new(path, why));
            }
        }
        let text = std::fs::read_to_string(path).map_err(|error| KeyError::new(path, error.to_string()))?;
        let line = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'));
        let seed = line.and_then(from_hex);
        let seed = seed.ok_or_else(|| KeyError::new(path, "it must have one line of 64 hexadecimal digits"))?;
        Self::from_seed(&seed).map_err(|error| KeyError::new(path, error))
    }
}

/// 64 hexadecimal digits as bytes.
fn from_hex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    hex::decode_to_slice(text, &mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_survive_their_file_and_open_files_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("node.key");
        let made = PrivateKey::generate(&path).expect("made");
        assert_eq!(PrivateKey::load(&path).expect("read").public(), made.public());
        assert_eq!(PublicKey::from_hex(&made.public().to_string()), Ok(made.public()));
        // Never over an existing one.
        assert!(PrivateKey::generate(&path).is_err());
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("allowed");
            let error = PrivateKey::load(&path).expect_err("open to others").to_string();
            assert!(error.contains("node.key") && error.contains("644") && error.contains("600"), "{error}");
        }
        assert!(PublicKey::from_hex("12").is_err() && PublicKey::from_hex(&"g".repeat(64)).is_err());
    }

    #[test]
    fn the_key_is_that_of_rfc_8032() {
        // RFC 8032, 7.1, test 1.
        let seed = from_hex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60").expect("hexadecimal");
        let public = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";
        assert_eq!(PrivateKey::from_seed(&seed).expect("a key").public().to_string(), public);
    }
}
