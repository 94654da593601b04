//! Files that appear complete or not at all.

use std::io::Write as _;
use std::path::Path;

use anyhow::Context as _;

/// A file to be moved to its place when it is complete. Readable like any other file (within the umask): temporary
/// files are private.
pub(crate) fn temporary_in(dir: &Path) -> std::io::Result<tempfile::NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.tempfile_in(dir)
}

/// Writes a file beside its place and moves it there.
pub(crate) fn write_file(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let failed = || format!("cannot write `{}`", path.display());
    let mut file = temporary_in(dir).with_context(failed)?;
    file.write_all(bytes).and_then(|()| file.as_file().sync_all()).with_context(failed)?;
    file.persist(path).with_context(failed)?;
    Ok(())
}
