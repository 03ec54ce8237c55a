//! Custom lifecycles declared by another crate, with hooks of this one.

use std::sync::{Arc, Mutex};

use plugin::drafts::{Draft, Drafts, Measured, Written};
use plugin::rounds::{AfterSecondLook, AtPraise, AtSight, Looks, SecondLook, Sight};
use trainer::prelude::*;

use crate::model::{self, message};

/// Counts the calls of its hooks at the custom points.
#[derive(Default)]
pub(crate) struct Witness {
    seen: i64,
    after: u64,
    praised: u64,
}

#[hook]
impl Witness {
    fn sight(&mut self, cx: &mut Cx<AtSight>) {
        self.seen += cx.seen();
    }
    #[hook(every = 2)]
    fn after(&mut self, cx: &mut Cx<AfterSecondLook>) {
        assert!(cx.loss().double_value(&[]) > 0.0 && cx.seen() == 4);
        self.after += 1;
    }
    #[hook(every = 3)]
    fn praise(&mut self, _: &mut Cx<AtPraise>) {
        self.praised += 1;
    }
}

/// Skips an operation of another crate in the first batch.
pub(crate) struct Skips;

#[hook]
impl Skips {
    #[hook(ord = -1)]
    fn skip(&mut self, cx: &mut Cx<SecondLook>, next: Next<SecondLook>) -> Result<Done> {
        if cx.counters().batch_idx == 0 { Ok(next.skip()) } else { next.run(cx) }
    }
}

#[test]
fn hooks_attach_to_a_lifecycle_declared_by_another_crate() {
    let mut trainer = model::builder()
        .epochs(3)
        .hook(Witness::default())
        .hook(Skips)
        .hook(Looks::default())
        .build()
        .unwrap();
    let rows = &mut model::rows(12);
    trainer.fit(rows, Some(&mut model::rows(4))).unwrap();
    let looks = trainer.hook::<Looks>().unwrap();
    let witness = trainer.hook::<Witness>().unwrap();
    assert_eq!((looks.taken, looks.skipped), (6, 3));
    // `every = 2`: batches 1, 3, 5 and 7, counted from 0 over the epochs, except for the skipped
    // ones.
    assert_eq!((witness.seen, witness.after, witness.praised), (24, 3, 1));
}

#[test]
fn a_custom_lifecycle_is_shown_within_its_parent() {
    let trainer =
        model::builder().hook(Looks::default()).hook(Witness::default()).hook(Skips).build().unwrap();
    let table = trainer.describe_hooks();
    assert_eq!(table.at("plugin::rounds::at::second_look"), ["it::lifecycles::Skips::skip"]);
    insta::assert_snapshot!("lifecycles_markdown", message(&table.only_used()));
}

#[test]
fn a_hook_at_a_moment_that_nothing_fires_is_refused() {
    let error = model::builder().hook(Skips).build().unwrap_err().to_string();
    insta::assert_snapshot!(message(&error), @"the trainer cannot be built: `it::lifecycles::Skips::skip` (tests/it/lifecycles.rs:_) can never fire: `plugin::rounds::at::second_look` is reached by `Looks` only, which is neither the task nor a hook of this trainer: exclude the hook with `.without(…)`");
}

/// Fires the point that it is called at.
#[derive(Default)]
struct Circular(Arc<Mutex<u64>>);

#[hook]
impl Circular {
    fn again(&self, cx: &mut Cx<AtPraise>) -> Result<()> {
        *self.0.lock().unwrap() += 1;
        cx.fire::<AtPraise>()
    }
}

#[test]
fn a_custom_point_that_fires_itself_is_an_error() {
    let mut trainer = model::builder().hook(Looks::default()).hook(Circular::default()).build().unwrap();
    let error = trainer.fit(&mut model::rows(4), None).unwrap_err().to_string();
    insta::assert_snapshot!(message(&error), @"hook `it::lifecycles::Circular::again` (tests/it/lifecycles.rs:_) failed at at_praise, epoch 0, batch 1: `plugin::rounds::at::at_praise` is already running: a custom point or operation cannot be entered from within itself");
}

