//! Reading the state dicts that PyTorch's `torch.save` writes: a zip archive with a pickle and the
//! data of each storage.
//!
//! A pickle is a program, and Python's own reader imports and calls whatever the pickle names. This
//! reader executes nothing: it knows the few names that occur in a state dict, and refuses all
//! others.

mod pickle;
mod zip;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use tch::{Kind, Tensor};

use self::pickle::{Id, Object, Objects, View};
use super::files::in_file;
use crate::error::{Error, Result, shortened};

/// The first bytes of a zip archive.
const ZIP: &[u8] = b"PK\x03\x04";
/// The first bytes of the format before PyTorch 1.6: a pickled number.
const LEGACY: &[u8] = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";

/// Whether a file with this content has the format of `torch.save`, judged by its first bytes.
pub(super) fn is_one(bytes: &[u8]) -> bool {
    bytes.starts_with(ZIP) || bytes.starts_with(LEGACY)
}

/// Returns the tensors of the file's state dict by name, or with `section`, those of the state dict
/// under this key.
pub(super) fn tensors(path: &Path, bytes: &[u8], section: Option<&str>) -> Result<BTreeMap<String, Tensor>> {
    read(bytes, section).map_err(|error| in_file(path, error))
}

fn read(bytes: &[u8], section: Option<&str>) -> Result<BTreeMap<String, Tensor>> {
    if bytes.starts_with(LEGACY) {
        return Err(Error::msg(
            "the file has PyTorch's format from before version 1.6: load it in Python, and save it again with \
             `torch.save`, or with `safetensors.torch.save_file`",
        ));
    }
    let archive = zip::entries(bytes)?;
    let mut roots = archive.keys().filter_map(|name| name.strip_suffix("data.pkl"));
    let (Some(root), None) = (roots.next(), roots.next()) else {
        return Err(Error::msg(
            "this is not a `torch.save` file: expected exactly one `data.pkl` in the archive; save a state dict in Python with \
             `torch.save(model.state_dict(), …)`",
        ));
    };
    let order = archive.get(format!("{root}byteorder").as_str()).copied().unwrap_or(b"little");
    if order.trim_ascii() != b"little" {
        return Err(Error::msg(
            "the file was written on a big-endian machine: load it there, and save it as `safetensors`",
        ));
    }
    let (objects, top) = pickle::read(archive[format!("{root}data.pkl").as_str()])?;
    let mut storages = Storages { archive: &archive, root, loaded: HashMap::new() };
    let mut tensors = BTreeMap::new();
    for (key, value) in state_dict(&objects, top, section)? {
        let Object::Tensor(view) = &objects[value] else {
            return Err(not_a_tensor(&objects, &key, value, section.is_none()));
        };
        let tensor =
            storages.view(view).map_err(|error| Error::msg(format!("`{}`: {error}", shortened(&key))))?;
        if tensors.insert(key.to_string(), tensor).is_some() {
            return Err(Error::msg(format!(
                "the state dict has two tensors named `{}`: load it in Python, and save it again with unique names",
                shortened(&key)
            )));
        }
    }
    Ok(tensors)
}

type Entries = Vec<(std::rc::Rc<str>, Id)>;

/// Returns the entries of the outermost `dict`, or of the one under the key `section`.
fn state_dict(objects: &Objects, top: Id, section: Option<&str>) -> Result<Entries> {
    let mut entries = dict(objects, top).ok_or_else(|| {
        let found = match &objects[top] {
            Object::Dict(_) => "a `dict` with keys that are not strings",
            other => other.what(),
        };
        Error::msg(format!(
            "expected a state dict, a `dict` of tensors by name, found {found}: save one in Python with \
             `torch.save(model.state_dict(), …)`"
        ))
    })?;
    if let Some(section) = section {
        let found = entries.iter().find(|(key, _)| **key == *section);
        let found = found.and_then(|(_, value)| dict(objects, *value));
        entries = found.ok_or_else(|| {
            Error::msg(format!(
                "there is no state dict under the key `{section}`; the keys are {}: select another key with `.section(…)`",
                listed(&entries)
            ))
        })?;
    }
    Ok(entries)
}

