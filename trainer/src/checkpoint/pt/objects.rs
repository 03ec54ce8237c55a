//! The objects that a pickle creates.

use std::ops::Index;

use tch::Kind;

use crate::error::{Error, Result, shortened};

/// The maximum number of dimensions of a tensor, as in PyTorch.
const MAX_DIMS: usize = 64;

/// The description of `None`.
pub(super) const NONE: &str = "`None`";

/// The index of an object in [`Objects`].
pub(super) type Id = u32;

/// All objects of a pickle.
#[derive(Debug, Default)]
pub(super) struct Objects<'a>(pub(super) Vec<Object<'a>>);

/// An object that a pickle creates.
#[derive(Debug)]
pub(super) enum Object<'a> {
    /// `None`, `bytes` or a `set`, or an `int` of more than 64 bits. No value is needed, so only a
    /// description for error messages is kept.
    Other(&'static str),
    /// The result of a call that was not executed.
    Foreign {
        /// The function or class that would have been called: the `Id` of a [`Object::Global`].
        class: Id,
        /// What the pickle sets as the attributes of the object.
        state: Option<Id>,
    },
    Int(i64),
    Float(f64),
    Bool(bool),
    Text(&'a str),
    Tuple(Vec<Id>),
    List(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    Global(Global<'a>),
    /// A storage: the memory of one or several tensors. The `Id` is that of the tuple that
    /// describes the storage.
    Storage(Id),
    /// A tensor: a strided view of a storage.
    Tensor(View),
    /// A tensor that this crate cannot read, with the function of `torch._utils` that builds it and
    /// the tuple of its arguments.
    UnreadableTensor(&'a str, Id),
}

/// The arguments of the function that builds a tensor.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    pub(super) storage: Id,
    pub(super) offset: Id,
    pub(super) size: Id,
    pub(super) stride: Id,
    /// A `dict`. It is not empty if the tensor is a conjugated or negated view of its storage.
    pub(super) metadata: Option<Id>,
}

/// A Python name that a pickle refers to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Global<'a> {
    OrderedDict,
    DefaultDict,
    RebuildTensor,
    RebuildParameter,
    /// The function that calls another function to build a tensor, and then sets the attributes of
    /// the tensor.
    RebuildFromType,
    /// Any other function of `torch._utils` that builds a tensor.
    Rebuild(&'a str),
    Size,
    Layout,
    /// The class of the storages of this dtype.
    Storage(Kind),
    /// Any other name in the module `torch`, such as a dtype, a storage class or a quantization
    /// scheme.
    Torch(&'a str),
    /// Any other name, with its module.
    Foreign(&'a str, &'a str),
}

impl<'a> Global<'a> {
    pub(super) fn find(module: &'a str, name: &'a str) -> Self {
        match (module, name) {
            ("collections", "OrderedDict") => Global::OrderedDict,
            ("collections", "defaultdict") => Global::DefaultDict,
            ("torch._utils", "_rebuild_tensor_v2") => Global::RebuildTensor,
            ("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state") => {
                Global::RebuildParameter
            }
            ("torch._tensor", "_rebuild_from_type_v2") => Global::RebuildFromType,
            ("torch._utils", name) if name.starts_with("_rebuild_") => Global::Rebuild(name),
            ("torch", "Size") => Global::Size,
            ("torch.serialization", "_get_layout") => Global::Layout,
            ("torch.storage", "UntypedStorage") => Global::Torch(name),
            ("torch", name) => storage_kind(name).map_or(Global::Torch(name), Global::Storage),
            (module, name) => Global::Foreign(module, name),
        }
    }

    /// The full name, for error messages.
    fn name(self) -> String {
        let (module, name) = match self {
            Global::OrderedDict => ("collections", "OrderedDict"),
            Global::DefaultDict => ("collections", "defaultdict"),
            Global::RebuildTensor => ("torch._utils", "_rebuild_tensor_v2"),
            Global::RebuildParameter => ("torch._utils", "_rebuild_parameter"),
            Global::RebuildFromType => ("torch._tensor", "_rebuild_from_type_v2"),
            Global::Rebuild(name) => ("torch._utils", name),
            Global::Size => ("torch", "Size"),
            Global::Layout => ("torch.serialization", "_get_layout"),
            Global::Storage(_) => ("torch", "Storage"),
            Global::Torch(name) => ("torch", name),
            Global::Foreign(module, name) => (module, name),
        };
        format!("{}.{}", shortened(module), shortened(name))
    }
}

fn storage_kind(name: &str) -> Option<Kind> {
    Some(match name {
        "DoubleStorage" => Kind::Double,
        "FloatStorage" => Kind::Float,
        "HalfStorage" => Kind::Half,
        "BFloat16Storage" => Kind::BFloat16,
        "LongStorage" => Kind::Int64,
        "IntStorage" => Kind::Int,
        "ShortStorage" => Kind::Int16,
        "CharStorage" => Kind::Int8,
        "ByteStorage" => Kind::Uint8,
        "BoolStorage" => Kind::Bool,
        _ => return None,
    })
}

impl<'a> Index<Id> for Objects<'a> {
    type Output = Object<'a>;

    fn index(&self, id: Id) -> &Object<'a> {
        &self.0[id as usize]
    }
}

impl<'a> Objects<'a> {
    /// The number of objects.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Describes an object for error messages.
    pub(super) fn what(&self, id: Id) -> String {
        let what = match &self[id] {
            Object::Other(what) => what,
            Object::Int(_) => "an `int`",
            Object::Float(_) => "a `float`",
            Object::Bool(_) => "a `bool`",
            Object::Text(_) => "a `str`",
            Object::Tuple(_) => "a `tuple`",
            Object::List(_) => "a `list`",
            Object::Dict(_) => "a `dict`",
            Object::Global(global) => return format!("a function or a class (`{}`)", global.name()),
            Object::Foreign { class, .. } => {
                return format!("a Python object (`{}`)", self.global(*class).name());
            }
            Object::Storage(_) => "a storage",
            Object::Tensor(_) | Object::UnreadableTensor(..) => "a tensor",
        };
        what.to_owned()
    }

    /// The function or class of a foreign object.
    pub(super) fn global(&self, class: Id) -> Global<'a> {
        match self[class] {
            Object::Global(global) => global,
            _ => Global::Foreign("unknown", "unknown"),
        }
    }

    pub(super) fn text(&self, id: Id) -> Result<&'a str> {
        match &self[id] {
            Object::Text(text) => Ok(text),
            _ => Err(malformed(&format!("expected a `str`, found {}", self.what(id)))),
        }
    }

    pub(super) fn int(&self, id: Id) -> Result<i64> {
        match &self[id] {
            Object::Int(number) => Ok(*number),
            _ => Err(malformed(&format!("expected an `int`, found {}", self.what(id)))),
        }
    }

    /// Returns a number as Python's `float` of it; `None` for any other object.
    pub(super) fn number(&self, id: Id) -> Option<f64> {
        match self[id] {
            Object::Int(number) => Some(number as f64),
            Object::Float(number) => Some(number),
            Object::Bool(flag) => Some(f64::from(u8::from(flag))),
            _ => None,
        }
    }

    pub(super) fn is_none(&self, id: Id) -> bool {
        matches!(self[id], Object::Other(NONE))
    }

    /// Returns the items of a `list` or a `tuple`; `None` for any other object.
    pub(super) fn sequence(&self, id: Id) -> Option<&[Id]> {
        match &self[id] {
            Object::List(ids) | Object::Tuple(ids) => Some(ids),
            _ => None,
        }
    }

    pub(super) fn items(&self, id: Id) -> Result<&[Id]> {
        match &self[id] {
            Object::Tuple(ids) => Ok(ids),
            _ => Err(malformed(&format!("expected a `tuple`, found {}", self.what(id)))),
        }
    }

    /// Returns the numbers of a tuple, which are the sizes or the strides of a tensor.
    pub(super) fn dims(&self, id: Id) -> Result<Vec<i64>> {
        let ids = self.items(id)?;
        if ids.len() > MAX_DIMS {
            return Err(malformed("a tensor has more than 64 dimensions"));
        }
        ids.iter().map(|id| self.int(*id)).collect()
    }

    /// Returns the class, the key and the number of elements of the storage that the tuple
    /// `("storage", class, key, device, elements)` describes.
    pub(super) fn storage(&self, id: Id) -> Result<(Global<'a>, &'a str, i64)> {
        let Object::Storage(id) = self[id] else { return Err(malformed("a tensor has no storage")) };
        let &[tag, class, key, _, elements] = self.items(id)? else {
            return Err(malformed("a reference to a storage does not have 5 items"));
        };
        if self.text(tag)? != "storage" {
            return Err(malformed("it refers to an external object that is not a storage"));
        }
        let Object::Global(class) = self[class] else { return Err(malformed("a storage has no dtype")) };
        Ok((class, self.text(key)?, self.int(elements)?))
    }
}

#[cold]
pub(super) fn malformed(what: &str) -> Error {
    Error::msg(format!(
        "the pickle in the file is not a valid state dict: {what}; save it again in Python with \
         `torch.save(model.state_dict(), …)`"
    ))
}
