//! `LocalSgd`: ranks that train by themselves, and average their weights from time to time.

use std::fs;
use std::path::Path;

use trainer::checkpoint::{LoadWeights, Resume};
use trainer::data::from_fn_per_rank;
use trainer::distributed::Share;
use trainer::hooks::{Checkpoint, DataParallel, Ema, LocalSgd, Lookahead, Swa};
use trainer::optim::Sharded;
use trainer::prelude::*;
use trainer::testing::{Ranks, once};
use trainer::{CancelToken, TrainerBuilder};

use crate::support::scratch;

const DOUBLE: (Kind, Device) = (Kind::Double, Device::Cpu);
const RANKS: u32 = 2;

/// A layer, with or without batch normalization, in double precision.
fn task(has_norm: bool) -> Supervised<nn::SequentialT, fn(&Tensor, &Tensor) -> Tensor> {
    let mut vars = nn::VarStore::new(Device::Cpu);
    let mut net = nn::seq_t().add(nn::linear(vars.root() / "first", 3, 4, Default::default()));
    if has_norm {
        let config = nn::BatchNormConfig { ws_init: nn::Init::Const(1.0), ..Default::default() };
        net = net.add(nn::batch_norm1d(vars.root() / "norm", 4, config));
    }
    let net = net.add(nn::linear(vars.root() / "last", 4, 1, Default::default()));
    vars.double();
    tch::no_grad(|| {
        for (name, mut tensor) in vars.variables().into_iter().filter(|(name, _)| !name.contains("norm")) {
            let values = Tensor::arange(tensor.numel() as i64, DOUBLE) + name.len() as f64;
            tensor.copy_(&(values.sin() * 0.5).view_as(&tensor));
        }
    });
    Supervised::new(vars, net, |pred, target| (pred.squeeze_dim(-1) - target).square().mean(Kind::Double))
}

/// Rank `r` has batches of `2 + r` rows, and rank 1 has one batch more than rank 0.
fn batch(epoch: u64, nth: u64, rank: u32) -> (Tensor, Tensor) {
    let rows = 2 + i64::from(rank);
    let shift = (epoch * 100 + nth * 10) as f64 + f64::from(rank);
    let inputs = (Tensor::arange(rows * 3, DOUBLE) * 0.7 + shift).sin().view([rows, 3]);
    let targets = (Tensor::arange(rows, DOUBLE) + shift).cos();
    (inputs, targets)
}

fn data() -> impl Loader<(Tensor, Tensor)> {
    from_fn_per_rank(|epoch, share: Share| {
        let batches = 5 + u64::from(share.rank);
        (0..batches).map(move |nth| {
            let ranks = if share.of == 1 { 0..RANKS } else { share.rank..share.rank + 1 };
            let own: Vec<_> =
                ranks.filter(|rank| nth < 5 + u64::from(*rank)).map(|rank| batch(epoch, nth, rank)).collect();
            let (inputs, targets): (Vec<_>, Vec<_>) = own.into_iter().unzip();
            (Tensor::cat(&inputs, 0), Tensor::cat(&targets, 0))
        })
    })
    .deterministic(true)
}

/// The data of all ranks in one process, which has as many batches as rank 1.
fn joined() -> impl Loader<(Tensor, Tensor)> {
    trainer::data::from_fn(|epoch| {
        (0..6).map(move |nth| {
            let ranks = (0..RANKS).filter(move |rank| nth < 5 + u64::from(*rank));
            let (inputs, targets): (Vec<_>, Vec<_>) = ranks.map(|rank| batch(epoch, nth, rank)).unzip();
            (Tensor::cat(&inputs, 0), Tensor::cat(&targets, 0))
        })
    })
    .deterministic(true)
}

type Task3 = Supervised<nn::SequentialT, fn(&Tensor, &Tensor) -> Tensor>;

fn builder(has_norm: bool) -> TrainerBuilder<Task3> {
    Trainer::builder(task(has_norm)).optimizer(Sgd::new(0.1)).epochs(3).seed(1)
}

fn weights(trainer: &Trainer<Task3>) -> Result<Vec<f64>> {
    let all: Vec<Tensor> =
        trainer.vars().iter().map(|var| var.tensor.to_kind(Kind::Double).view([-1])).collect();
    Ok(Vec::try_from(Tensor::cat(&all, 0))?)
}

fn close(one: &[f64], other: &[f64]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| (one - other).abs() < 1e-12)
}

