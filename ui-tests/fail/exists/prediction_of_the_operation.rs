use trainer::prelude::*;

#[hook]
fn halved(cx: &mut Cx<Pred>, next: Next<Pred>) -> Result<Done> {
    let done = next.run(cx)?;
    let half = cx.pred::<Tensor>()? / 2.0;
    cx.set_pred(half)?;
    Ok(done)
}

fn main() {}
