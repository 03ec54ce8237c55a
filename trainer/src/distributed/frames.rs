//! Control messages: a few numbers that all ranks combine, together with a hash of the collective
//! that they belong to, so that ranks at different collectives return an error at once.

use std::array;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::panic::Location;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::call::{Call, quoted};
use super::json::{from_json, json};
use super::links::Links;
use super::peers::Exchanging;
use super::steps::Step;
use super::watch::Kind;
use crate::error::{Error, Result};
use crate::moment::MomentInfo;

/// How many maxima and how many sums fit into a message.
const MAXIMA: usize = 32;
const SUMS: usize = 4;

/// The length of a message, the same in all collectives.
const LENGTH: usize = MAXIMA + SUMS;

/// A control message.
type Frame = [f64; LENGTH];

/// The maximum number of bytes of a description that is sent for an error message.
const DESCRIPTION: usize = 4096;

/// The maximum number of characters of a description that an error message shows.
const SHOWN: usize = 240;

/// The value of rank 0, and the value of another rank that differs from it.
#[derive(Debug)]
pub(crate) struct Unequal<V> {
    /// The value of rank 0.
    pub(crate) of_main: V,
    /// The lowest rank whose value differs.
    pub(crate) rank: u32,
    pub(crate) of_rank: V,
}

/// Returns a number and its negative. All ranks have the same number if the largest of their
/// numbers is the negative of the largest of their negatives, as [`is_same`] checks.
pub(crate) const fn both(number: f64) -> [f64; 2] {
    [number, -number]
}

/// Whether all ranks have the same number, given the maxima of [`both`] over all ranks.
pub(crate) fn is_same([largest, negative]: [f64; 2]) -> bool {
    largest == -negative
}

