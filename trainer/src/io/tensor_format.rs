//! Encodes and decodes named tensors in the `safetensors` format. Error messages do not name the
//! file.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use safetensors::tensor::{Metadata, TensorInfo};
use safetensors::{Dtype, SafeTensors};
use serde::Serialize;
use tch::{Kind, Tensor};

use crate::error::shortened;
use crate::io::format::{self, Format};
use crate::libtorch::{self, Form};

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

/// An entry of the header: the dtype and the shape of a tensor, and the byte range of its data.
#[derive(Serialize)]
struct HeaderEntry {
    dtype: Dtype,
    shape: Vec<i64>,
    data_offsets: (usize, usize),
}

/// Tensors in the order in which their data follows the header.
type InOrder<'a> = Vec<&'a (String, Tensor)>;

/// Returns the header of a `safetensors` file, preceded by its length, and the tensors in the order
/// in which their data follows.
pub(crate) fn header(tensors: &[(String, Tensor)]) -> Result<(Vec<u8>, InOrder<'_>), String> {
    for (name, tensor) in tensors {
        libtorch::check_readable(tensor, format_args!("`{name}`")).map_err(|error| error.to_string())?;
        if libtorch::form(tensor) != Form::Dense {
            let mut found = String::new();
            libtorch::describe(tensor, &mut found);
            return Err(format!(
                "`{name}` is {found}, but safetensors only stores dense tensors: store `to_dense` of it, or its indices and \
                 values"
            ));
        }
    }
    let mut entries: BTreeMap<&str, HeaderEntry> = BTreeMap::new();
    // Wide elements first, so that all are aligned.
    let mut order: InOrder<'_> = tensors.iter().collect();
    order.sort_by_key(|(name, tensor)| (std::cmp::Reverse(tensor.kind().elt_size_in_bytes()), name));
    let mut offset = 0;
    for (name, tensor) in &order {
        let Some(dtype) = dtype_of(tensor.kind()) else {
            return Err(format!(
                "`{name}` has the dtype {:?}, which safetensors does not support: convert it to another dtype",
                tensor.kind()
            ));
        };
        let end = offset + tensor.numel() * tensor.kind().elt_size_in_bytes();
        let entry = HeaderEntry { dtype, shape: tensor.size(), data_offsets: (offset, end) };
        if entries.insert(name, entry).is_some() {
            return Err(format!("two tensors are named `{name}`: give each a different name"));
        }
        offset = end;
    }
    let mut header = serde_json::to_vec(&entries).map_err(|error| error.to_string())?;
    header.resize(header.len().next_multiple_of(8), b' ');
    header.splice(..0, (header.len() as u64).to_le_bytes());
    Ok((header, order))
}

/// Encodes tensors as the bytes of a `safetensors` file.
pub(crate) fn to_bytes(tensors: &[(String, Tensor)]) -> Result<Vec<u8>, String> {
    let (mut bytes, order) = header(tensors)?;
    for (name, tensor) in order {
        let read = libtorch::bytes(tensor, format_args!("`{name}`")).map_err(|error| error.to_string())?;
        bytes.extend_from_slice(&read);
    }
    Ok(bytes)
}

/// Decodes all tensors of a `safetensors` file.
pub(crate) fn from_bytes(bytes: &[u8]) -> Result<BTreeMap<String, Tensor>, String> {
    let file = Encoded::open(bytes, "a `safetensors` file", remedy)?;
    file.names().into_iter().map(|name| Ok((name.to_owned(), file.tensor(name)?))).collect()
}

fn remedy(format: Format) -> &'static str {
    format.remedy().unwrap_or(
        "load it in the program that wrote it, and save its tensors with `safetensors.torch.save_file`",
    )
}

/// Where a `safetensors` file has a tensor, and which.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) kind: Kind,
    pub(crate) shape: Vec<i64>,
    /// The bytes in the file.
    pub(crate) range: Range<u64>,
}

