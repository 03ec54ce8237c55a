//! Named tensors in a file: the format `safetensors`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::thread;

use blake3::Hasher;
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};

use super::folder::{in_file, length, read};
use crate::error::{Error, Result};
use crate::libtorch;

/// How long a file is to be, and its hash.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct Seal {
    bytes: u64,
    blake3: String,
}

impl Seal {
    /// Before it is read: a length is no reason to ask for memory.
    fn check_length(&self, path: &Path, length: u64) -> Result<()> {
        if self.bytes == length {
            return Ok(());
        }
        let text = format!("it has {length} bytes, and had {} when it was written", self.bytes);
        Err(in_file(path, text))
    }

    fn check(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        self.check_length(path, bytes.len() as u64)?;
        if self.blake3 != blake3::hash(bytes).to_hex().as_str() {
            return Err(in_file(
                path,
                "its hash is not the one with which it was written: it was changed, or damaged",
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

/// The header of a file: where each tensor lies.
#[derive(Serialize)]
struct Entry {
    dtype: Dtype,
    shape: Vec<i64>,
    data_offsets: (usize, usize),
}

/// So many bytes take longer to hash than a thread to start.
const WORTH_A_THREAD: usize = 1 << 20;

/// Writes tensors, one after the other, and waits until the disk has them. Only what is not contiguous on the CPU is
/// copied, each for as long as it is written.
pub(super) fn write(path: &Path, tensors: &[(String, Tensor)]) -> Result<Seal> {
    let mut entries: BTreeMap<&str, Entry> = BTreeMap::new();
    // Wide elements first, so that all are aligned.
    let mut order: Vec<&(String, Tensor)> = tensors.iter().collect();
    order.sort_by_key(|(name, tensor)| (std::cmp::Reverse(tensor.kind().elt_size_in_bytes()), name));
    let mut offset = 0;
    for (name, tensor) in &order {
        let Some(dtype) = dtype_of(tensor.kind()) else {
            return Err(in_file(
                path,
                format!("`{name}` is of kind {:?}, which the format does not have", tensor.kind()),
            ));
        };
        let end = offset + tensor.numel() * tensor.kind().elt_size_in_bytes();
        let entry = Entry { dtype, shape: tensor.size(), data_offsets: (offset, end) };
        if entries.insert(name, entry).is_some() {
            return Err(in_file(path, format!("two tensors are named `{name}`")));
        }
        offset = end;
    }
    let mut header = serde_json::to_vec(&entries).map_err(|error| in_file(path, error))?;
    header.resize(header.len().next_multiple_of(8), b' ');

    let mut file = File::create(path).map_err(|error| in_file(path, error))?;
    let (mut hasher, mut bytes) = (Hasher::new(), 0);
    let mut put = |part: &[u8]| {
        bytes += part.len() as u64;
        let written = if part.len() < WORTH_A_THREAD {
            hasher.update(part);
            file.write_all(part)
        } else {
            // While the one core copies, another hashes.
            thread::scope(|scope| {
                scope.spawn(|| hasher.update(part));
                file.write_all(part)
            })
        };
        written.map_err(|error| in_file(path, error))
    };
    put(&(header.len() as u64).to_le_bytes())?;
    put(&header)?;
    for (_, tensor) in order {
        let tensor = tensor.f_to_device(Device::Cpu)?.f_contiguous()?;
        put(libtorch::bytes(&tensor)?)?;
    }
    file.sync_all().map_err(|error| in_file(path, error))?;
    Ok(Seal { bytes, blake3: hasher.finalize().to_hex().to_string() })
}

/// Reads tensors, from a file that is as it was written if there is a seal to tell.
pub(super) fn load(path: &Path, seal: Option<&Seal>) -> Result<BTreeMap<String, Tensor>> {
    if let Some(seal) = seal {
        seal.check_length(path, length(path)?)?;
    }
    let bytes = read(path)?;
    if let Some(seal) = seal {
        seal.check(path, &bytes)?;
    }
    let file = SafeTensors::deserialize(&bytes)
        .map_err(|error| in_file(path, format!("it is no safetensors file: {error}")))?;
    file.iter()
        .map(|(name, view)| {
            let kind = kind_of(view.dtype());
            let kind = kind.ok_or_else(|| {
                in_file(path, format!("`{name}` is of kind {:?}, which tch does not have", view.dtype()))
            })?;
            let shape: Vec<i64> =
                view.shape().iter().map(|&size| i64::try_from(size).unwrap_or(i64::MAX)).collect();
            let tensor = Tensor::f_from_data_size(view.data(), &shape, kind);
            Ok((name.to_owned(), tensor.map_err(|error| in_file(path, Error::from(error)))?))
        })
        .collect()
}
