//! Data sets of files: the same rows for any number of workers and ranks, and from any batch on.

mod shards;
mod streams;
mod tokens;

use trainer::data::Collate;
use trainer::distributed::Share;
use trainer::prelude::*;

/// A row that is shown whole.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Text(pub(crate) String);

impl Collate for Text {
    type Batch = Vec<String>;

    fn collate(rows: Vec<Self>) -> Result<Vec<String>> {
        Ok(rows.into_iter().map(|row| row.0).collect())
    }
}

/// Checks that the batches do not depend on the number of workers and of ranks and on the batch
/// that a pass starts with, and returns those of an epoch.
pub(crate) fn check<D>(make: impl Fn() -> D, skip_damaged: bool) -> Vec<Vec<String>>
where
    D: Dataset<Row = Text>,
{
    const BATCH: usize = 7;
    let loader = || DataLoader::new(make()).batch_size(BATCH).shuffle(5).skip_damaged(skip_damaged);
    let pass = |mut loader: DataLoader<D>, start| -> Vec<Vec<String>> {
        loader.batches(1, start).unwrap().map(Result::unwrap).collect()
    };
    let all = pass(loader(), 0);
    if !skip_damaged {
        let mut in_order = DataLoader::new(make()).batch_size(BATCH);
        let in_order: Vec<Vec<String>> = in_order.batches(0, 0).unwrap().map(Result::unwrap).collect();
        let rows: Vec<String> = make().rows().map(|row| row.unwrap().0).collect();
        assert_eq!(rows, in_order.concat(), "rows without a loader");
    }
    for workers in [1, 2, 3] {
        assert_eq!(pass(loader().workers(workers), 0), all, "{workers} workers");
    }
    for start in 0..=all.len() {
        let mut loader = loader().workers(start % 3);
        // With damaged rows, the number of a batch is not its position.
        if skip_damaged && start > 0 {
            let notes = loader.notes().unwrap();
            loader.batches(1, 0).unwrap().take(start).for_each(drop);
            let position = notes.position(start as u64).unwrap();
            loader.seek(1, start as u64, &position).unwrap();
        }
        assert_eq!(pass(loader, start as u64), all[start..], "from batch {start}");
    }
    for of in [1, 2, 3, 5] {
        let ranks = (0..of).map(|rank| {
            let mut loader = loader().workers(rank as usize % 3);
            loader.share(Share { rank, of }).unwrap();
            let notes = loader.notes();
            let is_borrowed = |nth: usize| notes.as_ref().is_some_and(|notes| notes.is_borrowed(nth as u64));
            let batches: Vec<Vec<String>> = loader.batches(1, 0).unwrap().map(Result::unwrap).collect();
            assert_eq!(batches.len(), all.len(), "rank {rank} of {of}");
            let own = batches.into_iter().enumerate();
            own.map(|(nth, batch)| if is_borrowed(nth) { Vec::new() } else { batch }).collect::<Vec<_>>()
        });
        let ranks: Vec<Vec<Vec<String>>> = ranks.collect();
        for (nth, batch) in all.iter().enumerate() {
            let together: Vec<String> = ranks.iter().flat_map(|rank| rank[nth].clone()).collect();
            assert_eq!(together, *batch, "batch {nth} on {of} ranks");
        }
    }
    all
}
