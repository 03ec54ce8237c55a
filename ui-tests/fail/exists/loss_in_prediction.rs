use trainer::prelude::*;

#[hook]
fn after_predict_step(cx: &mut Cx<AfterPredictStep>) {
    cx.loss();
}

fn main() {}
