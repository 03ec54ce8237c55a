use trainer::prelude::*;

pub struct Samples;

trainer::lifecycle! {
    within step {
        /// Samples were drawn.
        point sampled(Samples);
    }
}

#[hook]
fn change(cx: &Cx<Sampled>) {
    *cx.payload_mut() = Samples;
}

fn main() {}
