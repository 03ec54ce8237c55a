//! `Ema` and `Swa`: the averages, when they are in use, and their state in checkpoints.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use trainer::checkpoint::LoadWeights;
use trainer::hooks::{Checkpoint, Ema, Swa};
use trainer::prelude::*;
use trainer::{CancelToken, TrainerBuilder};

use crate::model::{self, message, rows};
use crate::support::{Random, alone, child_process, device, distance, exact_state, flat_parameters, scratch};

type Log = Arc<Mutex<Vec<(Phase, Tensor)>>>;

/// Returns all parameters as one vector.
fn flat<P>(cx: &Cx<P>) -> Tensor {
    let flat: Vec<_> = cx.vars().parameters().map(|var| var.tensor.detach().view([-1])).collect();
    Tensor::cat(&flat, 0)
}

/// Adds hooks that record the weights used for each prediction, and the weights after each
/// optimizer step.
fn noted<T: Task>(builder: TrainerBuilder<T>) -> (TrainerBuilder<T>, Log, Log) {
    let used = Log::default();
    let stepped = Log::default();
    let in_pred = used.clone();
    let in_step = stepped.clone();
    let builder = builder
        .on::<BeforePred>("used", move |cx| in_pred.lock().unwrap().push((cx.phase(), flat(cx))))
        .on::<AfterOptStep>("stepped", move |cx| in_step.lock().unwrap().push((cx.phase(), flat(cx))));
    (builder, used, stepped)
}

fn averages<'a>(pairs: impl Iterator<Item = (&'a str, &'a Tensor)>) -> Tensor {
    let flat: Vec<_> = pairs.map(|(_, average)| average.view([-1])).collect();
    Tensor::cat(&flat, 0)
}

#[test]
fn the_moving_average_follows_its_formula() {
    for (every, warm_up) in [(1, false), (1, true), (3, false)] {
        let (builder, _, stepped) = noted(model::builder().epochs(50));
        let hook = Ema::new(0.9).every(every).warm_up(warm_up);
        let mut trainer = builder.hook(hook).build().unwrap();
        trainer.fit(&mut rows(16), None).unwrap();

        let stepped = stepped.lock().unwrap();
        let mut expected: Option<Tensor> = None;
        let mut updates = 0.0;
        for (_, weights) in stepped.iter().skip(every as usize - 1).step_by(every as usize) {
            let weights = weights.to_kind(Kind::Double);
            let decay = if warm_up { f64::min(0.9, (1.0 + updates) / (10.0 + updates)) } else { 0.9 };
            expected = Some(
                expected.map_or_else(|| weights.copy(), |average| average * decay + &weights * (1.0 - decay)),
            );
            updates += 1.0;
        }
        let found = averages(trainer.hook::<Ema>().unwrap().average());
        assert!(distance(&found.to_kind(Kind::Double), &expected.unwrap()) < 1e-6, "every {every}");
    }
}

#[test]
fn swa_averages_epochs_with_equal_weight() {
    let ends = Log::default();
    let note = ends.clone();
    let mut trainer = model::builder()
        .epochs(6)
        .hook(Swa::from_epoch(2))
        .on::<AfterTrainEpoch>("end", move |cx| note.lock().unwrap().push((cx.phase(), flat(cx))))
        .build()
        .unwrap();
    trainer.fit(&mut rows(16), Some(&mut rows(8))).unwrap();
    let ends: Vec<_> = ends.lock().unwrap().iter().skip(2).map(|(_, end)| end.shallow_clone()).collect();
    let expected = Tensor::stack(&ends, 0).mean_dim(0, false, Kind::Float);
    assert!(distance(&averages(trainer.hook::<Swa>().unwrap().average()), &expected) < 1e-6);
}

