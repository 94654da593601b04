//! A reader of the pickles that `torch.save` writes, which never executes anything.
//!
//! A pickle is a program for a stack machine that may call any function of any Python module. This reader knows the few
//! instructions and functions that plain data and tensors need and refuses everything else by name and place. All
//! objects live in one arena and are referred to by number, so that memory grows with the length of the pickle and not
//! with what it unfolds to.

mod machine;

use serde_json::{Map, Number, Value};

/// Largest pickle accepted, in bytes. Tensors are outside of it.
pub const MAX_PICKLE: usize = 4 << 20;
/// How deep a conversion to JSON may go: objects can contain themselves.
const MAX_JSON_DEPTH: usize = 32;
/// How many values a conversion to JSON may give: shared objects could unfold without end.
const MAX_JSON_VALUES: usize = 10_000;

/// A pickle that is not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PickleError {
    /// It asks for more than data.
    #[error("refused at byte {offset} of the pickle: {what}; nothing but plain data and torch tensors is read")]
    Refused {
        /// Byte of the instruction.
        offset: usize,
        /// What it asks for.
        what: String,
    },
    /// It makes no sense.
    #[error("malformed at byte {offset} of the pickle: {problem}")]
    Malformed {
        /// Byte of the instruction.
        offset: usize,
        /// What is wrong.
        problem: String,
    },
}

/// Element type of a storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Element {
    F64,
    F32,
    F16,
    Bf16,
    I64,
    I32,
    I16,
    I8,
    U8,
    Bool,
}

impl Element {
    /// Bytes of one.
    pub fn bytes(self) -> usize {
        match self {
            Self::F64 | Self::I64 => 8,
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::Bf16 | Self::I16 => 2,
            Self::I8 | Self::U8 | Self::Bool => 1,
        }
    }

    fn of_storage(name: &str) -> Option<Self> {
        Some(match name {
            "DoubleStorage" => Self::F64,
            "FloatStorage" => Self::F32,
            "HalfStorage" => Self::F16,
            "BFloat16Storage" => Self::Bf16,
            "LongStorage" => Self::I64,
            "IntStorage" => Self::I32,
            "ShortStorage" => Self::I16,
            "CharStorage" => Self::I8,
            "ByteStorage" => Self::U8,
            "BoolStorage" => Self::Bool,
            _ => return None,
        })
    }
}

/// A run of elements in the archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Storage {
    /// Name of its entry below `data/`.
    pub key: String,
    /// Type of its elements.
    pub element: Element,
    /// How many there are.
    pub count: usize,
}

/// A tensor: a view of a storage, known to be inside of it, with no more elements than it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorRef {
    /// Where the elements are.
    pub storage: Storage,
    /// Index of the first one.
    pub offset: usize,
    /// Dimensions.
    pub shape: Vec<usize>,
    /// Distance of neighbours along each dimension, in elements.
    pub stride: Vec<usize>,
}

/// Functions and types that a pickle may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Global {
    OrderedDict,
    RebuildTensor,
    RebuildParameter,
    Storage(Element),
    Dtype(&'static str),
}

const DTYPES: [&str; 10] =
    ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"];

impl Global {
    fn find(module: &str, name: &str) -> Option<Self> {
        match (module, name) {
            ("collections", "OrderedDict") => Some(Self::OrderedDict),
            ("torch._utils", "_rebuild_tensor_v2") => Some(Self::RebuildTensor),
            ("torch._utils", "_rebuild_parameter") => Some(Self::RebuildParameter),
            ("torch", name) => match Element::of_storage(name) {
                Some(element) => Some(Self::Storage(element)),
                None => DTYPES.into_iter().find(|dtype| *dtype == name).map(Self::Dtype),
            },
            _ => None,
        }
    }
}

type Id = usize;

