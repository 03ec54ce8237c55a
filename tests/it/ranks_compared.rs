//! What the ranks compare with each other, and which rank, hook and value an error names.

use std::path::Path;

use trainer::TrainerBuilder;
use trainer::checkpoint::Resume;
use trainer::distributed::{Launch, World, sync_batch_norm};
use trainer::hooks::{EarlyStopping, NanGuard, ReduceOnPlateau, SpikeGuard};
use trainer::prelude::*;
use trainer::testing::{Harness, Ranks, SmallTask};

type Builder = TrainerBuilder<SmallTask>;
type Change = fn(Builder) -> Builder;

/// Trains on two ranks with each of the changes, in a world of its own, because an error
/// disconnects the ranks. Returns the errors of both ranks for each change; empty without an error.
fn errors_of(changes: &[Change]) -> Vec<[String; 2]> {
    let ranks = Ranks::new(2).run(|| {
        let launch = Launch::from_env()?.unwrap();
        let file = std::env::var("MASTER_ADDR").unwrap().replace("file://", "");
        let mut errors = Vec::new();
        for (nth, change) in changes.iter().enumerate() {
            let own = Launch::file(launch.rank(), launch.size(), format!("{file}-{nth}"));
            let world = World::join(&own)?;
            let outcome = Harness::small().configure(|builder| change(builder.world(world))).run()?;
            errors.push(outcome.result.err().map_or_else(String::new, |error| error.to_string()));
        }
        Ok(errors)
    });
    let [main, other] = ranks.unwrap().try_into().unwrap();
    main.into_iter().zip(other).map(|(main, other)| [main, other]).collect()
}

/// Checks that each rank returns an error with this text, for each change.
fn assert_errors(cases: &[(Change, &str)]) {
    let changes: Vec<_> = cases.iter().map(|(change, _)| *change).collect();
    for ((_, expected), errors) in cases.iter().zip(errors_of(&changes)) {
        for error in errors {
            assert!(if expected.is_empty() { error.is_empty() } else { error.contains(expected) }, "{error}");
        }
    }
}

/// Sets a setting of the optimizer to 0.25 on rank 1, after the first epoch.
fn with_setting<const NAME: usize>(builder: Builder) -> Builder {
    builder.optimizer(AdamW::new(0.5)).epochs(2).on::<AfterEpoch>("set", |cx| {
        if cx.rank() == 1 {
            for group in cx.optimizer_mut()?.groups_mut() {
                group.set(["lr", "weight_decay", "beta1", "beta2", "eps"][NAME], 0.25)?;
            }
        }
        Ok(())
    })
}

#[test]
fn settings_of_optimizers_that_a_hook_changes_on_one_rank_are_reported_before_the_next_batch() {
    assert_errors(&[
        (
            with_setting::<0>,
            "their optimizers have different settings: `lr` of the parameter group 0 of the optimizer is 0.5 on rank 0, but 0.25 \
             on rank 1",
        ),
        (
            with_setting::<1>,
            "`weight_decay` of the parameter group 0 of the optimizer is 0.01 on rank 0, but 0.25",
        ),
        (with_setting::<2>, "`beta1` of the parameter group 0 of the optimizer is 0.9 on rank 0, but 0.25"),
        (with_setting::<3>, "`beta2` of the parameter group 0 of the optimizer is 0.999 on rank 0, but 0.25"),
        (with_setting::<4>, "`eps` of the parameter group 0 of the optimizer is 1e-8 on rank 0, but 0.25"),
    ]);
}

/// Adds 0.5 to an element of a weight or of a state of the optimizer on rank 1, after the last
/// comparison of the weights before the end of the fit.
fn damaged(builder: Builder, change: fn(&Cx<AfterEpoch>) -> Result<Tensor>) -> Builder {
    builder.optimizer(Sgd::new(0.1).momentum(0.9)).on::<AfterEpoch>("damage", move |cx| {
        if cx.rank() == 1 {
            let _no_grad = tch::no_grad_guard();
            let mut element = change(cx)?.detach().view([-1]).get(5);
            element += 0.5;
        }
        Ok(())
    })
}

