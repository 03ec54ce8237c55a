//! Files of named tensors.

use std::collections::BTreeMap;
use std::path::Path;
use std::thread;

use blake3::Hasher;
use serde::{Deserialize, Serialize};
use tch::Tensor;

use crate::error::Result;
use crate::io::files::{Links, Output, in_file, open, read_start};
use crate::io::tensor_format;
use crate::libtorch;

/// The length of a file and its hash.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct FileDigest {
    pub(crate) bytes: u64,
    blake3: String,
}

impl FileDigest {
    pub(crate) fn new(bytes: u64, hasher: &Hasher) -> Self {
        FileDigest { bytes, blake3: hasher.finalize().to_hex().to_string() }
    }

    /// Returns an error unless `length`, the length of the file, is the recorded one. This is
    /// checked before the file is read, so that a corrupted length cannot trigger a huge
    /// allocation.
    fn check_length(&self, path: &Path, length: u64) -> Result<()> {
        if self.bytes == length {
            return Ok(());
        }
        Err(in_file(
            path,
            format!(
                "the file has {length} bytes, but had {} when it was written: it was changed or damaged; \
                 restore it, or use another checkpoint",
                self.bytes
            ),
        ))
    }

    pub(crate) fn check(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        self.check_length(path, bytes.len() as u64)?;
        if self.blake3 != blake3::hash(bytes).to_hex().as_str() {
            return Err(in_file(
                path,
                "its hash differs from the recorded one: the file was changed or damaged; restore it, or use another checkpoint",
            ));
        }
        Ok(())
    }
}

/// The number of bytes above which hashing takes longer than starting a thread.
const WORTH_A_THREAD: usize = 1 << 20;

/// Writes tensors to a new file in the format `safetensors`, and waits until the file is on disk. A
/// tensor that is on the CPU and contiguous is not copied; all others are copied one at a time.
pub(crate) fn write(file: &mut Output, tensors: &[(String, Tensor)]) -> Result<FileDigest> {
    let (header, order) = tensor_format::header(tensors).map_err(|why| in_file(file.path(), why))?;
    let mut hasher = Hasher::new();
    let mut bytes = 0;
    let mut put = |part: &[u8]| {
        bytes += part.len() as u64;
        if part.len() < WORTH_A_THREAD {
            hasher.update(part);
            return file.write(part);
        }
        // One core copies while another hashes.
        let (is_hashed, written) = thread::scope(|scope| {
            let hashing = thread::Builder::new().spawn_scoped(scope, || {
                hasher.update(part);
            });
            (hashing.is_ok(), file.write(part))
        });
        if !is_hashed {
            hasher.update(part); // there was no memory for a thread
        }
        written
    };
    put(&header)?;
    for (name, tensor) in order {
        put(&libtorch::bytes(tensor, format_args!("`{name}`"))?)?;
    }
    file.sync()?;
    Ok(FileDigest::new(bytes, &hasher))
}

/// Reads the tensors in a checkpoint file, and verifies the file's length and hash.
pub(crate) fn load_own(path: &Path, digest: &FileDigest) -> Result<BTreeMap<String, Tensor>> {
    let (file, length) = open(path, Links::Refuse)?;
    digest.check_length(path, length)?;
    let bytes = read_start(path, &file, length)?;
    digest.check(path, &bytes)?;
    tensor_format::from_bytes(&bytes).map_err(|why| in_file(path, why))
}

/// Reads the bytes of a file of weights whose format is not known yet.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    let (file, length) = open(path, Links::Follow)?;
    Ok(read_start(path, &file, length)?)
}

/// Returns an error unless a file begins like a `safetensors` file.
pub(crate) fn check_format(path: &Path) -> Result<()> {
    let (file, length) = open(path, Links::Refuse)?;
    let start = read_start(path, &file, length.min(9))?;
    let header = start.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes));
    match (header, start.last()) {
        (Some(header), Some(b'{')) if header <= length - 8 => Ok(()),
        _ => Err(in_file(
            path,
            "this file is not a safetensors file, so it is not replaced: choose another name",
        )),
    }
}
