//! Hooks, metrics, buffers and checkpoints on several ranks.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use trainer::CancelToken;
use trainer::checkpoint::Resume;
use trainer::distributed::World;
use trainer::hooks::{Checkpoint, DataParallel, NanGuard, RankMonitor, StochasticDepth};
use trainer::metrics::{
    Accuracy, Auroc, AveragePrecision, CalibrationError, CohenKappa, ExplainedVariance, FBeta, Jaccard,
    Matthews, MeanAbsoluteError, MeanSquaredError, Metric, Pearson, Precision, R2Score, Recall, Spearman,
};
use trainer::prelude::*;
use trainer::testing::{Harness, Ranks, once};

use crate::model;
use crate::support::{flat_parameters, scratch};

const DOUBLE: (Kind, Device) = (Kind::Double, Device::Cpu);

/// Returns metrics of predictions that equal the inputs.
fn measured() -> Result<BTreeMap<String, f64>> {
    let task = || {
        let vars = nn::VarStore::new(Device::Cpu);
        let _unused = vars.root().zeros("weight", &[1]);
        Supervised::new(vars, nn::func(Tensor::shallow_clone), |pred: &Tensor, target: &Tensor| {
            (pred.sum_dim_intlist(-1, false, None) - target).abs().mean(Kind::Double)
        })
    };
    let builder = || Trainer::builder(task()).discover(Discover::None);
    let scores = (Tensor::arange(97 * 3, DOUBLE) * 0.7).sin().view([97, 3]).softmax(-1, Kind::Double);
    let labels = (Tensor::arange(97, DOUBLE).square() * 0.3).floor().remainder(3.0).to_kind(Kind::Int64);
    let mut rows = InMemory::new((scores.copy(), labels))?.batch_size(10);
    let mut classes = builder()
        .hook(Accuracy::multiclass(3).per_class(true))
        .hook(Auroc::multiclass(3))
        .hook(AveragePrecision::multiclass(3))
        .hook(CalibrationError::multiclass(3))
        .hook(CohenKappa::multiclass(3))
        .hook(FBeta::multiclass(3))
        .hook(Jaccard::multiclass(3))
        .hook(Matthews::multiclass(3))
        .hook(Precision::multiclass(3))
        .hook(Recall::multiclass(3))
        .build()?;
    let of_classes = classes.validate(&mut rows)?;

    let values = scores.narrow(1, 0, 1);
    let targets = values.cos() + (Tensor::arange(97, DOUBLE).view([97, 1]) * 0.9).sin();
    let mut rows = InMemory::new((values, targets))?.batch_size(10);
    let mut numbers = builder()
        .hook(MeanSquaredError::new())
        .hook(MeanAbsoluteError::new())
        .hook(R2Score::new())
        .hook(ExplainedVariance::new())
        .hook(Pearson::new())
        .hook(Spearman::new())
        .build()?;
    let of_numbers = numbers.validate(&mut rows)?;
    let named = |(name, value): (&str, f64)| (name.to_owned(), value);
    let of_numbers = of_numbers.metrics.iter().filter(|(name, _)| *name != "valid/loss").map(named);
    Ok(of_classes.metrics.iter().map(named).chain(of_numbers).collect())
}

#[test]
fn metrics_of_the_same_predictions_do_not_depend_on_the_number_of_ranks() {
    let alone = once(|| measured().unwrap());
    assert!(alone.len() > 16, "{alone:?}");
    for count in [2, 3, 7] {
        for metrics in Ranks::new(count).run(measured).unwrap() {
            assert_eq!(metrics.keys().collect::<Vec<_>>(), alone.keys().collect::<Vec<_>>());
            for (name, value) in &metrics {
                let difference = (value - alone[name]).abs();
                assert!(difference <= 1e-12, "{name} on {count} ranks: {value} and {}", alone[name]);
            }
        }
    }
}