#[test]
fn weights_and_optimizer_states_that_differ_are_reported_at_the_end_of_the_fit() {
    let text = "the ranks no longer train the same model: at the end of the fit, ";
    let cases: [(Change, &str); 3] = [
        (|builder| builder, ""),
        (
            |builder| damaged(builder, |cx| Ok(cx.vars().get("fc1.weight")?.shallow_clone())),
            "`fc1.weight` on rank 1 differs from rank 0 (element 5 is ",
        ),
        (
            |builder| {
                damaged(builder, |cx| {
                    let state = cx.optimizer()?.state();
                    Ok(state.into_iter().find(|(name, _)| name.contains("fc2.weight")).unwrap().1)
                })
            },
            "/fc2.weight` on rank 1 differs from rank 0 (element 5 is ",
        ),
    ];
    assert_errors(&cases);
    for errors in errors_of(&cases[1..].iter().map(|(change, _)| *change).collect::<Vec<_>>()) {
        assert!(errors.iter().all(|error| error.contains(text)), "{errors:?}");
    }
}

/// Logs a metric between batches, on the ranks and with the values that `value` returns.
fn with_metric(builder: Builder, value: fn(u32) -> f64) -> Builder {
    builder.epochs(4).on::<AfterValid>("own", move |cx| cx.log("own", value(cx.rank())))
}

fn stopping(builder: Builder) -> Builder {
    builder.hook(EarlyStopping::new("valid/own", Goal::Minimize).patience(1))
}

#[test]
fn a_metric_that_each_rank_logs_for_itself_is_named_with_the_hook_that_watches_it() {
    assert_errors(&[
        (
            |builder| {
                let plateau = ReduceOnPlateau::new("valid/own", Goal::Minimize).patience(0);
                with_metric(builder, f64::from).hook(plateau)
            },
            "each rank has logged its own value of `valid/own`, which `ReduceOnPlateau` watches: 0 on rank 0, but 1 on rank 1",
        ),
        (
            |builder| stopping(with_metric(builder, |rank| if rank == 0 { f64::NAN } else { 2.0 })),
            "`valid/own`, which `EarlyStopping` watches: NaN on rank 0, but 2 on rank 1",
        ),
        // The same up to rounding, the same in every bit, and on rank 0 only.
        (|builder| stopping(with_metric(builder, |rank| 1.0 + 1e-12 * f64::from(rank))), ""),
        (|builder| stopping(with_metric(builder, |_| f64::INFINITY)).epochs(1), ""),
        (|builder| stopping(builder.epochs(4).on::<Main<AfterValid>>("main", |cx| cx.log("own", 1.0))), ""),
    ]);
}

/// Multiplies the loss of the third batch by NaN, once.
#[derive(Default)]
struct Explodes(bool);

#[hook(only = train)]
impl Explodes {
    fn explode(&mut self, cx: &mut Cx<Loss>, next: Next<Loss>) -> Result<Done> {
        let done = next.run(cx)?;
        if cx.counters().batches_seen == 2 && !std::mem::replace(&mut self.0, true) {
            let loss = cx.computed_loss().unwrap();
            cx.set_loss(loss * f64::NAN);
        }
        Ok(done)
    }
}

#[test]
fn what_happens_once_on_all_ranks_is_counted_once() {
    let counts = |count: u32| {
        let ranks = Ranks::new(count).run(|| {
            let mut counts = Vec::new();
            for (nth, name) in ["spike_guard/roll_backs", "nan_guard/found"].into_iter().enumerate() {
                let harness = Harness::small().hook(Explodes::default()).epochs(1);
                let harness = if nth == 0 {
                    harness.hook(SpikeGuard::new().keep_every(1))
                } else {
                    harness.hook(NanGuard::skip_batch().gradients(true))
                };
                let summary = harness.run()?.result?;
                counts.push(summary.metrics.get(&format!("train/{name}")));
            }
            Ok(counts)
        });
        ranks.unwrap()
    };
    assert_eq!(counts(1), [[Some(1.0), Some(1.0)]]);
    assert_eq!(counts(2), [[Some(1.0), Some(1.0)], [Some(1.0), Some(1.0)]]);
}

#[test]
fn built_in_hooks_log_sums_with_the_function_that_counts_once() {
    let hooks = Path::new(env!("CARGO_MANIFEST_DIR")).join("../trainer/src/hooks");
    let mut folders = vec![hooks];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if std::fs::read_to_string(&path).unwrap().contains("Reduce::Sum") {
                found.push(path.file_name().unwrap().to_string_lossy().into_owned());
            }
        }
    }
    assert_eq!(
        found,
        ["watched_metric.rs"],
        "a sum over the ranks counts N times what all N ranks do together"
    );
}

