//! Control messages: a few numbers that all ranks exchange, together with a hash of the name of the
//! collective, so that ranks at different collectives return an error at once.

use std::array;

use tch::Tensor;

use super::World;
use crate::error::{Error, Result};

/// The length of a message, the same in all collectives: gloo aborts the process if a message is
/// longer than its receiver expects.
const LENGTH: usize = 16;

/// The longest name in an error message, in bytes.
const NAME: usize = 64;

impl World {
    /// Waits until all ranks have called this with the same text. Returns an error at once if
    /// another rank is at a barrier with a different text, or at another decision of the loop. Use
    /// it in a hook that might otherwise average different gradients on different ranks.
    ///
    /// # Errors
    ///
    /// Returns an error that says where each rank is if the texts differ. Also returns an error in
    /// the same cases as [`all_reduce`](World::all_reduce).
    pub fn barrier_at(&self, what: &str) -> Result<()> {
        self.table([], what).map(drop)
    }

    /// Returns the numbers of all ranks, in the order of the ranks, in the group of control
    /// messages.
    pub(crate) fn table<const N: usize>(&self, own: [f64; N], what: &str) -> Result<Vec<[f64; N]>> {
        const { assert!(N < LENGTH) };
        let mut frame = [0.0; LENGTH];
        frame[0] = hash(what);
        frame[1..=N].copy_from_slice(&own);
        let frames = self.collective(what, |group| group.exchange(&frame))?;
        if frames.iter().any(|other| other[0] != frame[0]) {
            return Err(self.at_different(what)?);
        }
        Ok(frames.iter().map(|frame| array::from_fn(|nth| frame[1 + nth])).collect())
    }

    /// Returns the sums of numbers over all ranks, in the group of control messages.
    pub(crate) fn sums<const N: usize>(&self, own: [f64; N], what: &str) -> Result<[f64; N]> {
        let all = self.table(own, what)?;
        Ok(array::from_fn(|nth| all.iter().map(|numbers| numbers[nth]).sum()))
    }

    /// Returns the bytes of all ranks.
    pub(crate) fn gather_bytes(&self, bytes: &[u8], what: &str) -> Result<Vec<Vec<u8>>> {
        let lengths = self.table([bytes.len() as f64], what)?;
        let lengths: Vec<i64> = lengths.iter().map(|[length]| *length as i64).collect();
        self.gather_of_lengths(bytes, &lengths, what)
    }

    /// Returns the bytes of all ranks, whose lengths are known.
    fn gather_of_lengths(&self, bytes: &[u8], lengths: &[i64], what: &str) -> Result<Vec<Vec<u8>>> {
        let own = Tensor::from_slice(bytes);
        let all = self.collective(what, |group| group.gather(&own, lengths))?;
        // Once all ranks have reached this exchange, all bytes have been received.
        self.collective(what, |group| group.exchange(&[0.0; LENGTH]))?;
        all.iter().map(|bytes| Ok(Vec::<u8>::try_from(bytes)?)).collect()
    }

    /// Creates the error for ranks that are at different collectives. This is a collective: all
    /// ranks must call it.
    #[cold]
    fn at_different(&self, what: &str) -> Result<Error> {
        let mut name = what.as_bytes().to_vec();
        name.resize(NAME, 0);
        let all = self.gather_of_lengths(&name, &vec![NAME as i64; self.size() as usize], what)?;
        let names = all.iter().enumerate().map(|(rank, name)| {
            let name = String::from_utf8_lossy(name);
            format!("rank {rank} is at `{}`", name.trim_end_matches(['\0', char::REPLACEMENT_CHARACTER]))
        });
        let names: Vec<String> = names.collect();
        Ok(Error::usage(format!(
            "the ranks are not at the same collective: {}; make every hook call the same collectives on all ranks, in the same order",
            names.join(", ")
        )))
    }
}

/// Returns a hash of a name that is exact as a floating-point number: FNV-1a of 32 bits.
fn hash(name: &str) -> f64 {
    let mix = |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    f64::from(name.bytes().fold(0x811c_9dc5, mix))
}
