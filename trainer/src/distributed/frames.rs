//! Control messages: a few numbers that all ranks exchange, together with a hash of the collective
//! that they belong to, so that ranks at different collectives return an error at once.

use std::array;
use std::fmt::Write;
use std::panic::Location;

use tch::Tensor;

use super::call::{Call, quoted};
use super::links::Links;
use super::watch::Kind;
use crate::error::{Error, Result};
use crate::moment::MomentInfo;

/// The length of a message, the same in all collectives: gloo aborts the process if a message is
/// longer than its receiver expects.
const LENGTH: usize = 20;

/// The longest description of a collective that is sent for an error message, in bytes.
const DESCRIPTION: usize = 4096;

/// The longest part of a description that an error message shows, in characters.
const SHOWN: usize = 240;

impl Links {
    /// Describes the next collective that the program calls. `details` is what must be the same on
    /// all ranks, apart from the place of the call.
    ///
    /// # Errors
    ///
    /// Returns an error if collectives are not allowed here, without counting the call.
    #[track_caller]
    pub(super) fn call(&self, method: &str, name: &str, details: &str) -> Result<Call> {
        let what = format!("`{method}({name:?})`");
        self.check_allowed(&what)?;
        let nth = self.shared.count_call();
        let mut compared = format!("{what}{details}");
        if let Some(place) = &self.place {
            let _ = write!(compared, " in {place}");
        }
        let number = format!(", collective {nth} of this batch");
        let text = format!("{compared}{number} ({})", Location::caller());
        compared.push_str(&number);
        Ok(Call { what, compared, text })
    }

    /// Returns this world for a hook, whose collectives then name it.
    pub(super) fn at(&self, hook: Option<&str>, moment: &MomentInfo) -> Links {
        let place = match hook {
            Some(hook) => format!("`{hook}` at `{}`", moment.path()),
            None => format!("`{}`", moment.path()),
        };
        Links { place: Some(place.into()), ..self.clone() }
    }

    /// Begins the count of the collectives that the program calls in a batch.
    pub(super) fn begin_batch(&self) {
        self.shared.reset_calls();
    }

    /// Returns the numbers of all ranks, in the order of the ranks, in the group of control
    /// messages.
    pub(super) fn table<const N: usize>(&self, own: [f64; N], what: &str) -> Result<Vec<[f64; N]>> {
        self.frames(own, what, what, what)
    }

    /// Compares a collective that the program calls with those of the other ranks, and returns the
    /// numbers of all ranks.
    pub(super) fn compare<const N: usize>(&self, own: [f64; N], call: &Call) -> Result<Vec<[f64; N]>> {
        self.frames(own, &call.what, &call.compared, &call.text)
    }

    /// Exchanges numbers. Returns an error if `compared` is not the same on all ranks. `what` is
    /// the name of the collective, and `text` describes it to the other ranks.
    fn frames<const N: usize>(
        &self,
        own: [f64; N],
        what: &str,
        compared: &str,
        text: &str,
    ) -> Result<Vec<[f64; N]>> {
        const { assert!(N < LENGTH) };
        let mut frame = [0.0; LENGTH];
        frame[0] = hash(compared);
        frame[1..=N].copy_from_slice(&own);
        let frames = self.collective(Kind::Message, what, |group| group.exchange(&frame))?;
        if frames.iter().any(|other| other[0] != frame[0]) {
            return Err(self.at_different(what, text)?);
        }
        Ok(frames.iter().map(|frame| array::from_fn(|nth| frame[1 + nth])).collect())
    }

    /// Returns the sums of numbers over all ranks, in the group of control messages.
    pub(super) fn sums<const N: usize>(&self, own: [f64; N], what: &str) -> Result<[f64; N]> {
        let all = self.table(own, what)?;
        Ok(array::from_fn(|nth| all.iter().map(|numbers| numbers[nth]).sum()))
    }

    /// Returns the bytes of all ranks.
    pub(super) fn gather_bytes(&self, bytes: &[u8], what: &str) -> Result<Vec<Vec<u8>>> {
        self.gather_of_lengths(bytes, &self.table([bytes.len() as f64], what)?, what)
    }