#[test]
fn averaging_after_each_sgd_step_matches_a_single_process_even_with_uneven_data() {
    let alone = once(|| {
        let mut trainer = builder(false).build().unwrap();
        let summary = trainer.fit(&mut joined(), None).unwrap();
        (weights(&trainer).unwrap(), summary.counters)
    });
    let ranks = Ranks::new(RANKS).run(|| {
        let mut trainer = builder(false).hook(LocalSgd::every(1)).build()?;
        let summary = trainer.fit(&mut data(), None)?;
        Ok((weights(&trainer)?, summary.counters.optimizer_steps, summary.counters.samples_seen))
    });
    for (weights, steps, samples) in ranks.unwrap() {
        assert!(close(&weights, &alone.0), "{weights:?} {:?}", alone.0);
        assert_eq!((steps, samples), (alone.1.optimizer_steps, alone.1.samples_seen));
    }
}

/// Trains each rank by hand, in one process: local steps, and after every `every` of them a
/// weighted average and a step of the outer optimizer.
fn by_hand(every: u64, outer: Option<(f64, f64)>) -> Vec<f64> {
    let mut tasks: Vec<Task3> = (0..RANKS).map(|_| task(false)).collect();
    let parameters = |task: &Task3| -> Vec<Tensor> {
        let mut all: Vec<_> = task.vars().variables().into_iter().collect();
        all.sort_by(|(one, _), (other, _)| one.cmp(other));
        all.into_iter().map(|(_, tensor)| tensor).collect()
    };
    let mut shared: Vec<Tensor> = parameters(&tasks[0]).iter().map(|weight| weight.detach().copy()).collect();
    let mut momenta: Vec<Tensor> = shared.iter().map(Tensor::zeros_like).collect();
    let mut rows = [0.0; RANKS as usize];
    let mut steps = 0;
    let total_steps = 18;
    for epoch in 0..3 {
        for nth in 0..6 {
            for (rank, task) in (0..).zip(&mut tasks) {
                if nth >= 5 + u64::from(rank) {
                    continue;
                }
                let batch = batch(epoch, nth, rank);
                rows[rank as usize] += 2.0 + f64::from(rank);
                let pred = task.pred(&batch, Mode::Train).unwrap();
                task.loss(&pred, &batch).unwrap().backward();
                tch::no_grad(|| {
                    for mut weight in parameters(task) {
                        weight -= weight.grad() * 0.1;
                        weight.zero_grad();
                    }
                });
            }
            steps += 1;
            if steps % every != 0 && steps < total_steps {
                continue;
            }
            let _no_grad = tch::no_grad_guard();
            let own: Vec<Vec<Tensor>> = tasks.iter().map(parameters).collect();
            for (at, (shared, momentum)) in shared.iter_mut().zip(&mut momenta).enumerate() {
                let sum: f64 = rows.iter().sum();
                let mean = &own[0][at] * (rows[0] / sum) + &own[1][at] * (rows[1] / sum);
                match outer {
                    None => shared.copy_(&mean),
                    Some((lr, beta)) => {
                        let gradient = &*shared - &mean;
                        momentum.copy_(&(&*momentum * beta + &gradient));
                        let step = (gradient + &*momentum * beta) * lr;
                        let _ = shared.g_sub_(&step);
                    }
                }
                own.iter().for_each(|own| own[at].shallow_clone().copy_(shared));
            }
            rows = [0.0; RANKS as usize];
        }
    }
    let flat: Vec<Tensor> = shared.iter().map(|weight| weight.view([-1])).collect();
    Vec::try_from(Tensor::cat(&flat, 0)).unwrap()
}

#[test]
fn local_sgd_and_diloco_match_training_by_hand() {
    for (every, outer) in [(4, None), (5, None), (4, Some((0.7, 0.9))), (100, Some((0.5, 0.0)))] {
        let expected = once(|| by_hand(every, outer));
        let ranks = Ranks::new(RANKS).run(|| {
            let hook = LocalSgd::every(every);
            let hook = match outer {
                Some((lr, momentum)) => hook.outer(lr, momentum),
                None => hook,
            };
            let mut trainer = builder(false).hook(hook).build()?;
            trainer.fit(&mut data(), None)?;
            weights(&trainer)
        });
        for weights in ranks.unwrap() {
            assert!(close(&weights, &expected), "every {every}, {outer:?}: {weights:?} {expected:?}");
        }
    }
}

/// The bits of the weights, and of the metrics of the last validation.
type End = (Vec<u64>, Vec<(String, u64)>);

