//! SHA-256 of texts and files.

use std::io::Read;
use std::path::Path;

use sha2::{Digest as _, Sha256};

/// SHA-256 of everything that `reader` gives, in hexadecimal.
pub(crate) fn sha256_hex(reader: &mut impl Read) -> std::io::Result<String> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        match reader.read(&mut buffer)? {
            0 => break,
            n => hasher.update(&buffer[..n]),
        }
    }
    Ok(hex::encode(hasher.finalize()))
}

/// SHA-256 of a text, in hexadecimal.
pub(crate) fn text_sha256(text: &str) -> String {
    sha256_hex(&mut text.as_bytes()).expect("reading from memory does not fail")
}

/// Digest of a file, or of the trace in a result folder.
pub(crate) fn file_sha256(path: &Path) -> Option<String> {
    let path = if path.is_dir() { path.join("trace.jsonl") } else { path.to_owned() };
    sha256_hex(&mut std::fs::File::open(path).ok()?).ok()
}
