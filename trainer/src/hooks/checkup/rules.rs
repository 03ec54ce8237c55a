//! The table of the rules of a check-up.

use crate::Cx;

/// A mistake that [`Checkup`](super::Checkup) names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rule {
    /// The name, such as `no optimizer`.
    pub name: &'static str,
    /// When the rule is decided, such as `after the first epoch`.
    pub decided: &'static str,
    /// The text of the warning, with `{}` where it names what it is about.
    pub words: &'static str,
}

impl Rule {
    /// Warns, with these names.
    pub(super) fn warn<P>(self, cx: &Cx<P>, names: &[&str]) {
        let text = names.iter().fold(self.words.to_owned(), |text, name| text.replacen("{}", name, 1));
        cx.warn(text);
    }
}

/// Declares the rules, and the table of all of them.
macro_rules! rules {
    ($($rule:ident: $name:literal, $decided:literal, $words:literal;)*) => {
        $(
            pub(super) const $rule: Rule = Rule { name: $name, decided: $decided, words: $words };
        )*

        pub(super) const ALL: &[Rule] = &[$($rule),*];
    };
}

rules! {
    TWO_SCHEDULES: "two schedules", "at the first batch",
        "two schedules set `{}` of the same parameters, so their effects multiply or one of them is lost: use one, such as a product, \
         `.times(…)`, or a sequence, `.then(…)`, or restrict them with `.group(…)` or `.part(…)`";
    SCHEDULE_AND_PLATEAU: "schedule and plateau", "at the first batch",
        "a schedule and `ReduceOnPlateau` both set the learning rate of {}: use one of them, or a schedule that only warms up";
    SCHEDULE_ENDS: "a schedule that ends too early", "at the first batch",
        "the schedule of `lr` ends at {}, but the run at {}, so nothing is trained in between: make the schedule longer, such as with \
         `.over(…)`, or the run shorter";
    ACCUMULATION: "accumulation longer than an epoch", "at the first batch of an epoch",
        "`.accumulate({})` is longer than an epoch, which has {} batches, so each window ends with its epoch: accumulate at most as \
         many batches as an epoch has";
    TRAINING_MODE: "training mode in an evaluation", "after the first batch of an evaluation",
        "{} computed as in training, but in the {} pass: pass `mode == Mode::Train`, as `Task::pred` gets it, instead of `true`";
    NO_OPTIMIZER: "no optimizer", "after the first epoch",
        "the loss depends on {}, but no optimizer has them, so they do not change: add one, `.optimizer_of(…)`, or freeze them with \
         `.set_requires_grad(false)`";
    FOREIGN: "a tensor of no store", "after the first epoch",
        "the loss depends on {} outside of the `VarStore` of the task, which nothing trains or saves: build the \
         layer on the store that `Task::vars` returns, or detach its output";
    NO_INPUT: "a loss that does not depend on the input", "after the first epoch",
        "{} was computed without the batch, so it does not depend on the input: use the batch that `Task::pred` gets";
    UNUSED: "a layer that is not used", "at the end of a fit",
        "{} had no gradient in the fit, because nothing used them: use them in the forward pass, remove them, or freeze them, \
         `Group::new().frozen(true)`";
    CUT: "a layer without a gradient", "at the end of a fit",
        "{} had no gradient in the fit, although the prediction was computed from them: look for `detach` and for operations without \
         a gradient, such as `argmax`, or freeze them, `Group::new().frozen(true)`";
    ZERO: "a gradient of 0", "at the end of a fit",
        "the gradient of {} was 0 in every batch of the fit: look for activations that are all 0, for a factor of 0, and for a part of \
         the loss that is constant";
    UNCHANGED: "a parameter that no step changed", "at the end of a fit",
        "no step has changed {} in the fit, although the loss depends on them: call `backward` and `opt_step` for them in `train_step`, \
         and look for a hook that skips steps or drops gradients";
    NO_RATE: "a learning rate of 0", "at the end of a fit",
        "the learning rate of {} was 0 in the whole fit, so it trained nothing: pass a rate above 0, and look at the schedules";
}
