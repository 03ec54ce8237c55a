//! Mistakes that a pass over the data shows: weights of 0, and losses whose inputs broadcast.

use trainer::TrainerBuilder;
use trainer::prelude::*;
use trainer::testing::Ranks;

use crate::support::{child_process, device, own_warnings};

/// A loss over the rows of a batch that are not masked.
struct Masked {
    vars: nn::VarStore,
    weight: Tensor,
}

impl Task for Masked {
    type Batch = (Tensor, Tensor);
    type Pred = Tensor;
    fn vars(&self) -> &nn::VarStore {
        &self.vars
    }
    fn pred(&mut self, (inputs, _): &Self::Batch, _: Mode) -> Result<Tensor> {
        Ok(&self.weight * inputs)
    }
    fn loss(&mut self, pred: &Tensor, (_, mask): &Self::Batch) -> Result<Tensor> {
        Ok((pred.square() * mask).sum(Kind::Float) / mask.sum(Kind::Float))
    }
    fn weight(&self, (_, mask): &Self::Batch) -> f64 {
        mask.sum(Kind::Float).double_value(&[])
    }
}

fn masked() -> TrainerBuilder<Masked> {
    let vars = nn::VarStore::new(device());
    let weight = vars.root().ones("weight", &[1]);
    Trainer::builder(Masked { vars, weight }).optimizer(Sgd::new(0.1)).discover(Discover::None)
}

/// Batches of two rows, with these masks.
fn batches(masks: &[f32]) -> InMemory<(Tensor, Tensor)> {
    let masks = Tensor::from_slice(masks).to_device(device());
    InMemory::new((masks.ones_like(), masks)).unwrap().batch_size(2)
}

const NOTHING: &str =
    "had weight 0, so nothing was trained: check `Task::weight`, and whether every target is masked";

#[test]
fn a_training_pass_without_any_weight_is_an_error() {
    type Set = fn(TrainerBuilder<Masked>) -> TrainerBuilder<Masked>;
    let fit = |masks: &[f32], set: Set| set(masked()).build().unwrap().fit(&mut batches(masks), None);
    let refused: [Set; 5] = [
        |builder| builder.epochs(2),
        |builder| builder.max_steps(5),
        |builder| builder.accumulate(2),
        |builder| builder.limit_train_batches(1.0).clip_grad_norm(1.0),
        |builder| builder.hook(trainer::hooks::Ema::new(0.9)),
    ];
    for set in &refused[..3] {
        let error = fit(&[0.0; 6], *set).unwrap_err().to_string();
        assert!(error.contains(&format!("every training batch of epoch 0 {NOTHING}")), "{error}");
    }
    let error = fit(&[0.0; 6], refused[4]).unwrap_err().to_string();
    assert!(error.contains(NOTHING), "{error}");
    // Some batches without weight are no mistake.
    let none = Vec::<String>::new();
    for masks in [[0.0, 0.0, 1.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]] {
        assert_eq!(own_warnings(&fit(&masks, |builder| builder.epochs(2)).unwrap()), none);
    }
    // A limited pass may have batches with a weight later.
    let limited = fit(&[0.0, 0.0, 1.0, 1.0], |builder| builder.fast_dev_run(1)).unwrap();
    assert!(limited.warnings.iter().any(|text| text.contains(NOTHING)), "{:?}", limited.warnings);
    // A hook that skips these batches, or ends the pass, has a reason to.
    let skip: Set = |builder| builder.epochs(2).on::<BeforeStep>("skip", |cx| cx.skip_batch());
    assert_eq!(own_warnings(&fit(&[0.0; 6], skip).unwrap()), none);
    let stop: Set = |builder| builder.on::<AfterStep>("stop", |cx| cx.stop("enough"));
    assert_eq!(own_warnings(&fit(&[0.0; 6], stop).unwrap()), none);
}

