use trainer::prelude::*;

pub struct Samples;

trainer::lifecycle! {
    within step {
        /// Samples were drawn.
        point sampled;
    }
}

#[hook]
fn read(cx: &Cx<Sampled>) {
    let _ = cx.payload();
}

fn main() {}