/// Has a hook at a point that another of its hooks fires.
struct Reentrant;

#[hook]
impl Reentrant {
    fn praise(&mut self, _: &mut Cx<AtPraise>) {}
    fn after_train_epoch(&mut self, cx: &mut Cx<AfterTrainEpoch>) -> Result<()> {
        cx.fire::<AtPraise>()
    }
}

#[test]
fn a_hook_that_reenters_itself_is_an_error() {
    let mut trainer = model::builder().hook(Reentrant).hook(Looks::default()).build().unwrap();
    let error = trainer.fit(&mut model::rows(4), None).unwrap_err().to_string();
    insta::assert_snapshot!(message(&error), @"hook `it::lifecycles::Reentrant::praise` (tests/it/lifecycles.rs:_) failed at at_praise, epoch 0, batch 1: a method of `it::lifecycles::Reentrant` is already running and borrows its value, so no other method of that value can run at the same time");
}

/// Reads and changes the payloads of another crate's points. The second point is fired within the
/// first.
#[derive(Default)]
struct Reviews {
    read: Vec<Draft>,
    on_rank_0: usize,
    fails: bool,
}

/// Returns the length of a draft, at any point that has one.
fn length<P: trainer::moment::HasPayload<Payload = Draft>>(cx: &Cx<P>) -> usize {
    cx.payload().text.len()
}

#[hook]
impl Reviews {
    #[hook(ord = 1)]
    fn read(&mut self, cx: &Cx<Written>) {
        self.read.push(cx.payload().clone());
    }
    fn revise(&mut self, cx: &mut Cx<Written>) -> Result<()> {
        cx.payload_mut().text.push('!');
        cx.payload_mut().revisions += 1;
        if self.fails { Err(Error::msg("no time")) } else { Ok(()) }
    }
    #[hook(ord = 2)]
    fn on_rank_0(&mut self, cx: &Cx<Main<Written>>) {
        self.on_rank_0 += length(cx);
    }
    fn measure(&mut self, cx: &mut Cx<Measured>) {
        let (value, tensors) = cx.payload_mut();
        *value += 1.0;
        tensors.push(Tensor::from(1.0));
    }
}

#[test]
fn hooks_read_and_change_the_payload_of_a_point() {
    let mut trainer = model::builder().hook(Drafts::default()).hook(Reviews::default()).build().unwrap();
    trainer.fit(&mut model::rows(8), Some(&mut model::rows(4))).unwrap();
    let drafts = trainer.hook::<Drafts>().unwrap();
    let expected = ["draft 0!", "draft 1!"].map(|text| Draft { text: text.into(), revisions: 1 });
    assert_eq!(drafts.published, expected);
    assert!((drafts.measured - 4.0).abs() < 1e-12);
    let reviews = trainer.hook::<Reviews>().unwrap();
    assert_eq!(reviews.read, expected);
    assert_eq!(reviews.on_rank_0, 16);
}

#[test]
fn a_payload_is_returned_unchanged_if_the_point_has_no_hooks() {
    let mut trainer = model::builder().hook(Drafts::default()).build().unwrap();
    trainer.fit(&mut model::rows(8), None).unwrap();
    let drafts = trainer.hook::<Drafts>().unwrap();
    assert_eq!(drafts.published[1], Draft { text: "draft 1".into(), revisions: 0 });
    assert!((drafts.measured - 2.0).abs() < 1e-12);
}

#[test]
fn a_failing_hook_at_a_point_with_a_payload_does_not_affect_the_next_payload() {
    let reviews = Reviews { fails: true, ..Reviews::default() };
    let mut trainer = model::builder().hook(Drafts::default()).hook(reviews).build().unwrap();
    let error = trainer.fit(&mut model::rows(8), None).unwrap_err();
    assert!(message(&error).contains("failed at written, epoch 0, batch 1: no time"), "{error}");
    trainer.hook_mut::<Reviews>().unwrap().fails = false;
    trainer.fit(&mut model::rows(8), None).unwrap();
    assert_eq!(trainer.hook::<Drafts>().unwrap().published[0].revisions, 1);
}
