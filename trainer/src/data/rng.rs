//! [`BatchRng`]: what is random in a batch, the same on every thread and in every run.

use rand::{Error, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::cut::ORDER;

/// The random numbers of one batch, which depend on the seed, the epoch and the index of the batch alone.
///
/// It is a generator of [`rand`]'s: with [`Rng`](rand::Rng) in scope it draws from ranges and distributions, and it shuffles
/// slices. For another crate's generator, or that of another version, it gives the seed: `rng.next_u64()`.
///
/// ```
/// use trainer::data::BatchRng;
/// use trainer::data::rand::Rng;
///
/// /// Where a crop of 28 pixels begins, and whether it is mirrored.
/// fn crop(rng: &mut BatchRng) -> (usize, bool) {
///     (rng.gen_range(0..=4), rng.gen_bool(0.5))
/// }
/// ```
#[derive(Clone, Debug)]
pub struct BatchRng(ChaCha8Rng);

impl BatchRng {
    pub(super) fn of(seed: u64, epoch: u64, batch: usize) -> Self {
        BatchRng(keyed(seed, epoch, ORDER + 1 + batch as u64))
    }
}

impl RngCore for BatchRng {
    fn next_u32(&mut self) -> u32 {
        self.0.next_u32()
    }

    fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    fn fill_bytes(&mut self, bytes: &mut [u8]) {
        self.0.fill_bytes(bytes);
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Error> {
        self.0.try_fill_bytes(bytes)
    }
}

/// A generator for these three. Each is a word of its key, so that no two of them meet.
pub(super) fn keyed(seed: u64, epoch: u64, nth: u64) -> ChaCha8Rng {
    let mut key = [0; 32];
    for (word, value) in key.chunks_exact_mut(8).zip([seed, epoch, nth]) {
        word.copy_from_slice(&value.to_le_bytes());
    }
    ChaCha8Rng::from_seed(key)
}
