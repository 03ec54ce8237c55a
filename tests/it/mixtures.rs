//! Mixtures of data sets, and what chooses among the rows of one.

use std::collections::{BTreeMap, BTreeSet};

use trainer::data::rand::Rng;
use trainer::data::{Mixture, RowRng, Subset};
use trainer::prelude::*;

use crate::sources::{Text, check};

/// Rows with the name of their data set and their index.
fn rows(name: &str, count: usize) -> Vec<Text> {
    (0..count).map(|row| Text(format!("{name}{row}"))).collect()
}

/// Returns the rows of an epoch, in order.
fn epoch(dataset: impl Dataset<Row = Text>, seed: Option<u64>, epoch: u64) -> Vec<String> {
    let mut loader = DataLoader::new(dataset).batch_size(100);
    if let Some(seed) = seed {
        loader = loader.shuffle(seed);
    }
    let batches: Vec<Vec<String>> = loader.batches(epoch, 0).unwrap().map(Result::unwrap).collect();
    batches.concat()
}

fn count(rows: &[String], name: char) -> usize {
    rows.iter().filter(|row| row.starts_with(name)).count()
}

#[test]
fn a_mixture_draws_from_each_data_set_by_weight_and_uses_every_row_before_repeating() {
    let mixture = || {
        Mixture::new()
            .add(rows("a", 500), 5.0)
            .add(rows("b", 70), 1.0)
            .add(rows("c", 9), 0.0)
            .rows_per_epoch(100)
    };
    for seed in [None, Some(3)] {
        let epochs: Vec<Vec<String>> = (0..12).map(|nth| epoch(mixture(), seed, nth)).collect();
        let all = epochs.concat();
        assert_eq!([count(&all, 'a'), count(&all, 'b'), count(&all, 'c')], [1000, 200, 0]);
        for (nth, rows) in epochs.iter().enumerate() {
            // A sixth of 100 rows, and at most one more or fewer.
            assert!((16..=17).contains(&count(rows, 'b')), "epoch {nth}");
        }
        for (name, size) in [('a', 500), ('b', 70)] {
            let own: Vec<&String> = all.iter().filter(|row| row.starts_with(name)).collect();
            for (time, rows) in own.chunks_exact(size).enumerate() {
                let distinct: BTreeSet<_> = rows.iter().collect();
                assert_eq!(distinct.len(), size, "{name}, time {time}");
            }
            let is_shuffled_anew = own[..size] != own[size..2 * size];
            assert_eq!(is_shuffled_anew, seed.is_some(), "{name}");
        }
    }
    // Without shuffling, the data sets take turns as evenly as possible.
    let evenly = Mixture::new().add(rows("a", 4), 2.0).add(rows("b", 4), 1.0).rows_per_epoch(6);
    assert_eq!(epoch(evenly, None, 0), ["a0", "b0", "a1", "a2", "b1", "a3"]);
    let batches = check(mixture, false);
    assert_eq!(batches.concat(), epoch(mixture(), Some(5), 1));
}

#[test]
fn mixture_weights_depend_on_the_rows_drawn_since_the_start_of_training() {
    // From 0 to 1 over 4 · 2,048 rows, and then as much as the other.
    let schedule = |rows: u64| (rows as f64 / 8192.0).min(1.0);
    let mixture = || {
        Mixture::new()
            .add_with(rows("a", 50), move |rows| 1.0 - schedule(rows))
            .add_with(rows("b", 50), schedule)
            .rows_per_epoch(2048)
    };
    for nth in 0..5 {
        let rows = epoch(mixture(), Some(1), nth);
        // The weight holds for 1,024 rows, two stretches in an epoch.
        let expected: f64 = [0, 1].map(|half| 1024.0 * schedule(2048 * nth + 1024 * half)).iter().sum();
        assert!((count(&rows, 'b') as f64 - expected).abs() <= 1.0, "epoch {nth}: {expected}");
        let (first, second) = rows.split_at(1024);
        assert!(nth >= 4 || count(first, 'b') < count(second, 'b'), "epoch {nth}");
    }
    let fingerprint = DataLoader::new(mixture()).fingerprint().unwrap();
    assert!(fingerprint.contains("50 rows, unknown content, weights 1, 0.875, 0.75, 0, 0"), "{fingerprint}");
    let bad = Mixture::new().add(rows("a", 3), 1.0).add_with(rows("b", 3), |rows| 1.0 - rows as f64);
    let mut bad = DataLoader::new(bad).batch_size(6);
    assert!(bad.batches(0, 0).is_ok());
    let error = bad.batches(1, 0).err().unwrap().to_string();
    assert!(error.contains("after 6 rows are [1.0, -5.0]"), "{error}");
}

#[test]
fn a_mixture_keeps_the_order_that_its_data_sets_define() {
    let sampled = || rows("a", 100).weighted(&[1.0; 100], 10);
    let inner = || Mixture::new().add(rows("b", 30), 1.0).add(rows("c", 30), 1.0).rows_per_epoch(20);
    let mixture = || Mixture::new().add(sampled(), 1.0).add(inner(), 2.0).rows_per_epoch(60);
    let rows = check(mixture, false).concat();
    assert_eq!([count(&rows, 'a'), count(&rows, 'b'), count(&rows, 'c')], [20, 20, 20]);
    // The sample of 10 rows is drawn among all 100.
    assert!(rows.iter().filter(|row| row.starts_with('a')).any(|row| row.len() == 3), "{rows:?}");
}

