//! Rows of Parquet files as JSON objects, so that one set of rules reads every container.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use parquet::errors::ParquetError;
use parquet::file::reader::FileReader;
use parquet::file::serialized_reader::SerializedFileReader;
use parquet::record::reader::RowIter;
use parquet::record::{Field, Row};
use parquet::schema::types::Type;
use serde_json::{Map, Value};

use super::FIELDS;
use super::error::{DatasetError, Located, Place};

/// How a Parquet file begins.
pub(super) const MAGIC: &[u8] = b"PAR1";

/// The rows of a file. Only columns that a data set can use are read.
pub(super) fn rows(input: File, file: &str) -> Result<Box<dyn Iterator<Item = Located>>, DatasetError> {
    let failed = |what: String| DatasetError::new(file, Place::File, what);
    let mut iter = guarded(|| open(input)).map_err(|error| failed(format!("not a readable Parquet file: {error}")))?;
    let file = file.to_owned();
    let mut number = 0;
    let mut broken = false;
    Ok(Box::new(std::iter::from_fn(move || {
        // After an error the reader's state means nothing.
        if broken {
            return None;
        }
        let row = guarded(|| iter.next().transpose()).transpose()?;
        number += 1;
        broken = row.is_err();
        Some(match row {
            Ok(row) => Ok((Place::Row(number), object(row))),
            Err(error) => Err(DatasetError::new(&file, Place::Row(number), format!("not readable: {error}"))),
        })
    })))
}

/// The reader reports most damage as errors but panics at some.
fn guarded<T>(read: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, ParquetError> {
    let damaged = |_| Err(ParquetError::General("the file is damaged".into()));
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(damaged)
}

fn open(input: File) -> Result<RowIter<'static>, ParquetError> {
    let reader = SerializedFileReader::new(input)?;
    let schema = reader.metadata().file_metadata().schema();
    let (used, others): (Vec<_>, Vec<_>) =
        schema.get_fields().iter().cloned().partition(|column| FIELDS.contains(&column.name()));
    if used.is_empty() {
        let names: Vec<_> = others.iter().map(|column| format!("`{}`", column.name())).collect();
        return Err(ParquetError::General(format!(
            "no column is one that a data set can use; the columns are {}",
            names.join(", ")
        )));
    }
    let projection = Type::group_type_builder(schema.name()).with_fields(used.iter().map(Arc::clone).collect());
    let projection = projection.build()?;
    RowIter::from_file_into(Box::new(reader)).project(Some(projection))
}

fn object(row: Row) -> Map<String, Value> {
    row.into_columns().into_iter().map(|(name, field)| (name, value(field))).collect()
}

fn value(field: Field) -> Value {
    match field {
        Field::Null => Value::Null,
        Field::Bool(value) => value.into(),
        Field::Byte(value) => value.into(),
        Field::Short(value) => value.into(),
        Field::Int(value) => value.into(),
        Field::Long(value) => value.into(),
        Field::UByte(value) => value.into(),
        Field::UShort(value) => value.into(),
        Field::UInt(value) => value.into(),
        Field::ULong(value) => value.into(),
        Field::Float16(value) => f32::from(value).into(),
        Field::Float(value) => value.into(),
        Field::Double(value) => value.into(),
        Field::Str(text) => text.into(),
        Field::Bytes(bytes) => String::from_utf8_lossy(bytes.data()).into(),
        Field::Group(row) => Value::Object(object(row)),
        Field::ListInternal(list) => list.elements().iter().cloned().map(value).collect(),
        // Dates, decimals and maps are in no field that is used.
        other => other.to_string().into(),
    }
}
