//! The collectives of `World`, and `main_first`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use trainer::distributed::{Op, World, main_first};
use trainer::prelude::*;
use trainer::testing::{Ranks, once};

use crate::support::scratch;

fn world() -> World {
    World::from_env().unwrap().expect("several ranks")
}

/// Returns the integers from `start` as a column of `rows` rows.
fn column(start: i64, rows: i64) -> Tensor {
    Tensor::arange_start(start, start + rows, (Kind::Double, Device::Cpu)).view([rows, 1])
}

fn numbers(tensor: &Tensor) -> Result<Vec<f64>> {
    Ok(Vec::try_from(tensor.to_kind(Kind::Double).reshape([-1]))?)
}

/// A name, a function that calls collectives on the given rank, and the expected result of each
/// rank.
type Case = (&'static str, fn(&World, i64) -> Result<Vec<f64>>, [&'static [f64]; 3]);

const CASES: [Case; 9] = [
    (
        "all_reduce of a transposed view",
        |world, rank| {
            let tensor = column(rank, 4).view([2, 2]);
            world.all_reduce(&tensor.tr(), Op::Max)?;
            numbers(&tensor)
        },
        [&[2.0, 3.0, 4.0, 5.0]; 3],
    ),
    (
        "all_gather",
        |world, rank| {
            let all = world.all_gather(&Tensor::from_slice(&[rank, -rank]))?;
            assert_eq!((all.size(), all.kind()), (vec![3, 2], Kind::Int64));
            numbers(&all)
        },
        [&[0.0, 0.0, 1.0, -1.0, 2.0, -2.0]; 3],
    ),
    (
        "reduce_scatter",
        |world, rank| numbers(&world.reduce_scatter(&(column(0, 6) * (rank + 1)))?),
        [&[0.0, 6.0], &[12.0, 18.0], &[24.0, 30.0]],
    ),
    (
        "gather_rows of no, one and two rows",
        |world, rank| numbers(&world.gather_rows(&column(10 * rank, rank))?),
        [&[10.0, 20.0, 21.0]; 3],
    ),
    (
        // Batches of 3, 2 and 4 rows in the order 0, 1, 2, …; rank 0 has no row of the second.
        "gather_predictions with uneven rows",
        |world, rank| {
            let own = match rank {
                0 => vec![column(0, 1), column(5, 1)],
                1 => vec![column(1, 1), column(3, 1), column(6, 1)],
                _ => vec![column(2, 1), column(4, 1), column(7, 2)],
            };
            // `predict` returns no tensor for a batch without a row for this rank.
            let own = if rank == 0 { vec![own[0].copy(), column(0, 0), own[1].copy()] } else { own };
            numbers(&world.gather_predictions(&own)?)
        },
        [&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]; 3],
    ),
    (
        "gather_predictions with a rank without any",
        |world, rank| {
            let own: Vec<Tensor> = if rank == 2 { vec![] } else { vec![column(rank, 1)] };
            numbers(&world.gather_predictions(&own)?)
        },
        [&[0.0, 1.0]; 3],
    ),
    (
        "average",
        |world, rank| {
            let (value, count) = (column(rank, 2), Tensor::from_slice(&[rank]));
            world.average([&value, &count])?; // integers are not averaged
            Ok([numbers(&value)?, numbers(&(count - rank))?].concat())
        },
        [&[1.0, 2.0, 0.0]; 3],
    ),
    (
        "gather_tensors of different names and shapes",
        |world, rank| {
            let own = BTreeMap::from([(format!("of {rank}"), column(rank, rank))]);
            let all = world.gather_tensors(&own)?;
            let names: Vec<_> = all.iter().flat_map(BTreeMap::keys).map(String::as_str).collect();
            assert_eq!(names, ["of 0", "of 1", "of 2"]);
            numbers(&all[2]["of 2"])
        },
        [&[2.0, 3.0]; 3],
    ),
    (
        "any, broadcast from the last rank, gather",
        |world, rank| {
            let tensor = column(rank, 2);
            world.broadcast([&tensor], 2)?;
            let any = f64::from(u8::from(world.any(rank == 1)?));
            let none = f64::from(u8::from(world.any(false)?));
            Ok([vec![any, none], numbers(&tensor)?, world.gather(&(rank as f64))?].concat())
        },
        [&[1.0, 0.0, 2.0, 3.0, 0.0, 1.0, 2.0]; 3],
    ),
];

#[test]
fn collectives_combine_the_tensors_of_all_ranks() {
    let all = Ranks::new(3).run(|| {
        let world = world();
        CASES.iter().map(|(_, call, _)| call(&world, i64::from(world.rank()))).collect::<Result<Vec<_>>>()
    });
    for (rank, found) in all.unwrap().into_iter().enumerate() {
        for ((name, _, expected), found) in CASES.iter().zip(found) {
            assert_eq!(found, expected[rank], "{name}, rank {rank}");
        }
    }
}

#[test]
fn collectives_refuse_tensors_of_invalid_shapes() {
    let errors = Ranks::new(2).run(|| {
        let world = world();
        let of = |result: Result<Tensor>| result.unwrap_err().to_string();
        let scalar = || Tensor::from(1.0);
        let errors = [
            of(world.reduce_scatter(&column(0, 3))),
            of(world.gather_rows(&scalar())),
            of(world.gather_predictions(&[])),
            of(world.gather_predictions(&[scalar()])),
        ];
        // None of these errors left a rank waiting in a collective.
        world.barrier()?;
        Ok(errors)
    });
    for errors in errors.unwrap() {
        assert_eq!(
            errors,
            [
                "`reduce_scatter` cannot divide a tensor of shape [3, 1] among 2 ranks: expected a first dimension that is a multiple of 2",
                "`gather_rows` cannot gather a tensor without dimensions: expected at least one dimension",
                "`gather_predictions` received no predictions on any rank: expected at least one",
                "`gather_predictions` cannot gather predictions without dimensions: expected at least one dimension",
            ]
        );
    }
}

#[test]
fn the_body_of_main_first_runs_on_rank_0_before_the_other_ranks() {
    let folder = once(|| scratch("main-first"));
    let file = folder.join("data");
    let found = Ranks::new(3).run(|| {
        main_first(|| -> Result<bool> {
            if World::from_env()?.is_some_and(|world| world.rank() == 0) {
                std::thread::sleep(Duration::from_millis(300));
                fs::write(&file, "prepared")?;
            }
            Ok(Path::new(&file).exists())
        })
    });
    assert_eq!(found.unwrap(), [true; 3]);

    let results = Ranks::new(3)
        .results(|| {
            main_first(|| if world().rank() == 0 { Err("the server is down") } else { panic!() })
                .map(drop::<()>)
        })
        .unwrap();
    for (rank, result) in results.into_iter().enumerate() {
        let text = result.unwrap_err().to_string();
        let of_others = format!("rank {rank}: another rank ended with an error: rank 0: the server is down");
        assert_eq!(text, if rank == 0 { "rank 0: the server is down".to_owned() } else { of_others });
    }
    fs::remove_dir_all(folder).unwrap();
}
