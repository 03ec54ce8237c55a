//! What identifies the program: its executable and the commit of its repository.

use std::env;
use std::sync::OnceLock;

use super::git;
use crate::io::files::{Links, open};

/// The number of hexadecimal digits of a hash that are recorded.
const DIGITS: usize = 16;

/// Returns the first digits of the BLAKE3 hash of the executable, which is read once in a process.
/// Returns `None` if it cannot be read.
pub(crate) fn executable() -> Option<&'static str> {
    static HASH: OnceLock<Option<String>> = OnceLock::new();
    let hash = HASH.get_or_init(|| {
        let (file, _) = open(&env::current_exe().ok()?, Links::Follow).ok()?;
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(file).ok()?;
        Some(hasher.finalize().to_hex()[..DIGITS].to_owned())
    });
    hash.as_deref()
}

/// Returns what is recorded about the program: the hash of its executable, and the commit of its
/// repository.
pub(crate) fn program() -> [Option<String>; 2] {
    [executable().map(str::to_owned), git::commit()]
}
