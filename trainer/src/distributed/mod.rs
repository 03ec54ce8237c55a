//! Training in several processes: [`World`].
//!
//! Needs the feature `distributed`. Without it, a program trains in one process, and
//! [`build`](crate::TrainerBuilder::build) returns an error if the environment describes several
//! processes. The [guide](crate::guide::distributed) shows how to start several processes, and what
//! happens when [one of them fails](crate::guide::clusters#failures).

mod call;
pub(crate) mod current;
mod departure;
mod exchange;
mod frames;
mod join;
mod json;
mod launch;
mod launcher_variables;
mod links;
mod lost_contact;
pub(crate) mod main_only;
mod peers;
mod reducer;
mod shared_links;
mod steps;
mod sync_batch_norm;
mod watch;
mod world;

pub(crate) use exchange::{Exchange, Held};
pub(crate) use frames::{Unequal, both, is_same};
pub use launch::Launch;
pub(crate) use launcher_variables::variables;
pub use links::Op;
pub(crate) use links::check_available;
pub use reducer::Reducer;
pub use sync_batch_norm::{SyncBatchNorm, sync_batch_norm};
pub use world::{World, main_first};

/// The share of each batch that one rank processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The rank, from 0.
    pub rank: u32,
    /// The number of ranks.
    pub of: u32,
}

impl Share {
    /// Returns the range of this rank's rows in a batch of `rows` rows. The ranges of all ranks are
    /// contiguous, in the order of the ranks, and differ by at most one row in length.
    ///
    /// If there are fewer rows than ranks, a rank without a row of its own borrows the first row
    /// (see [`is_borrowed`](Share::is_borrowed)).
    ///
    /// ```
    /// use trainer::distributed::Share;
    ///
    /// let rows = |rank| Share { rank, of: 3 }.rows(10);
    /// assert_eq!([rows(0), rows(1), rows(2)], [0..3, 3..6, 6..10]);
    /// ```
    #[must_use]
    pub fn rows(self, rows: usize) -> std::ops::Range<usize> {
        if self.is_borrowed(rows) {
            return 0..rows.min(1);
        }
        let rank = self.rank as usize;
        let of = self.of as usize;
        if rows < of { rank..rank + 1 } else { rows * rank / of..rows * (rank + 1) / of }
    }

    /// Returns whether this rank has no row in a batch of `rows` rows, and therefore processes the
    /// row of rank 0 with a weight of 0.
    #[must_use]
    pub fn is_borrowed(self, rows: usize) -> bool {
        self.rank as usize >= rows
    }
}

#[cfg(test)]
mod tests {
    use super::Share;

    #[test]
    fn every_row_belongs_to_exactly_one_rank() {
        for of in 1..9 {
            for rows in 0..40 {
                let shares = (0..of).map(|rank| Share { rank, of });
                let own = shares.filter(|share| !share.is_borrowed(rows));
                let all: Vec<usize> = own.flat_map(|share| share.rows(rows)).collect();
                assert_eq!(all, (0..rows).collect::<Vec<_>>(), "{rows} rows on {of} ranks");
            }
        }
    }
}