/// Returns 16 rows in batches of four, with one NaN in the fourth row of the second batch.
fn rows_with_nan() -> InMemory<(Tensor, Tensor)> {
    let inputs = Tensor::arange(64, (Kind::Float, Device::Cpu)).view([16, 4]).sin();
    let _ = inputs.get(7).get(2).fill_(f64::NAN);
    let labels = Tensor::arange(16, (Kind::Int64, Device::Cpu)).remainder(3);
    InMemory::new((inputs, labels)).unwrap().batch_size(4)
}

/// Returns the weights after a fit, the findings of the guard and the reason why the fit stopped.
fn guarded(guard: NanGuard) -> Result<(Vec<f64>, u64, Option<String>)> {
    let mut trainer = model::builder().hook(guard).build()?;
    let summary = trainer.fit(&mut rows_with_nan(), None)?;
    let weights = Vec::try_from(flat_parameters(&trainer).to_kind(Kind::Double))?;
    Ok((weights, trainer.hook::<NanGuard>().map_or(0, NanGuard::found), summary.stopped))
}

#[test]
fn a_nan_on_one_rank_is_handled_on_all_ranks() {
    let run = || {
        let skipped = guarded(NanGuard::skip_batch())?;
        let by_gradient = guarded(NanGuard::skip_batch().loss(false).gradients(true))?;
        Ok([skipped, by_gradient, guarded(NanGuard::stop())?])
    };
    let alone = once(|| run().unwrap());
    let ranks = Ranks::new(2).run(run).unwrap();
    for (rank, found) in ranks.iter().enumerate() {
        for (nth, ((weights, count, stopped), alone)) in found.iter().zip(&alone).enumerate() {
            assert_eq!(*weights, ranks[0][nth].0, "rank {rank}, case {nth}");
            let difference = weights.iter().zip(&alone.0).map(|(one, other)| (one - other).abs());
            assert!(difference.fold(0.0, f64::max) < 1e-6, "rank {rank}, case {nth}");
            assert_eq!((*count, stopped.is_some()), (1, nth == 2), "rank {rank}, case {nth}");
        }
    }
    // The loss of rank 0 is over its own rows, which contain no NaN.
    let stopped = ranks[0][2].2.as_deref().unwrap();
    assert!(stopped.contains("NaN or infinite on another rank in batch 1 of epoch 0"), "{stopped}");
    let failed = Ranks::new(2).results(|| guarded(NanGuard::fail())).unwrap();
    for (rank, result) in failed.into_iter().enumerate() {
        let text = result.unwrap_err().to_string();
        let own = ["NaN or infinite on another rank", "the loss is NaN in batch 1 of epoch 0"][rank];
        assert!(text.contains(own), "rank {rank}: {text}");
    }
}

#[test]
fn buffers_are_averaged_before_validation_and_after_a_fit() {
    let all = Ranks::new(2).run(|| {
        let vars = nn::VarStore::new(Device::Cpu);
        let mean = vars.root().zeros_no_train("mean", &[1]);
        let layer = nn::linear(vars.root() / "fc", 4, 3, Default::default());
        let net = nn::func_t(move |inputs, train| {
            if train {
                tch::no_grad(|| mean.shallow_clone().copy_(&inputs.mean(Kind::Float)));
            }
            inputs.apply(&layer)
        });
        let task = Supervised::new(vars, net, |logits: &Tensor, labels: &Tensor| {
            logits.cross_entropy_for_logits(labels)
        });
        let seen: Arc<Mutex<Vec<f64>>> = Arc::default();
        let [in_training, in_validation] = [Arc::clone(&seen), Arc::clone(&seen)];
        let buffer = |vars: &trainer::Vars| vars.get("mean").unwrap().double_value(&[0]);
        let mut trainer = Trainer::builder(task)
            .optimizer(Sgd::new(0.1))
            .discover(Discover::None)
            .on::<AfterTrainEpoch>("train", move |cx| in_training.lock().unwrap().push(buffer(&cx.vars())))
            .on::<AfterValid>("valid", move |cx| in_validation.lock().unwrap().push(buffer(&cx.vars())))
            .build()?;
        trainer.fit(&mut model::rows(16), Some(&mut model::rows(8)))?;
        let mut seen = seen.lock().unwrap().clone();
        seen.push(buffer(trainer.vars()));
        Ok(seen)
    });
    let all = all.unwrap();
    let mean = f64::midpoint(all[0][0], all[1][0]);
    assert!((all[0][0] - all[1][0]).abs() > 1e-3, "the buffers of the ranks differ in training: {all:?}");
    for seen in all {
        assert!((seen[1] - mean).abs() < 1e-6 && (seen[2] - mean).abs() < 1e-6, "{seen:?}");
    }
}

