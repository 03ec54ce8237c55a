//! The rows of the page about PyTorch Ignite.

use trainer::hooks::{Checkpoint, EarlyStopping, Ema};
use trainer::prelude::*;
use trainer::schedule::{CosineRestarts, Exponential, StepDecay};

use super::program::*;
use super::{Case, Series};
use crate::support::scratch;

pub(super) const CASES: &[Case] = &[
    Case::new("trainer.run(data, max_epochs=n)", || {
        let mut program = Program::new(sgd(), |b| b);
        program.fit_on(train_rows(), None);
        program.fit()
    }),
    Case::new("gradient_accumulation_steps=n", || Program::new(sgd(), |b| b.accumulate(2)).fit()),
    Case::new("engine.terminate()", || after_three(|cx| cx.stop("enough"))),
    Case::new("engine.terminate_epoch()", || after_three(Cx::end_epoch)),
    Case::new("EarlyStopping(patience=n, score_function=…)", || {
        let stopping = EarlyStopping::new("valid/scripted", Goal::Minimize).patience(2);
        Program::new(sgd(), |b| b.epochs(12).hook(stopping)).fit_valid()
    }),
    Case::new("ModelCheckpoint(n_saved=n, score_function=…)", || {
        let folder = scratch("migration-top");
        let keep = Checkpoint::new(&folder).keep_best(2, "valid/scripted", Goal::Minimize);
        let seen = Program::new(sgd(), |b| b.epochs(9).hook(keep)).fit_valid();
        with(seen, "epochs", kept(&folder, 5))
    }),
    Case::new("Checkpoint({…, \"trainer\": trainer}, …)", || resumed(sgd)),
    Case::new("EMAHandler(net, momentum=x)", || {
        let mut program = Program::new(sgd(), |b| b.hook(Ema::new(0.9)));
        program.fit_on(train_rows(), None);
        let average = flat(program.trainer.hook::<Ema>().unwrap().average());
        with(program.seen(), "average", average)
    }),
    Case::new("RunningAverage(output_transform=…)", || logged(4, "train/loss")),
    Case::new("LRScheduler(StepLR(…))", || scheduled(sgd(), StepDecay::new(2, 0.5))),
    Case::new("CosineAnnealingScheduler(opt, \"lr\", start, end, n)", || {
        scheduled(sgd(), CosineRestarts::every(5).to(0.1))
    }),
    Case::new("create_lr_scheduler_with_warmup(…, warmup_start_value=0.0, warmup_duration=n)", || {
        scheduled(sgd(), Exponential::new(0.5).warm_up(3).starting_at(0.0))
    })
    .advised(|| scheduled(sgd(), Exponential::new(0.5).warm_up(2).starting_at(0.0))),
];

fn after_three(request: fn(&mut Cx<AfterStep>)) -> Series {
    let hook = move |cx: &mut Cx<AfterStep>| {
        if cx.counters().optimizer_steps == 3 {
            request(cx);
        }
    };
    Program::new(sgd(), |b| b.on::<AfterStep>("request", hook)).fit()
}
