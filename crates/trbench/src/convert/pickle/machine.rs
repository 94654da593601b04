//! The stack machine that pickles are programs for, with the instructions that plain data and tensors need.

use std::collections::HashMap;

use super::{Global, Id, Node, Pickle, PickleError, Storage, TensorRef};

/// Most dimensions of a tensor.
const MAX_RANK: usize = 8;
/// Longest name of a storage, in bytes: every tensor carries one.
const MAX_KEY: usize = 64;

pub(super) fn run(bytes: &[u8]) -> Result<Pickle, PickleError> {
    let mut machine = Machine { bytes, ..Machine::default() };
    loop {
        machine.start = machine.at;
        let code = machine.take(1)?[0];
        if code == b'.' {
            let root = machine.pop()?;
            return Ok(Pickle { nodes: machine.nodes, root });
        }
        machine.step(code)?;
    }
}

#[derive(Default)]
struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Where the current instruction begins.
    start: usize,
    nodes: Vec<Node>,
    stack: Vec<Id>,
    /// Heights of the stack at which marks lie.
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
}

impl<'a> Machine<'a> {
    fn malformed(&self, problem: impl Into<String>) -> PickleError {
        PickleError::Malformed { offset: self.start, problem: problem.into() }
    }

    fn refused(&self, what: impl Into<String>) -> PickleError {
        PickleError::Refused { offset: self.start, what: what.into() }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], PickleError> {
        let part = self.at.checked_add(count).and_then(|end| self.bytes.get(self.at..end));
        let part = part.ok_or_else(|| self.malformed("it ends in the middle of an instruction"))?;
        self.at += count;
        Ok(part)
    }