#[test]
fn the_best_checkpoints_match_a_single_process() {
    let folder = once(|| scratch("ranks-best"));
    let run = |own: &str| {
        let hook = Checkpoint::new(folder.join(own)).every(Every::Steps(3));
        let hook = hook.keep_best(1, "valid/loss", Goal::Minimize).keep_last(1);
        let mut trainer = model::builder().epochs(4).hook(hook).build()?;
        // The validation data have different labels, so that the loss increases.
        let other = InMemory::new((
            Tensor::arange(32, (Kind::Float, Device::Cpu)).view([8, 4]).cos(),
            Tensor::arange_start(2, 10, (Kind::Int64, Device::Cpu)).remainder(3),
        ));
        trainer.fit(&mut model::rows(16), Some(&mut other?.batch_size(4)))?;
        let best = trainer.hook::<Checkpoint>()?.best();
        Ok(best.map(|(path, loss)| (path.file_name().unwrap().to_string_lossy().into_owned(), loss)))
    };
    let alone = once(|| run("alone").unwrap().unwrap());
    let ranks = Ranks::new(2).run(|| run("ranks")).unwrap();
    let (name, loss) = ranks[0].clone().unwrap();
    assert_eq!((&name, ranks[1].clone()), (&alone.0, None));
    assert!((loss - alone.1).abs() < 1e-6);
    fs::remove_dir_all(folder).unwrap();
}

/// Trains for three epochs, or until `cancelled_at` batches have been seen. Returns the epoch and
/// the row of each sample that this rank trained on.
fn trained(folder: &Path, cancelled_at: u64) -> Result<Vec<(u64, i64)>> {
    let vars = nn::VarStore::new(Device::Cpu);
    let net = nn::linear(vars.root() / "fc", 1, 1, Default::default());
    let task =
        Supervised::new(vars, net, |pred: &Tensor, target: &Tensor| pred.mse_loss(target, Reduction::Mean));
    let seen: Arc<Mutex<Vec<(u64, i64)>>> = Arc::default();
    let own = Arc::clone(&seen);
    let token = CancelToken::new();
    let mut trainer = Trainer::builder(task)
        .optimizer(Sgd::new(1e-6))
        .discover(Discover::None)
        .epochs(3)
        .cancel_token(token.clone())
        .hook(Checkpoint::new(folder).every(Every::Steps(5)))
        .resume(Resume::Auto)
        .allow_inexact_resume(true)
        .on::<AfterLoss>("rows", move |cx| {
            // A rank without a row of its own processes a borrowed row with a weight of 0.
            if cx.weight() > 0.0 {
                let ids =
                    Vec::<f64>::try_from(cx.batch::<(Tensor, Tensor)>()?.1.view([-1]).to_kind(Kind::Double))?;
                own.lock().unwrap().extend(ids.iter().map(|id| (cx.counters().epoch, *id as i64)));
            }
            if cx.counters().batches_seen + 1 == cancelled_at && cx.rank() == cx.vars().share().of - 1 {
                token.cancel();
            }
            Ok(())
        })
        .build()?;
    let ids = Tensor::arange(97, (Kind::Float, Device::Cpu)).view([97, 1]);
    let mut rows = InMemory::new((&ids / 97.0, ids))?.batch_size(16).shuffle(5);
    match trainer.fit(&mut rows, None) {
        Err(error) if !error.is_cancelled() => Err(error),
        _ => Ok(seen.lock().unwrap().clone()),
    }
}

