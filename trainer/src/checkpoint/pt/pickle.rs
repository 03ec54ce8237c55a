//! The subset of Python's pickle format that state dicts need.
//!
//! Reading creates at most one small object per opcode, so the memory is proportional to the length
//! of the pickle. The number of objects is limited too.

use std::collections::HashMap;
use std::rc::Rc;

use tch::Kind;

use crate::error::{Error, Result, shortened};

/// The index of an object in [`Objects`].
pub(super) type Id = usize;
/// All objects of a pickle.
pub(super) type Objects = Vec<Object>;

/// The maximum number of objects: enough for about 100,000 tensors.
const MAX_OBJECTS: usize = 1 << 22;
/// The maximum number of dimensions of a tensor, as in PyTorch.
const MAX_DIMS: usize = 64;

/// An object that a pickle creates.
#[derive(Debug)]
pub(super) enum Object {
    /// `None`, a `bool` or a `float`, which no tensor needs: only its description is kept, for
    /// error messages.
    Other(&'static str),
    Int(i64),
    Text(Rc<str>),
    Tuple(Vec<Id>),
    List,
    Dict(Vec<(Id, Id)>),
    Global(Global),
    Storage(Rc<Storage>),
    Tensor(View),
}

/// A storage: the memory of one or several tensors.
#[derive(Debug)]
pub(super) struct Storage {
    pub(super) key: Rc<str>,
    pub(super) kind: Kind,
    pub(super) elements: i64,
}

/// A tensor: a strided view of a storage.
#[derive(Debug)]
pub(super) struct View {
    pub(super) storage: Rc<Storage>,
    pub(super) offset: i64,
    pub(super) size: Vec<i64>,
    pub(super) stride: Vec<i64>,
}

/// The Python names that a state dict may refer to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Global {
    OrderedDict,
    RebuildTensor,
    RebuildParameter,
    Size,
    Storage(Kind),
}

impl Global {
    fn find(module: &str, name: &str) -> Result<Self> {
        Ok(match (module, name) {
            ("collections", "OrderedDict") => Global::OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2") => Global::RebuildTensor,
            ("torch._utils", "_rebuild_parameter") => Global::RebuildParameter,
            ("torch", "Size") => Global::Size,
            ("torch", storage) => match storage_kind(storage) {
                Some(kind) => Global::Storage(kind),
                None => return Err(unknown(module, name)),
            },
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
        "the file refers to `{}.{}`, which is not part of a state dict, and nothing in the file is executed: if you \
         trust it, load it in Python, and save only its state dict with `torch.save(model.state_dict(), …)`",
        shortened(module),
        shortened(name)
    ))
}

impl Object {
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
            Object::Tensor(_) => "a tensor",
        }
    }
}

