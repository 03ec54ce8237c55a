//! The rows of the page about Hugging Face.

use trainer::data::NamedLoaders;
use trainer::hooks::{Checkpoint, EarlyStopping, Freeze, HyperparameterSchedule, LabelSmoothing};
use trainer::optim::Group;
use trainer::prelude::*;
use trainer::schedule::{Cosine, Linear};

use super::program::*;
use super::{Case, Series, written};
use crate::support::scratch;

fn adamw() -> AdamW {
    AdamW::new(0.01).weight_decay(0.0)
}

pub(super) const CASES: &[Case] = &[
    Case::new("num_train_epochs=n", || Program::new(adamw(), |b| b.epochs(3)).fit()),
    Case::new("max_steps=n", || Program::new(adamw(), |b| b.epochs(5).max_steps(7)).fit()),
    Case::new("dataloader_drop_last=True", || {
        let mut program = Program::new(adamw(), |b| b);
        program.fit_on(loader(rows(0, 20), 8).drop_last(true), None);
        program.seen()
    }),
    Case::new("gradient_accumulation_steps=n", || Program::new(adamw(), |b| b.accumulate(2)).fit()),
    Case::new("max_grad_norm=x", || Program::new(adamw(), |b| b.clip_grad_norm(0.05)).fit()),
    Case::new("learning_rate=x", || {
        Program::of(model(layer_norm, 1, mse), AdamW::new(0.01).weight_decay(0.3), |b| b).fit()
    })
    .advised(|| {
        let optimizer = AdamW::new(0.01).weight_decay(0.3).group("norm.*", Group::new().weight_decay(0.0));
        let optimizer = optimizer.group("*.bias", Group::new().weight_decay(0.0));
        let mut seen = Program::of(model(layer_norm, 1, mse), optimizer, |b| {
            b.hook(HyperparameterSchedule::lr(Linear::to(0.0))).clip_grad_norm(1.0)
        })
        .fit();
        // One rate for each of the three groups.
        let rates = seen["rates"].iter().step_by(3).copied().collect();
        seen.insert("rates", rates);
        seen
    }),
    Case::new("eval_strategy=\"epoch\"", || Program::new(adamw(), |b| b).fit_valid()),
    Case::new("eval_strategy=\"steps\"", || {
        Program::new(adamw(), |b| b.validate_every(Every::Steps(3))).fit_valid()
    }),
    Case::new("eval_dataset={\"clean\": …, \"noisy\": …}", || {
        let mut program = Program::new(adamw(), |b| b);
        let mut valid = NamedLoaders::new().add("clean", valid_rows()).add("noisy", loader(rows(28, 6), 4));
        let history = program.trainer.fit(&mut train_rows(), Some(&mut valid)).unwrap().history;
        let seen = with(program.seen(), "clean", history["valid/clean/loss"].to_vec());
        with(seen, "noisy", history["valid/noisy/loss"].to_vec())
    }),
    Case::new("logging_steps=n", || {
        renamed(Program::new(adamw(), |b| b.record_every(Every::Steps(3))).fit(), "recorded", "logged")
    }),
    Case::new("control.should_training_stop = True", || {
        let stop = |cx: &mut Cx<AfterStep>| {
            if cx.counters().optimizer_steps == 3 {
                cx.stop("enough");
            }
        };
        Program::new(adamw(), |b| b.on::<AfterStep>("stop", stop)).fit()
    }),
    Case::new("control.should_epoch_stop = True", || {
        let stop = |cx: &mut Cx<AfterStep>| {
            if cx.counters().optimizer_steps == 3 {
                cx.end_epoch();
            }
        };
        Program::new(adamw(), |b| b.on::<AfterStep>("stop", stop)).fit()
    }),
    Case::new("lr_scheduler_type=\"cosine\", warmup_steps=500", || {
        scheduled(adamw(), Cosine::to(0.0).warm_up(3))
    })
    .advised(|| scheduled(adamw(), Cosine::to(0.0).warm_up(3).starting_at(0.0))),
    Case::new("warmup_ratio=0.1", || scheduled(adamw(), Cosine::to(0.0).warm_up(0.3)))
        .advised(|| scheduled(adamw(), Cosine::to(0.0).warm_up(0.3).starting_at(0.0))),
    Case::new("requires_grad = False", || Program::new(adamw(), |b| b.hook(Freeze::new("fc1.*"))).fit()),
    Case::new("load_best_model_at_end=True", || best(adamw, false)).advised(|| best(adamw, true)),
    Case::new("save_total_limit=3", || {
        let folder = scratch("migration-limit");
        let seen = Program::new(adamw(), |b| b.epochs(4).hook(Checkpoint::new(&folder).keep_last(2))).fit();
        with(seen, "epochs", kept(&folder, 5))
    }),
    Case::new("save_steps=500", || resumed(adamw)),
    Case::new("EarlyStoppingCallback(early_stopping_patience=n)", || {
        let stopping = EarlyStopping::new("valid/scripted", Goal::Minimize).patience(2);
        Program::new(adamw(), |b| b.epochs(12).hook(stopping)).fit_valid()
    }),
    Case::new("adam_beta1=x", || Program::new(adamw().betas(0.8, 0.95).eps(1e-3), |b| b).fit()),
    Case::new("label_smoothing_factor=x", || {
        let loss: LossFn =
            |logits, y| logits.cross_entropy_loss::<Tensor>(y, None, Reduction::Mean, -100, 0.0);
        let mut program =
            Program::of(model(no_norm, 3, loss), adamw(), |b| b.hook(LabelSmoothing::new(0.2).classes(3)));
        program.fit_on(loader(labeled(0, 20), 4), None);
        program.seen()
    }),
    Case::new("optimizer.pt", || {
        let optimizer = AdamW::new(0.01).weight_decay(0.1).group("*.bias", Group::new().weight_decay(0.0));
        // There the parameters that decay come first.
        let names = ["fc1.weight", "fc2.weight", "fc1.bias", "fc2.bias"];
        let mut seen = checkpoint("hugging-face", optimizer, &names);
        // One rate for each of the two groups.
        seen.insert("rates", seen["rates"].iter().step_by(2).copied().collect());
        both(seen, checkpoint("hugging-face-sgd", sgd_of_both(), &NAMES))
    }),
    Case::new("torch.rand", draws_continue),
];

/// Continues a run from a folder with a checkpoint.
fn checkpoint(name: &str, optimizer: impl Optimizer + 'static, names: &[&str]) -> Series {
    let folder = written(name);
    let rest = |step: u64| Linear::to(0.0).factor(step + 10, Some(20)).unwrap();
    let program = Program::new(optimizer, |b| b.hook(HyperparameterSchedule::lr(rest)));
    let files = ["model.safetensors", "optimizer.pt"].map(|file| folder.join(file));
    continued(program, "net.", (&files[0], &[]), (&files[1], &[]), names)
}