#[test]
#[cfg(unix)]
fn sigusr1_on_any_rank_requests_one_checkpoint() {
    let folder = once(|| scratch("ranks-usr1"));
    let saves = Ranks::new(2).run(|| {
        let saves: Arc<Mutex<Vec<u64>>> = Arc::default();
        let own = Arc::clone(&saves);
        let mut trainer = model::builder()
            .epochs(2)
            .hook(Checkpoint::new(&folder).every(Every::Epochs(100)).keep_last(9))
            .on::<AfterLoss>("signal", |cx| {
                if cx.rank() == 1 && cx.counters().batches_seen == 1 {
                    signal_hook::low_level::raise(signal_hook::consts::SIGUSR1)?;
                }
                Ok(())
            })
            .on::<AfterSaveCheckpoint>("saved", move |cx| {
                own.lock().unwrap().push(cx.counters().batches_seen);
            })
            .build()?;
        let summary = trainer.fit(&mut model::rows(16), None)?;
        assert!(summary.warnings.is_empty(), "{:?}", summary.warnings);
        Ok(saves.lock().unwrap().clone())
    });
    // The request is agreed before the third batch, and the fit ends with a checkpoint.
    assert_eq!(saves.unwrap(), [[3, 8], [3, 8]]);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn two_then_four_then_three_ranks_train_each_row_once_per_epoch() {
    let folder = once(|| scratch("ranks-elastic"));
    let mut rows = Vec::new();
    for (count, cancelled_at) in [(2, 4), (4, 17), (3, 0)] {
        let own = Ranks::new(count).run(|| trained(&folder, cancelled_at)).unwrap();
        assert!(own.iter().all(|own| !own.is_empty()), "each of {count} ranks has trained");
        rows.extend(own.into_iter().flatten());
    }
    rows.sort_unstable();
    let expected: Vec<(u64, i64)> = (0..3).flat_map(|epoch| (0..97).map(move |id| (epoch, id))).collect();
    assert_eq!(rows, expected);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_resumed_pass_keeps_metrics_that_only_rank_0_logged() {
    let folder = once(|| scratch("ranks-main-only"));
    let run = |cancelled_at: u64| {
        let token = CancelToken::new();
        let mut trainer = model::builder()
            .epochs(1)
            .cancel_token(token.clone())
            .hook(Checkpoint::new(&folder))
            .resume(Resume::Auto)
            .on::<Main<AfterLoss>>("first", |cx| {
                if cx.counters().batches_seen == 0 {
                    cx.log("of_main", 3.0);
                }
            })
            .on::<AfterLoss>("cancel", move |cx| {
                if cx.counters().batches_seen + 1 == cancelled_at {
                    token.cancel();
                }
            })
            .build()?;
        match trainer.fit(&mut model::rows(32), None) {
            Ok(summary) => Ok((summary.metrics.get("train/of_main"), trainer.counters().batches_seen)),
            Err(error) if error.is_cancelled() => Ok((None, trainer.counters().batches_seen)),
            Err(error) => Err(error),
        }
    };
    assert_eq!(Ranks::new(2).run(|| run(2)).unwrap(), [(None, 2); 2]);
    assert_eq!(Ranks::new(2).run(|| run(0)).unwrap(), [(Some(3.0), 8); 2]);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn an_explicitly_joined_world_is_not_joined_again() {
    let same = Ranks::new(2).run(|| {
        let world = World::from_env()?;
        let mut trainer = model::builder().world(world.clone()).build()?;
        trainer.fit(&mut model::rows(8), None)?;
        trainer.fit(&mut model::rows(8), None)?;
        Ok((world.rank(), trainer.counters().batches_seen, world.any("nothing", false)?))
    });
    assert_eq!(same.unwrap(), [(0, 4, false), (1, 4, false)]);
}

/// Returns the weights after a fit that drops the first layer for entire batches, and the batches
/// of this rank in which it was dropped.
fn trained_with_drops(data_parallel: DataParallel) -> Result<(Vec<f64>, Vec<u64>)> {
    let dropped = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&dropped);
    let options = HookOptions::named("dropped").of("fc1").only(Phase::Train).ord(100);
    let mut trainer = Trainer::builder(model::named_task())
        .optimizer(Sgd::new(0.1).momentum(0.9))
        .discover(Discover::None)
        .seed(3)
        .hook(data_parallel)
        .hook(StochasticDepth::new("fc1", 0.5).per_batch(true))
        .on::<AfterModuleForward>(options, move |cx| {
            if cx.output().count_nonzero(None).int64_value(&[]) == 0 {
                seen.lock().unwrap().push(cx.counters().batches_seen);
            }
        })
        .build()?;
    trainer.fit(&mut model::rows(64), None)?;
    let weights = Vec::try_from(flat_parameters(&trainer).to_kind(Kind::Double))?;
    let dropped = dropped.lock().unwrap().clone();
    Ok((weights, dropped))
}

#[test]
fn branches_dropped_on_some_ranks_require_find_unused() {
    let results = Ranks::new(2).results(|| trained_with_drops(DataParallel::new())).unwrap();
    let errors: Vec<String> = results.into_iter().map(|result| result.unwrap_err().to_string()).collect();
    let advice = "add `.hook(DataParallel::new().find_unused(true))`";
    assert!(errors.iter().any(|error| error.contains(advice)), "{errors:?}");

    let ranks = Ranks::new(2).run(|| trained_with_drops(DataParallel::new().find_unused(true))).unwrap();
    assert_ne!(ranks[0].1, ranks[1].1, "the ranks drop different batches");
    let bits = |rank: usize| ranks[rank].0.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(0), bits(1));
}

#[test]
fn the_rank_monitor_logs_the_times_of_three_ranks() {
    let metrics = Ranks::new(3).run(|| {
        let outcome = Harness::small().hook(RankMonitor::new().every(2)).run()?;
        let metrics = outcome.summary().metrics.clone();
        Ok(metrics.iter().map(|(name, value)| (name.to_owned(), value)).collect::<BTreeMap<_, _>>())
    });
    let metrics = metrics.unwrap();
    let of = |rank: &str, what: &str| metrics[0][&format!("train/ranks/{rank}/{what}")];
    let [slowest, median, fastest] = ["slowest", "median", "fastest"]
        .map(|rank| (of(rank, "rank"), of(rank, "compute"), of(rank, "data")));
    let numbers = [slowest, median, fastest].map(|(rank, ..)| rank as u32);
    assert!(numbers.iter().all(|rank| *rank < 3), "{numbers:?}");
    assert!([slowest, median, fastest].iter().all(|(_, compute, data)| *compute > 0.0 && *data >= 0.0));
    // Each logged value is that of the slowest rank at that time.
    assert!(slowest.1 + slowest.2 >= median.1 + median.2 && median.1 + median.2 >= fastest.1 + fastest.2);
    assert!(of("fastest", "waiting") > 0.0, "the ranks agree before each batch");
    for own in &metrics {
        for (name, value) in own.iter().filter(|(name, _)| name.contains("/ranks/")) {
            assert_eq!(*value, metrics[0][name], "{name} is the same on all ranks");
        }
    }
    let alone = Harness::small().hook(RankMonitor::new().every(2)).run().unwrap();
    assert!(alone.summary().metrics.iter().all(|(name, _)| !name.contains("ranks/")));
}