/// Reads the header of a file of this length that begins with `start`, and returns where its
/// tensors are. `start` has at least the header, if the file has one.
pub(crate) fn places(start: &[u8], length: u64) -> Result<BTreeMap<String, Place>, String> {
    let header = start.split_first_chunk::<8>().and_then(|(size, rest)| {
        let header = rest.get(..usize::try_from(u64::from_le_bytes(*size)).ok()?)?;
        serde_json::from_slice::<Metadata>(header).ok().map(|metadata| (8 + header.len() as u64, metadata))
    });
    let Some((begin, metadata)) = header.filter(|(begin, all)| begin + all.data_len() as u64 == length)
    else {
        return Err(match Format::of(start) {
            Format::Safetensors => damaged("its header does not describe its content"),
            format => format::unexpected(start, format, "a `safetensors` file", remedy),
        });
    };
    let place = |(name, info): (String, &TensorInfo)| {
        let kind = kind_of(info.dtype).ok_or_else(|| unsupported(&name, info.dtype))?;
        let (from, to) = info.data_offsets;
        let range = begin + from as u64..begin + to as u64;
        Ok((name, Place { kind, shape: sizes(&info.shape), range }))
    };
    metadata.tensors().into_iter().map(place).collect()
}

fn damaged(why: impl fmt::Display) -> String {
    format!("the safetensors file is damaged or truncated ({why}): copy, download or save it again")
}

fn unsupported(name: &str, dtype: Dtype) -> String {
    format!(
        "`{}`: it has the dtype {dtype:?}, which is not supported: skip it with `.skip(…)`, or convert it to another dtype in \
         Python",
        shortened(name)
    )
}

fn sizes(shape: &[usize]) -> Vec<i64> {
    shape.iter().map(|&size| i64::try_from(size).unwrap_or(i64::MAX)).collect()
}

/// Decodes a tensor of a file.
pub(crate) fn decoded(name: &str, bytes: &[u8], shape: &[i64], kind: Kind) -> Result<Tensor, String> {
    libtorch::from_bytes(bytes, shape, kind).map_err(|error| format!("`{}`: {error}", shortened(name)))
}

/// The tensors of a `safetensors` file, each of which is decoded when it is needed.
pub(crate) struct Encoded<'a>(SafeTensors<'a>);

impl<'a> Encoded<'a> {
    /// Reads the header of a file. If the file has another format, the error says that this is not
    /// what was `expected`, and `remedy` returns what to do.
    pub(crate) fn open(
        bytes: &'a [u8],
        expected: &str,
        remedy: impl FnOnce(Format) -> &'static str,
    ) -> Result<Self, String> {
        SafeTensors::deserialize(bytes).map(Encoded).map_err(|error| match Format::of(bytes) {
            Format::Safetensors => damaged(error),
            format => format::unexpected(bytes, format, expected, remedy),
        })
    }

    pub(crate) fn names(&self) -> Vec<&str> {
        self.0.names()
    }

    /// Decodes the tensor with this name.
    pub(crate) fn tensor(&self, name: &str) -> Result<Tensor, String> {
        let view = self.0.tensor(name).map_err(|error| error.to_string())?;
        let kind = kind_of(view.dtype()).ok_or_else(|| unsupported(name, view.dtype()))?;
        decoded(name, view.data(), &sizes(view.shape()), kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bools_that_are_neither_0_nor_1_are_refused() {
        let mask = Tensor::from_slice(&[true, false, true]);
        let mut bytes = to_bytes(&[("mask".to_owned(), mask.shallow_clone())]).unwrap();
        assert_eq!(from_bytes(&bytes).unwrap()["mask"], mask);
        *bytes.last_mut().unwrap() = 255;
        let error = from_bytes(&bytes).unwrap_err();
        assert_eq!(
            error,
            "`mask`: it has bytes that are neither `true` nor `false`: the file is corrupted; save it again"
        );
    }
}
