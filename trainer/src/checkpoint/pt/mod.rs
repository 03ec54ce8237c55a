//! Reading the state dicts that PyTorch's `torch.save` writes, and the modules of TorchScript, as
//! tch's `VarStore::save` writes them: a zip archive with a pickle and the data of each storage.
//!
//! A pickle is a program, and Python's own reader imports and calls whatever the pickle names. This
//! reader executes nothing: what it does not know becomes an opaque object, which is an error only
//! where a tensor is needed.

mod contents;
mod objects;
mod optimizer;
mod pickle;
mod zip;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use tch::{Kind, Tensor};

use self::contents::Contents;
use self::objects::{Global, Id, Object, Objects, View};
pub(super) use self::optimizer::{Key, SavedOptimizer};
use self::zip::Archive;
use crate::error::{Error, Result, shortened};
use crate::io::format::{self, Format};
use crate::libtorch;

/// The tensors of a file that `torch.save`, TorchScript or tch wrote. They are read when they are
/// needed, so an entry that cannot be read does not make the others unreadable.
pub(super) struct StateDict<'a> {
    objects: Objects<'a>,
    top: Id,
    /// The keys that lead to the state dict.
    section: Vec<String>,
    entries: BTreeMap<Cow<'a, str>, Id>,
    storages: Storages<'a>,
}

/// An archive whose pickle has been read.
struct Opened<'a> {
    format: Format,
    objects: Objects<'a>,
    top: Id,
    storages: Storages<'a>,
}

impl<'a> Opened<'a> {
    /// Reads the pickle of a zip archive. `expected` says what it should have, and `remedy` returns
    /// what to do about an archive of another format.
    fn read(bytes: &'a [u8], expected: &str, remedy: impl FnOnce(Format) -> &'static str) -> Result<Self> {
        let archive = zip::open(bytes)?;
        let format = Format::of_archive(archive.names());
        let mut roots = archive.names().filter_map(|name| name.strip_suffix("data.pkl"));
        let (Format::TorchSave | Format::TorchScript, Some(root), None) =
            (format, roots.next(), roots.next())
        else {
            return Err(Error::msg(format::unexpected(bytes, format, expected, remedy)));
        };
        drop(roots);
        let order = archive.read(&format!("{root}byteorder"))?.unwrap_or(b"little");
        if order.trim_ascii() != b"little" {
            return Err(Error::msg(
                "the file was written on a big-endian machine: load it there, and save it as `safetensors`",
            ));
        }
        let pickle = archive.read(&format!("{root}data.pkl"))?.unwrap_or_default();
        let (objects, top) = pickle::read(pickle)?;
        Ok(Opened { format, objects, top, storages: Storages { archive, root, loaded: HashMap::new() } })
    }
}

impl<'a> StateDict<'a> {
    /// Reads the state dict of a zip archive: the outermost `dict` or, if `section` has keys, the
    /// one to which they lead. `remedy` returns what to do about an archive of another format.
    pub(super) fn open(
        bytes: &'a [u8],
        section: &[String],
        remedy: impl FnOnce(Format) -> &'static str,
    ) -> Result<Self> {
        let Opened { format, objects, top, storages } = Opened::read(bytes, "weights", remedy)?;
        let contents = Contents { objects: &objects, top };
        let found = if format == Format::TorchScript {
            contents.module(section)?
        } else {
            contents.state_dict(section)?
        };
        let mut entries = BTreeMap::new();
        for (key, value) in found {
            if entries.contains_key(&key) {
                return Err(Error::msg(format!(
                    "the state dict has two entries named `{}`: load it in Python, and save it again with unique names",
                    shortened(&key)
                )));
            }
            entries.insert(key, value);
        }
        Ok(StateDict { objects, top, section: section.to_vec(), entries, storages })
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(|name| &**name)
    }

    /// Returns an error if an entry is not a tensor. The error says how to load the tensors of the
    /// file.
    pub(super) fn check(&self, name: &str) -> Result<()> {
        match self.entries.get(name) {
            Some(value) if !self.objects.is_tensor(*value) => {
                let contents = Contents { objects: &self.objects, top: self.top };
                Err(contents.not_a_tensor(&self.section, &self.entries, name))
            }
            _ => Ok(()),
        }
    }