impl Links {
    /// Counts and describes the next collective that the program calls. `details` is what must be
    /// the same on all ranks, in addition to the method, the name, the hook and its moment.
    ///
    /// # Errors
    ///
    /// Returns an error, and does not count the call, if collectives are not allowed in the running
    /// hook or on this thread.
    #[track_caller]
    pub(super) fn call(&self, method: &str, name: &str, details: &str) -> Result<Call> {
        // A list of tensors, which is named by its first tensor, may be empty.
        let what = if name.is_empty() { format!("`{method}`") } else { format!("`{method}({name:?})`") };
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

    /// Returns a handle for a hook. The descriptions of collectives that are called with this
    /// handle contain the name of the hook.
    pub(super) fn at(&self, hook: Option<&str>, moment: &MomentInfo) -> Links {
        let place = match hook {
            Some(hook) => format!("`{hook}` at `{}`", moment.path()),
            None => format!("`{}`", moment.path()),
        };
        Links { place: Some(place.into()), ..self.clone() }
    }

    /// Restarts the count of the collectives that the program calls in a batch.
    pub(super) fn begin_batch(&self) {
        self.shared.reset_calls();
    }

    /// Returns the maximum of each of `maxima` and the sum of each of `sums` over all ranks. The
    /// results are bit-identical on all ranks. Exchanges the numbers in a control message.
    pub(super) fn combine<const M: usize, const S: usize>(
        &self,
        maxima: [f64; M],
        sums: [f64; S],
        what: &str,
    ) -> Result<([f64; M], [f64; S])> {
        self.frames(maxima, sums, what, what, what)
    }

    /// Compares a collective that the program calls with those of the other ranks. Returns the
    /// maximum of `own` over all ranks.
    pub(super) fn compare(&self, own: f64, call: &Call) -> Result<f64> {
        let ([largest], []) = self.frames([own], [], &call.what, &call.compared, &call.text)?;
        Ok(largest)
    }

    /// Returns the maxima and the sums of the numbers of all ranks. Returns an error if `compared`
    /// is not the same on all ranks. `what` is the name of the collective, and `text` describes it
    /// to the other ranks.
    fn frames<const M: usize, const S: usize>(
        &self,
        maxima: [f64; M],
        sums: [f64; S],
        what: &str,
        compared: &str,
        text: &str,
    ) -> Result<([f64; M], [f64; S])> {
        const { assert!(M + 2 <= MAXIMA && S <= SUMS) };
        let mut frame = [0.0; LENGTH];
        frame[..2].copy_from_slice(&both(hash(compared.as_bytes())));
        frame[2..2 + M].copy_from_slice(&maxima);
        frame[MAXIMA..MAXIMA + S].copy_from_slice(&sums);
        let all = self.collective(Kind::Message, what, |_| self.exchange(frame))?;
        if !is_same([all[0], all[1]]) {
            return Err(self.at_different(what, text)?);
        }
        Ok((array::from_fn(|nth| all[2 + nth]), array::from_fn(|nth| all[MAXIMA + nth])))
    }

    /// Combines a message with those of all other ranks.
    fn exchange(&self, mut frame: Frame) -> Result<Frame> {
        let peers = self.shared.peers.exchanging();
        for step in &self.shared.steps {
            match *step {
                Step::Send(peer) => peers.send(peer, &to_bytes(&frame))?,
                Step::Join(peer) => join(&mut frame, &self.receive(&peers, peer)?),
                Step::Exchange(peer) => {
                    peers.send(peer, &to_bytes(&frame))?;
                    join(&mut frame, &self.receive(&peers, peer)?);
                }
                Step::Replace(peer) => frame = self.receive(&peers, peer)?,
            }
        }
        Ok(frame)
    }

    fn receive(&self, peers: &Exchanging<'_>, peer: u32) -> Result<Frame> {
        self.shared.watch.wait_for(peer, peers.stream(peer)?);
        let mut bytes = [0; 8 * LENGTH];
        peers.receive(peer, &mut bytes)?;
        Ok(from_bytes(&bytes))
    }

    /// Returns the bytes of all ranks, in the order of the ranks.
    pub(super) fn gather_bytes(&self, bytes: Vec<u8>, what: &str) -> Result<Vec<Vec<u8>>> {
        self.combine([], [], what)?;
        self.gather_compared(bytes, what)
    }

    /// Returns the bytes of all ranks, in the order of the ranks. The ranks must already have
    /// compared this collective.
    pub(super) fn gather_compared(&self, bytes: Vec<u8>, what: &str) -> Result<Vec<Vec<u8>>> {
        let own = BTreeMap::from([(self.rank(), bytes)]);
        let all = self.collective(Kind::Message, what, |_| self.gather_by_rank(own))?;
        Ok(all.into_values().collect())
    }

    /// Adds the bytes of the other ranks to `all`. In each step, two ranks send each other what
    /// they have.
    fn gather_by_rank(&self, mut all: BTreeMap<u32, Vec<u8>>) -> Result<BTreeMap<u32, Vec<u8>>> {
        let peers = self.shared.peers.exchanging();
        let send = |peer: u32, all: &BTreeMap<u32, Vec<u8>>| {
            let bytes = packed(all);
            let mut frame = [0.0; LENGTH];
            frame[0] = bytes.len() as f64;
            peers.send(peer, &to_bytes(&frame))?;
            peers.send(peer, &bytes)
        };
        let receive = |peer: u32| {
            let length = self.receive(&peers, peer)?[0] as usize;
            Ok::<_, Error>(unpacked(&peers.receive_bytes(peer, length)?))
        };
        for step in &self.shared.steps {
            match *step {
                Step::Send(peer) => send(peer, &all)?,
                Step::Join(peer) | Step::Replace(peer) => all.extend(receive(peer)?),
                // Only one of the two sends at a time, so that neither waits for room to send.
                Step::Exchange(peer) if self.rank() < peer => {
                    send(peer, &all)?;
                    all.extend(receive(peer)?);
                }
                Step::Exchange(peer) => {
                    let received = receive(peer)?;
                    send(peer, &all)?;
                    all.extend(received);
                }
            }
        }
        Ok(all)
    }

    /// Compares the values of all ranks. If they differ, returns the value of rank 0, and the value
    /// of the lowest rank whose value is different.
    pub(super) fn difference<V: Serialize + DeserializeOwned>(
        &self,
        own: &V,
        what: &str,
    ) -> Result<Option<Unequal<V>>> {
        let bytes = json(own, what)?;
        let own = hash(&bytes);
        let (range, []) = self.combine(both(own), [], what)?;
        if is_same(range) {
            return Ok(None);
        }
        let only = |is_shown: bool, number: f64| if is_shown { number } else { f64::NEG_INFINITY };
        let ([of_main], []) = self.combine([only(self.rank() == 0, own)], [], what)?;
        let rank = f64::from(self.rank());
        let ([lowest], []) = self.combine([only(own != of_main, -rank)], [], what)?;
        let is_shown = self.rank() == 0 || rank == -lowest;
        let all = self.gather_bytes(if is_shown { bytes } else { Vec::new() }, what)?;
        let rank = -lowest as u32;
        let [of_main, of_rank] = [0, rank as usize].map(|rank| from_json(&all[rank], what));
        Ok(Some(Unequal { of_main: of_main?, rank, of_rank: of_rank? }))
    }

    /// Creates the error for ranks that are at different collectives. This is a collective: all
    /// ranks must call it.
    #[cold]
    fn at_different(&self, what: &str, text: &str) -> Result<Error> {
        let bytes = text.as_bytes()[..text.len().min(DESCRIPTION)].to_vec();
        let all = self.gather_compared(bytes, what)?;
        let texts: Vec<String> = all.iter().map(|text| String::from_utf8_lossy(text).into_owned()).collect();
        // Ranks at the same place are named together.
        let mut places: Vec<(String, Vec<u32>)> = Vec::new();
        for (rank, text) in (0..).zip(excerpts(&texts)) {
            match places.iter_mut().find(|(known, _)| *known == text) {
                Some((_, ranks)) => ranks.push(rank),
                None => places.push((text, vec![rank])),
            }
        }
        let places: Vec<String> =
            places.iter().map(|(text, ranks)| format!("{} at {}", named(ranks), quoted(text))).collect();
        Ok(Error::usage(format!(
            "the ranks are not at the same collective: {}; make every hook call the same collectives on all ranks, in the same \
             order, with tensors of the same dtypes and shapes",
            places.join(", ")
        )))
    }
}

/// Names ranks: `rank 1 is`, `ranks 0, 2 and 3 are`, `ranks 0, 1, 2 and 45 others are`.
fn named(ranks: &[u32]) -> String {
    const MOST: usize = 6;
    let shown: Vec<String> = ranks.iter().take(MOST).map(ToString::to_string).collect();
    match (shown.as_slice(), ranks.len().saturating_sub(MOST)) {
        ([one], 0) => format!("rank {one} is"),
        ([first @ .., last], 0) => format!("ranks {} and {last} are", first.join(", ")),
        (shown, others) => format!("ranks {} and {others} others are", shown.join(", ")),
    }
}

fn to_bytes(frame: &Frame) -> [u8; 8 * LENGTH] {
    let mut bytes = [0; 8 * LENGTH];
    for (bytes, number) in bytes.chunks_exact_mut(8).zip(frame) {
        bytes.copy_from_slice(&number.to_le_bytes());
    }
    bytes
}

fn from_bytes(bytes: &[u8; 8 * LENGTH]) -> Frame {
    let (numbers, _) = bytes.as_chunks::<8>();
    array::from_fn(|nth| f64::from_le_bytes(numbers[nth]))
}

/// Combines a message with the message of another rank, by taking maxima or sums of their numbers.
fn join(frame: &mut Frame, other: &Frame) {
    for (nth, (own, other)) in frame.iter_mut().zip(other).enumerate() {
        *own = match () {
            () if nth >= MAXIMA => *own + *other,
            () if other.is_nan() => *other,
            () if own.is_nan() => *own, // `f64::max` would return the other number
            () => own.max(*other),
        };
    }
}

/// Encodes the bytes of several ranks: for each rank, its number, the length of its bytes, and the
/// bytes.
fn packed(all: &BTreeMap<u32, Vec<u8>>) -> Vec<u8> {
    let mut packed = Vec::with_capacity(all.values().map(|bytes| 12 + bytes.len()).sum());
    for (rank, bytes) in all {
        packed.extend(rank.to_le_bytes());
        packed.extend((bytes.len() as u64).to_le_bytes());
        packed.extend(bytes);
    }
    packed
}

/// Decodes the result of [`packed`].
fn unpacked(mut packed: &[u8]) -> BTreeMap<u32, Vec<u8>> {
    let mut all = BTreeMap::new();
    while let Some((rank, rest)) = packed.split_first_chunk::<4>() {
        let Some((length, rest)) = rest.split_first_chunk::<8>() else { break };
        let (bytes, rest) = rest.split_at(rest.len().min(u64::from_le_bytes(*length) as usize));
        all.insert(u32::from_le_bytes(*rank), bytes.to_vec());
        packed = rest;
    }
    all
}

/// Shortens long texts by replacing parts of their middle with `…`. Keeps the part in which the
/// texts first differ.
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

/// Returns a hash of bytes that is exact as a floating-point number: 52 bits of FNV-1a.
fn hash(bytes: &[u8]) -> f64 {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
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
