//! [`RowRng`]: the random number generator of a row, reproducible across threads, ranks and runs.

use rand::{Error, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The index passed to `keyed` for the order of an epoch. The rows use the indices after it.
pub(super) const ORDER: u64 = 0;

/// The random number generator of one row. Its numbers depend only on the seed, the epoch and the
/// position of the row in the order of the epoch.
///
/// It implements the traits of [`rand`]: with [`Rng`](rand::Rng) in scope it samples from ranges
/// and distributions, and it can shuffle slices. To use a different generator, or a different
/// version of rand, seed it with `rng.next_u64()`.
///
/// ```
/// use trainer::data::RowRng;
/// use trainer::data::rand::Rng;
///
/// /// Returns the offset of a random crop, and whether to flip it.
/// fn crop(rng: &mut RowRng) -> (usize, bool) {
///     (rng.gen_range(0..=4), rng.gen_bool(0.5))
/// }
/// ```
#[derive(Clone, Debug)]
pub struct RowRng(ChaCha8Rng);

impl RowRng {
    /// Creates the generator of the row at this position.
    pub(super) fn new(seed: u64, epoch: u64, position: usize) -> Self {
        RowRng(keyed(seed, epoch, ORDER + 1 + position as u64))
    }
}

impl RngCore for RowRng {
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

/// Creates the generator for a seed, an epoch and an index. Each of the three is a separate word of
/// the key, so distinct arguments give independent generators.
pub(super) fn keyed(seed: u64, epoch: u64, nth: u64) -> ChaCha8Rng {
    let mut key = [0; 32];
    for (word, value) in key.chunks_exact_mut(8).zip([seed, epoch, nth]) {
        word.copy_from_slice(&value.to_le_bytes());
    }
    ChaCha8Rng::from_seed(key)
}
