//! Measures the overhead of a metric in a training step and in a validation batch, and compares its
//! update with the same tensor operations by hand.

#![allow(missing_docs)]

mod mlp;
mod ratio;

use ratio::{Case, compare};
use trainer::data::from_fn;
use trainer::metrics::{Accuracy, Average, FBeta, Metric};
use trainer::prelude::*;

const STEPS: i64 = 200;

fn builder() -> trainer::TrainerBuilder<impl Task<Batch = (Tensor, Tensor)>> {
    Trainer::builder(mlp::task()).optimizer(Sgd::new(1e-3))
}

/// Returns a function that trains or validates for [`STEPS`] batches with the hooks of `builder`.
fn steps<'a, T: Task<Batch = (Tensor, Tensor)>>(
    builder: trainer::TrainerBuilder<T>,
    is_training: bool,
    batch: &'a (Tensor, Tensor),
) -> Box<dyn FnMut() + 'a> {
    let mut trainer = builder.build().expect("the hooks fit");
    Box::new(move || {
        let mut loader = from_fn(|_| (0..STEPS).map(|_| (batch.0.shallow_clone(), batch.1.shallow_clone())));
        let summary =
            if is_training { trainer.fit(&mut loader, None) } else { trainer.validate(&mut loader) };
        summary.expect("nothing fails");
    })
}

fn update<'a>(mut metric: impl Metric, pred: &'a Tensor, target: &'a Tensor) -> Box<dyn FnMut() + 'a> {
    Box::new(move || {
        for _ in 0..STEPS {
            metric.update(pred, target).expect("the batch fits");
        }
    })
}

fn main() {
    tch::set_num_threads(1);
    let count = u32::try_from(STEPS).expect("`STEPS` fits in a `u32`");
    let batch = mlp::batch();
    let in_training = || Accuracy::multiclass(10).only([Phase::Train]);
    for (title, is_training) in [("training", true), ("validation", false)] {
        let with_accuracy = if is_training {
            builder().hook(in_training())
        } else {
            builder().hook(Accuracy::multiclass(10))
        };
        let by_hand = builder().on::<AfterStep>("accuracy", |cx| {
            let (_, labels) = cx.batch::<(Tensor, Tensor)>()?;
            let right = cx.pred::<Tensor>()?.argmax(1, false).eq_tensor(labels);
            cx.log("accuracy", right.to_kind(Kind::Float).mean(Kind::Float));
            Ok(())
        });
        let cases: &mut [Case<'_>] = &mut [
            ("no metric", steps(builder(), is_training, &batch)),
            ("Accuracy", steps(with_accuracy, is_training, &batch)),
            ("argmax, eq, mean and log by hand", steps(by_hand, is_training, &batch)),
        ];
        compare(&format!("{STEPS} batches of {title}, MLP 64→32→10, batch 32, one thread"), 5, count, cases);
    }

    for (rows, classes) in [(32, 10), (256, 1000)] {
        let pred = Tensor::randn([rows, classes], (Kind::Float, Device::Cpu));
        let target = Tensor::randint(classes, [rows], (Kind::Int64, Device::Cpu));
        let number = usize::try_from(classes).expect("the number of classes is positive");
        let mut right = Tensor::zeros([], (Kind::Int64, Device::Cpu));
        let cases: &mut [Case<'_>] = &mut [
            (
                "argmax, eq, sum and add by hand",
                Box::new(|| {
                    for _ in 0..STEPS {
                        right += pred.argmax(1, false).eq_tensor(&target).sum(Kind::Int64);
                    }
                }),
            ),
            ("Accuracy", update(Accuracy::multiclass(number), &pred, &target)),
            ("FBeta, macro", update(FBeta::multiclass(number).average(Average::Macro), &pred, &target)),
        ];
        compare(&format!("update with scores [{rows}, {classes}]"), 5, count, cases);
    }
}
