//! Hooks, for any program that names this crate.

use trainer::prelude::*;

/// Logs the norm of all gradients.
#[hook(every = 10)]
pub fn gradient_norm(cx: &Cx<BeforeOptStep>) {
    let norms: Vec<_> = cx.grads().map(|(_, grad)| grad.norm()).collect();
    cx.log("gradient_norm", Tensor::stack(&norms, 0).norm());
}

#[cfg(test)]
mod tests {
    use super::*;
    use trainer::testing::Harness;

    #[test]
    fn the_norm_is_logged() -> Result<()> {
        // The run of a harness has no hooks but those that are added to it.
        let harness =
            Harness::small().configure(|builder| builder.on::<BeforeOptStep>("norm", |cx| gradient_norm(cx)));
        let outcome = harness.run()?;
        assert!(outcome.summary().metrics["train/gradient_norm"] > 0.0);
        Ok(())
    }
}