    /// Returns the bytes of all ranks, whose lengths are known.
    pub(super) fn gather_of_lengths(
        &self,
        bytes: &[u8],
        lengths: &[[f64; 1]],
        what: &str,
    ) -> Result<Vec<Vec<u8>>> {
        let lengths: Vec<i64> = lengths.iter().map(|[length]| *length as i64).collect();
        let own = Tensor::from_slice(bytes);
        let all = self.collective(Kind::Message, what, |group| group.gather(&own, &lengths))?;
        // Once all ranks have reached this exchange, all bytes have been received.
        self.collective(Kind::Message, what, |group| group.exchange(&[0.0; LENGTH]))?;
        all.iter().map(|bytes| Ok(Vec::<u8>::try_from(bytes)?)).collect()
    }

    /// Creates the error for ranks that are at different collectives. This is a collective: all
    /// ranks must call it.
    #[cold]
    fn at_different(&self, what: &str, text: &str) -> Result<Error> {
        let bytes = &text.as_bytes()[..text.len().min(DESCRIPTION)];
        // Only the length differs between the ranks here, not the collective.
        let mut frame = [0.0; LENGTH];
        frame[0] = bytes.len() as f64;
        let lengths = self.collective(Kind::Message, what, |group| group.exchange(&frame))?;
        let lengths: Vec<[f64; 1]> = lengths.iter().map(|frame| [frame[0]]).collect();
        let all = self.gather_of_lengths(bytes, &lengths, what)?;
        let texts: Vec<String> = all.iter().map(|text| String::from_utf8_lossy(text).into_owned()).collect();
        let places: Vec<String> = (0..)
            .zip(excerpts(&texts))
            .map(|(rank, text): (u32, String)| format!("rank {rank} is at {}", quoted(&text)))
            .collect();
        Ok(Error::usage(format!(
            "the ranks are not at the same collective: {}; make every hook call the same collectives on all ranks, in the same \
             order, with tensors of the same dtypes and shapes",
            places.join(", ")
        )))
    }
}

/// Returns the texts, with the middle of long ones replaced by `…`, so that what differs is shown.
fn excerpts(texts: &[String]) -> Vec<String> {
    let texts: Vec<Vec<char>> = texts.iter().map(|text| text.chars().collect()).collect();
    let longest = texts.iter().map(Vec::len).max().unwrap_or(0);
    let differs = (0..longest).find(|nth| texts.iter().any(|text| text.get(*nth) != texts[0].get(*nth)));
    let differs = differs.unwrap_or(0);
    let excerpts = texts.iter().map(|text| {
        if text.len() <= SHOWN {
            return String::from_iter(text);
        }
        // The beginning, the surroundings of the first difference, and the end.
        let third = SHOWN / 3;
        let end = text.len() - third;
        let start = differs.saturating_sub(third / 2).clamp(third, end);
        let until = (start + third).min(end);
        let [first, middle, last] =
            [0..third, start..until, end..text.len()].map(|part| String::from_iter(&text[part]));
        let before = if start > third { "…" } else { "" };
        let after = if end > until { "…" } else { "" };
        format!("{first}{before}{middle}{after}{last}")
    });
    excerpts.collect()
}

/// Returns a hash of a text that is exact as a floating-point number: 52 bits of FNV-1a.
fn hash(text: &str) -> f64 {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash >> 12) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excerpts_show_the_first_difference_of_long_texts() {
        let list = |odd: usize| {
            let names = (0..200).map(|nth| if nth == odd { "odd".to_owned() } else { format!("w{nth}") });
            names.collect::<Vec<_>>().join(", ")
        };
        let short = excerpts(&["one".to_owned(), "other".to_owned()]);
        assert_eq!(short, ["one", "other"]);
        for odd in [0, 20, 100, 199] {
            let [one, other] = excerpts(&[list(odd), list(1000)]).try_into().unwrap();
            assert!(one.contains("odd") && other.contains(&format!("w{odd}")), "{one} / {other}");
            assert!(one.chars().count() <= SHOWN + 2, "{one}");
        }
    }
}