/// Returns what a run with checkpoints ends with.
fn trained(folder: &Path, cancel_at: Option<u64>, outer: bool) -> Result<End> {
    let token = CancelToken::new();
    let own = token.clone();
    let hook = LocalSgd::every(4);
    let hook = if outer { hook.outer(0.7, 0.9) } else { hook };
    let mut trainer = Trainer::builder(task(true))
        .optimizer(AdamW::new(0.05))
        .epochs(4)
        .seed(1)
        .accumulate(2)
        .clip_grad_norm(0.5)
        .validate_every(Every::Steps(3))
        .hook(hook)
        .hook(Checkpoint::new(folder).every(Every::Steps(1)).keep_last(2))
        .cancel_token(token)
        .resume(Resume::Auto)
        .on::<BeforeStep>("cancel", move |cx| {
            if Some(cx.counters().batches_seen * 2 + u64::from(cx.phase() == Phase::Valid)) == cancel_at
                && (cx.phase() != Phase::Valid || cx.counters().batch_idx == 1)
            {
                own.cancel();
            }
        })
        .build()?;
    let summary = trainer.fit(&mut data(), Some(&mut data()))?;
    let metrics = summary.metrics.iter().map(|(name, value)| (name.to_owned(), value.to_bits())).collect();
    Ok((weights(&trainer)?.into_iter().map(f64::to_bits).collect(), metrics))
}

#[test]
fn a_run_that_is_interrupted_between_two_averages_resumes_bit_identically() {
    for outer in [false, true] {
        let whole = once(|| scratch("local-sgd-whole"));
        let uninterrupted = Ranks::new(RANKS).run(|| trained(&whole, None, outer)).unwrap();
        once(|| fs::remove_dir_all(&whole).unwrap());
        assert_eq!(uninterrupted[0], uninterrupted[1]);
        // In training, within an accumulation window too, in the validation after three steps, and
        // after the data of rank 0 has ended.
        for cancel_at in [4, 6, 13, 22, 26] {
            let folder = once(|| scratch("local-sgd"));
            let cut = Ranks::new(RANKS).results(|| trained(&folder, Some(cancel_at), outer)).unwrap();
            assert!(cut.iter().all(Result::is_err), "{cancel_at}: {cut:?}");
            let resumed = Ranks::new(RANKS).run(|| trained(&folder, None, outer)).unwrap();
            assert_eq!(resumed, uninterrupted, "cancelled at {cancel_at}, outer {outer}");
            once(|| fs::remove_dir_all(&folder).unwrap());
        }
    }
}

/// Records the weights and the losses of validations.
fn with_validation(every: Every) -> Result<(Vec<f64>, f64, f64)> {
    let mut trainer = builder(true)
        .hook(LocalSgd::every(4))
        .epochs(1)
        .validate_every(every)
        .hook(Watch::default())
        .build()?;
    let summary = trainer.fit(&mut data(), Some(&mut data()))?;
    let watch = trainer.hook::<Watch>()?;
    assert!(watch.differs, "the ranks trained the same");
    Ok((weights(&trainer)?, summary.metrics["valid/loss"], watch.spread))
}

/// Compares the weights of the ranks while they are validated, and while they are trained.
#[derive(Default)]
struct Watch {
    spread: f64,
    differs: bool,
}

#[hook]
impl Watch {
    fn after_step(&mut self, cx: &mut Cx<AfterStep>) -> Result<()> {
        let own = cx.vars().get("last.weight")?.detach().copy();
        let all = cx.world().all_gather("last", &own)?;
        let spread = (all.get(0) - all.get(1)).abs().max().double_value(&[]);
        match cx.phase() {
            Phase::Train => self.differs |= spread > 1e-6,
            _ => self.spread = self.spread.max(spread),
        }
        Ok(())
    }
}

#[test]
fn validation_between_two_averages_uses_the_average_and_changes_nothing() {
    let results = Ranks::new(RANKS).run(|| {
        Ok([
            with_validation(Every::Steps(3))?,
            with_validation(Every::Steps(4))?,
            with_validation(Every::Epochs(1))?,
        ])
    });
    let results = results.unwrap();
    for rank in &results {
        assert_eq!(rank[0].0, rank[1].0);
        assert_eq!(rank[0].0, rank[2].0);
        for (_, loss, spread) in rank {
            assert!(loss.is_finite() && *spread == 0.0, "{loss} {spread}");
        }
    }
    assert_eq!(results[0], results[1]);
}

#[test]
fn load_weights_loads_the_average_from_a_checkpoint() {
    let folder = once(|| scratch("local-sgd-average"));
    let ranks = Ranks::new(RANKS).run(|| {
        let train = |every, steps, folder: &Path| {
            let checkpoint = Checkpoint::new(folder).every(Every::Steps(4)).keep_last(2);
            let builder = builder(true).hook(LocalSgd::every(every)).hook(checkpoint);
            let mut trainer = builder.max_steps(steps).build()?;
            trainer.fit(&mut data(), None)?;
            weights(&trainer)
        };
        Ok([train(100, 5, &folder.join("long"))?, train(4, 4, &folder.join("short"))?])
    });
    let ranks = ranks.unwrap();
    assert_eq!(ranks[0], ranks[1]);
    once(|| {
        // After five steps, at the end of the fit, the ranks have the average. After four, each had
        // its own weights, and those of the other run had just been averaged.
        for (step, expected) in [("step-00000005", &ranks[0][0]), ("step-00000004", &ranks[0][1])] {
            let mut trainer = builder(true).build().unwrap();
            trainer.load_weights(folder.join("long").join(step), &LoadWeights::new()).unwrap();
            assert_eq!(weights(&trainer).unwrap(), *expected, "{step}");
        }
        fs::remove_dir_all(&folder).unwrap();
    });
}

