//! [`Rehearsal`]: hooks that record the first steps of a fit, for a golden.

use std::mem::take;
use std::panic::Location;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{CancelledBy, Result};
use crate::hook::stages;
use crate::libtorch;
use crate::lifecycle::{AfterLoss, AfterStep, BeforeStep};
use crate::log::LOSS;
use crate::model::vars::Vars;
use crate::moment::AtPoint;
use crate::moments::tree;
use crate::phase::Phase;
use crate::run::context::Cx;
use crate::run::dispatch::closure::{HookOptions, ObserverClosure, observe};
use crate::run::{HookDef, Instance};

/// The results of one optimizer step.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rehearsed {
    /// The losses by name, each the mean over the batches of the step.
    pub(super) losses: Vec<(String, f64)>,
    /// The hash of the weights after the step.
    pub(super) weights: String,
    /// The number of training batches up to the end of the step.
    pub(super) batches: u64,
}

/// The results of the first steps of a fit.
#[derive(Debug, Default)]
pub(super) struct Rehearsal {
    /// The hash of the weights before the first step.
    pub(super) start: String,
    pub(super) recorded: Vec<Rehearsed>,
    /// The losses since the last step, each with its name and its weight.
    losses: Vec<(String, f64, f64)>,
    /// The number of optimizer steps before the current batch.
    steps: u64,
}

/// The hooks of a rehearsal, each with its value.
type Hooks = Vec<(Instance, Vec<HookDef>)>;

impl Rehearsal {
    /// Returns a rehearsal and the hooks that record it. The last of them ends the run after this
    /// number of optimizer steps.
    pub(super) fn begin(steps: u64) -> (Arc<Mutex<Rehearsal>>, Hooks) {
        let rehearsal = Arc::<Mutex<Rehearsal>>::default();
        let [first, second, third] = [(); 3].map(|()| Arc::clone(&rehearsal));
        let hooks = vec![
            hook::<BeforeStep>(move |cx: &Cx<BeforeStep>| {
                locked(&first, |rehearsal| rehearsal.begin_batch(cx))
            }),
            hook::<AfterLoss>(move |cx: &Cx<AfterLoss>| locked(&second, |rehearsal| rehearsal.add_loss(cx))),
            hook::<AfterStep>(move |cx: &Cx<AfterStep>| {
                locked(&third, |rehearsal| rehearsal.end_batch(cx, steps))
            }),
        ];
        (rehearsal, hooks)
    }

    /// Takes what was recorded.
    pub(super) fn end(rehearsal: &Mutex<Rehearsal>) -> Rehearsal {
        locked(rehearsal, take)
    }

    /// Records the hash of the weights before the first step.
    fn begin_batch(&mut self, cx: &Cx<BeforeStep>) -> Result<()> {
        self.steps = cx.counters().optimizer_steps;
        if self.start.is_empty() {
            self.start = hash_of_weights(cx.as_run().vars())?;
        }
        Ok(())
    }

    /// Records a loss under the name of its metric.
    fn add_loss(&mut self, cx: &Cx<AfterLoss>) -> Result<()> {
        let name =
            cx.as_run().at().scopes().last().map_or(LOSS, |&operation| tree::moments()[operation].loss);
        self.losses.push((name.to_owned(), cx.loss().f_double_value(&[])?, cx.weight()));
        Ok(())
    }

    /// Records the optimizer step that the batch has taken.
    ///
    /// # Errors
    ///
    /// After the last step, returns the error that ends the run.
    fn end_batch(&mut self, cx: &Cx<AfterStep>, steps: u64) -> Result<()> {
        if cx.counters().optimizer_steps == self.steps {
            return Ok(());
        }
        let weights = hash_of_weights(cx.as_run().vars())?;
        let batches = cx.as_run().progress().train_batches;
        self.recorded.push(Rehearsed { losses: means(&take(&mut self.losses)), weights, batches });
        if (self.recorded.len() as u64) < steps {
            return Ok(());
        }
        Err(cx.as_run().cancelled(CancelledBy::EndOfReplay))
    }
}

/// Calls `body` with the rehearsal.
fn locked<R>(rehearsal: &Mutex<Rehearsal>, body: impl FnOnce(&mut Rehearsal) -> R) -> R {
    body(&mut rehearsal.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Returns a hook that runs after all others at the point `P` in training batches, with its value.
fn hook<P: AtPoint>(closure: impl ObserverClosure<P>) -> (Instance, Vec<HookDef>) {
    fn defined<P: AtPoint, F: ObserverClosure<P>>(_: &F) -> HookDef {
        let options = HookOptions::named("golden").in_set(stages::Last).ord(i32::MAX).only(Phase::Train);
        options.define::<P, F>(observe::<P, F>, true, Location::caller(), &mut Vec::new())
    }
    let definition = defined(&closure);
    (Instance::new(closure), vec![definition])
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
