//! Python's pickle format, without what makes it a program: objects that state dicts need are
//! built, and all others are [foreign](Object::Foreign): what a pickle would call is not called,
//! and only its name is kept.
//!
//! Each opcode does work in proportion to its length, or to the number of objects that it removes
//! from the stack, and creates at most one small object. Objects refer to each other by index, and
//! texts are slices of the pickle. So a pickle that refers to one object many times needs time and
//! memory in proportion to its own length. The number of objects is limited too.

use std::collections::HashMap;

use super::objects::{Global, Id, NONE, Object, Objects, View, malformed};
use crate::error::Result;

/// The maximum number of objects: enough for about 100,000 tensors.
const MAX_OBJECTS: usize = 1 << 22;

/// An `int` of more than 64 bits, such as a seed.
const LONG: Object<'_> = Object::Other("an `int` of more than 64 bits");

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

    /// Reads a string. One that is not UTF-8, such as a path with other bytes, cannot be the name
    /// of a tensor.
    fn text(&mut self, length: usize) -> Result<Object<'a>> {
        let text = std::str::from_utf8(self.take(length)?);
        Ok(text.map_or(Object::Other("a `str` that is not UTF-8"), Object::Text))
    }

    /// Reads up to the end of the line.
    fn line(&mut self) -> Result<&'a str> {
        let length = self.0.iter().position(|byte| *byte == b'\n');
        let line = self.take(length.ok_or_else(|| malformed("it is truncated"))?)?;
        self.take(1)?;
        std::str::from_utf8(line).map_err(|_| malformed("a line is not UTF-8"))
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
        self.push_again(id)
    }

    /// Pushes an object that exists already.
    fn push_again(&mut self, id: Id) -> Result<()> {
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
            b'0' => self.pop().map(drop),        // POP
            b'1' => self.pop_marked().map(drop), // POP_MARK
            b'2' => {
                // DUP
                let last = self.last()?;
                self.push_again(last)
            }
            b'N' => self.push(Object::Other(NONE)), // NONE
            0x88 | 0x89 => self.push(Object::Bool(opcode == 0x88)), // NEWTRUE, NEWFALSE
            b'G' => {
                // BINFLOAT, which is big-endian
                let bits = input.number(8)?.swap_bytes();
                self.push(Object::Float(f64::from_bits(bits)))
            }
            b'F' => {
                // FLOAT
                let number = input.line()?.parse().map_err(|_| malformed("a `float` is not a number"))?;
                self.push(Object::Float(number))
            }
            b'I' | b'L' => {
                // INT, which `True` and `False` are too, LONG
                let number = match input.line()? {
                    "00" => Object::Bool(false),
                    "01" => Object::Bool(true),
                    line => line.trim_end_matches('L').parse().map_or(LONG, Object::Int),
                };
                self.push(number)
            }
            b'K' => input.number(1).and_then(|value| self.push(Object::Int(value.cast_signed()))), // BININT1
            b'M' => input.number(2).and_then(|value| self.push(Object::Int(value.cast_signed()))), // BININT2
            b'J' => {
                // BININT
                let bits = u32::try_from(input.number(4)?).unwrap_or_default();
                self.push(Object::Int(i64::from(bits.cast_signed())))
            }
            0x8a | 0x8b => {
                // LONG1, LONG4
                let length = input.length(if opcode == 0x8a { 1 } else { 4 })?;
                if length > 8 {
                    return input.take(length).and_then(|_| self.push(LONG));
                }
                let unused = 64 - 8 * u32::try_from(length).unwrap_or(8);
                let bits = input.number(length)?.checked_shl(unused).unwrap_or(0).cast_signed();
                self.push(Object::Int(bits.checked_shr(unused).unwrap_or(0)))
            }
            b'X' | b'T' => {
                // BINUNICODE, BINSTRING
                let length = input.length(4)?;
                let text = input.text(length)?;
                self.push(text)
            }
            0x8c | b'U' => {
                // SHORT_BINUNICODE, SHORT_BINSTRING
                let length = input.length(1)?;
                let text = input.text(length)?;
                self.push(text)
            }
            0x8d => {
                // BINUNICODE8
                let length = input.length(8)?;
                let text = input.text(length)?;
                self.push(text)
            }
            b'V' => input.line().and_then(|line| self.push(Object::Text(line))), // UNICODE
            b'S' => input.line().and_then(|line| self.push(Object::Text(line.trim_matches(['\'', '"'])))), // STRING
            b'C' | b'B' | 0x8e | 0x96 => {
                // SHORT_BINBYTES, BINBYTES, BINBYTES8, BYTEARRAY8
                let length = input.length(match opcode {
                    b'C' => 1,
                    b'B' => 4,
                    _ => 8,
                })?;
                input.take(length)?;
                self.push(Object::Other("`bytes`"))
            }
            b')' => self.push(Object::Tuple(Vec::new())), // EMPTY_TUPLE
            0x85..=0x87 => self.tuple(usize::from(opcode - 0x84)), // TUPLE1, TUPLE2, TUPLE3
            b't' => self.pop_marked().and_then(|ids| self.push(Object::Tuple(ids))), // TUPLE
            b']' => self.push(Object::List(Vec::new())),  // EMPTY_LIST
            b'l' => self.pop_marked().and_then(|ids| self.push(Object::List(ids))), // LIST
            b'}' => self.push(Object::Dict(Vec::new())),  // EMPTY_DICT
            b'd' => {
                // DICT
                let items = self.pop_marked()?;
                self.push(Object::Dict(Vec::new()))?;
                self.set_items(&items)
            }
            0x8f => self.push(Object::Other("a `set`")), // EMPTY_SET
            0x91 => self.pop_marked().and_then(|_| self.push(Object::Other("a `frozenset`"))), // FROZENSET
            b'a' => {
                // APPEND
                let item = self.pop()?;
                self.add_items(&[item])
            }
            b'e' | 0x90 => {
                // APPENDS, ADDITEMS
                let items = self.pop_marked()?;
                self.add_items(&items)
            }
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
            b'p' | b'g' => {
                // PUT, GET
                let index = input.line()?.parse().map_err(|_| malformed("an index is not a number"))?;
                if opcode == b'p' { self.remember(index) } else { self.recall(index) }
            }
            b'c' => {
                // GLOBAL
                let global = Global::find(input.line()?, input.line()?);
                self.push(Object::Global(global))
            }
            0x93 => {
                // STACK_GLOBAL
                let name = self.pop()?;
                let module = self.pop()?;
                let global = Global::find(self.objects.text(module)?, self.objects.text(name)?);
                self.push(Object::Global(global))
            }
            b'Q' => self.pop().and_then(|id| self.push(Object::Storage(id))), // BINPERSID
            b'R' => self.reduce(),                                            // REDUCE
            0x81 => {
                // NEWOBJ
                self.pop()?;
                self.create()
            }
            0x92 => {
                // NEWOBJ_EX
                self.pop()?;
                self.pop()?;
                self.create()
            }
            b'o' => {
                // OBJ
                let class = *self.pop_marked()?.first().ok_or_else(|| malformed("an object is missing"))?;
                self.foreign(class)
            }
            b'i' => {
                // INST
                let global = Global::find(input.line()?, input.line()?);
                self.pop_marked()?;
                self.push(Object::Global(global))?;
                self.create()
            }
            b'b' => self.build(), // BUILD
            _ => Err(malformed(&format!("the opcode {opcode:#04x} does not occur in a state dict"))),
        }
    }

    fn set_items(&mut self, items: &[Id]) -> Result<()> {
        let dict = self.last()?;
        match &mut self.objects.0[dict as usize] {
            Object::Dict(entries) => {
                entries.try_reserve(items.len() / 2)?;
                entries.extend(items.chunks_exact(2).map(|item| (item[0], item[1])));
                Ok(())
            }
            Object::Foreign { .. } => Ok(()),
            _ => Err(malformed("it sets items of something that is not a `dict`")),
        }
    }

    /// Adds items to the object on top of the stack. Only those of a `list` are kept.
    fn add_items(&mut self, items: &[Id]) -> Result<()> {
        let object = self.last()?;
        match &mut self.objects.0[object as usize] {
            Object::List(own) => {
                own.try_reserve(items.len())?;
                own.extend(items);
                Ok(())
            }
            Object::Other("a `set`") | Object::Foreign { .. } => Ok(()),
            _ => Err(malformed("it adds items to something that is neither a `list` nor a `set`")),
        }
    }

    /// Sets the attributes of an object. Those of a `dict`, such as the `_metadata` of a state
    /// dict, are not kept.
    fn build(&mut self) -> Result<()> {
        let attributes = self.pop()?;
        let object = self.last()?;
        match &mut self.objects.0[object as usize] {
            Object::Dict(_) => Ok(()),
            Object::Foreign { state, .. } => {
                *state = Some(attributes);
                Ok(())
            }
            _ => Err(malformed("it sets attributes of something that has none")),
        }
    }

    /// Replaces the class on top of the stack with an object of it.
    fn create(&mut self) -> Result<()> {
        let class = self.pop()?;
        match self.objects[class] {
            Object::Global(Global::OrderedDict | Global::DefaultDict) => self.push(Object::Dict(Vec::new())),
            _ => self.foreign(class),
        }
    }

    /// Pushes the result of a call that is not executed.
    fn foreign(&mut self, function: Id) -> Result<()> {
        let class = match self.objects[function] {
            Object::Global(_) => function,
            Object::Foreign { class, .. } => class,
            _ => return Err(malformed("it calls something that is not a function")),
        };
        self.push(Object::Foreign { class, state: None })
    }

    /// Pushes the object that a call to one of the known functions would return, without calling
    /// it. The result of any other function is foreign.
    fn reduce(&mut self) -> Result<()> {
        let mut arguments = self.pop()?;
        let mut function = self.pop()?;
        if let Object::Global(Global::RebuildFromType) = self.objects[function]
            && let &[inner, _, of_inner, ..] = self.objects.items(arguments)?
        {
            function = inner;
            arguments = of_inner;
        }
        let Object::Global(global) = self.objects[function] else { return self.foreign(function) };
        match (global, self.objects.items(arguments)?) {
            (Global::OrderedDict, []) | (Global::DefaultDict, [] | [_]) => {
                self.push(Object::Dict(Vec::new()))
            }
            (Global::RebuildTensor, &[storage, offset, size, stride, ref more @ ..]) => {
                let metadata = more.get(2).copied();
                self.push(Object::Tensor(View { storage, offset, size, stride, metadata }))
            }
            (Global::Rebuild(function), _) => self.push(Object::UnreadableTensor(function, arguments)),
            // A foreign object stays one.
            (Global::RebuildParameter, &[object, ..])
                if matches!(
                    self.objects[object],
                    Object::Tensor(_) | Object::UnreadableTensor(..) | Object::Foreign { .. }
                ) =>
            {
                self.push_again(object)
            }
            (Global::Size, &[size]) => {
                self.objects.items(size)?;
                self.push_again(size)
            }
            (Global::Layout, &[name]) => {
                self.objects.text(name)?;
                self.push_again(name)
            }
            (Global::RebuildTensor | Global::RebuildParameter, _) => {
                Err(malformed("it builds a tensor from arguments that do not occur in a state dict"))
            }
            _ => self.foreign(function),
        }
    }
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
