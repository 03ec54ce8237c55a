use trainer::prelude::*;
use trainer::{CanRunBackward, CanScaleLoss, CanSetBatch, CanSetLoss, CanSetPred, CanSkipBatch};

fn skips<P: CanSkipBatch>(_: &Cx<P>) {}
fn sets_batch<P: CanSetBatch>(_: &Cx<P>) {}
fn sets_pred<P: CanSetPred>(_: &Cx<P>) {}
fn sets_loss<P: CanSetLoss>(_: &Cx<P>) {}
fn scales<P: CanScaleLoss>(_: &Cx<P>) {}
fn runs<P: CanRunBackward>(_: &Cx<P>) {}

#[hook]
fn before_step(cx: &Cx<Main<BeforeStep>>) {
    skips(cx);
}

#[hook]
fn before_backward(cx: &Cx<Main<BeforeBackward>>) {
    scales(cx);
    runs(cx);
}

#[hook]
fn after_step(cx: &Cx<Main<AfterStep>>) {
    sets_batch(cx);
    sets_pred(cx);
    sets_loss(cx);
}

fn main() {}
