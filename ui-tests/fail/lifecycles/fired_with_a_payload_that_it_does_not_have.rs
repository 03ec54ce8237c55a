use trainer::prelude::*;

pub struct Samples;

trainer::lifecycle! {
    within step {
        /// Samples were drawn.
        point sampled;
    }
}

#[hook]
fn sample(cx: &mut Cx<AfterStep>) -> Result<()> {
    cx.fire_with::<Sampled>(Samples)?;
    Ok(())
}

fn main() {}