#[test]
fn a_later_pass_without_any_weight_is_an_error_too() {
    let batches = trainer::data::from_fn(|epoch| {
        let mask = if epoch == 2 { 0.0 } else { 1.0 };
        (0..3).map(move |_| {
            (Tensor::ones([2], (Kind::Float, device())), Tensor::full([2], mask, (Kind::Float, device())))
        })
    });
    let error = masked().epochs(5).build().unwrap().fit(&mut { batches }, None).unwrap_err().to_string();
    assert!(error.contains(&format!("every training batch of epoch 2 {NOTHING}")), "{error}");
}

#[test]
fn an_evaluation_without_any_weight_is_a_warning_and_has_no_value() {
    let mut trainer = masked().epochs(2).build().unwrap();
    let summary = trainer.fit(&mut batches(&[1.0; 4]), Some(&mut batches(&[0.0; 4]))).unwrap();
    let expected = |what: &str| {
        format!(
            "every batch of the {what} pass had weight 0, so it has neither a loss nor metrics: check `Task::weight`, and whether \
             every target is masked"
        )
    };
    assert_eq!(own_warnings(&summary), [expected("validation")]);
    assert_eq!(summary.metrics.get("valid/loss"), None);
    assert_eq!(own_warnings(&trainer.test(&mut batches(&[0.0; 4])).unwrap()), [expected("test")]);
    let some = trainer.validate(&mut batches(&[0.0, 0.0, 1.0, 0.0])).unwrap();
    assert_eq!(own_warnings(&some), Vec::<String>::new());
    let named = trainer::data::NamedLoaders::new().add("a", batches(&[0.0; 2])).add("b", batches(&[1.0; 2]));
    let [warning] = &own_warnings(&trainer.validate(&mut { named }).unwrap())[..] else {
        panic!("one warning")
    };
    assert!(warning.starts_with("every batch of the validation pass of `a` had weight 0"), "{warning}");
    trainer.predict(&mut batches(&[0.0; 4])).unwrap();
}

#[test]
#[cfg(target_os = "linux")]
fn the_ranks_decide_together_whether_a_pass_had_a_weight() {
    // Each rank has one row of each batch.
    for (masks, is_refused) in [([1.0, 0.0, 1.0, 0.0], false), ([0.0; 4], true)] {
        let fits = Ranks::new(2).results(move || {
            let mut trainer = masked().build()?;
            let summary = trainer.fit(&mut batches(&masks), Some(&mut batches(&[1.0, 0.0])))?;
            Ok::<_, Error>(own_warnings(&summary))
        });
        for result in fits.unwrap() {
            match result {
                Ok(warnings) => assert!(!is_refused && warnings.is_empty(), "{warnings:?}"),
                Err(error) => assert!(is_refused && error.to_string().contains(NOTHING), "{error}"),
            }
        }
    }
}

type LossFn = fn(&Tensor, &Tensor) -> Tensor;

/// Returns the result of a fit with this loss, whose prediction and target have these shapes.
fn with_shapes(loss: LossFn, pred: &[i64], target: &[i64]) -> Result<Summary> {
    let vars = nn::VarStore::new(device());
    let weight = vars.root().ones("weight", &[1]);
    let shape = pred.to_vec();
    let net = nn::func(move |inputs: &Tensor| (inputs * &weight).sigmoid().view(&shape[..]));
    let data = |size: &[i64]| Tensor::ones(size, (Kind::Float, device())) * 0.5;
    let batch = (data(pred), data(target));
    let copy = move |_| [(batch.0.shallow_clone(), batch.1.shallow_clone())];
    let task = Supervised::new(vars, net, loss);
    let mut trainer = Trainer::builder(task).optimizer(Sgd::new(0.1)).discover(Discover::None).build()?;
    trainer.fit(&mut trainer::data::from_fn(copy), None)
}

