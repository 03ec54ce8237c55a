//! Records the first steps of a fit, if it is a rehearsal.

use crate::error::{CancelledBy, Result};
use crate::libtorch;
use crate::model::vars::Vars;
use crate::run::{Rehearsal, Rehearsed, Run};

impl Run {
    fn rehearsal(&mut self) -> Option<&mut Rehearsal> {
        self.replay_mut().as_mut()?.rehearsal.as_mut()
    }

    /// In a rehearsal, records the hash of the weights before the first step.
    pub(crate) fn rehearse_start(&mut self) -> Result<()> {
        if self.rehearsal().is_some_and(|rehearsal| rehearsal.start.is_empty()) {
            let start = hash_of_weights(&self.model().vars)?;
            self.rehearsal().into_iter().for_each(|rehearsal| rehearsal.start.clone_from(&start));
        }
        Ok(())
    }

    /// In a rehearsal, records the loss of the current batch under this name.
    pub(crate) fn rehearse_loss(&mut self, name: &str) -> Result<()> {
        if self.replay().is_none() {
            return Ok(());
        }
        let loss = self.step().loss.as_ref().map(|loss| loss.f_double_value(&[])).transpose()?;
        let weight = self.step().weight;
        if let (Some(rehearsal), Some(loss)) = (self.rehearsal(), loss) {
            rehearsal.losses.push((name.to_owned(), loss, weight));
        }
        Ok(())
    }

    /// In a rehearsal, records the optimizer step that the current batch has taken.
    ///
    /// # Errors
    ///
    /// After the last step, returns the error that ends the run.
    pub(crate) fn rehearse_step(&mut self) -> Result<()> {
        if self.rehearsal().is_none() {
            return Ok(());
        }
        let weights = hash_of_weights(&self.model().vars)?;
        let batches = self.progress().train_batches;
        let Some(replay) = self.replay_mut() else { return Ok(()) };
        let Some(rehearsal) = &mut replay.rehearsal else { return Ok(()) };
        let losses = means(&std::mem::take(&mut rehearsal.losses));
        rehearsal.recorded.push(Rehearsed { losses, weights, batches });
        if !rehearsal.is_over() {
            return Ok(());
        }
        replay.has_ended = true;
        Err(self.cancelled(CancelledBy::EndOfReplay))
    }
}

/// Returns, for each name, the mean of its losses, weighted by the weights of their batches. A
/// single loss is returned unchanged.
fn means(losses: &[(String, f64, f64)]) -> Vec<(String, f64)> {
    let mut means: Vec<(String, f64)> = Vec::new();
    for (name, loss, _) in losses {
        if means.iter().any(|(known, _)| known == name) {
            continue;
        }
        let of_name = || losses.iter().filter(|(other, ..)| other == name);
        let mean = match of_name().count() {
            1 => *loss,
            _ => {
                let sum: f64 = of_name().map(|(_, loss, weight)| loss * weight).sum();
                sum / of_name().map(|(_, _, weight)| weight).sum::<f64>()
            }
        };
        means.push((name.clone(), mean));
    }
    means
}

/// Returns a hash of all parameters and buffers of the task, with their names, types and shapes.
fn hash_of_weights(vars: &Vars) -> Result<String> {
    let mut hasher = blake3::Hasher::new();
    for var in vars.iter() {
        let bytes = libtorch::bytes(&var.tensor, format_args!("`{}`", var.name))?;
        hasher.update(format!("{} {:?} {:?}\n", var.name, var.tensor.kind(), var.tensor.size()).as_bytes());
        hasher.update(&bytes);
    }
    Ok(hasher.finalize().to_hex()[..HASH_LENGTH].to_owned())
}

/// The number of hexadecimal digits of a hash.
const HASH_LENGTH: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loss_of_a_step_is_the_mean_over_its_batches() {
        let loss = |name: &str, loss, weight| (name.to_owned(), loss, weight);
        // 0.1 · 3 / 3 would be a different number.
        assert_eq!(means(&[loss("loss", 0.1, 3.0)]), [("loss".to_owned(), 0.1)]);
        assert_eq!(
            means(&[loss("a", 1.0, 1.0), loss("b", 5.0, 2.0), loss("a", 2.0, 3.0)]),
            [("a".to_owned(), 1.75), ("b".to_owned(), 5.0)]
        );
        assert_eq!(means(&[]), []);
    }
}
