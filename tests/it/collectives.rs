//! The collectives of `World`, and `main_first`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::Path;
use std::time::Duration;

use trainer::distributed::{Op, World, main_first};
use trainer::prelude::*;
use trainer::testing::{Harness, Ranks, once};

use crate::support::scratch;

fn world() -> World {
    World::from_env().unwrap()
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

const CASES: [Case; 10] = [
    (
        "version counters of tensors that change in place",
        |world, rank| {
            let change = |tensor: Tensor, call: fn(&World, &Tensor) -> Result<()>| {
                let before = tensor.internal_version();
                call(world, &tensor)?;
                Ok::<_, Error>(tensor.internal_version() - before)
            };
            let changes = [
                change(column(rank, 2), |world, tensor| world.all_reduce("sum", tensor, Op::Sum))?,
                change(column(rank, 4).view([2, 2]).tr(), |world, tensor| {
                    world.all_reduce("sum", tensor, Op::Sum)
                })?,
                change(column(rank, 2), |world, tensor| world.broadcast([("x", tensor)], 1))?,
                change(column(rank, 2), |world, tensor| world.average([("x", tensor)]))?,
            ];
            Ok(changes.map(|changes| f64::from(u8::from(changes > 0))).to_vec())
        },
        [&[1.0, 1.0, 1.0, 1.0]; 3],
    ),
    (
        "all_reduce of a transposed view",
        |world, rank| {
            let tensor = column(rank, 4).view([2, 2]);
            world.all_reduce("x", &tensor.tr(), Op::Max)?;
            numbers(&tensor)
        },
        [&[2.0, 3.0, 4.0, 5.0]; 3],
    ),
    (
        "all_gather",
        |world, rank| {
            let all = world.all_gather("x", &Tensor::from_slice(&[rank, -rank]))?;
            assert_eq!((all.size(), all.kind()), (vec![3, 2], Kind::Int64));
            numbers(&all)
        },
        [&[0.0, 0.0, 1.0, -1.0, 2.0, -2.0]; 3],
    ),
    (
        "reduce_scatter",
        |world, rank| numbers(&world.reduce_scatter("x", &(column(0, 6) * (rank + 1)))?),
        [&[0.0, 6.0], &[12.0, 18.0], &[24.0, 30.0]],
    ),
    (
        "gather_rows of no, one and two rows",
        |world, rank| numbers(&world.gather_rows("x", &column(10 * rank, rank))?),
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
            numbers(&world.gather_predictions("x", &own)?)
        },
        [&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]; 3],
    ),
    (
        "gather_predictions with a rank without any",
        |world, rank| {
            let own: Vec<Tensor> = if rank == 2 { vec![] } else { vec![column(rank, 1)] };
            numbers(&world.gather_predictions("x", &own)?)
        },
        [&[0.0, 1.0]; 3],
    ),
    (
        "average",
        |world, rank| {
            let value = column(rank, 2);
            let count = Tensor::from_slice(&[rank]);
            world.average([("value", &value), ("count", &count)])?; // integers are not averaged
            Ok([numbers(&value)?, numbers(&(count - rank))?].concat())
        },
        [&[1.0, 2.0, 0.0]; 3],
    ),
    (
        "gather_tensors of different names and shapes",
        |world, rank| {
            let own = BTreeMap::from([(format!("of {rank}"), column(rank, rank))]);
            let all = world.gather_tensors("x", &own)?;
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
            world.broadcast([("x", &tensor)], 2)?;
            let any = f64::from(u8::from(world.any("x", rank == 1)?));
            let none = f64::from(u8::from(world.any("x", false)?));
            Ok([vec![any, none], numbers(&tensor)?, world.gather("x", &(rank as f64))?].concat())
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
            of(world.reduce_scatter("x", &column(0, 3))),
            of(world.gather_rows("x", &scalar())),
            of(world.gather_predictions("x", &[])),
            of(world.gather_predictions("x", &[scalar()])),
        ];
        // None of these errors left a rank waiting in a collective.
        world.barrier("x")?;
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
fn main_first_runs_its_body_on_rank_0_before_the_other_ranks() {
    let folder = once(|| scratch("main-first"));
    let file = folder.join("data");
    let found = Ranks::new(3).run(|| {
        main_first("data", || -> Result<bool> {
            if World::from_env()?.rank() == 0 {
                std::thread::sleep(Duration::from_millis(300));
                fs::write(&file, "prepared")?;
            }
            Ok(Path::new(&file).exists())
        })
    });
    assert_eq!(found.unwrap(), [true; 3]);

    let results = Ranks::new(3)
        .results(|| {
            main_first("data", || if world().rank() == 0 { Err("the server is down") } else { panic!() })
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

/// What a collective compares of its tensor.
#[derive(Clone, Copy, PartialEq)]
enum Compared {
    Nothing,
    /// The dtype, and the shape without the first dimension.
    Rows,
    DtypeAndShape,
}

/// A method of `World`, a call of it with this name and tensor, and what the ranks compare.
type Collective = (&'static str, fn(&World, &str, &Tensor) -> Result<()>, Compared);

const COLLECTIVES: [Collective; 12] = [
    ("all_reduce", |world, name, tensor| world.all_reduce(name, tensor, Op::Sum), Compared::DtypeAndShape),
    ("broadcast", |world, name, tensor| world.broadcast([(name, tensor)], 0), Compared::DtypeAndShape),
    ("all_gather", |world, name, tensor| world.all_gather(name, tensor).map(drop), Compared::DtypeAndShape),
    (
        "reduce_scatter",
        |world, name, tensor| world.reduce_scatter(name, tensor).map(drop),
        Compared::DtypeAndShape,
    ),
    ("gather_rows", |world, name, tensor| world.gather_rows(name, tensor).map(drop), Compared::Rows),
    (
        "gather_predictions",
        |world, name, tensor| world.gather_predictions(name, &[tensor.copy()]).map(drop),
        Compared::Rows,
    ),
    ("barrier", |world, name, _| world.barrier(name), Compared::Nothing),
    ("gather", |world, name, _| world.gather(name, &1).map(drop), Compared::Nothing),
    (
        "gather_tensors",
        |world, name, tensor| {
            world.gather_tensors(name, &BTreeMap::from([("x".to_owned(), tensor.copy())])).map(drop)
        },
        Compared::Nothing,
    ),
    ("any", |world, name, _| world.any(name, true).map(drop), Compared::Nothing),
    ("average", |world, name, tensor| world.average([(name, tensor)]), Compared::DtypeAndShape),
    ("main_first", |world, name, _| world.main_first(name, || Ok::<_, Error>(())), Compared::Nothing),
];

/// The public methods of `World` that are not collectives.
const OTHERS: [&str; 6] = ["from_env", "join", "rank", "size", "share", "waited"];

#[test]
fn every_collective_is_in_the_table_of_these_tests() {
    let source = include_str!("../../trainer/src/distributed/world.rs");
    let own = source.split("\nimpl World {").nth(1).unwrap().split("\n}\n").next().unwrap();
    let named = own.split("    pub fn ").skip(1).map(|rest| rest.split(['(', '<']).next().unwrap());
    let tested = COLLECTIVES.iter().map(|(name, ..)| *name).chain(OTHERS);
    assert_eq!(named.collect::<BTreeSet<_>>(), tested.collect::<BTreeSet<_>>());
}

/// Runs two ranks that would wait for longer than they are allowed to run.
fn impatient() -> Ranks {
    Ranks::new(2).timeout(Duration::from_secs(120)).env("TRAINER_RANK_TIMEOUT", "600")
}

#[test]
fn mismatched_collectives_fail_at_once_with_an_error_that_names_both() {
    let texts = impatient().run(|| {
        let world = world();
        let is_main = world.rank() == 0;
        let rows = |size: &[i64], kind: Kind| Tensor::zeros(size, (kind, Device::Cpu));
        let plain = rows(&[2, 3], Kind::Float);
        let mut texts = Vec::new();
        let mut differ = |one: &str, other: &str, result: Result<()>| {
            let text = result.expect_err(one).to_string();
            texts.push(([one.to_owned(), other.to_owned()], text));
        };
        for (nth, (method, call, compared)) in COLLECTIVES.iter().enumerate() {
            let with = |method: &str, name: &str| format!("`{method}({name:?})`");
            let one = with(method, "one");
            let other = with(method, "other");
            differ(&one, &other, call(&world, if is_main { "one" } else { "other" }, &plain));
            let (next, call_next, _) = COLLECTIVES[(nth + 1) % COLLECTIVES.len()];
            let result = if is_main { call(&world, "one", &plain) } else { call_next(&world, "one", &plain) };
            differ(&one, &with(next, "one"), result);
            if *compared != Compared::Nothing {
                let tensor = rows(&[2, 3], if is_main { Kind::Float } else { Kind::Double });
                differ("Float", "Double", call(&world, "one", &tensor));
                let tensor = rows(&[2, if is_main { 3 } else { 4 }], Kind::Float);
                differ("3]", "4]", call(&world, "one", &tensor));
            }
            if *compared == Compared::DtypeAndShape {
                let tensor = rows(&[if is_main { 2 } else { 4 }, 3], Kind::Float);
                differ("[2, 3]", "[4, 3]", call(&world, "one", &tensor));
            }
        }
        let op = if is_main { Op::Sum } else { Op::Max };
        differ("(Sum)", "(Max)", world.all_reduce("one", &plain, op));
        differ("from rank 0", "from rank 1", world.broadcast([("one", &plain)], world.rank()));
        let both = [("one", &plain), ("two", &plain)];
        let own = if is_main { &both[..] } else { &both[..1] };
        differ("of 2 tensors", "of 1 tensors", world.average(own.iter().copied()));
        // The ranks are still together.
        world.barrier("end")?;
        Ok(texts)
    });
    for (rank, texts) in texts.unwrap().into_iter().enumerate() {
        assert_eq!(texts.len(), 12 * 2 + 7 * 2 + 5 + 3);
        for ([one, other], text) in texts {
            assert!(text.contains("the ranks are not at the same collective"), "rank {rank}: {text}");
            let (of_0, of_1) = text.split_once("rank 1 is at ").unwrap();
            assert!(of_0.contains(&one), "rank {rank}, {one}: {text}");
            assert!(of_1.contains(&other), "rank {rank}, {other}: {text}");
            assert!(of_0.contains("collectives.rs:") && of_1.contains("collectives.rs:"), "{text}");
        }
    }
}

#[test]
fn the_error_of_collectives_in_different_hooks_names_both_hooks() {
    let results = impatient().results(|| {
        let call = |cx: &Cx<AfterPred>| cx.world().barrier("x");
        let late = |cx: &Cx<AfterLoss>| cx.world().barrier("x");
        let configure = |builder: trainer::TrainerBuilder<_>| {
            let builder =
                builder.on::<AfterPred>("early", move |cx| if cx.is_main() { call(cx) } else { Ok(()) });
            builder.on::<AfterLoss>("late", move |cx| if cx.is_main() { Ok(()) } else { late(cx) })
        };
        Harness::small().configure(configure).run()?.result.map(drop)
    });
    for result in results.unwrap() {
        let text = result.unwrap_err().to_string();
        let at = "rank 0 is at `barrier(\"x\")` in `early` at `after_pred`, collective 1 of this batch (";
        assert!(text.contains(at), "{text}");
        let at = "rank 1 is at `barrier(\"x\")` in `late` at `after_loss`, collective 1 of this batch (";
        assert!(text.contains(at), "{text}");
    }
}

#[test]
fn hash_map_iteration_order_never_mixes_up_values() {
    let found = impatient().run(|| {
        let world = world();
        let values = (0..40).map(|nth| (format!("w{nth}"), Tensor::from(f64::from(nth))));
        let values: HashMap<String, Tensor> = values.collect();
        world.average(&values)?;
        let mixed = (0..40).find(|nth| values[&format!("w{nth}")].double_value(&[]) != f64::from(*nth));
        let in_turn = values.iter().map(|(name, tensor)| world.all_reduce(name, tensor, Op::Sum));
        let text = in_turn.collect::<Result<()>>().expect_err("another order").to_string();
        let twice = world.average([("a", &values["w0"]), ("a", &values["w1"])]).unwrap_err().to_string();
        Ok((mixed, text, twice))
    });
    for (mixed, text, twice) in found.unwrap() {
        assert_eq!(mixed, None);
        assert!(
            text.contains("the ranks are not at the same collective: rank 0 is at `all_reduce(\"w"),
            "{text}"
        );
        assert!(twice.contains("`average` received two tensors named `a`"), "{twice}");
    }
}

#[test]
fn a_collective_on_a_thread_spawned_by_a_hook_fails_at_once() {
    let results = impatient().results(|| {
        let spawning = |cx: &mut Cx<AfterLoss>| {
            let world = cx.world();
            let thread = std::thread::spawn(move || world.barrier("aside"));
            thread.join().expect("no panic")
        };
        Harness::small()
            .configure(|builder| builder.on::<AfterLoss>("aside", spawning))
            .run()?
            .result
            .map(drop)
    });
    let texts: Vec<String> =
        results.unwrap().into_iter().map(|result| result.unwrap_err().to_string()).collect();
    assert!(texts.iter().all(|text| text.contains("was called on a different thread")), "{texts:?}");
    let alone = impatient().run(|| {
        let world = world();
        std::thread::spawn(move || world.barrier("outside of an entry point")).join().expect("no panic")
    });
    assert!(alone.is_ok());
}

/// Every dtype that tch can create a tensor of, except the quantized ones.
const KINDS: [Kind; 17] = [
    Kind::Uint8,
    Kind::Int8,
    Kind::Int16,
    Kind::Int,
    Kind::Int64,
    Kind::Half,
    Kind::BFloat16,
    Kind::Float,
    Kind::Double,
    Kind::Bool,
    Kind::ComplexHalf,
    Kind::ComplexFloat,
    Kind::ComplexDouble,
    Kind::Float8e5m2,
    Kind::Float8e4m3fn,
    Kind::Float8e5m2fnuz,
    Kind::Float8e4m3fnuz,
];

/// The dtypes that gloo can reduce.
const REDUCIBLE: [Kind; 9] = [
    Kind::Uint8,
    Kind::Int8,
    Kind::Int,
    Kind::Int64,
    Kind::Half,
    Kind::BFloat16,
    Kind::Float,
    Kind::Double,
    Kind::Bool,
];

/// Returns small numbers of this dtype, in three rows.
fn of_kind(kind: Kind, start: i64) -> Tensor {
    column(start, 6).view([3, 2]).to_kind(Kind::Float).to_kind(kind)
}

fn bits(tensor: &Tensor) -> Result<Vec<u8>> {
    Ok(Vec::try_from(tensor.contiguous().view([-1]).view_dtype(Kind::Uint8))?)
}

#[test]
fn tensors_of_every_dtype_are_exchanged_and_reduced_or_refused_by_name() {
    Ranks::new(2)
        .run(|| {
            let world = world();
            let rank = i64::from(world.rank());
            for kind in KINDS {
                let name = format!("{kind:?}");
                let own = of_kind(kind, rank);
                let of_main = bits(&of_kind(kind, 0))?;
                let of_other = bits(&of_kind(kind, 1))?;
                for rows in [0, 2] {
                    let part = own.narrow(0, 0, rows);
                    assert_eq!(world.all_gather(&name, &part)?.size(), [2, rows, 2], "{kind:?}");
                }
                let all = world.all_gather(&name, &own)?;
                assert_eq!((all.kind(), bits(&all)?), (kind, [of_main.clone(), of_other.clone()].concat()));
                let rows = world.gather_rows(&name, &own.narrow(0, 0, rank + 1))?;
                let row = of_main.len() / 3;
                assert_eq!(bits(&rows)?, [&of_main[..row], &of_other[..2 * row]].concat(), "{kind:?}");
                let scalar =
                    world.all_gather(&name, &own.narrow(0, 0, 1).narrow(1, 0, 1).reshape([0_i64; 0]))?;
                assert_eq!((scalar.size(), scalar.kind()), (vec![2], kind));
                let sent = own.copy();
                world.broadcast([("a", &sent), ("b", &Tensor::from(rank))], 1)?;
                assert_eq!(bits(&sent)?, of_other, "{kind:?}");
                for op in [Op::Sum, Op::Product, Op::Min, Op::Max] {
                    let reduced = own.copy();
                    let result = world.all_reduce(&name, &reduced, op);
                    if !REDUCIBLE.contains(&kind) {
                        let text = result.unwrap_err().to_string();
                        let expected = format!(
                            "`all_reduce(\"{kind:?}\")` cannot reduce a tensor of dtype {kind:?}: convert it"
                        );
                        assert!(text.contains(&expected), "{text}");
                        continue;
                    }
                    result?;
                    let [main, other] = [0, 1].map(|start| of_kind(kind, start).to_kind(Kind::Int64));
                    let expected = match op {
                        Op::Sum => main + other,
                        Op::Product => main * other,
                        Op::Min => main.minimum(&other),
                        Op::Max => main.maximum(&other),
                    };
                    assert_eq!(bits(&reduced)?, bits(&expected.to_kind(kind))?, "{kind:?} {op:?}");
                }
                let average = own.copy();
                world.average([(name.as_str(), &average)])?;
                if own.is_floating_point() {
                    let mean = column(0, 6).view([3, 2]) + 0.5;
                    assert_eq!(bits(&average)?, bits(&mean.to_kind(Kind::Float).to_kind(kind))?, "{kind:?}");
                }
                let scattered = world.reduce_scatter(&name, &own.narrow(0, 0, 2));
                let is_refused = !REDUCIBLE.contains(&kind) || kind == Kind::Bool;
                assert_eq!(scattered.is_err(), is_refused, "{kind:?}");
            }
            // Nothing of this has disconnected the ranks.
            world.barrier("the end")
        })
        .unwrap();
}

#[test]
fn maxima_and_minima_keep_nan_in_every_element() {
    Ranks::new(2)
        .run(|| {
            let world = world();
            for kind in [Kind::Half, Kind::BFloat16, Kind::Float, Kind::Double] {
                for count in 1..=17 {
                    for op in [Op::Max, Op::Min] {
                        // Each rank has a NaN in every third element.
                        let odd = |rank: i64| column(0, count).view([-1]).remainder(3.0).eq(rank);
                        let own = column(0, count).view([-1]).to_kind(kind);
                        let own = own.masked_fill(&odd(i64::from(world.rank())), f64::NAN);
                        world.all_reduce("x", &own, op)?;
                        for (nth, value) in numbers(&own)?.into_iter().enumerate() {
                            let is_nan = nth % 3 < 2;
                            assert_eq!(value.is_nan(), is_nan, "{kind:?} {op:?}: {nth} of {count}");
                            assert!(is_nan || value == nth as f64);
                        }
                    }
                }
            }
            Ok(())
        })
        .unwrap();
}
