use trainer::prelude::*;

#[hook]
fn note(cx: &Cx<AfterStep>) {
    cx.stop("enough");
}

fn closure(builder: trainer::TrainerBuilder<impl Task>) {
    let _ = builder.observe::<AfterStep>("stop", |cx| cx.stop("enough"));
}

fn main() {}