    /// Reads the tensor with this name. Tensors with the same storage share its memory.
    pub(super) fn tensor(&mut self, name: &str) -> Result<Tensor> {
        self.check(name)?;
        let found = match self.entries.get(name) {
            Some(value) => self.storages.tensor(&self.objects, *value),
            None => Err(Error::msg("the state dict does not have this entry")),
        };
        found.map_err(|error| Error::msg(format!("`{}`: {error}", shortened(name))))
    }
}

/// Returns the error about a tensor that was built by an unsupported function. The error names the
/// dtype or the layout if it is known, and otherwise the function.
#[cold]
fn unreadable(objects: &Objects<'_>, function: &str, arguments: Id) -> Error {
    let argument = |nth: usize| objects.items(arguments).ok()?.get(nth).copied();
    let what = match function {
        "_rebuild_tensor_v3" => match argument(6).map(|id| &objects[id]) {
            Some(Object::Global(Global::Torch(dtype))) => Some(format!("the dtype {}", shortened(dtype))),
            _ => None,
        },
        "_rebuild_qtensor" => {
            let class = argument(0).and_then(|id| objects.storage(id).ok());
            class.map(|(class, ..)| format!("the dtype {}", dtype_of(class)))
        }
        "_rebuild_sparse_tensor" | "_rebuild_sparse_csr_tensor" => {
            let layout = argument(0).and_then(|id| objects.text(id).ok());
            layout.map(|layout| format!("the layout {}", shortened(layout.trim_start_matches("torch."))))
        }
        _ => None,
    };
    let what = what.unwrap_or_else(|| format!("the kind that `torch._utils.{}` builds", shortened(function)));
    Error::msg(format!("it has {what}, {UNSUPPORTED}"))
}

/// The end of the message about a tensor of an unsupported dtype or layout.
const UNSUPPORTED: &str = "which is not supported: skip it with `.skip(…)`, or save it as a dense tensor of another dtype in Python";

/// The dtype of the tensors whose storages have this class.
fn dtype_of(class: Global<'_>) -> String {
    match class {
        Global::Storage(kind) => format!("{kind:?}"),
        Global::Torch("ComplexFloatStorage") => "complex64".to_owned(),
        Global::Torch("ComplexDoubleStorage") => "complex128".to_owned(),
        Global::Torch("QInt8Storage") => "qint8".to_owned(),
        Global::Torch("QUInt8Storage") => "quint8".to_owned(),
        Global::Torch("QInt32Storage") => "qint32".to_owned(),
        Global::Torch("QUInt4x2Storage") => "quint4x2".to_owned(),
        Global::Torch("QUInt2x4Storage") => "quint2x4".to_owned(),
        Global::Torch(name) => format!("of `{}`", shortened(name)),
        _ => "of an unknown storage".to_owned(),
    }
}

/// The storages of an archive. Each is read when a tensor first needs it, and only once.
struct Storages<'a> {
    archive: Archive<'a>,
    root: &'a str,
    loaded: HashMap<&'a str, Tensor>,
}

impl<'a> Storages<'a> {
    /// Returns the tensor that an object describes.
    fn tensor(&mut self, objects: &Objects<'a>, id: Id) -> Result<Tensor> {
        match &objects[id] {
            Object::Tensor(view) => self.view(objects, *view),
            Object::UnreadableTensor(function, arguments) => Err(unreadable(objects, function, *arguments)),
            _ => Err(Error::msg(format!("expected a tensor, found {}", objects.what(id)))),
        }
    }

