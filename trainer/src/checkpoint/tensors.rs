//! Named tensors in a file of the format `safetensors`.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::thread;

use blake3::Hasher;
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};

use super::files::{Links, create, in_file, open, read_start};
use crate::error::{Error, Result, shortened};
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

    /// Returns an error unless the file has this length. This is checked before reading, so that a
    /// corrupted length cannot trigger a huge allocation.
    fn check_length(&self, path: &Path, length: u64) -> Result<()> {
        if self.bytes == length {
            return Ok(());
        }
        Err(in_file(
            path,
            format!(
                "it has {length} bytes, but had {} when it was written: the file was changed or damaged",
                self.bytes
            ),
        ))
    }

    pub(crate) fn check(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        self.check_length(path, bytes.len() as u64)?;
        if self.blake3 != blake3::hash(bytes).to_hex().as_str() {
            return Err(in_file(
                path,
                "its hash differs from the recorded one: the file was changed or damaged",
            ));
        }
        Ok(())
    }
}

fn dtype_of(kind: Kind) -> Option<Dtype> {
    Some(match kind {
        Kind::Bool => Dtype::BOOL,
        Kind::Uint8 => Dtype::U8,
        Kind::Int8 => Dtype::I8,
        Kind::Int16 => Dtype::I16,
        Kind::Int => Dtype::I32,
        Kind::Int64 => Dtype::I64,
        Kind::Half => Dtype::F16,
        Kind::BFloat16 => Dtype::BF16,
        Kind::Float => Dtype::F32,
        Kind::Double => Dtype::F64,
        _ => return None,
    })
}

fn kind_of(dtype: Dtype) -> Option<Kind> {
    const KINDS: [Kind; 10] = [
        Kind::Bool,
        Kind::Uint8,
        Kind::Int8,
        Kind::Int16,
        Kind::Int,
        Kind::Int64,
        Kind::Half,
        Kind::BFloat16,
        Kind::Float,
        Kind::Double,
    ];
    KINDS.into_iter().find(|kind| dtype_of(*kind) == Some(dtype))
}

/// One entry of the header: where a tensor is in the file.
#[derive(Serialize)]
struct Entry {
    dtype: Dtype,
    shape: Vec<i64>,
    data_offsets: (usize, usize),
}

/// The number of bytes above which hashing takes longer than starting a thread.
const WORTH_A_THREAD: usize = 1 << 20;

/// Tensors in the order in which a file stores them.
type InOrder<'a> = Vec<&'a (String, Tensor)>;

/// Returns the header of a `safetensors` file, preceded by its length, and the tensors in the order
/// in which their data follows.
fn header<'a>(path: &Path, tensors: &'a [(String, Tensor)]) -> Result<(Vec<u8>, InOrder<'a>)> {
    let mut entries: BTreeMap<&str, Entry> = BTreeMap::new();
    // Wide elements first, so that all are aligned.
    let mut order: Vec<&(String, Tensor)> = tensors.iter().collect();
    order.sort_by_key(|(name, tensor)| (std::cmp::Reverse(tensor.kind().elt_size_in_bytes()), name));
    let mut offset = 0;
    for (name, tensor) in &order {
        let Some(dtype) = dtype_of(tensor.kind()) else {
            return Err(in_file(
                path,
                format!(
                    "`{name}` has the dtype {:?}, which safetensors does not support: convert it to another dtype",
                    tensor.kind()
                ),
            ));
        };
        let end = offset + tensor.numel() * tensor.kind().elt_size_in_bytes();
        let entry = Entry { dtype, shape: tensor.size(), data_offsets: (offset, end) };
        if entries.insert(name, entry).is_some() {
            return Err(in_file(path, format!("two tensors are named `{name}`: give each a different name")));
        }
        offset = end;
    }
    let mut header = serde_json::to_vec(&entries).map_err(|error| in_file(path, error))?;
    header.resize(header.len().next_multiple_of(8), b' ');
    header.splice(..0, (header.len() as u64).to_le_bytes());
    Ok((header, order))
}

/// Encodes tensors as the bytes of a `safetensors` file, to send them to another process.
pub(crate) fn to_bytes(tensors: &[(String, Tensor)]) -> Result<Vec<u8>> {
    let (mut bytes, order) = header(Path::new(SENT), tensors)?;
    for (_, tensor) in order {
        let tensor = tensor.f_to_device(Device::Cpu)?.f_contiguous()?;
        bytes.extend_from_slice(libtorch::bytes(&tensor)?);
    }
    Ok(bytes)
}

/// Decodes the tensors that another process encoded with [`to_bytes`].
pub(crate) fn from_bytes(bytes: &[u8]) -> Result<BTreeMap<String, Tensor>> {
    tensors_of(Path::new(SENT), bytes)
}

/// The text that errors show instead of a path for tensors that are sent between processes.
const SENT: &str = "tensors of another rank";

/// Writes tensors to a new `safetensors` file, and waits until it is on disk. Only tensors that are
/// not contiguous on the CPU are copied, one at a time.
pub(crate) fn write(path: &Path, tensors: &[(String, Tensor)]) -> Result<FileDigest> {
    let (header, order) = header(path, tensors)?;
    let mut file = create(path)?;
    let (mut hasher, mut bytes) = (Hasher::new(), 0);
    let mut put = |part: &[u8]| {
        bytes += part.len() as u64;
        let written = if part.len() < WORTH_A_THREAD {
            hasher.update(part);
            file.write_all(part)
        } else {
            // One core copies while another hashes.
            thread::scope(|scope| {
                scope.spawn(|| hasher.update(part));
                file.write_all(part)
            })
        };
        written.map_err(|error| in_file(path, error))
    };
    put(&header)?;
    for (_, tensor) in order {
        let tensor = tensor.f_to_device(Device::Cpu)?.f_contiguous()?;
        put(libtorch::bytes(&tensor)?)?;
    }
    file.sync_all().map_err(|error| in_file(path, error))?;
    Ok(FileDigest::new(bytes, &hasher))
}

/// Reads the tensors of a file of a checkpoint, and verifies the file's length and hash.
pub(crate) fn load_own(path: &Path, digest: &FileDigest) -> Result<BTreeMap<String, Tensor>> {
    let (file, length) = open(path, Links::Refuse)?;
    digest.check_length(path, length)?;
    let bytes = read_start(path, &file, length)?;
    digest.check(path, &bytes)?;
    tensors_of(path, &bytes)
}

/// Reads the bytes of a file of weights whose format is not known yet.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    let (file, length) = open(path, Links::Follow)?;
    read_start(path, &file, length)
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

/// Returns the tensors of a `safetensors` file.
pub(crate) fn tensors_of(path: &Path, bytes: &[u8]) -> Result<BTreeMap<String, Tensor>> {
    let file = SafeTensors::deserialize(bytes)
        .map_err(|error| in_file(path, format!("not a safetensors file: {error}")))?;
    file.iter()
        .map(|(name, view)| {
            let kind = kind_of(view.dtype()).ok_or_else(|| {
                let name = shortened(name);
                in_file(
                    path,
                    format!(
                        "`{name}` has the dtype {:?}, which tch does not support: convert it to another dtype in Python",
                        view.dtype()
                    ),
                )
            })?;
            let shape: Vec<i64> =
                view.shape().iter().map(|&size| i64::try_from(size).unwrap_or(i64::MAX)).collect();
            let tensor = Tensor::f_from_data_size(view.data(), &shape, kind);
            Ok((name.to_owned(), tensor.map_err(|error| in_file(path, Error::from(error)))?))
        })
        .collect()
}