#[derive(Debug)]
enum Node {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    Tuple(Vec<Id>),
    List(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    Global(Global),
    Storage(Storage),
    Tensor(Box<TensorRef>),
}

/// The data of a pickle.
#[derive(Debug)]
pub struct Pickle {
    nodes: Vec<Node>,
    root: Id,
}

/// An object of a pickle.
#[derive(Debug, Clone, Copy)]
pub struct Object<'a> {
    pickle: &'a Pickle,
    id: Id,
}

impl Pickle {
    /// Reads a pickle.
    pub fn parse(bytes: &[u8]) -> Result<Self, PickleError> {
        if bytes.len() > MAX_PICKLE {
            let problem = format!("it has {} bytes, at most {MAX_PICKLE} are read", bytes.len());
            return Err(PickleError::Malformed { offset: 0, problem });
        }
        machine::run(bytes)
    }

    /// What the pickle describes.
    pub fn root(&self) -> Object<'_> {
        Object { pickle: self, id: self.root }
    }
}

impl<'a> Object<'a> {
    fn node(self) -> &'a Node {
        &self.pickle.nodes[self.id]
    }

    /// The value of a key of a dictionary; the last one if there are several, as in Python.
    pub fn get(self, key: &str) -> Option<Self> {
        let entries = self.entries()?;
        entries.into_iter().rev().find(|(name, _)| name.text() == Some(key)).map(|(_, value)| value)
    }

    /// Keys and values of a dictionary.
    pub fn entries(self) -> Option<Vec<(Self, Self)>> {
        let object = |id: &Id| Object { id: *id, ..self };
        match self.node() {
            Node::Dict(entries) => Some(entries.iter().map(|(key, value)| (object(key), object(value))).collect()),
            _ => None,
        }
    }

    /// A string.
    pub fn text(self) -> Option<&'a str> {
        if let Node::Text(text) = self.node() { Some(text) } else { None }
    }

    /// A number.
    pub fn number(self) -> Option<f64> {
        match self.node() {
            Node::Int(value) => Some(*value as f64),
            Node::Float(value) => Some(*value),
            _ => None,
        }
    }

    /// Whether it is `None`.
    pub fn is_none(self) -> bool {
        matches!(self.node(), Node::None)
    }

    /// A tensor.
    pub fn tensor(self) -> Option<&'a TensorRef> {
        if let Node::Tensor(tensor) = self.node() { Some(tensor) } else { None }
    }

    /// Plain data as JSON; tensors, storages and functions as a word that says what was there. `None` when it is nested
    /// too deeply or has too many values.
    pub fn to_json(self) -> Option<Value> {
        self.json(MAX_JSON_DEPTH, &mut { MAX_JSON_VALUES })
    }

    fn json(self, depth: usize, budget: &mut usize) -> Option<Value> {
        let depth = depth.checked_sub(1)?;
        *budget = budget.checked_sub(1)?;
        let mut inner = |id: &Id| Object { id: *id, ..self }.json(depth, budget);
        Some(match self.node() {
            Node::None => Value::Null,
            Node::Bool(value) => Value::Bool(*value),
            Node::Int(value) => Value::Number((*value).into()),
            // JSON has no infinities.
            Node::Float(value) => Number::from_f64(*value).map_or(Value::String(value.to_string()), Value::Number),
            Node::Text(text) => Value::String(text.clone()),
            Node::Tuple(items) | Node::List(items) => Value::Array(items.iter().map(inner).collect::<Option<_>>()?),
            Node::Dict(entries) => {
                let mut map = Map::new();
                for (key, value) in entries {
                    let key = match inner(key)? {
                        Value::String(key) => key,
                        other => other.to_string(),
                    };
                    map.insert(key, inner(value)?);
                }
                Value::Object(map)
            }
            Node::Global(Global::Dtype(name)) => Value::String(format!("torch.{name}")),
            Node::Global(_) => Value::String("(function)".into()),
            Node::Storage(_) => Value::String("(storage)".into()),
            Node::Tensor(tensor) => Value::String(format!("(tensor {:?})", tensor.shape)),
        })
    }
}
