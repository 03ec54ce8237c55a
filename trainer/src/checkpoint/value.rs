//! Any serde value as JSON and back, without loss: JSON alone has neither NaN and infinities nor keys that are no strings.
//!
//! A string that begins with `#` stands for what JSON does not have: `#inf`, `#-inf`, `#nan:<bits>`, `#bytes:<hex>`, and as a key
//! `#int:<n>` or `#bool:<b>`. A string of the user's that begins so is written with one `#` more.

use ciborium::Value as Cbor;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Number, Value as Json};

use crate::error::{Error, Result};

/// A value as JSON.
pub(super) fn to_json<T: Serialize + ?Sized>(value: &T) -> Result<Json> {
    let value = Cbor::serialized(value).map_err(|error| Error::usage(error.to_string()))?;
    json_of(&value)
}

/// The value that was made into this JSON.
pub(super) fn from_json<T: DeserializeOwned>(json: &Json) -> Result<T> {
    cbor_of(json)?.deserialized().map_err(|error| {
        let ciborium::value::Error::Custom(text) = error;
        Error::usage(text)
    })
}

fn json_of(value: &Cbor) -> Result<Json> {
    Ok(match value {
        Cbor::Null => Json::Null,
        Cbor::Bool(truth) => Json::Bool(*truth),
        Cbor::Integer(integer) => {
            let integer = i128::from(*integer);
            let number = Number::from_i128(integer);
            Json::Number(number.ok_or_else(|| Error::usage(format!("{integer} has more than 64 bits")))?)
        }
        Cbor::Float(float) => {
            Number::from_f64(*float).map_or_else(|| Json::String(non_finite(*float)), Json::Number)
        }
        Cbor::Text(text) => Json::String(escaped(text)),
        Cbor::Bytes(bytes) => {
            Json::String(bytes.iter().fold("#bytes:".to_owned(), |text, byte| text + &format!("{byte:02x}")))
        }
        Cbor::Array(values) => Json::Array(values.iter().map(json_of).collect::<Result<_>>()?),
        Cbor::Map(entries) => {
            let entry = |(key, value): &(Cbor, Cbor)| Ok((key_of(key)?, json_of(value)?));
            Json::Object(entries.iter().map(entry).collect::<Result<Map<_, _>>>()?)
        }
        _ => return Err(Error::usage("a tag has no place in a checkpoint")),
    })
}

fn key_of(key: &Cbor) -> Result<String> {
    match key {
        Cbor::Text(text) => Ok(escaped(text)),
        Cbor::Integer(integer) => Ok(format!("#int:{}", i128::from(*integer))),
        Cbor::Bool(truth) => Ok(format!("#bool:{truth}")),
        _ => Err(Error::usage("the key of a map is to be a string, an integer or a boolean")),
    }
}

fn escaped(text: &str) -> String {
    if text.starts_with('#') { format!("#{text}") } else { text.to_owned() }
}

fn non_finite(float: f64) -> String {
    if float.is_nan() { format!("#nan:{:016x}", float.to_bits()) } else { format!("#{float}") }
}

fn cbor_of(json: &Json) -> Result<Cbor> {
    Ok(match json {
        Json::Null => Cbor::Null,
        Json::Bool(truth) => Cbor::Bool(*truth),
        Json::Number(number) => match (number.as_i128(), number.as_f64()) {
            (Some(integer), _) => {
                Cbor::Integer(integer.try_into().map_err(|_| unreadable(&number.to_string()))?)
            }
            (None, Some(float)) => Cbor::Float(float),
            (None, None) => return Err(unreadable(&number.to_string())),
        },
        Json::String(text) => special(text)?,
        Json::Array(values) => Cbor::Array(values.iter().map(cbor_of).collect::<Result<_>>()?),
        Json::Object(entries) => {
            let entry = |(key, value): (&String, &Json)| Ok((special(key)?, cbor_of(value)?));
            Cbor::Map(entries.iter().map(entry).collect::<Result<_>>()?)
        }
    })
}

fn special(text: &str) -> Result<Cbor> {
    let Some(rest) = text.strip_prefix('#') else { return Ok(Cbor::Text(text.to_owned())) };
    let bits = |digits: &str| u64::from_str_radix(digits, 16).ok().map(f64::from_bits);
    let value = match rest.split_once(':') {
        _ if rest.starts_with('#') => Some(Cbor::Text(rest.to_owned())),
        None if rest == "inf" => Some(Cbor::Float(f64::INFINITY)),
        None if rest == "-inf" => Some(Cbor::Float(f64::NEG_INFINITY)),
        Some(("nan", digits)) => bits(digits).filter(|float| float.is_nan()).map(Cbor::Float),
        Some(("int", digits)) => {
            digits.parse().ok().and_then(|it: i128| Some(Cbor::Integer(it.try_into().ok()?)))
        }
        Some(("bool", truth)) => truth.parse().ok().map(Cbor::Bool),
        Some(("bytes", digits)) => bytes_of(digits).map(Cbor::Bytes),
        _ => None,
    };
    value.ok_or_else(|| unreadable(text))
}

fn bytes_of(digits: &str) -> Option<Vec<u8>> {
    let pairs = digits.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

fn unreadable(text: &str) -> Error {
    Error::usage(format!("`{text}` stands for no value"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{from_json, to_json};

    #[test]
    fn what_json_does_not_have_survives_it() {
        let values = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.1 + 0.2, -0.0, f64::MIN_POSITIVE];
        let text = serde_json::to_string(&to_json(&values).unwrap()).unwrap();
        let back: Vec<f64> = from_json(&serde_json::from_str(&text).unwrap()).unwrap();
        assert_eq!(values.map(f64::to_bits).to_vec(), back.iter().map(|it| it.to_bits()).collect::<Vec<_>>());

        type Odd = (BTreeMap<u64, Option<String>>, u64, i64, (), Option<f32>, String);
        let odd: Odd =
            ([(7, Some("#inf".into())), (8, None)].into(), u64::MAX, i64::MIN, (), Some(0.1), "##".into());
        assert_eq!(from_json::<Odd>(&to_json(&odd).unwrap()).unwrap(), odd);
    }
}