#[test]
fn a_loss_that_compares_each_prediction_with_every_target_is_an_error() {
    let losses: [(&str, LossFn); 9] = [
        ("mse_loss", |pred, target| pred.mse_loss(target, Reduction::Mean)),
        ("mse_loss", |pred, target| pred.mse_loss(target, Reduction::Sum)),
        ("mse_loss", |pred, target| pred.mse_loss(target, Reduction::None).mean(Kind::Float)),
        ("l1_loss", |pred, target| pred.l1_loss(target, Reduction::Mean)),
        ("smooth_l1_loss", |pred, target| pred.smooth_l1_loss(target, Reduction::Mean, 1.0)),
        ("huber_loss", |pred, target| pred.huber_loss(target, Reduction::Mean, 1.0)),
        ("huber_loss", |pred, target| pred.huber_loss(target, Reduction::Sum, 0.5)),
        ("kl_div", |pred, target| pred.log().kl_div(target, Reduction::Sum, false)),
        ("poisson_nll_loss", |pred, target| {
            pred.poisson_nll_loss(target, true, false, 1e-8, Reduction::Mean)
        }),
    ];
    for (name, loss) in losses {
        for (pred, target) in [([3, 1].as_slice(), [3].as_slice()), (&[3], &[3, 1]), (&[4, 3, 1], &[4, 1, 3])]
        {
            let error = with_shapes(loss, pred, target).unwrap_err().to_string();
            let expected = format!(
                "the loss is `{name}` of a prediction of shape {pred:?} and a target of shape {target:?}: they broadcast to"
            );
            assert!(
                error.starts_with("failed at loss, epoch 0, batch 0") && error.contains(&expected),
                "{error}"
            );
            assert!(
                error.contains("for example with `pred.squeeze_dim(-1)` or `target.unsqueeze(-1)`"),
                "{error}"
            );
        }
        // The same shape, one row, a target for all rows, and the advice.
        let healthy: [(&[i64], &[i64]); 5] =
            [(&[3, 1], &[3, 1]), (&[1, 1], &[1]), (&[3, 2], &[2]), (&[3, 2], &[]), (&[3], &[3])];
        for (pred, target) in healthy {
            let summary = with_shapes(loss, pred, target).unwrap();
            assert_eq!(own_warnings(&summary), Vec::<String>::new(), "{name} {pred:?} {target:?}");
        }
    }
    // A program may broadcast on purpose.
    let pairs: LossFn =
        |pred, target| (pred - pred.tr() - (target.unsqueeze(1) - target)).square().mean(Kind::Float);
    with_shapes(pairs, &[3, 1], &[3]).unwrap();
}

/// A loss for which libtorch warns, in each batch, and computes something.
fn warns(pred: &Tensor) -> Tensor {
    let _no_value = pred.narrow(0, 0, 1).std(true);
    pred.square().mean(Kind::Float)
}

fn warned() -> (Summary, Tensor) {
    let vars = nn::VarStore::new(device());
    let weight = vars.root().ones("weight", &[1]);
    let net = nn::func(move |inputs: &Tensor| inputs * &weight);
    let task = Supervised::new(vars, net, |pred: &Tensor, _: &Tensor| warns(pred));
    let mut trainer =
        Trainer::builder(task).optimizer(Sgd::new(0.1)).discover(Discover::None).epochs(2).build().unwrap();
    let rows = || Tensor::ones([6], (Kind::Float, device()));
    let mut data = InMemory::new((rows(), rows())).unwrap().batch_size(2);
    (trainer.fit(&mut data, None).unwrap(), rows())
}

#[test]
#[ignore = "run by the next test in a child process"]
fn libtorch_warns() {
    let (_, rows) = warned();
    eprintln!("--- after the entry");
    let _ = warns(&rows);
}

#[test]
fn warnings_of_libtorch_are_reported_once_and_only_during_an_entry() {
    let (summary, _) = warned();
    let [warning] = &own_warnings(&summary)[..] else { panic!("{:?}", summary.warnings) };
    assert!(warning.starts_with("libtorch: std(): degrees of freedom is <= 0"), "{warning}");
    let output = child_process("mistaken::libtorch_warns").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let (during, after) = text.split_once("--- after the entry").unwrap();
    let count = |text: &str, part: &str| text.matches(part).count();
    assert_eq!((count(during, "warning: libtorch: std()"), count(during, "[W")), (1, 0), "{text}");
    assert_eq!(count(after, "[W"), 1, "{text}");
}
