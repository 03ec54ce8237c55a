//! Lossless conversion of any serde value to text and back. The format is RON, because JSON loses
//! information: it has neither NaN nor infinities, allows only strings as keys, and represents
//! `None`, `Some(None)` and `()` by the same `null`.

use ron::Value;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};
use crate::values::facts::SettingList;

/// Converts a value to text.
///
/// # Errors
///
/// Returns an error if serde cannot serialize it.
pub(crate) fn to_text<T: Serialize + ?Sized>(value: &T) -> Result<String> {
    ron::to_string(value).map_err(|error| Error::usage(error.to_string()))
}

/// Parses a value from its text.
///
/// # Errors
///
/// Returns an error if the text does not describe a `T`.
pub(crate) fn from_text<T: DeserializeOwned>(text: &str) -> Result<T> {
    ron::from_str(text).map_err(|error| Error::usage(error.code.to_string()))
}

/// Returns the fields of a value by name, or the entire value under the name `value` if it has no
/// named fields. Unordered collections are sorted, so that equal values have the same text.
pub(super) fn fields_of<T: Serialize + ?Sized>(value: &T) -> Result<SettingList> {
    let whole = in_order(&to_text(value)?)?;
    let mut list = SettingList::new();
    if let Value::Map(fields) = &whole
        && fields.keys().all(|name| matches!(name, Value::String(_)))
    {
        for (name, field) in fields.iter() {
            if let Value::String(name) = name {
                list = list.with(name, format_args!("{}", to_text(field)?));
            }
        }
        return Ok(list);
    }
    Ok(list.with("value", format_args!("{}", to_text(&whole)?)))
}

/// Returns an error unless the text of a value can be parsed to the same value. The order of maps
/// and lists may change, as the iteration order of a `HashMap` does.
pub(super) fn check_round_trip<T: Serialize + DeserializeOwned>(text: &str) -> Result<()> {
    let value = from_text::<T>(text).map_err(|error| {
        Error::usage(format!(
            "the value cannot be loaded after it is saved: {error}; implement `State` for its type by hand"
        ))
    })?;
    let again = to_text(&value)?;
    if again == text || (in_order(text)? == in_order(&again)?) {
        return Ok(());
    }
    Err(Error::usage(format!(
        "the value changes when it is saved and loaded: `{}` becomes `{}`; implement `State` for its type by hand",
        crate::error::shortened(text),
        crate::error::shortened(&again)
    )))
}

/// Parses a text and sorts every list in the value; RON's maps are always sorted.
fn in_order(text: &str) -> Result<Value> {
    fn sort(value: &mut Value) {
        match value {
            Value::Seq(values) => {
                values.iter_mut().for_each(sort);
                values.sort();
            }
            Value::Map(entries) => entries.values_mut().for_each(sort),
            Value::Option(Some(value)) => sort(value),
            _ => {}
        }
    }
    let mut value = from_text(text)?;
    sort(&mut value);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap, HashSet};
    use std::fmt::Debug;

    use serde::de::DeserializeOwned;
    use serde::{Deserialize, Serialize};

    use super::{check_round_trip, from_text, to_text};

    #[derive(Debug, Deserialize, PartialEq, Serialize)]
    enum Kind {
        Unit,
        Tuple(u8, Option<Option<()>>),
        Struct { at: (), name: String },
    }

    #[derive(Debug, Deserialize, PartialEq, Serialize)]
    #[serde(tag = "kind")]
    enum Tagged {
        One { rate: f64 },
    }

    #[derive(Debug, Deserialize, PartialEq, Serialize)]
    struct Flat {
        own: u64,
        #[serde(flatten)]
        others: BTreeMap<String, i64>,
    }

    fn survives<T: Debug + DeserializeOwned + PartialEq + Serialize>(value: T) {
        let text = to_text(&value).unwrap();
        assert_eq!(from_text::<T>(&text).unwrap(), value, "{text}");
        drop(value);
        check_round_trip::<T>(&text).unwrap();
    }

    #[test]
    fn values_round_trip_through_text() {
        survives(Some(None::<u8>));
        survives(Some(()));
        survives((Some(Some(())), None::<()>, (), Some(Some(None::<()>))));
        survives([Kind::Unit, Kind::Tuple(7, Some(None)), Kind::Struct { at: (), name: "\"\n#".into() }]);
        survives(Tagged::One { rate: 0.1 });
        survives(Flat { own: 1, others: [("two".into(), -2)].into() });
        survives(BTreeMap::from([((1_u64, 'c'), Some(f64::INFINITY)), ((2, 'd'), None)]));
        survives(HashMap::<i64, String>::from_iter((0..100).map(|number| (number, number.to_string()))));
        survives(HashSet::<u32>::from_iter(0..100));
        survives((u64::MAX, i64::MIN, 0.1_f32, f64::NEG_INFINITY, -0.0_f64, u128::MAX, String::new(), 'x'));
        survives(serde_json::json!({"a": [1, null, 0.5, "x"], "b": {}}));
        let floats = [0.1 + 0.2, -0.0, f64::MIN_POSITIVE, 5e-324, f64::MAX];
        let back: [f64; 5] = from_text(&to_text(&floats).unwrap()).unwrap();
        assert_eq!(back.map(f64::to_bits), floats.map(f64::to_bits));
        let nan: f64 = from_text(&to_text(&f64::NAN).unwrap()).unwrap();
        assert!(nan.is_nan());
        check_round_trip::<Vec<f64>>(&to_text(&vec![f64::NAN, 1.0]).unwrap()).unwrap();
    }

    #[test]
    fn a_value_that_does_not_round_trip_is_refused() {
        /// A value that serializes completely but deserializes as 0.
        #[derive(Deserialize, Serialize)]
        struct Loses {
            #[serde(skip_deserializing)]
            count: u64,
        }
        let error = check_round_trip::<Loses>(&to_text(&Loses { count: 3 }).unwrap()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the value changes when it is saved and loaded: `(count:3)` becomes `(count:0)`; implement \
             `State` for its type by hand"
        );
        /// A value that cannot be deserialized.
        #[derive(Deserialize, Serialize)]
        struct Fails {
            #[serde(skip_serializing)]
            #[allow(dead_code)]
            count: u64,
        }
        let error = check_round_trip::<Fails>(&to_text(&Fails { count: 3 }).unwrap()).unwrap_err();
        assert!(error.to_string().contains("count"), "{error}");
    }

    #[test]
    fn deep_nesting_is_an_error() {
        let text = "[".repeat(100_000);
        assert!(from_text::<serde_json::Value>(&text).is_err());
    }
}
