//! Operations that hooks skip or replace, and gradients that hooks keep.

use super::*;

/// Skips the backward pass of these batches.
struct Without(Vec<u64>);

#[hook]
impl Without {
    fn without(&mut self, cx: &mut Cx<Backward>, next: Next<Backward>) -> Result<Done> {
        if self.0.contains(&cx.counters().batch_idx) { Ok(next.skip()) } else { next.run(cx) }
    }
}

#[test]
fn a_batch_whose_backward_pass_is_skipped_does_not_count_toward_the_mean() {
    for by in BOTH {
        for by_token in [false, true] {
            for in_turn in [false, true] {
                let builder = || builder(halves(by_token, in_turn), by);
                let four = |left_out: &[u64]| {
                    trained(builder().accumulate(4).hook(Without(left_out.to_vec())), uneven()).0
                };
                let cells = [
                    (vec![1], vec![(0, 32), (64, 101)]),
                    (vec![0], vec![(32, 101)]),
                    (vec![3], vec![(0, 96)]),
                    (vec![0, 1, 2], vec![(96, 101)]),
                ];
                for (left_out, rows) in cells {
                    let apart = distance(&trained(builder(), chosen(&rows)).0, &four(&left_out));
                    assert!(apart < 1e-10, "without {left_out:?} {by:?}: {apart:.1e}");
                }
                let untouched = four(&[0, 1, 2, 3]);
                assert_eq!(distance(&untouched, &flat_parameters(&builder().build().unwrap())), 0.0);
            }
        }
    }
}

#[test]
fn the_weight_of_a_batch_with_two_backward_passes_counts_once() {
    for by in BOTH {
        let builder = || builder(Halves { twice: true, ..halves(true, false) }, by);
        let one = trained(builder(), large()).0;
        let apart = distance(&one, &trained(builder().accumulate(4), uneven()).0);
        assert!(apart < 1e-10, "{by:?}: {apart:.1e}");
        let apart = distance(&one, &trained(builder().hook(EachFourth), uneven()).0);
        assert!(apart < 1e-10, "{by:?}: {apart:.1e}");
    }
}

/// Skips the backward pass of the left part in the second batch.
struct OnlyRight;

#[hook]
impl OnlyRight {
    fn only_right(&mut self, cx: &mut Cx<Backward>, next: Next<Backward>) -> Result<Done> {
        if cx.counters().batch_idx == 1 && cx.part() == "left" { Ok(next.skip()) } else { next.run(cx) }
    }
}

#[test]
fn each_part_has_its_own_sum_of_weights() {
    for by in BOTH {
        let part = |name: &str, builder: TrainerBuilder<Halves>, mut data: InMemory<Tokens>| {
            let mut trainer = builder.epochs(1).build().unwrap();
            trainer.fit(&mut data, None).unwrap();
            let own = trainer.vars().parameters().filter(|var| var.name.starts_with(name));
            Tensor::cat(&own.map(|var| var.tensor.view([-1]).copy()).collect::<Vec<_>>(), 0)
        };
        let builder = || builder(halves(true, true), by);
        let skips = || builder().accumulate(4).hook(OnlyRight);
        let left = distance(
            &part("left", builder(), chosen(&[(0, 32), (64, 101)])),
            &part("left", skips(), uneven()),
        );
        let right = distance(&part("right", builder(), large()), &part("right", skips(), uneven()));
        assert!(left < 1e-10 && right < 1e-10, "{by:?}: {left:.1e} {right:.1e}");
    }
}

/// The example in the documentation of `Next`: skipped optimizer steps keep their gradients.
pub(super) struct EachFourth;