    /// Returns the tensor that `view` describes, which shares the memory of its storage.
    fn view(&mut self, objects: &Objects<'a>, view: View) -> Result<Tensor> {
        let (class, key, elements) = objects.storage(view.storage)?;
        let Global::Storage(kind) = class else {
            return Err(Error::msg(format!("it has the dtype {}, {UNSUPPORTED}", dtype_of(class))));
        };
        if let Some(metadata) = view.metadata
            && !matches!(&objects[metadata], Object::Dict(entries) if entries.is_empty())
        {
            return Err(Error::msg(
                "it is a conjugated or negated view, which is not supported: skip it with `.skip(…)`, or call \
                 `.resolve_conj().resolve_neg()` in Python before saving it",
            ));
        }
        let offset = objects.int(view.offset)?;
        let size = objects.dims(view.size)?;
        let stride = objects.dims(view.stride)?;
        let base = self.load(key, kind, elements)?;
        check_view(offset, &size, &stride, elements)?;
        Ok(base.f_as_strided(size, stride, offset)?)
    }

    fn load(&mut self, key: &'a str, kind: Kind, elements: i64) -> Result<Tensor> {
        if let Some(loaded) = self.loaded.get(key) {
            if loaded.kind() != kind || loaded.size() != [elements] {
                return Err(Error::msg(
                    "its storage is also used with another dtype or length: the file is corrupted; save it again in Python",
                ));
            }
            return Ok(loaded.shallow_clone());
        }
        let Some(data) = self.archive.read(&format!("{}data/{key}", self.root))? else {
            return Err(Error::msg(
                "the archive has no data for its storage: the file is corrupted; save it again in Python",
            ));
        };
        let bytes =
            usize::try_from(elements).ok().and_then(|count| count.checked_mul(kind.elt_size_in_bytes()));
        if bytes != Some(data.len()) {
            return Err(Error::msg(format!(
                "its storage has {} bytes, which does not match {elements} elements of {kind:?}: the file is corrupted; save it \
                 again in Python",
                data.len()
            )));
        }
        let tensor = libtorch::from_bytes(data, &[elements], kind)?;
        self.loaded.insert(key, tensor.shallow_clone());
        Ok(tensor)
    }
}

/// Returns an error unless every element of a view is within a storage of `elements` elements.
fn check_view(offset: i64, size: &[i64], stride: &[i64], elements: i64) -> Result<()> {
    let is_valid = offset >= 0
        && size.len() == stride.len()
        && size.iter().chain(stride).all(|number| *number >= 0)
        && last_element(offset, size, stride).is_some_and(|last| last < elements);
    if is_valid {
        return Ok(());
    }
    Err(Error::msg(format!(
        "its shape {size:?} with strides {stride:?} at offset {offset} exceeds its storage of {elements} elements: the file is \
         corrupted; save it again in Python"
    )))
}

/// Returns the position of the last element of a view, or `None` if it overflows.
fn last_element(offset: i64, size: &[i64], stride: &[i64]) -> Option<i64> {
    let mut count = 1_i64;
    let mut last = offset;
    for (&size, &stride) in size.iter().zip(stride) {
        count = count.checked_mul(size)?;
        last = last.checked_add(size.checked_sub(1)?.max(0).checked_mul(stride)?)?;
    }
    Some(if count == 0 { offset - 1 } else { last })
}

#[cfg(test)]
mod tests {
    use super::check_view;

    #[test]
    fn views_outside_of_their_storage_are_refused() {
        let valid: [(i64, &[i64], &[i64], i64); 6] = [
            (0, &[], &[], 1),
            (0, &[3, 2], &[2, 1], 6),
            (0, &[2, 3], &[1, 2], 6),
            (4, &[2], &[1], 6),
            (0, &[0], &[1], 0),
            (0, &[1 << 40], &[0], 1),
        ];
        for (offset, size, stride, elements) in valid {
            assert!(check_view(offset, size, stride, elements).is_ok(), "{size:?}");
        }
        let invalid: [(i64, &[i64], &[i64], i64); 9] = [
            (0, &[], &[], 0),
            (-1, &[1], &[1], 6),
            (0, &[-1], &[1], 6),
            (0, &[2], &[-1], 6),
            (0, &[7], &[1], 6),
            (5, &[2], &[1], 6),
            (0, &[2, 2], &[1], 6),
            (0, &[i64::MAX, i64::MAX], &[1, 1], 6),
            (i64::MAX, &[2], &[i64::MAX], 6),
        ];
        for (offset, size, stride, elements) in invalid {
            assert!(check_view(offset, size, stride, elements).is_err(), "{size:?}");
        }
    }
}
