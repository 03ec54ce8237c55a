//! Deserializing the rows of parquet files with serde.

use std::sync::Arc;

use ::parquet::record::{Field, Row};
use serde::de::value::{Error, MapDeserializer, SeqDeserializer};
use serde::de::{DeserializeOwned, Deserializer, Error as _, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;

/// Returns the names of the fields of `T`; `None` if `T` is not a struct.
pub(super) fn fields_of<T: DeserializeOwned>() -> Option<&'static [&'static str]> {
    let mut found = None;
    drop(T::deserialize(FieldNames(&mut found)));
    found
}

/// A deserializer that has no values, but records the names of the fields that are requested.
struct FieldNames<'a>(&'a mut Option<&'static [&'static str]>);

impl<'de> Deserializer<'de> for FieldNames<'_> {
    type Error = Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Error> {
        *self.0 = Some(fields);
        Err(Error::custom("no values"))
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(Error::custom("no values"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// Deserializes a row.
pub(super) fn row_from<T: DeserializeOwned>(row: Row) -> Result<T, String> {
    T::deserialize(Value { column: None, field: Field::Group(row) }).map_err(|error| error.to_string())
}

/// A value, and the top-level column that contains it.
struct Value {
    column: Option<Arc<str>>,
    field: Field,
}

impl Value {
    /// Passes the value to a visitor.
    fn pass<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let Value { column, field } = self;
        let within = |field| Value { column: column.clone(), field };
        match field {
            Field::Null => visitor.visit_unit(),
            Field::Bool(value) => visitor.visit_bool(value),
            Field::Byte(value) => visitor.visit_i8(value),
            Field::Short(value) => visitor.visit_i16(value),
            Field::Int(value) | Field::Date(value) | Field::TimeMillis(value) => visitor.visit_i32(value),
            Field::Long(value)
            | Field::TimeMicros(value)
            | Field::TimestampMillis(value)
            | Field::TimestampMicros(value) => visitor.visit_i64(value),
            Field::UByte(value) => visitor.visit_u8(value),
            Field::UShort(value) => visitor.visit_u16(value),
            Field::UInt(value) => visitor.visit_u32(value),
            Field::ULong(value) => visitor.visit_u64(value),
            Field::Float16(value) => visitor.visit_f32(value.to_f32()),
            Field::Float(value) => visitor.visit_f32(value),
            Field::Double(value) => visitor.visit_f64(value),
            Field::Decimal(_) => {
                Err(Error::custom("decimal numbers are not supported: store floating-point numbers"))
            }
            Field::Str(value) => visitor.visit_string(value),
            Field::Bytes(value) => visitor.visit_byte_buf(value.data().to_vec()),
            Field::Group(row) => {
                let columns = row.into_columns().into_iter().map(|(name, field)| {
                    let column = column.clone().unwrap_or_else(|| name.as_str().into());
                    (name, Value { column: Some(column), field })
                });
                visitor.visit_map(MapDeserializer::new(columns))
            }
            Field::ListInternal(list) => {
                visitor.visit_seq(SeqDeserializer::new(list.elements().iter().cloned().map(within)))
            }
            Field::MapInternal(map) => {
                let entries = map.entries().iter().cloned();
                visitor
                    .visit_map(MapDeserializer::new(entries.map(|(key, value)| (within(key), within(value)))))
            }
        }
    }

    /// Calls `with` with the value. If `with` returns an error, adds the name of the column to it.
    fn named<R>(self, with: impl FnOnce(Value) -> Result<R, Error>) -> Result<R, Error> {
        let column = self.column.clone();
        with(self).map_err(|error| match column {
            Some(column) if !error.to_string().starts_with("column `") => {
                Error::custom(format!("column `{column}`: {error}"))
            }
            _ => error,
        })
    }
}

impl<'de> IntoDeserializer<'de, Error> for Value {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Value {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.named(|value| value.pass(visitor))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if matches!(self.field, Field::Null) { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    /// Passes bytes as a sequence, because the visitor of `Vec<u8>` expects one.
    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.named(|value| match value.field {
            Field::Bytes(bytes) => visitor.visit_seq(SeqDeserializer::new(bytes.data().iter().copied())),
            _ => value.pass(visitor),
        })
    }

    /// Deserializes a variant from its name.
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.named(|value| match value.field {
            Field::Str(text) => text.into_deserializer().deserialize_enum(name, variants, visitor),
            _ => value.pass(visitor),
        })
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct tuple tuple_struct map struct identifier ignored_any
    }
}