#[test]
fn averages_are_used_only_in_evaluation() {
    let (builder, used, _) = noted(model::builder().epochs(2).validate_every(Every::Steps(3)));
    let mut trainer = builder.hook(Ema::new(0.5)).build().unwrap();
    let before = flat_parameters(&trainer).copy();
    trainer.validate(&mut rows(8)).unwrap();
    assert_eq!(used.lock().unwrap()[0].1, before, "there is no average before the first update");

    trainer.fit(&mut rows(16), Some(&mut rows(8))).unwrap();
    let live = flat_parameters(&trainer).copy();
    let average = averages(trainer.hook::<Ema>().unwrap().average());
    assert_ne!(live, average);
    trainer.test(&mut rows(8)).unwrap();
    assert_eq!(used.lock().unwrap().last().unwrap().1, average);
    assert_eq!(flat_parameters(&trainer), live);
    trainer.predict(&mut rows(8)).unwrap();
    assert_eq!(used.lock().unwrap().last().unwrap().1, average);
    assert_eq!(flat_parameters(&trainer), live);

    // Training never starts from averages: its weights are those of a run without the hook.
    let (builder, without, _) = noted(model::builder().epochs(2).validate_every(Every::Steps(3)));
    let mut plain = builder.build().unwrap();
    plain.fit(&mut rows(16), Some(&mut rows(8))).unwrap();
    let in_training = |log: &Log| -> Vec<Tensor> {
        let log = log.lock().unwrap();
        log.iter()
            .filter(|(phase, _)| *phase == Phase::Train)
            .map(|(_, tensor)| tensor.shallow_clone())
            .collect()
    };
    assert_eq!(in_training(&used), in_training(&without));
}

/// The ways in which a validation ends early.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Error,
    Panic,
    Cancel,
    /// A hook around `valid` handles the error, and training continues.
    Handled,
}

/// Handles the error of a validation, which must fail.
struct Handles;

#[hook]
impl Handles {
    fn handle(&mut self, cx: &mut Cx<Valid>, next: Next<Valid>) -> Result<Done> {
        let mut has_failed = false;
        let done = next.run_or(cx, |_, _| has_failed = true);
        assert!(has_failed);
        done
    }
}

#[test]
fn live_weights_are_restored_however_validation_ends() {
    for end in [End::Error, End::Panic, End::Cancel, End::Handled] {
        let token = CancelToken::new();
        let cancel = token.clone();
        let (builder, used, stepped) = noted(model::builder().epochs(2));
        let mut builder = builder.hook(Ema::new(0.5)).cancel_token(token).on::<AfterStep>("end", move |cx| {
            match (cx.phase(), end) {
                (Phase::Valid, End::Panic) => panic!("in validation"),
                (Phase::Valid, End::Cancel) => cancel.cancel(),
                (Phase::Valid, _) => return Err(Error::msg("in validation")),
                _ => {}
            }
            Ok(())
        });
        if end == End::Handled {
            builder = builder.hook(Handles);
        }
        let mut trainer = builder.build().unwrap();
        let run = catch_unwind(AssertUnwindSafe(|| {
            trainer.fit(&mut rows(16), Some(&mut rows(8))).map(drop).map_err(|error| message(&error))
        }));
        assert_eq!(run.is_err(), end == End::Panic, "{end:?}");
        let last = stepped.lock().unwrap().last().unwrap().1.shallow_clone();
        assert_eq!(flat_parameters(&trainer), last, "{end:?}");
        assert!(used.lock().unwrap().iter().any(|(phase, _)| *phase == Phase::Valid));
        if end == End::Handled {
            assert!(run.unwrap().is_ok());
            let used = used.lock().unwrap();
            let next = used
                .iter()
                .skip_while(|pass| pass.0 == Phase::Train)
                .find(|pass| pass.0 == Phase::Train)
                .unwrap();
            assert_eq!(next.1, stepped.lock().unwrap()[3].1);
        }
    }
}