#[test]
fn the_rank_and_the_cause_that_an_error_names_are_those_that_failed() {
    assert_errors(&[
        (
            |builder| if rank() == 1 { builder.resume(Resume::Auto) } else { builder },
            "`.resume(…)` is not set on rank 0, but `Resume::Auto` on rank 1: resume on all ranks, or on none",
        ),
        // Rank 1 has no gradients to average.
        (
            |builder| {
                builder.on::<BeforeOptStep>("alone", |cx| {
                    let own = cx.grads().filter(|_| cx.rank() == 0);
                    cx.world().average(own)
                })
            },
            "rank 1 is at `average` of 0 tensors in `alone`",
        ),
        // The other rank does not report that it has lost contact: rank 1 has failed by itself.
        (
            |builder| {
                builder.on::<AfterBackward>("shape", |cx| {
                    if cx.rank() == 1 {
                        Ok(Tensor::zeros([2], (Kind::Float, Device::Cpu)).f_view([3]).map(drop)?)
                    } else {
                        Ok(())
                    }
                })
            },
            "shape '[3]' is invalid",
        ),
    ]);
}

fn rank() -> u32 {
    Launch::from_env().unwrap().unwrap().rank()
}

/// Trains a model of one convolution and one layer on two ranks. Returns their errors.
fn errors_of_images(
    is_channels_last: bool,
    build: impl Fn(&nn::Path<'_>, u32) -> Box<dyn nn::ModuleT + Send>,
) -> Vec<String> {
    let results = Ranks::new(2).env("TRAINER_RANK_TIMEOUT", "60").results(|| {
        let vars = nn::VarStore::new(Device::Cpu);
        let net = nn::seq_t()
            .add(nn::conv2d(vars.root() / "conv", 2, 3, 2, Default::default()))
            .add_fn_t({
                let layer = build(&(vars.root() / "norm"), rank());
                move |images, train| layer.forward_t(images, train)
            })
            .add_fn(|images| images.flatten(1, -1));
        if rank() == 1 && is_channels_last {
            let mut weight = vars.variables()["conv.weight"].shallow_clone();
            weight.set_data(&weight.detach().permute([0, 2, 3, 1]).contiguous().permute([0, 3, 1, 2]));
        }
        let task = Supervised::new(vars, net, |pred: &Tensor, targets: &Tensor| {
            pred.mse_loss(targets, Reduction::Mean)
        });
        let images = Tensor::arange(4 * 2 * 9, (Kind::Float, Device::Cpu)).view([4, 2, 3, 3]).sin();
        let mut data =
            InMemory::new((images, Tensor::zeros([4, 12], (Kind::Float, Device::Cpu))))?.batch_size(4);
        let mut trainer =
            Trainer::builder(task).optimizer(Sgd::new(0.1)).epochs(1).discover(Discover::None).build()?;
        trainer.fit(&mut data, None).map(drop)
    });
    results
        .unwrap()
        .into_iter()
        .map(|result| result.err().map_or_else(String::new, |error| error.to_string()))
        .collect()
}

#[test]
fn batch_normalization_that_only_one_rank_synchronizes_is_named() {
    let texts = errors_of_images(false, |path, rank| {
        if rank == 0 {
            Box::new(sync_batch_norm(path, 3, Default::default()))
        } else {
            Box::new(nn::batch_norm2d(path, 3, Default::default()))
        }
    });
    assert!(
        texts
            .iter()
            .any(|text| text
                .contains("a layer that exchanges its statistics, as `sync_batch_norm` creates it")),
        "{texts:?}"
    );
    assert!(texts.iter().all(|text| !text.contains("a hook skipped")), "{texts:?}");
}

#[test]
fn a_memory_format_that_only_one_rank_uses_is_named() {
    let build = |path: &nn::Path<'_>, _| -> Box<dyn nn::ModuleT + Send> {
        Box::new(nn::batch_norm2d(path, 3, Default::default()))
    };
    for text in errors_of_images(true, build) {
        let expected = "`conv.weight` is a Float [3, 2, 2, 2] with the strides [8, 4, 2, 1] on rank 0, but `conv.weight` is a \
                        Float [3, 2, 2, 2] with the strides [8, 1, 4, 2] on rank 1";
        assert!(text.contains(expected), "{text}");
    }
}
