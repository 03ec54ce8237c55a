//! The table that people read.

use trainer::prelude::*;

use crate::model;

fn trainer() -> Trainer<impl Task<Batch = (Tensor, Tensor)>> {
    Trainer::builder(model::task())
        .optimizer(Sgd::new(0.1))
        .discover(Discover::crates(["plugin"]))
        .on::<AfterEpoch>("closure", |_| {})
        .try_on::<AfterEpoch, _>("tied", 7, |_| {})
        .build()
        .unwrap()
}

#[test]
fn the_table_shows_what_runs_when_and_where_it_comes_from() {
    insta::assert_snapshot!(trainer().describe_hooks().only_used());
}

#[test]
fn every_point_has_its_row_in_the_order_of_the_lifecycle() {
    let text = trainer().describe_hooks().to_string();
    let points: Vec<_> = (text.lines().skip(2))
        .filter_map(|line| line.split('|').nth(1).map(str::trim).filter(|point| !point.is_empty()))
        .filter(|point| !point.contains("::")) // those of other crates stand between them
        .collect();
    let declared: Vec<_> = trainer::Point::ALL.iter().map(|point| point.info().name).collect();
    assert_eq!(points, declared);
    let empty = text.lines().find(|line| line.starts_with("| before_fit ")).unwrap();
    assert!(empty.contains("| (none) "), "{empty}");
}

#[test]
fn the_names_of_other_trainers_are_translated_into_points_that_exist() {
    let source = include_str!("../../trainer-macros/src/hook/foreign.rs");
    let rows = source.lines().filter(|line| line.starts_with("    (\""));
    let translated: Vec<_> = rows.map(|row| row.split('"').rev().nth(1).unwrap()).collect();
    assert!(translated.len() > 60, "the table was found");
    let known: Vec<_> = trainer::Point::ALL.iter().map(|own| own.info().name).collect();
    for ours in translated {
        let moment = ours.split(',').next().unwrap();
        // An operation is one that there are points before and after.
        let point = moment.strip_prefix("around = ").map_or(moment.to_owned(), |it| format!("before_{it}"));
        assert!(known.contains(&point.as_str()), "{point} is no point");
    }
}