#[hook]
impl EachFourth {
    fn each_fourth(&mut self, cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<Done> {
        if (cx.counters().batch_idx + 1).is_multiple_of(4) { next.run(cx) } else { Ok(next.skip()) }
    }
}

#[test]
fn gradients_kept_by_a_skipped_opt_step_accumulate() {
    for by in BOTH {
        for by_token in [false, true] {
            for in_turn in [false, true] {
                let builder = || builder(halves(by_token, in_turn), by);
                let one = trained(builder(), large());
                assert_equal("each fourth", by, &one, &trained(builder().hook(EachFourth), uneven()));
                // Windows of two batches of 16 rows, in which only the last of four optimizer steps
                // is taken.
                let seventh = |cx: &mut Cx<OptStep>| cx.counters().batch_idx + 1 == 7;
                let two = builder().accumulate(2).hook(Unless(Box::new(move |cx| !seventh(cx)), Then::Keeps));
                assert_equal("windows of two", by, &one, &trained(two, loader(tokens(101), 16)));
                let scaled_one = trained(scaled(builder()), large());
                assert_equal(
                    "each fourth, scaled",
                    by,
                    &scaled_one,
                    &trained(scaled(builder()).hook(EachFourth), uneven()),
                );
                let clipped = trained(builder().clip_grad_norm(0.05), large());
                let each = trained(builder().clip_grad_norm(0.05).hook(EachFourth), uneven());
                assert_equal("each fourth, clipped", by, &clipped, &each);
            }
        }
    }
}

/// The treatment of the gradients when a step is skipped.
#[derive(Clone, Copy, Debug)]
enum Then {
    Keeps,
    Drops,
    DropsThroughOptimizer,
    Zeroes,
}

/// Skips the optimizer steps for which the predicate is true.
struct Unless(Predicate, Then);

type Predicate = Box<dyn FnMut(&mut Cx<OptStep>) -> bool + Send>;

#[hook]
impl Unless {
    fn unless(&mut self, cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<Done> {
        if !(self.0)(cx) {
            return next.run(cx);
        }
        match self.1 {
            Then::Keeps => {}
            Then::Drops => cx.drop_grads()?,
            Then::DropsThroughOptimizer => cx.optimizer_mut()?.zero_grad()?,
            Then::Zeroes => cx.grads().for_each(|(_, mut grad)| drop(grad.zero_())),
        }
        Ok(next.skip())
    }
}

#[test]
fn gradients_dropped_with_a_skipped_step_do_not_count_toward_the_mean() {
    for by in BOTH {
        for then in [Then::Drops, Then::DropsThroughOptimizer, Then::Zeroes] {
            let builder = || builder(halves(true, false), by).epochs(1);
            // Two windows of two batches; the step of the first is skipped.
            let early = |cx: &mut Cx<OptStep>| cx.counters().batch_idx == 1;
            let builder_of_two = builder().accumulate(2).hook(Unless(Box::new(early), then));
            let two = trained(builder_of_two, uneven()).0;
            let rest = trained(builder(), chosen(&[(64, 101)])).0;
            let apart = distance(&rest, &two);
            // Gradients that are filled with zeros are kept, and count.
            assert_eq!(apart < 1e-10, !matches!(then, Then::Zeroes), "{then:?} {by:?}: {apart:.1e}");
        }
    }
}

/// Replaces the backward pass with an equivalent one that calls the trainer.
struct OwnBackward;

#[hook]
impl OwnBackward {
    fn own(&mut self, cx: &mut Cx<Backward>, next: Next<Backward>) -> Result<Done> {
        next.replace(cx, |cx| cx.backward(&cx.scaled_loss()))
    }
}

/// Replaces the backward pass with an equivalent one that calls tch directly.
struct TchBackward;

#[hook]
impl TchBackward {
    fn own(&mut self, cx: &mut Cx<Backward>, next: Next<Backward>) -> Result<Done> {
        next.replace(cx, |cx| cx.scaled_loss().backward())
    }
}

/// Replaces the optimizer step with an equivalent one.
struct OwnStep;

#[hook]
impl OwnStep {
    #[hook(after = trainer::stages::Clipping)]
    fn own(&mut self, cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<Done> {
        next.replace(cx, |cx| cx.optimizer_mut()?.step())
    }
}

/// Replaces `zero_grad` with an equivalent operation.
struct OwnZeroGrad;

#[hook]
impl OwnZeroGrad {
    fn own(&mut self, cx: &mut Cx<ZeroGrad>, next: Next<ZeroGrad>) -> Result<Done> {
        next.replace(cx, |cx| cx.optimizer_mut()?.zero_grad())
    }
}

/// The results of a run: counters, the loss of each epoch, the learning rates of each step, and the
/// parameters.
type Results = (Counters, Vec<f64>, Vec<f64>, Tensor);

/// Returns the results of a run with a learning-rate schedule, clipping and accumulation.
fn results_of(
    in_turn: bool,
    by: By,
    with: impl Fn(TrainerBuilder<Halves>) -> TrainerBuilder<Halves>,
) -> Results {
    let lrs: Arc<Mutex<Vec<f64>>> = Arc::default();
    let note = Arc::clone(&lrs);
    let builder = builder(halves(true, in_turn), by)
        .accumulate(2)
        .clip_grad_norm(0.5)
        .hook(HyperparameterSchedule::lr(Cosine::to(0.1).over(6)))
        .on::<AfterOptStep>("lrs", move |cx| note.lock().unwrap().extend(cx.lrs()));
    let mut trainer = with(builder).build().unwrap();
    let summary = trainer.fit(&mut uneven(), None).unwrap();
    let losses = summary.history.points("train/loss").map(|(_, loss)| loss).collect();
    let lrs = lrs.lock().unwrap().clone();
    (summary.counters, losses, lrs, flat_parameters(&trainer))
}

#[test]
fn replaced_operations_match_the_built_in_ones_bit_for_bit() {
    for by in BOTH {
        for in_turn in [false, true] {
            let expected = results_of(in_turn, by, |builder| builder);
            assert_eq!(expected.0.optimizer_steps, 6);
            assert_eq!(expected.2.len(), if in_turn { 12 } else { 6 }, "each step has a rate");
            let mut replacements: Vec<Replacement> = vec![
                ("backward", |builder| builder.hook(OwnBackward)),
                ("opt_step", |builder| builder.hook(OwnStep)),
                ("zero_grad", |builder| builder.hook(OwnZeroGrad)),
                ("all of them", |builder| builder.hook(OwnBackward).hook(OwnStep).hook(OwnZeroGrad)),
            ];
            if !in_turn {
                replacements.push(("backward by tch", |builder| builder.hook(TchBackward)));
            }
            for (what, with) in replacements {
                assert_eq!(expected, results_of(in_turn, by, with), "{what}, parts: {in_turn}, {by:?}");
            }
        }
    }
}

type Replacement = (&'static str, fn(TrainerBuilder<Halves>) -> TrainerBuilder<Halves>);

/// Replaces the optimizer step with handwritten gradient descent.
struct Descent;

#[hook]
impl Descent {
    fn descend(&mut self, cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<Done> {
        next.replace(cx, |cx| {
            tch::no_grad(|| {
                for var in cx.vars().parameters().filter(|var| var.name.starts_with(cx.part())) {
                    let _ = var.tensor.shallow_clone().g_sub_(&(var.tensor.grad() * 0.05));
                }
            });
        })
    }
}

#[test]
fn an_optimizer_step_written_by_hand_uses_the_mean_over_the_window() {
    for in_turn in [false, true] {
        let builder = || builder(halves(true, in_turn), By::Sgd);
        let one = trained(builder(), large());
        assert_equal("replaced", in_turn, &one, &trained(builder().accumulate(4).hook(Descent), uneven()));
    }
}

/// Runs a second backward pass, of a penalty, before the built-in one.
struct Penalty;

#[hook]
impl Penalty {
    fn before_backward(&mut self, cx: &mut Cx<BeforeBackward>) -> Result<()> {
        let weights = cx.vars().get("left.weight")?.square().sum(Kind::Double);
        let factor = &cx.scaled_loss() / cx.loss();
        cx.backward(&(weights * factor.detach()))
    }
}

#[test]
fn an_additional_backward_pass_is_part_of_the_same_batch() {
    for by in BOTH {
        let builder = || builder(halves(true, false), by).hook(Penalty);
        let one = trained(builder(), large());
        assert_equal("penalty", by, &one, &trained(builder().accumulate(4), uneven()));
        let without = trained(self::builder(halves(true, false), by), large());
        assert!(distance(&one.0, &without.0) > 1e-4, "the penalty counts");
    }
}

/// Keeps the gradients of the first optimizer step.
struct KeepsFirst;

#[hook]
impl KeepsFirst {
    fn keep(&mut self, cx: &mut Cx<ZeroGrad>, next: Next<ZeroGrad>) -> Result<Done> {
        if cx.counters().batch_idx == 0 { Ok(next.skip()) } else { next.run(cx) }
    }
}

#[test]
fn gradients_kept_after_a_step_are_averaged_into_the_next_step() {
    let norms = |mut data: InMemory<Tokens>, keeps: bool| {
        let builder = Trainer::builder(halves(true, false)).optimizer(Sgd::new(0.0)).discover(Discover::None);
        let builder = builder.limit_train_batches(2).hook(Norms::default());
        let builder = if keeps { builder.hook(KeepsFirst) } else { builder };
        let mut trainer = builder.build().unwrap();
        trainer.fit(&mut data, None).unwrap();
        trainer.hook::<Norms>().unwrap().before_opt_step.clone()
    };
    let kept = norms(uneven(), true);
    let one = norms(chosen(&[(0, 64)]), false);
    assert!((kept[1] - one[0]).abs() < 1e-12, "the mean over both");
}