/// Reads a pickle. Returns its objects, and the index of the outermost one.
pub(super) fn read(bytes: &[u8]) -> Result<(Objects, Id)> {
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
struct Machine {
    objects: Objects,
    stack: Vec<Id>,
    /// The heights of the stack at its marks.
    marks: Vec<usize>,
    memo: HashMap<u64, Id>,
}

impl Machine {
    fn push(&mut self, object: Object) -> Result<()> {
        if self.objects.len() >= MAX_OBJECTS {
            return Err(malformed("it has too many objects for a state dict"));
        }
        self.stack.push(self.objects.len());
        self.objects.push(object);
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
        Ok(self.stack.split_off(mark.min(self.stack.len())))
    }

    fn tuple(&mut self, count: usize) -> Result<()> {
        let mut ids = (0..count).map(|_| self.pop()).collect::<Result<Vec<_>>>()?;
        ids.reverse();
        self.push(Object::Tuple(ids))
    }

    /// Stores the object on top of the stack in the memo.
    fn remember(&mut self, index: u64) -> Result<()> {
        let last = self.last()?;
        self.memo.insert(index, last);
        Ok(())
    }

    fn recall(&mut self, index: u64) -> Result<()> {
        let id =
            *self.memo.get(&index).ok_or_else(|| malformed("it refers to an object that does not exist"))?;
        if self.stack.len() >= MAX_OBJECTS {
            return Err(malformed("it has too many objects for a state dict"));
        }
        self.stack.push(id);
        Ok(())
    }

    /// Runs one opcode. The comments name the opcodes as Python's `pickletools` does.
    fn run(&mut self, opcode: u8, input: &mut Input<'_>) -> Result<()> {
        match opcode {
            0x80 => input.take(1).map(drop), // PROTO
            0x95 => input.take(8).map(drop), // FRAME
            b'(' => {
                // MARK
                if self.marks.len() >= MAX_OBJECTS {
                    return Err(malformed("it has too many objects for a state dict"));
                }
                self.marks.push(self.stack.len());
                Ok(())
            }
            b'N' => self.push(Object::Other("`None`")), // NONE
            0x88 | 0x89 => self.push(Object::Other("a `bool`")), // NEWTRUE, NEWFALSE
            b'G' => input.take(8).and_then(|_| self.push(Object::Other("a `float`"))), // BINFLOAT
            b'K' => input.number(1).and_then(|it| self.push(Object::Int(it.cast_signed()))), // BININT1
            b'M' => input.number(2).and_then(|it| self.push(Object::Int(it.cast_signed()))), // BININT2
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
                let text = input.text(length)?;
                self.push(Object::Text(text.into()))
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
                let (value, key) = (self.pop()?, self.pop()?);
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
                let (module, name) = (input.line()?, input.line()?);
                self.push(Object::Global(Global::find(module, name)?))
            }
            0x93 => {
                // STACK_GLOBAL
                let (name, module) = (self.pop()?, self.pop()?);
                let (name, module) = (self.text(name)?, self.text(module)?);
                self.push(Object::Global(Global::find(&module, &name)?))
            }
            b'Q' => self.storage(), // BINPERSID
            b'R' => self.reduce(),  // REDUCE
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
        let Object::Dict(entries) = &mut self.objects[dict] else {
            return Err(malformed("it sets items of something that is not a `dict`"));
        };
        entries.extend(items.chunks_exact(2).map(|item| (item[0], item[1])));
        Ok(())
    }

    fn text(&self, id: Id) -> Result<Rc<str>> {
        match &self.objects[id] {
            Object::Text(text) => Ok(Rc::clone(text)),
            other => Err(malformed(&format!("expected a `str`, found {}", other.what()))),
        }
    }

    fn int(&self, id: Id) -> Result<i64> {
        match &self.objects[id] {
            Object::Int(number) => Ok(*number),
            other => Err(malformed(&format!("expected an `int`, found {}", other.what()))),
        }
    }

    fn items(&self, id: Id) -> Result<&[Id]> {
        match &self.objects[id] {
            Object::Tuple(ids) => Ok(ids),
            other => Err(malformed(&format!("expected a `tuple`, found {}", other.what()))),
        }
    }

    fn ints(&self, id: Id) -> Result<Vec<i64>> {
        let ids = self.items(id)?;
        if ids.len() > MAX_DIMS {
            return Err(malformed("a tensor has more than 64 dimensions"));
        }
        ids.iter().map(|id| self.int(*id)).collect()
    }

    /// Creates the storage that `("storage", type, key, device, elements)` stands for.
    fn storage(&mut self) -> Result<()> {
        let id = self.pop()?;
        let &[tag, class, key, _, elements] = self.items(id)? else {
            return Err(malformed("a reference to a storage does not have 5 items"));
        };
        if *self.text(tag)? != *"storage" {
            return Err(malformed("it refers to an external object that is not a storage"));
        }
        let Object::Global(Global::Storage(kind)) = self.objects[class] else {
            return Err(malformed("a storage has no dtype"));
        };
        let storage = Storage { key: self.text(key)?, kind, elements: self.int(elements)? };
        self.push(Object::Storage(Rc::new(storage)))
    }

    /// Pushes the object that a call of one of the known functions would return, without calling
    /// it.
    fn reduce(&mut self) -> Result<()> {
        let (arguments, function) = (self.pop()?, self.pop()?);
        let Object::Global(function) = self.objects[function] else {
            return Err(malformed("it calls something that is not a function"));
        };
        match (function, self.items(arguments)?) {
            (Global::OrderedDict, []) => self.push(Object::Dict(Vec::new())),
            (Global::RebuildTensor, &[storage, offset, size, stride, ..]) => {
                let Object::Storage(storage) = &self.objects[storage] else {
                    return Err(malformed("a tensor has no storage"));
                };
                let storage = Rc::clone(storage);
                let (offset, size, stride) = (self.int(offset)?, self.ints(size)?, self.ints(stride)?);
                self.push(Object::Tensor(View { storage, offset, size, stride }))
            }
            (Global::RebuildParameter, &[tensor, ..])
                if matches!(self.objects[tensor], Object::Tensor(_)) =>
            {
                self.stack.push(tensor);
                Ok(())
            }
            (Global::Size, &[size]) => {
                self.items(size)?;
                self.stack.push(size);
                Ok(())
            }
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