#[test]
fn rows_are_redrawn_in_proportion_to_their_weights_in_each_epoch() {
    let weights = [0.0, 1.0, 3.0, 0.0, 4.0, 0.0];
    let sampled = || rows("", 6).weighted(&weights, 8000);
    let drawn = epoch(sampled(), Some(1), 0);
    let mut counts = BTreeMap::new();
    drawn.iter().for_each(|row| *counts.entry(row.as_str()).or_insert(0_i32) += 1);
    assert_eq!(counts.keys().copied().collect::<Vec<_>>(), ["1", "2", "4"]);
    for (row, expected) in [("1", 1000), ("2", 3000), ("4", 4000)] {
        assert!((counts[row] - expected).abs() < 200, "{counts:?}");
    }
    assert_ne!(epoch(sampled(), Some(1), 1), drawn);
    assert_ne!(epoch(sampled(), Some(2), 0), drawn);
    assert_eq!(epoch(sampled(), None, 0), epoch(sampled(), Some(0), 0));
    check(|| rows("", 6).weighted(&weights, 50), false);

    let classes: Vec<i64> = (0..1000).map(|row| i64::from(row >= 10)).collect();
    let balanced = || rows("", 1000).balanced(&classes);
    let rare = epoch(balanced(), Some(1), 0).iter().filter(|row| row.len() == 1).count();
    assert!((450..550).contains(&rare), "{rare}");
    check(balanced, false);
}

#[test]
fn splits_and_folds_contain_each_row_once_and_depend_only_on_the_seed() {
    let all: Vec<String> = epoch(rows("", 103), None, 0);
    let sorted = |parts: &[&Subset<Vec<Text>>]| {
        let mut indices: Vec<usize> = parts.iter().flat_map(|part| part.indices().to_vec()).collect();
        indices.sort_unstable();
        indices
    };
    let [train, valid, test] = rows("", 103).random_split(1, [0.8, 0.1, 0.1]);
    assert_eq!([train.len(), valid.len(), test.len()], [82, 11, 10]);
    assert_eq!(sorted(&[&train, &valid, &test]), (0..103).collect::<Vec<_>>());
    assert!(train.indices().is_sorted() && train.indices() != (0..82).collect::<Vec<_>>());
    let [again] = rows("", 103).random_split(1, [0.8]);
    assert_eq!(again.indices(), train.indices());
    let [other] = rows("", 103).random_split(2, [0.8]);
    assert_ne!(other.indices(), train.indices());
    assert_ne!(other.fingerprint(), train.fingerprint());
    let expected: Vec<&String> = train.indices().iter().map(|index| &all[*index]).collect();
    assert_eq!(epoch(train, None, 0).iter().collect::<Vec<_>>(), expected);

    let folds = rows("", 103).folds(4, 7);
    let held_out: Vec<&Subset<Vec<Text>>> = folds.iter().map(|(_, valid)| valid).collect();
    assert_eq!(sorted(&held_out), (0..103).collect::<Vec<_>>());
    for (train, valid) in &folds {
        assert!((25..=26).contains(&valid.len()));
        assert_eq!(sorted(&[train, valid]), (0..103).collect::<Vec<_>>());
    }
    let subset = || rows("", 103).subset(vec![5, 3, 3, 90]);
    assert_eq!(epoch(subset(), None, 0), ["5", "3", "3", "90"]);
    let mut shuffled = epoch(subset(), Some(1), 0);
    shuffled.sort();
    assert_eq!(shuffled, ["3", "3", "5", "90"]);
    check(|| rows("", 103).folds(4, 7).swap_remove(2).0, false);
}

#[test]
fn a_map_closure_uses_the_generator_of_its_row_and_its_error_names_the_row() {
    let noisy = || {
        rows("", 40).map(|row, rng: &mut RowRng| Ok(Text(format!("{} {}", row.0, rng.gen_range(0..1000)))))
    };
    check(noisy, false);
    let odd =
        || {
            rows("", 40).map(|row, _| {
                if row.0.ends_with('3') { Err(Error::msg("an unlucky number")) } else { Ok(row) }
            })
        };
    let error = DataLoader::new(odd()).batches(0, 13).unwrap().next().unwrap().err().unwrap().to_string();
    assert_eq!(error, "row 13: an unlucky number");
    assert_eq!(check(odd, true).concat().len(), 36);
}

#[test]
fn invalid_arguments_panic_and_name_the_expected_values() {
    let panic = |call: fn()| {
        let payload = std::panic::catch_unwind(call).unwrap_err();
        payload
            .downcast_ref::<String>()
            .cloned()
            .unwrap_or_else(|| (*payload.downcast_ref::<&str>().unwrap()).to_owned())
    };
    let cases: [(fn(), &str); 9] = [
        (|| drop(rows("", 3).subset(vec![3])), "`.subset(…)` has the index 3: expected indices below 3"),
        (
            || drop(rows("", 3).random_split(1, [0.8, 0.3])),
            "`.random_split(1, [0.8, 0.3])`: expected fractions",
        ),
        (|| drop(rows("", 3).folds(1, 1)), "`.folds(1, 1)` of 3 rows: expected at least 2 folds"),
        (|| drop(rows("", 3).folds(4, 1)), "at most one for each row"),
        (|| drop(rows("", 3).weighted(&[1.0], 3)), "1 weights or classes for 3 rows"),
        (|| drop(rows("", 2).weighted(&[1.0, f64::NAN], 3)), "the weight of row 1 is NaN"),
        (|| drop(rows("", 2).weighted(&[0.0, 0.0], 3)), "the weights sum to 0"),
        (|| drop(Mixture::new().add(rows("", 2), -1.0)), "`.add(…, -1)`: expected a finite weight"),
        (|| drop(Mixture::new().add(rows("", 0), 1.0)), "data set 0 of the mixture has no rows"),
    ];
    for (call, expected) in cases {
        let text = panic(call);
        assert!(text.contains(expected), "{text}: {expected}");
    }
}
