use trainer::prelude::*;

pub struct Samples;

trainer::lifecycle! {
    within step {
        /// Samples were drawn.
        point sampled(Samples);
    }
}

#[hook]
fn sample(cx: &mut Cx<AfterStep>) -> Result<()> {
    cx.fire::<Sampled>()
}

fn main() {}