#[test]
fn a_run_cancelled_in_validation_resumes_bit_for_bit() {
    let folder = scratch("ema");
    let run = |cancel_in: Option<u64>, background: bool| {
        let token = CancelToken::new();
        let cancel = token.clone();
        let mut valid_steps = 0;
        let mut trainer = model::builder()
            .epochs(3)
            .hook(Ema::new(0.9))
            .hook(
                Checkpoint::new(&folder).keep_best(1, "valid/loss", Goal::Minimize).in_background(background),
            )
            .resume(Resume::Auto)
            .cancel_token(token)
            .on::<AfterStep>("cancel", move |cx| {
                if cx.phase() == Phase::Valid {
                    valid_steps += 1;
                    if Some(valid_steps) == cancel_in {
                        cancel.cancel();
                    }
                }
            })
            .build()
            .unwrap();
        let result = trainer.fit(&mut rows(16), Some(&mut rows(12)));
        assert_eq!(result.is_err(), cancel_in.is_some());
        let history = result.ok().map(|summary| summary.history);
        let averages = averages(trainer.hook::<Ema>().unwrap().average());
        let newest = trainer.hook::<Checkpoint>().unwrap().newest().unwrap();
        let live = tch::Tensor::read_safetensors(newest.join("model.safetensors")).unwrap();
        for (name, tensor) in live {
            assert_eq!(trainer.vars().get(&name).unwrap(), tensor, "the file has the live weights");
        }
        (history, averages, exact_state(&trainer))
    };
    for background in [false, true] {
        std::fs::remove_dir_all(&folder).unwrap();
        let whole = run(None, background);
        for batch in 1..9 {
            std::fs::remove_dir_all(&folder).unwrap();
            drop(run(Some(batch), background));
            assert_eq!(run(None, background), whole, "cancelled in validation batch {batch}");
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// The environment variable with the folder of the child process.
const FOLDER: &str = "TRAINER_TESTS_FOLDER";
/// The environment variable with the number of epochs of the child process.
const EPOCHS: &str = "TRAINER_TESTS_EPOCHS";
/// The environment variable with the number, counted from 1, of the validation batch in which the
/// child process waits to be killed; 0 for none.
const STOP_IN: &str = "TRAINER_TESTS_STOP_IN";

/// The program that is killed. In the given validation batch it writes a file and waits. When
/// training ends, it writes the live weights, the state of the optimizer and the averages to
/// `end.json`.
#[test]
#[ignore = "run by another test in a child process"]
fn killed_in_validation() {
    let variable = |name| std::env::var(name).unwrap();
    let folder = PathBuf::from(variable(FOLDER));
    let stop_in = variable(STOP_IN).parse::<u64>().unwrap();
    let waiting = folder.join("waiting");
    let mut batches = 0;
    let mut trainer = model::builder()
        .optimizer(AdamW::new(0.01))
        .epochs(variable(EPOCHS).parse().unwrap())
        .hook(Ema::new(0.9))
        .hook(Checkpoint::new(folder.join("checkpoints")).every(Every::Steps(1)))
        .resume(Resume::Auto)
        .on::<AfterPred>("wait", move |cx| {
            batches += u64::from(cx.phase() == Phase::Valid);
            if cx.phase() == Phase::Valid && batches == stop_in {
                std::fs::write(&waiting, "").unwrap();
                std::thread::sleep(Duration::from_secs(600));
            }
        })
        .build()
        .unwrap();
    trainer.fit(&mut rows(8), Some(&mut rows(12))).unwrap();
    let averages = averages(trainer.hook::<Ema>().unwrap().average());
    let averages: Vec<f32> = Vec::try_from(&averages).unwrap();
    let averages: Vec<u32> = averages.into_iter().map(f32::to_bits).collect();
    let end = serde_json::to_string(&(exact_state(&trainer), averages)).unwrap();
    std::fs::write(folder.join("end.json"), end).unwrap();
}

fn start(folder: &Path, epochs: u64, stop_in: u64) -> Child {
    let mut command = child_process("averaging::killed_in_validation");
    command.env(FOLDER, folder).env(EPOCHS, epochs.to_string()).env(STOP_IN, stop_in.to_string());
    command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits for the end of the child process, and returns `end.json`, and the weights and averages of
/// the last checkpoint.
fn end(child: Child, folder: &Path) -> [Vec<u8>; 3] {
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let newest = trainer::checkpoint::newest(folder.join("checkpoints")).unwrap();
    [folder.join("end.json"), newest.join("model.safetensors"), newest.join("averages.safetensors")]
        .map(|file| std::fs::read(file).unwrap())
}

#[test]
fn a_run_killed_in_validation_resumes_bit_for_bit() {
    let kills: u64 = std::env::var("TRAINER_SOAK").map_or(4, |kills| kills.parse().unwrap());
    // Each start passes at most three validations of three batches.
    let epochs = 3 * kills + 2;
    let whole = scratch("ema-whole");
    let killed = scratch("ema-killed");
    let expected = end(start(&whole, epochs, 0), &whole);
    let mut random = Random(88_172_645_463_325_252);
    for _ in 0..kills {
        let mut child = start(&killed, epochs, 1 + random.below(8) as u64);
        while !killed.join("waiting").exists() {
            assert!(child.try_wait().unwrap().is_none(), "the process ended before it was killed");
            std::thread::sleep(Duration::from_millis(2));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        std::fs::remove_file(killed.join("waiting")).unwrap();
    }
    assert!(end(start(&killed, epochs, 0), &killed) == expected, "after {kills} kills");
    println!("{kills} kills in validation");
    for folder in [whole, killed] {
        std::fs::remove_dir_all(folder).unwrap();
    }
}

#[test]
fn loading_a_checkpoint_prefers_the_averages() {
    let folder = scratch("averages");
    let mut trainer = model::builder().hook(Ema::new(0.5)).hook(Checkpoint::new(&folder)).build().unwrap();
    trainer.fit(&mut rows(16), None).unwrap();
    let checkpoint = trainer.hook::<Checkpoint>().unwrap().newest().unwrap();
    let average = averages(trainer.hook::<Ema>().unwrap().average());

    let mut other = model::builder().build().unwrap();
    let loaded = other.load_weights(&checkpoint, &LoadWeights::new()).unwrap();
    assert!(loaded.is_averaged && loaded.missing.is_empty());
    assert_eq!(flat_parameters(&other), average);
    let loaded = other.load_weights(checkpoint.join("model.safetensors"), &LoadWeights::new()).unwrap();
    assert!(!loaded.is_averaged);
    assert_eq!(flat_parameters(&other), flat_parameters(&trainer));
    trainer::checkpoint::verify(&checkpoint).unwrap();
    std::fs::write(checkpoint.join("averages.safetensors"), b"damaged").unwrap();
    assert!(trainer::checkpoint::verify(&checkpoint).is_err());
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn buffers_follow_the_live_model_unless_they_are_averaged() {
    for buffers in [false, true] {
        let vs = nn::VarStore::new(device());
        let root = vs.root();
        let net = nn::seq_t().add(nn::batch_norm1d(&root / "bn", 4, Default::default())).add(nn::linear(
            &root / "fc",
            4,
            3,
            Default::default(),
        ));
        let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
        let mut trainer = Trainer::builder(task)
            .optimizer(Sgd::new(0.1))
            .discover(Discover::None)
            .hook(Ema::new(0.5).buffers(buffers))
            .on::<BeforePred>("buffers", move |cx| {
                if cx.phase() == Phase::Valid {
                    let running = cx.vars().get("bn.running_mean").unwrap();
                    let average =
                        cx.hook::<Ema>().unwrap().average().find(|(name, _)| *name == "bn.running_mean");
                    assert_eq!(average.map(|(_, average)| *average == running), buffers.then_some(true));
                }
            })
            .build()
            .unwrap();
        trainer.fit(&mut rows(16), Some(&mut rows(8))).unwrap();
    }
}

/// A model with batch norm, and dropout, which draws random numbers.
fn with_batch_norm() -> TrainerBuilder<impl Task<Batch = (Tensor, Tensor), Pred = Tensor>> {
    let vs = nn::VarStore::new(device());
    let root = vs.root();
    let (fc1, fc2) = (
        nn::linear(&root / "fc1", 4, 6, Default::default()),
        nn::linear(&root / "fc2", 6, 3, Default::default()),
    );
    let config = nn::BatchNormConfig { momentum: 0.3, ..Default::default() };
    let bn = nn::batch_norm1d(&root / "bn", 6, config);
    crate::modules::fill(&vs);
    let net =
        nn::func_t(move |x, train| x.apply(&fc1).apply_t(&bn, train).relu().dropout(0.2, train).apply(&fc2));
    let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
    Trainer::builder(task).optimizer(Sgd::new(0.5)).seed(3).discover(Discover::None)
}

/// The averages of `Swa` with the names of their variables.
fn swa_averages<T: Task>(trainer: &Trainer<T>) -> Vec<(String, Tensor)> {
    let averages = trainer.hook::<Swa>().unwrap().average();
    averages.map(|(name, average)| (name.to_owned(), average.copy())).collect()
}

#[test]
fn batch_norm_statistics_are_recomputed_for_the_averaged_weights() {
    let mut trainer =
        with_batch_norm().epochs(4).hook(Swa::from_epoch(2)).update_batch_norm(rows(20)).build().unwrap();
    trainer.fit(&mut rows(16), None).unwrap();
    let averages: BTreeMap<_, _> = swa_averages(&trainer).into_iter().collect();
    // By hand: the means over the batches of their means and unbiased variances.
    let mut means = Vec::new();
    let mut variances = Vec::new();
    for batch in rows(20).batches(3, 0).unwrap() {
        let (x, _) = batch.unwrap();
        let hidden = x.linear(&averages["fc1.weight"], Some(&averages["fc1.bias"])).to_kind(Kind::Double);
        means.push(hidden.mean_dim(0, false, Kind::Double));
        variances.push(hidden.var_dim(0, true, false));
    }
    assert!(means.len() > 1);
    for (name, of_batches) in [("bn.running_mean", means), ("bn.running_var", variances)] {
        let expected = Tensor::stack(&of_batches, 0).mean_dim(0, false, Kind::Double);
        let found = averages[name].to_kind(Kind::Double);
        assert!(distance(&found, &expected) < 1e-5, "{name}: {found} instead of {expected}");
        assert!(distance(&trainer.vars().get(name).unwrap().to_kind(Kind::Double), &expected) > 1e-3);
    }
}

#[test]
fn recomputed_batch_norm_statistics_are_used_in_validation_and_do_not_change_training() {
    alone(compare_recomputed_statistics);
}

fn compare_recomputed_statistics() {
    let train = |is_updated: bool| {
        let live = Arc::<Mutex<Vec<(String, Tensor)>>>::default();
        let mut builder = with_batch_norm().epochs(4).hook(Swa::from_epoch(2));
        if is_updated {
            builder = builder.update_batch_norm(rows(20));
        }
        let used = Arc::clone(&live);
        let mut trainer = builder
            .on::<BeforePred>("used", move |cx| {
                if cx.phase() == Phase::Valid {
                    let running = cx.vars().get("bn.running_var").unwrap().copy();
                    used.lock().unwrap().push(("bn.running_var".to_owned(), running));
                }
            })
            .build()
            .unwrap();
        trainer.fit(&mut rows(16), Some(&mut rows(8))).unwrap();
        let vars: Vec<_> = trainer.vars().iter().map(|var| (var.name.clone(), var.tensor.copy())).collect();
        let used = live.lock().unwrap().last().unwrap().1.shallow_clone();
        let average = swa_averages(&trainer).into_iter().find(|(name, _)| name == "bn.running_var");
        if is_updated {
            assert_eq!(average.unwrap().1, used);
        } else {
            assert!(average.is_none());
        }
        (vars, used)
    };
    let ((with, used), (without, live)) = (train(true), train(false));
    assert_eq!(with, without, "the weights, the live statistics and the random numbers are the same");
    assert_ne!(used, live);
}

#[test]
fn a_run_with_recomputed_batch_norm_statistics_resumes_bit_for_bit() {
    alone(resume_with_recomputed_statistics);
}

fn resume_with_recomputed_statistics() {
    let folder = scratch("swa-batch-norm");
    let run = |epochs: u64| {
        let mut trainer = with_batch_norm()
            .epochs(epochs)
            .hook(Swa::from_epoch(1))
            .update_batch_norm(rows(20))
            .hook(Checkpoint::new(&folder))
            .resume(Resume::Auto)
            .build()
            .unwrap();
        let history = trainer.fit(&mut rows(16), Some(&mut rows(8))).unwrap().history;
        let saved = trainer.hook::<Checkpoint>().unwrap().newest().unwrap().join("averages.safetensors");
        let saved: BTreeMap<_, _> = Tensor::read_safetensors(saved).unwrap().into_iter().collect();
        assert_eq!(swa_averages(&trainer).into_iter().collect::<BTreeMap<_, _>>(), saved);
        (history, saved, exact_state(&trainer))
    };
    let whole = run(5);
    std::fs::remove_dir_all(&folder).unwrap();
    drop(run(3));
    assert_eq!(run(5), whole);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn averages_of_half_precision_variables_are_kept_in_single_precision() {
    for kind in [Kind::BFloat16, Kind::Half, Kind::Float, Kind::Double] {
        let mut vs = nn::VarStore::new(Device::Cpu);
        let _ = vs.root().var("weight", &[1], nn::Init::Const(1.0));
        vs.set_kind(kind);
        let task = Supervised::new(vs, nn::func(Tensor::shallow_clone), |pred: &Tensor, _: &Tensor| {
            pred.sum(Kind::Float)
        });
        let trainer = Trainer::builder(task).build().unwrap();
        let vars = trainer.vars();
        let mut averages = trainer::Averages::default();
        averages.update(vars, 1.0, false).unwrap();
        let mut live = vars.get("weight").unwrap();
        let _ = tch::no_grad(|| live.fill_(2.0));
        for _ in 0..1000 {
            averages.update(vars, 0.001, false).unwrap();
        }
        let wide = if kind == Kind::Double { Kind::Double } else { Kind::Float };
        let (_, average) = averages.iter().next().unwrap();
        assert_eq!(average.kind(), wide, "{kind:?}");
        let expected = 2.0 - 0.999_f64.powi(1000);
        assert!((average.double_value(&[0]) - expected).abs() < 1e-4, "{kind:?}: {average:?}");
        averages.swap_in(vars).unwrap();
        assert_eq!(live.kind(), kind);
        assert!((live.double_value(&[0]) - expected).abs() < 1e-2, "{kind:?}");
        averages.swap_out(vars).unwrap();
        assert_eq!(live.double_value(&[0]), 2.0);
    }
}

#[test]
fn update_batch_norm_is_refused_without_averages_and_skipped_without_batch_norm() {
    let mut alone = with_batch_norm().update_batch_norm(rows(20)).build().unwrap();
    let error = message(&alone.fit(&mut rows(8), None).unwrap_err());
    assert!(error.contains("no hook averages weights: add `.hook(Swa::from_epoch(0))`"), "{error}");
    let empty = || trainer::data::from_fn(|_| Vec::<(Tensor, Tensor)>::new());
    let builder = with_batch_norm().hook(Swa::from_epoch(0)).update_batch_norm(empty());
    let error = message(&builder.build().unwrap().fit(&mut rows(8), None).unwrap_err());
    assert!(error.contains("`.update_batch_norm(…)` yields no batch"), "{error}");
    // Without batch norm, the loader is not read.
    let mut without = model::builder().hook(Swa::from_epoch(0)).update_batch_norm(empty()).build().unwrap();
    without.fit(&mut rows(8), None).unwrap();
    assert!(swa_averages(&without).iter().all(|(name, _)| !name.contains("running")));
}

#[test]
fn conflicting_averages_are_refused_at_setup() {
    let mut both = model::builder().hook(Ema::new(0.9)).hook(Swa::from_epoch(0)).build().unwrap();
    let error = message(&both.fit(&mut rows(8), None).unwrap_err());
    assert!(
        error.ends_with("`Ema` and `Swa` both replace the weights in validation: remove one of them"),
        "{error}"
    );
}
