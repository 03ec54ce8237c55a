//! [`Float`]: numbers in JSON that preserve NaN and infinities.

use std::fmt;

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An `f64` that survives a round trip through JSON. JSON has neither NaN nor infinities, so these
/// are written as the strings `"NaN"`, `"inf"` and `"-inf"`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Float(pub f64);

impl Serialize for Float {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.is_finite() { serializer.serialize_f64(self.0) } else { serializer.collect_str(&self.0) }
    }
}

impl<'de> Deserialize<'de> for Float {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FloatVisitor).map(Float)
    }
}

/// Returns the number for one of the strings of [`Float`]. Returns `None` for any other string.
pub(crate) fn not_finite(text: &str) -> Option<f64> {
    match text {
        "NaN" => Some(f64::NAN),
        "inf" => Some(f64::INFINITY),
        "-inf" => Some(f64::NEG_INFINITY),
        _ => None,
    }
}

/// Deserializes a [`Float`] from a number, or from the string for a non-finite number.
struct FloatVisitor;

impl Visitor<'_> for FloatVisitor {
    type Value = f64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, \"NaN\", \"inf\" or \"-inf\"")
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<f64, E> {
        Ok(number)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<f64, E> {
        Ok(number as f64)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<f64, E> {
        Ok(number as f64)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<f64, E> {
        not_finite(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}

/// Formats a value for people: with four decimals, or in scientific notation. Scientific notation
/// is used for magnitudes of at least 1e7, and for magnitudes below 1e-4 other than 0.
#[must_use]
pub fn readable(value: f64) -> String {
    let is_plain = value == 0.0 || !value.is_finite() || (1e-4..1e7).contains(&value.abs());
    if is_plain { format!("{value:.4}") } else { format!("{value:.3e}") }
}

/// Formats a value with at most four significant digits, in scientific notation if it is very large
/// or small.
#[must_use]
pub fn brief(value: f64) -> String {
    let rounded = format!("{value:.3e}").parse().unwrap_or(value);
    if rounded != 0.0 && rounded.abs() < 1e-4 { format!("{rounded:e}") } else { exact(rounded) }
}

/// Formats a value with all of its digits, in scientific notation if it is very large or small.
#[must_use]
pub fn exact(value: f64) -> String {
    let is_plain = value == 0.0 || !value.is_finite() || (1e-7..1e16).contains(&value.abs());
    if is_plain { value.to_string() } else { format!("{value:e}") }
}

#[cfg(test)]
mod tests {
    use super::{Float, exact, readable};

    #[test]
    fn every_number_survives_a_round_trip_through_json() {
        for number in [0.1 + 0.2, -0.0, 3.0, 1e300, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 5e-324] {
            let text = serde_json::to_string(&Float(number)).unwrap();
            let Float(back) = serde_json::from_str(&text).unwrap();
            assert!(back.to_bits() == number.to_bits() || back.is_nan() && number.is_nan(), "{text}");
        }
        assert!(serde_json::from_str::<Float>("\"nan(7)\"").is_err());
    }

    #[test]
    fn very_large_and_small_values_are_shown_in_scientific_notation() {
        let values = [0.0, -0.25, 9_999_999.0, 5e29, -1e7, 3e-5, f64::NAN, f64::NEG_INFINITY];
        let expected =
            ["0.0000", "-0.2500", "9999999.0000", "5.000e29", "-1.000e7", "3.000e-5", "NaN", "-inf"];
        assert_eq!(values.map(readable), expected);
        assert_eq!([2.0, 0.1, 5e29, 2e-9].map(exact), ["2", "0.1", "5e29", "2e-9"]);
    }
}