/// Returns the entries of a `dict` whose keys are strings.
fn dict(objects: &Objects, id: Id) -> Option<Entries> {
    let Object::Dict(entries) = &objects[id] else { return None };
    let text = |id: Id| if let Object::Text(text) = &objects[id] { Some(text.clone()) } else { None };
    entries.iter().map(|(key, value)| Some((text(*key)?, *value))).collect()
}

fn listed(entries: &Entries) -> String {
    if entries.is_empty() {
        return "none".to_owned();
    }
    let shown: Vec<_> = entries.iter().take(8).map(|(key, _)| format!("`{}`", shortened(key))).collect();
    let more = if entries.len() > 8 { format!(" and {} more", entries.len() - 8) } else { String::new() };
    shown.join(", ") + &more
}

#[cold]
fn not_a_tensor(objects: &Objects, key: &str, value: Id, may_select: bool) -> Error {
    let (key, what) = (shortened(key), objects[value].what());
    let help = if may_select && matches!(objects[value], Object::Dict(_)) {
        format!(": if that is the state dict, select it with `LoadWeights::new().section(\"{key}\")`")
    } else if may_select {
        ": if the state dict is under another key, select it with `LoadWeights::new().section(\"…\")`"
            .to_owned()
    } else {
        ": select another key, or save a state dict in Python with `torch.save(model.state_dict(), …)`"
            .to_owned()
    };
    Error::msg(format!("expected a state dict, but `{key}` is {what}, not a tensor{help}"))
}

/// The storages of an archive. Each is read when a tensor first needs it, and only once.
struct Storages<'a> {
    archive: &'a HashMap<&'a str, &'a [u8]>,
    root: &'a str,
    loaded: HashMap<String, Tensor>,
}

impl Storages<'_> {
    /// Returns a tensor that shares the memory of its storage.
    fn view(&mut self, view: &View) -> Result<Tensor> {
        let View { storage, offset, size, stride } = view;
        let base = self.load(&storage.key, storage.kind, storage.elements)?;
        check_view(*offset, size, stride, storage.elements)?;
        Ok(base.f_as_strided(size, stride, *offset)?)
    }

    fn load(&mut self, key: &str, kind: Kind, elements: i64) -> Result<Tensor> {
        if let Some(loaded) = self.loaded.get(key) {
            if loaded.kind() != kind || loaded.size() != [elements] {
                return Err(Error::msg(
                    "its storage is also used with another dtype or length: the file is corrupted; save it again in Python",
                ));
            }
            return Ok(loaded.shallow_clone());
        }
        let name = format!("{}data/{key}", self.root);
        let Some(data) = self.archive.get(name.as_str()) else {
            return Err(Error::msg(
                "the archive has no data for its storage: the file is corrupted; save it again in Python",
            ));
        };
        let bytes = usize::try_from(elements).ok().and_then(|it| it.checked_mul(kind.elt_size_in_bytes()));
        if bytes != Some(data.len()) {
            return Err(Error::msg(format!(
                "its storage has {} bytes, which does not match {elements} elements of {kind:?}: the file is corrupted; save it \
                 again in Python",
                data.len()
            )));
        }
        if kind == Kind::Bool && data.iter().any(|byte| *byte > 1) {
            return Err(Error::msg(
                "its storage has bytes that are neither `true` nor `false`: the file is corrupted; save it again in Python",
            ));
        }
        let tensor = Tensor::f_from_data_size(data, &[elements], kind)?;
        self.loaded.insert(key.to_owned(), tensor.shallow_clone());
        Ok(tensor)
    }
}

/// Returns an error unless every element of a view is within a storage of `elements` elements.
fn check_view(offset: i64, size: &[i64], stride: &[i64], elements: i64) -> Result<()> {
    let last = || {
        let mut count = 1_i64;
        let mut last = offset;
        for (&size, &stride) in size.iter().zip(stride) {
            count = count.checked_mul(size)?;
            last = last.checked_add(size.checked_sub(1)?.max(0).checked_mul(stride)?)?;
        }
        Some(if count == 0 { offset - 1 } else { last })
    };
    let is_valid = offset >= 0
        && size.len() == stride.len()
        && size.iter().chain(stride).all(|it| *it >= 0)
        && last().is_some_and(|last| last < elements);
    if is_valid {
        return Ok(());
    }
    Err(Error::msg(format!(
        "its shape {size:?} with strides {stride:?} at offset {offset} exceeds its storage of {elements} elements: the file is \
         corrupted; save it again in Python"
    )))
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