    /// An unsigned little-endian number of 1 to 8 bytes.
    fn unsigned(&mut self, bytes: usize) -> Result<u64, PickleError> {
        Ok(self.take(bytes)?.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    fn line(&mut self) -> Result<&'a str, PickleError> {
        let rest = &self.bytes[self.at..];
        let length = rest.iter().position(|byte| *byte == b'\n');
        let length = length.ok_or_else(|| self.malformed("a line without an end"))?;
        let line = self.take(length)?;
        self.take(1)?;
        self.utf8(line)
    }

    fn utf8(&self, bytes: &'a [u8]) -> Result<&'a str, PickleError> {
        std::str::from_utf8(bytes).map_err(|_| self.malformed("text that is not UTF-8"))
    }

    fn push(&mut self, node: Node) {
        self.stack.push(self.nodes.len());
        self.nodes.push(node);
    }

    fn pop(&mut self) -> Result<Id, PickleError> {
        if self.stack.len() <= self.marks.last().copied().unwrap_or(0) {
            return Err(self.malformed("it takes from an empty stack"));
        }
        self.stack.pop().ok_or_else(|| self.malformed("it takes from an empty stack"))
    }

    fn top(&self) -> Result<Id, PickleError> {
        self.stack.last().copied().ok_or_else(|| self.malformed("it looks at an empty stack"))
    }

    fn pop_to_mark(&mut self) -> Result<Vec<Id>, PickleError> {
        let mark = self.marks.pop().ok_or_else(|| self.malformed("there is no mark"))?;
        Ok(self.stack.split_off(mark))
    }

    fn pop_tuple(&mut self, count: usize) -> Result<(), PickleError> {
        let mut items = (0..count).map(|_| self.pop()).collect::<Result<Vec<_>, _>>()?;
        items.reverse();
        self.push(Node::Tuple(items));
        Ok(())
    }

    fn remember(&mut self, key: u64) -> Result<(), PickleError> {
        let top = self.top()?;
        self.memo.insert(key as u32, top);
        Ok(())
    }

    fn recall(&mut self, key: u64) -> Result<(), PickleError> {
        let id = self.memo.get(&(key as u32)).copied();
        self.stack.push(id.ok_or_else(|| self.malformed(format!("nothing is remembered as {key}")))?);
        Ok(())
    }

    fn step(&mut self, code: u8) -> Result<(), PickleError> {
        match code {
            0x80 => {
                let protocol = self.unsigned(1)?;
                if !(2..=5).contains(&protocol) {
                    return Err(self.malformed(format!("protocol {protocol}, expected 2 to 5")));
                }
            }
            // A frame: its length is of no use here.
            0x95 => drop(self.take(8)?),
            b'N' => self.push(Node::None),
            0x88 => self.push(Node::Bool(true)),
            0x89 => self.push(Node::Bool(false)),
            b'J' => {
                let value = self.unsigned(4)? as u32;
                self.push(Node::Int(i64::from(value.cast_signed())));
            }
            b'K' | b'M' => {
                let value = self.unsigned(if code == b'K' { 1 } else { 2 })?;
                self.push(Node::Int(value.cast_signed()));
            }
            0x8a => self.long()?,
            b'G' => {
                let bits = self.unsigned(8)?.swap_bytes();
                self.push(Node::Float(f64::from_bits(bits)));
            }
            b'X' | 0x8c => {
                let length = self.unsigned(if code == b'X' { 4 } else { 1 })? as usize;
                let bytes = self.take(length)?;
                let text = self.utf8(bytes)?.to_owned();
                self.push(Node::Text(text));
            }
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.global(module, name)?;
            }
            0x93 => self.stack_global()?,
            b'q' | b'r' => {
                let key = self.unsigned(if code == b'q' { 1 } else { 4 })?;
                self.remember(key)?;
            }
            0x94 => self.remember(self.memo.len() as u64)?,
            b'h' | b'j' => {
                let key = self.unsigned(if code == b'h' { 1 } else { 4 })?;
                self.recall(key)?;
            }
            b'Q' => self.persistent()?,
            b'R' => self.reduce()?,
            b'b' => self.build()?,
            _ => self.containers(code)?,
        }
        Ok(())
    }

    fn containers(&mut self, code: u8) -> Result<(), PickleError> {
        match code {
            b'(' => self.marks.push(self.stack.len()),
            b'0' => drop(self.pop()?),
            b')' => self.push(Node::Tuple(Vec::new())),
            b']' => self.push(Node::List(Vec::new())),
            b'}' => self.push(Node::Dict(Vec::new())),
            b't' => {
                let items = self.pop_to_mark()?;
                self.push(Node::Tuple(items));
            }
            0x85..=0x87 => self.pop_tuple(usize::from(code - 0x84))?,
            b'a' | b'e' => {
                let items = if code == b'a' { vec![self.pop()?] } else { self.pop_to_mark()? };
                let list = self.top()?;
                match &mut self.nodes[list] {
                    Node::List(list) => list.extend(items),
                    _ => return Err(self.malformed("it appends to something that is not a list")),
                }
            }
            b's' | b'u' => {
                let items = if code == b's' {
                    let value = self.pop()?;
                    vec![self.pop()?, value]
                } else {
                    self.pop_to_mark()?
                };
                let (pairs, []) = items.as_chunks() else { return Err(self.malformed("a key without a value")) };
                let dict = self.top()?;
                match &mut self.nodes[dict] {
                    Node::Dict(dict) => dict.extend(pairs.iter().map(|[key, value]| (*key, *value))),
                    _ => return Err(self.malformed("it sets keys of something that is not a dictionary")),
                }
            }
            other => return Err(self.refused(format!("instruction 0x{other:02x}"))),
        }
        Ok(())
    }

    fn long(&mut self) -> Result<(), PickleError> {
        let length = self.unsigned(1)? as usize;
        if length > 8 {
            return Err(self.malformed("an integer of more than 64 bits"));
        }
        let value = self.unsigned(length)?;
        // The sign is the highest bit of the last byte.
        let unused = 64 - 8 * length as u32;
        let value = value.checked_shl(unused).unwrap_or(0).cast_signed().checked_shr(unused).unwrap_or(0);
        self.push(Node::Int(value));
        Ok(())
    }

    fn global(&mut self, module: &str, name: &str) -> Result<(), PickleError> {
        let shown = |text: &str| text.chars().take(80).collect::<String>();
        let global = Global::find(module, name);
        let global = global.ok_or_else(|| self.refused(format!("`{}.{}`", shown(module), shown(name))))?;
        self.push(Node::Global(global));
        Ok(())
    }

    fn stack_global(&mut self) -> Result<(), PickleError> {
        let (name, module) = (self.pop()?, self.pop()?);
        match (&self.nodes[module], &self.nodes[name]) {
            (Node::Text(module), Node::Text(name)) => {
                let (module, name) = (module.clone(), name.clone());
                self.global(&module, &name)
            }
            _ => Err(self.malformed("the name of a function is not text")),
        }
    }

    /// `("storage", type, key, device, count)`: what torch keeps outside of the pickle.
    fn persistent(&mut self) -> Result<(), PickleError> {
        let id = self.pop()?;
        let Node::Tuple(items) = &self.nodes[id] else { return Err(self.malformed("not the name of a storage")) };
        let items: Vec<&Node> = items.iter().map(|id| &self.nodes[*id]).collect();
        let [
            Node::Text(word),
            Node::Global(Global::Storage(element)),
            Node::Text(key),
            Node::Text(_),
            Node::Int(count),
        ] = items[..]
        else {
            return Err(self.malformed("not the name of a storage"));
        };
        let count = usize::try_from(*count).ok().filter(|count| count.checked_mul(element.bytes()).is_some());
        match count {
            Some(count) if word == "storage" && key.len() <= MAX_KEY => {
                let storage = Storage { key: key.clone(), element: *element, count };
                self.push(Node::Storage(storage));
                Ok(())
            }
            _ => Err(self.malformed("not the name of a storage")),
        }
    }

    /// A call: of one of the functions that are known.
    fn reduce(&mut self) -> Result<(), PickleError> {
        let (arguments, function) = (self.pop()?, self.pop()?);
        let Node::Tuple(arguments) = &self.nodes[arguments] else {
            return Err(self.malformed("the arguments of a call are not a tuple"));
        };
        match (&self.nodes[function], &arguments[..]) {
            (Node::Global(Global::OrderedDict), []) => self.push(Node::Dict(Vec::new())),
            (Node::Global(Global::RebuildTensor), [storage, offset, shape, stride, _grad, _hooks, ..]) => {
                let tensor = self.tensor(*storage, *offset, *shape, *stride)?;
                self.push(Node::Tensor(Box::new(tensor)));
            }
            (Node::Global(Global::RebuildParameter), [tensor, ..]) => match &self.nodes[*tensor] {
                Node::Tensor(_) => self.stack.push(*tensor),
                _ => return Err(self.malformed("a parameter that is not a tensor")),
            },
            (Node::Global(function), _) => {
                return Err(self.refused(format!("a call of {function:?} with {} arguments", arguments.len())));
            }
            _ => return Err(self.refused("a call of something that is not a function")),
        }
        Ok(())
    }

    /// Attributes of an object: ordered dictionaries of weights carry version numbers, which are of no use here.
    fn build(&mut self) -> Result<(), PickleError> {
        let (state, object) = (self.pop()?, self.top()?);
        match (&self.nodes[object], &self.nodes[state]) {
            (Node::Dict(_), Node::Dict(_)) => Ok(()),
            _ => Err(self.refused("attributes set on something that is not a dictionary")),
        }
    }

    fn tensor(&self, storage: Id, offset: Id, shape: Id, stride: Id) -> Result<TensorRef, PickleError> {
        let sizes = |id: Id| match &self.nodes[id] {
            Node::Tuple(items) if items.len() <= MAX_RANK => items.iter().map(|id| self.size(*id)).collect(),
            _ => Err(self.malformed(format!("a shape that is not a tuple of at most {MAX_RANK} numbers"))),
        };
        let Node::Storage(storage) = &self.nodes[storage] else {
            return Err(self.malformed("a tensor without a storage"));
        };
        let (offset, shape, stride): (_, Vec<usize>, Vec<usize>) = (self.size(offset)?, sizes(shape)?, sizes(stride)?);
        let count = shape.iter().try_fold(1usize, |count, size| count.checked_mul(*size));
        let last = shape.iter().zip(&stride).try_fold(offset, |last, (size, stride)| {
            size.saturating_sub(1).checked_mul(*stride).and_then(|distance| last.checked_add(distance))
        });
        let fits = match (count, last) {
            (Some(0), _) => true,
            (Some(count), Some(last)) => count <= storage.count && last < storage.count,
            _ => false,
        };
        if !fits || shape.len() != stride.len() {
            return Err(self.malformed(format!(
                "a tensor of shape {shape:?}, strides {stride:?} from element {offset} on does not fit its storage of {} \
                 elements",
                storage.count
            )));
        }
        Ok(TensorRef { storage: storage.clone(), offset, shape, stride })
    }

    fn size(&self, id: Id) -> Result<usize, PickleError> {
        match &self.nodes[id] {
            Node::Int(value) => usize::try_from(*value).map_err(|_| self.malformed(format!("a size of {value}"))),
            _ => Err(self.malformed("a size that is not a number")),
        }
    }
}
