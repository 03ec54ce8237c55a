//! The subset of Python's pickle format that state dicts need.
//!
//! Each opcode does work in proportion to its length, or to the number of objects that it removes
//! from the stack, and creates at most one small object. Objects refer to each other by index, and
//! texts are slices of the pickle. So a pickle that refers to one object many times needs time and
//! memory in proportion to its own length. The number of objects is limited too.

use std::collections::HashMap;
use std::ops::Index;

use tch::Kind;

use crate::error::{Error, Result, shortened};

/// The maximum number of objects: enough for about 100,000 tensors.
const MAX_OBJECTS: usize = 1 << 22;
/// The maximum number of dimensions of a tensor, as in PyTorch.
const MAX_DIMS: usize = 64;

/// The index of an object in [`Objects`].
pub(super) type Id = u32;

/// All objects of a pickle.
#[derive(Debug, Default)]
pub(super) struct Objects<'a>(Vec<Object<'a>>);

/// An object that a pickle creates.
#[derive(Debug)]
pub(super) enum Object<'a> {
    /// `None`, a `bool` or a `float`. No tensor needs these values, so only a description for error
    /// messages is kept.
    Other(&'static str),
    Int(i64),
    Text(&'a str),
    Tuple(Vec<Id>),
    List,
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

/// The Python names that a state dict may refer to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Global<'a> {
    OrderedDict,
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
    /// scheme. It cannot be called.
    Torch(&'a str),
}

impl<'a> Global<'a> {
    fn find(module: &'a str, name: &'a str) -> Result<Self> {
        Ok(match (module, name) {
            ("collections", "OrderedDict") => Global::OrderedDict,
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
            _ => return Err(unknown(module, name)),
        })
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

#[cold]
fn unknown(module: &str, name: &str) -> Error {
    Error::msg(format!(
        "the file refers to `{}.{}`, which does not belong in a state dict; nothing in the file was executed: if you \
         trust it, load it in Python, and save only its state dict with `torch.save(model.state_dict(), …)`",
        shortened(module),
        shortened(name)
    ))
}

impl Object<'_> {
    /// Describes the object for error messages.
    pub(super) fn what(&self) -> &'static str {
        match self {
            Object::Other(what) => what,
            Object::Int(_) => "an `int`",
            Object::Text(_) => "a `str`",
            Object::Tuple(_) => "a `tuple`",
            Object::List => "a `list`",
            Object::Dict(_) => "a `dict`",
            Object::Global(_) => "a function or a class",
            Object::Storage(_) => "a storage",
            Object::Tensor(_) | Object::UnreadableTensor(..) => "a tensor",
        }
    }
}

impl<'a> Index<Id> for Objects<'a> {
    type Output = Object<'a>;

    fn index(&self, id: Id) -> &Object<'a> {
        &self.0[id as usize]
    }
}

impl<'a> Objects<'a> {
    pub(super) fn text(&self, id: Id) -> Result<&'a str> {
        match &self[id] {
            Object::Text(text) => Ok(text),
            other => Err(malformed(&format!("expected a `str`, found {}", other.what()))),
        }
    }

    pub(super) fn int(&self, id: Id) -> Result<i64> {
        match &self[id] {
            Object::Int(number) => Ok(*number),
            other => Err(malformed(&format!("expected an `int`, found {}", other.what()))),
        }
    }

    pub(super) fn items(&self, id: Id) -> Result<&[Id]> {
        match &self[id] {
            Object::Tuple(ids) => Ok(ids),
            other => Err(malformed(&format!("expected a `tuple`, found {}", other.what()))),
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

/// Reads a pickle. Returns its objects, and the index of the outermost one.
pub(super) fn read(bytes: &[u8]) -> Result<(Objects<'_>, Id)> {
    let mut machine = Machine::default();
    let mut input = Input(bytes);
    loop {
        let opcode = input.byte()?;
        if opcode == b'.' {
            let top = machine.pop()?;
            return Ok((machine.objects, top));
        }
        machine.run(opcode, &mut input)?;
    }
}

/// The bytes that have not been read yet.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or_else(|| malformed("it is truncated"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    /// Reads an unsigned little-endian number of `count` bytes, at most 8.
    fn number(&mut self, count: usize) -> Result<u64> {
        Ok(self.take(count)?.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn length(&mut self, count: usize) -> Result<usize> {
        Ok(usize::try_from(self.number(count)?).unwrap_or(usize::MAX))
    }

    fn text(&mut self, length: usize) -> Result<&'a str> {
        std::str::from_utf8(self.take(length)?).map_err(|_| malformed("a string is not UTF-8"))
    }

    /// Reads up to the end of the line.
    fn line(&mut self) -> Result<&'a str> {
        let length = self.0.iter().position(|byte| *byte == b'\n');
        let line = self.text(length.ok_or_else(|| malformed("it is truncated"))?)?;
        self.take(1)?;
        Ok(line)
    }
}

/// The stack machine that runs a pickle.
#[derive(Default)]
struct Machine<'a> {
    objects: Objects<'a>,
    stack: Vec<Id>,
    /// The heights of the stack at its marks.
    marks: Vec<usize>,
    memo: HashMap<u64, Id>,
}

impl<'a> Machine<'a> {
    fn push(&mut self, object: Object<'a>) -> Result<()> {
        let id = Id::try_from(self.objects.0.len()).unwrap_or(Id::MAX);
        if id as usize >= MAX_OBJECTS {
            return Err(malformed("it has too many objects for a state dict"));
        }
        self.objects.0.try_reserve(1)?;
        self.stack.try_reserve(1)?;
        self.stack.push(id);
        self.objects.0.push(object);
        Ok(())
    }

    fn pop(&mut self) -> Result<Id> {
        if self.marks.last().is_some_and(|mark| *mark >= self.stack.len()) {
            return Err(malformed("an object is missing"));
        }
        self.stack.pop().ok_or_else(|| malformed("an object is missing"))
    }

    fn last(&self) -> Result<Id> {
        self.stack.last().copied().ok_or_else(|| malformed("an object is missing"))
    }

    /// Removes and returns the objects after the last mark.
    fn pop_marked(&mut self) -> Result<Vec<Id>> {
        let mark = self.marks.pop().ok_or_else(|| malformed("a mark is missing"))?;
        let mark = mark.min(self.stack.len());
        let mut popped = Vec::new();
        popped.try_reserve_exact(self.stack.len() - mark)?;
        popped.extend(self.stack.drain(mark..));
        Ok(popped)
    }

    fn tuple(&mut self, count: usize) -> Result<()> {
        let mut ids = (0..count).map(|_| self.pop()).collect::<Result<Vec<_>>>()?;
        ids.reverse();
        self.push(Object::Tuple(ids))
    }

    /// Stores the object on top of the stack in the memo.
    fn remember(&mut self, index: u64) -> Result<()> {
        let last = self.last()?;
        self.memo.try_reserve(1)?;
        self.memo.insert(index, last);
        Ok(())
    }

    fn recall(&mut self, index: u64) -> Result<()> {
        let id =
            *self.memo.get(&index).ok_or_else(|| malformed("it refers to an object that does not exist"))?;
        if self.stack.len() >= MAX_OBJECTS {
            return Err(malformed("it has too many objects for a state dict"));
        }
        self.stack.try_reserve(1)?;
        self.stack.push(id);
        Ok(())
    }

    /// Runs one opcode. The comments name the opcodes as Python's `pickletools` does.
    fn run(&mut self, opcode: u8, input: &mut Input<'a>) -> Result<()> {
        match opcode {
            0x80 => input.take(1).map(drop), // PROTO
            0x95 => input.take(8).map(drop), // FRAME
            b'(' => {
                // MARK
                if self.marks.len() >= MAX_OBJECTS {
                    return Err(malformed("it has too many objects for a state dict"));
                }
                self.marks.try_reserve(1)?;
                self.marks.push(self.stack.len());
                Ok(())
            }
            b'N' => self.push(Object::Other("`None`")), // NONE
            0x88 | 0x89 => self.push(Object::Other("a `bool`")), // NEWTRUE, NEWFALSE
            b'G' => input.take(8).and_then(|_| self.push(Object::Other("a `float`"))), // BINFLOAT
            b'K' => input.number(1).and_then(|value| self.push(Object::Int(value.cast_signed()))), // BININT1
            b'M' => input.number(2).and_then(|value| self.push(Object::Int(value.cast_signed()))), // BININT2
            b'J' => {
                // BININT
                let bits = u32::try_from(input.number(4)?).unwrap_or_default();
                self.push(Object::Int(i64::from(bits.cast_signed())))
            }
            0x8a => {
                // LONG1
                let length = input.length(1)?;
                if length > 8 {
                    return Err(malformed("a number has more than 64 bits"));
                }
                let unused = 64 - 8 * u32::try_from(length).unwrap_or(8);
                let bits = input.number(length)?.checked_shl(unused).unwrap_or(0).cast_signed();
                self.push(Object::Int(bits.checked_shr(unused).unwrap_or(0)))
            }
            b'X' | 0x8c | 0x8d => {
                // BINUNICODE, SHORT_BINUNICODE, BINUNICODE8
                let length =
                    input.length(if opcode == b'X' { 4 } else { usize::from(opcode - 0x8c) * 7 + 1 })?;
                self.push(Object::Text(input.text(length)?))
            }
            b')' => self.push(Object::Tuple(Vec::new())), // EMPTY_TUPLE
            0x85..=0x87 => self.tuple(usize::from(opcode - 0x84)), // TUPLE1, TUPLE2, TUPLE3
            b't' => self.pop_marked().and_then(|ids| self.push(Object::Tuple(ids))), // TUPLE
            b']' => self.push(Object::List),              // EMPTY_LIST
            b'}' => self.push(Object::Dict(Vec::new())),  // EMPTY_DICT
            b'a' => self.pop().map(drop),                 // APPEND
            b'e' => self.pop_marked().map(drop),          // APPENDS
            b's' => {
                // SETITEM
                let value = self.pop()?;
                let key = self.pop()?;
                self.set_items(&[key, value])
            }
            b'u' => {
                // SETITEMS
                let items = self.pop_marked()?;
                self.set_items(&items)
            }
            b'q' => input.number(1).and_then(|index| self.remember(index)), // BINPUT
            b'r' => input.number(4).and_then(|index| self.remember(index)), // LONG_BINPUT
            0x94 => self.remember(self.memo.len() as u64),                  // MEMOIZE
            b'h' => input.number(1).and_then(|index| self.recall(index)),   // BINGET
            b'j' => input.number(4).and_then(|index| self.recall(index)),   // LONG_BINGET
            b'c' => {
                // GLOBAL
                self.push(Object::Global(Global::find(input.line()?, input.line()?)?))
            }
            0x93 => {
                // STACK_GLOBAL
                let name = self.pop()?;
                let module = self.pop()?;
                self.push(Object::Global(Global::find(self.objects.text(module)?, self.objects.text(name)?)?))
            }
            b'Q' => self.pop().and_then(|id| self.push(Object::Storage(id))), // BINPERSID
            b'R' => self.reduce(),                                            // REDUCE
            b'b' => {
                // BUILD, which sets the attribute `_metadata` of an `OrderedDict`
                self.pop()?;
                match self.objects[self.last()?] {
                    Object::Dict(_) => Ok(()),
                    _ => Err(malformed("it sets attributes of something that is not a `dict`")),
                }
            }
            _ => Err(malformed(&format!("the opcode {opcode:#04x} does not occur in a state dict"))),
        }
    }

    fn set_items(&mut self, items: &[Id]) -> Result<()> {
        let dict = self.last()?;
        let Object::Dict(entries) = &mut self.objects.0[dict as usize] else {
            return Err(malformed("it sets items of something that is not a `dict`"));
        };
        entries.try_reserve(items.len() / 2)?;
        entries.extend(items.chunks_exact(2).map(|item| (item[0], item[1])));
        Ok(())
    }

    /// Pushes the object that a call to one of the known functions would return, without calling
    /// it.
    fn reduce(&mut self) -> Result<()> {
        let mut arguments = self.pop()?;
        let mut function = self.pop()?;
        if let Object::Global(Global::RebuildFromType) = self.objects[function]
            && let &[inner, _, of_inner, ..] = self.objects.items(arguments)?
        {
            function = inner;
            arguments = of_inner;
        }
        let Object::Global(function) = self.objects[function] else {
            return Err(malformed("it calls something that is not a function"));
        };
        match (function, self.objects.items(arguments)?) {
            (Global::OrderedDict, []) => self.push(Object::Dict(Vec::new())),
            (Global::RebuildTensor, &[storage, offset, size, stride, ref more @ ..]) => {
                let metadata = more.get(2).copied();
                self.push(Object::Tensor(View { storage, offset, size, stride, metadata }))
            }
            (Global::Rebuild(function), _) => self.push(Object::UnreadableTensor(function, arguments)),
            (Global::RebuildParameter, &[object, ..])
                if matches!(self.objects[object], Object::Tensor(_) | Object::UnreadableTensor(..)) =>
            {
                self.stack.push(object);
                Ok(())
            }
            (Global::Size, &[size]) => {
                self.objects.items(size)?;
                self.stack.push(size);
                Ok(())
            }
            (Global::Layout, &[name]) => {
                self.objects.text(name)?;
                self.stack.push(name);
                Ok(())
            }
            (Global::Torch(name), _) => Err(unknown("torch", name)),
            _ => Err(malformed("it calls a function with arguments that do not occur in a state dict")),
        }
    }
}

#[cold]
fn malformed(what: &str) -> Error {
    Error::msg(format!(
        "the pickle in the file is not a valid state dict: {what}; save it again in Python with \
         `torch.save(model.state_dict(), …)`"
    ))
}

#[cfg(test)]
mod tests {
    use super::{Object, read};

    #[test]
    fn numbers_keep_their_sign() {
        let cases: [(&[u8], i64); 8] = [
            (b"K\xff.", 255),
            (b"M\xff\xff.", 65535),
            (b"J\xff\xff\xff\xff.", -1),
            (b"J\xff\xff\xff\x7f.", i64::from(i32::MAX)),
            (b"\x8a\x00.", 0),
            (b"\x8a\x01\xff.", -1),
            (b"\x8a\x05\x00\x00\x00\x00\x01.", 1 << 32),
            (b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f.", i64::MAX),
        ];
        for (bytes, number) in cases {
            let (objects, top) = read(bytes).unwrap();
            assert!(matches!(objects[top], Object::Int(it) if it == number), "{:?}", objects[top]);
        }
    }

    #[test]
    fn malformed_pickles_are_refused() {
        for bytes in [&b"}(s."[..], b"(.", b".", b"t.", b"K\x01(\x85.", b"h\x00.", b"}K\x01K\x02u.", b"\x80"]
        {
            assert!(read(bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn too_many_objects_are_refused() {
        let mut bytes = vec![b'N'; super::MAX_OBJECTS + 1];
        bytes.push(b'.');
        assert!(read(&bytes).is_err());
    }
}
