//! [`BatchRng`]: the random number generator of a batch, reproducible on any thread and in every
//! run.

use rand::{Error, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The index in the random key for the order of an epoch. The indices of the batches follow it.
pub(super) const ORDER: u64 = 0;

/// The random number generator of one batch. Its numbers depend only on the seed, the epoch and the
/// index of the batch, and in [several processes](crate::distributed) on the rank.
///
/// It implements the traits of [`rand`]: with [`Rng`](rand::Rng) in scope it samples from ranges
/// and distributions, and it can shuffle slices. To use another generator, or another version of
/// rand, seed it with `rng.next_u64()`.
///
/// ```
/// use trainer::data::BatchRng;
/// use trainer::data::rand::Rng;
///
/// /// Returns the offset of a random crop, and whether to flip it.
/// fn crop(rng: &mut BatchRng) -> (usize, bool) {
///     (rng.gen_range(0..=4), rng.gen_bool(0.5))
/// }
/// ```
#[derive(Clone, Debug)]
pub struct BatchRng(ChaCha8Rng);

impl BatchRng {
    /// Creates the generator of this rank's share of a batch.
    pub(super) fn new(seed: u64, epoch: u64, batch: usize, rank: u32) -> Self {
        BatchRng(keyed_by([seed, epoch, ORDER + 1 + batch as u64, u64::from(rank)]))
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

/// Creates the generator for a seed, an epoch and an index. Each is a separate word of the key, so
/// distinct arguments give independent generators.
pub(super) fn keyed(seed: u64, epoch: u64, nth: u64) -> ChaCha8Rng {
    keyed_by([seed, epoch, nth, 0])
}

fn keyed_by(words: [u64; 4]) -> ChaCha8Rng {
    let mut key = [0; 32];
    for (word, value) in key.chunks_exact_mut(8).zip(words) {
        word.copy_from_slice(&value.to_le_bytes());
    }
    ChaCha8Rng::from_seed(key)
}