#[test]
fn a_different_number_of_ranks_resumes_from_the_average_if_allowed() {
    let folder = once(|| scratch("local-sgd-elastic"));
    let cut = Ranks::new(RANKS).results(|| trained(&folder, Some(8), false)).unwrap();
    assert!(cut.iter().all(Result::is_err));
    once(|| {
        let resume = |is_allowed| {
            let mut trainer = Trainer::builder(task(true))
                .optimizer(AdamW::new(0.05))
                .epochs(4)
                .seed(1)
                .accumulate(2)
                .clip_grad_norm(0.5)
                .validate_every(Every::Steps(3))
                .hook(LocalSgd::every(4))
                .hook(Checkpoint::new(&folder).every(Every::Steps(1)).keep_last(2))
                .resume(Resume::Auto)
                .allow_inexact_resume(is_allowed)
                .on::<BeforeStep>("cancel", |_| {})
                .build()
                .unwrap();
            trainer.fit(&mut data(), Some(&mut data())).map(|summary| summary.counters.batches_seen)
        };
        let refused = resume(false).unwrap_err().to_string();
        assert!(
            refused.contains("the checkpoint was written by 2 processes that trained together"),
            "{refused}"
        );
        assert_eq!(resume(true).unwrap(), 20);
        fs::remove_dir_all(&folder).unwrap();
    });
}

#[test]
fn combinations_that_local_sgd_does_not_support_are_errors() {
    type Change = fn(TrainerBuilder<Task3>) -> TrainerBuilder<Task3>;
    let cases: [(Change, &str); 7] = [
        (
            |builder| builder.hook(Ema::new(0.9)),
            "`LocalSgd` and `Ema` both keep averages of the weights: remove one",
        ),
        (|builder| builder.hook(Swa::from_epoch(1)), "`LocalSgd` and `Swa` both keep"),
        (|builder| builder.hook(Lookahead::new(5, 0.5)), "`LocalSgd` and `Lookahead` both keep"),
        (
            |builder| builder.optimizer(Sharded::new(Sgd::new(0.1))),
            "the ranks cannot train separately with a `Sharded` optimizer",
        ),
        (
            |builder| builder.hook(DataParallel::new()),
            "a trainer cannot have both `trainer::hooks::LocalSgd` and `trainer::hooks::DataParallel`: remove one",
        ),
        (
            |builder| builder.hook(LocalSgd::every(3)),
            "hook `trainer::hooks::LocalSgd` is `single` but was added twice: remove one",
        ),
        (|builder| builder, ""),
    ];
    let texts = Ranks::new(RANKS).run(|| {
        let run = |(change, _): &(Change, &str)| {
            let mut trainer = change(builder(false).hook(LocalSgd::every(2))).build()?;
            trainer.fit(&mut data(), None).map(drop)
        };
        let text = |case| run(case).err().map_or_else(String::new, |error| error.to_string());
        // An error disconnects the ranks, so each case that fails in `fit` has a process of its own
        // below.
        Ok(cases[4..].iter().map(text).collect::<Vec<_>>())
    });
    for texts in texts.unwrap() {
        for (text, (_, expected)) in texts.iter().zip(&cases[4..]) {
            assert!(text.contains(expected) && text.is_empty() == expected.is_empty(), "{text}");
        }
    }
    for (change, expected) in &cases[..4] {
        let failed = Ranks::new(RANKS).results(|| {
            let mut trainer = change(builder(false).hook(LocalSgd::every(2))).build()?;
            trainer.fit(&mut data(), None).map(drop)
        });
        for result in failed.unwrap() {
            let text = result.unwrap_err().to_string();
            assert!(text.contains(expected), "{text}");
        }
    }
}

#[test]
fn the_table_has_local_sgd_in_place_of_data_parallel() {
    let tables = Ranks::new(RANKS).run(|| {
        let named = |builder: TrainerBuilder<Task3>| {
            let table = builder.build()?.describe_hooks();
            Ok::<_, Error>(table.rows().map(|row| row.hook.clone()).collect::<Vec<String>>())
        };
        Ok((named(builder(false))?, named(builder(false).hook(LocalSgd::every(2)))?))
    });
    for (usual, local) in tables.unwrap() {
        let has = |rows: &[String], name: &str| rows.iter().any(|row| row.contains(name));
        assert!(has(&usual, "DataParallel") && !has(&usual, "LocalSgd"), "{usual:?}");
        assert!(has(&local, "LocalSgd") && !has(&local, "DataParallel"), "{local:?}");
    }
}
