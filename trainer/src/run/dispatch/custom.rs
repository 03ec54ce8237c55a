//! Custom lifecycles: firing their points and running their operations from hooks and tasks.

use crate::error::{Error, Result};
use crate::hook::call::Loop;
use crate::lifecycle::available;
use crate::moment::{AtOperation, FireableFrom, HasPayload, Moment, OnAllRanks, WithoutPayload};
use crate::moments::tree;
use crate::run::Run;
use crate::run::context::Cx;

/// # Custom points and operations
impl<P> Cx<P> {
    /// Fires a point of a custom lifecycle.
    ///
    /// # Errors
    ///
    /// Returns the error of the first hook that fails, or an error if the point is already being
    /// fired.
    ///
    /// ```standalone_crate
    /// use trainer::prelude::*;
    ///
    /// trainer::lifecycle! {
    ///     within step {
    ///         /// The loss is higher than ever before.
    ///         point at_spike: loss;
    ///     }
    /// }
    ///
    /// /// Detects spikes of the loss.
    /// struct Spikes(f64);
    ///
    /// #[hook]
    /// impl Spikes {
    ///     fn after_loss(&mut self, cx: &mut Cx<AfterLoss>) -> Result<()> {
    ///         let loss = cx.loss().double_value(&[]);
    ///         if loss > self.0 {
    ///             self.0 = loss;
    ///             cx.fire::<AtSpike>()?;
    ///         }
    ///         Ok(())
    ///     }
    /// }
    ///
    /// /// Prints the spikes; this hook can be in any crate.
    /// #[hook]
    /// fn print_spike(cx: &Cx<AtSpike>) {
    ///     println!("{} at batch {}", cx.loss(), cx.counters().batches_seen);
    /// }
    /// # fn main() {}
    /// ```
    pub fn fire<Q: WithoutPayload + FireableFrom<P>>(&mut self) -> Result<()> {
        enter_custom::<Q, _>(self.run_mut(), |run| run.fire::<Q>())
    }

    /// Fires a point of a custom lifecycle with a [payload](HasPayload). Returns the payload after
    /// all hooks at the point have run. They can read it with [`payload`](Cx::payload) and change
    /// it with [`payload_mut`](Cx::payload_mut).
    ///
    /// # Errors
    ///
    /// Returns the error of the first hook that fails, or an error if the point is already being
    /// fired. The payload is then lost.
    ///
    /// ```standalone_crate
    /// use trainer::prelude::*;
    ///
    /// /// Images of a generator.
    /// pub struct Samples {
    ///     images: Tensor,
    /// }
    ///
    /// trainer::lifecycle! {
    ///     within epoch {
    ///         /// The generator made samples.
    ///         point sampled(Samples);
    ///     }
    /// }
    ///
    /// #[hook]
    /// fn sample(cx: &mut Cx<AfterTrainEpoch>) -> Result<()> {
    ///     let images = Tensor::rand([16, 28, 28], (Kind::Float, cx.device()));
    ///     let Samples { images } = cx.fire_with::<Sampled>(Samples { images })?;
    ///     cx.log("brightness", images.mean(Kind::Float));
    ///     Ok(())
    /// }
    ///
    /// /// A hook that changes the samples; this hook can be in any crate.
    /// #[hook]
    /// fn darken(cx: &mut Cx<Sampled>) {
    ///     let samples = cx.payload_mut();
    ///     samples.images = &samples.images * 0.5;
    /// }
    /// # fn main() {}
    /// ```
    pub fn fire_with<Q: HasPayload + FireableFrom<P>>(&mut self, payload: Q::Payload) -> Result<Q::Payload> {
        fire_with::<Q>(self.run_mut(), payload)
    }

    /// Runs an operation of a custom lifecycle, with the hooks before, around and after it.
    ///
    /// Returns whether the operation took place: if an `around` hook skips it or handles its error,
    /// the point after it does not fire.
    ///
    /// # Errors
    ///
    /// Returns the first error of `body` or of a hook, or an error if the operation is already
    /// running.
    pub fn run<O: AtOperation + FireableFrom<P>>(
        &mut self,
        body: impl FnOnce(&mut Cx<O>) -> Result<()>,
    ) -> Result<bool> {
        enter_custom::<O, _>(self.run_mut(), |run| run.operate::<O>(|run| body(Cx::from_run(run))))
    }
}

/// # The payload of a custom point
impl<P: Moment> Cx<P> {
    /// The payload with which the point was [fired](Cx::fire_with).
    ///
    /// Available at the points of custom lifecycles that are declared with a payload:
    /// [`HasPayload`].
    #[must_use]
    pub fn payload<T: 'static>(&self) -> &T
    where
        P: HasPayload<Payload = T>,
    {
        let payload = self.as_run().dispatch.payloads.get(&P::index());
        payload.and_then(|payload| payload.downcast_ref()).expect("`fire_with` put it there")
    }

    /// Mutable access to the payload with which the point was [fired](Cx::fire_with). The caller of
    /// `fire_with` gets the payload back.
    ///
    /// Available at the points of custom lifecycles that are declared with a payload:
    /// [`HasPayload`].
    #[doc = available!(OnAllRanks)]
    #[must_use]
    pub fn payload_mut<T: 'static>(&mut self) -> &mut T
    where
        P: HasPayload<Payload = T> + OnAllRanks,
    {
        let payload = self.run_mut().dispatch.payloads.get_mut(&P::index());
        payload.and_then(|payload| payload.downcast_mut()).expect("`fire_with` put it there")
    }
}

/// Fires a point with a payload. The run stores the payload while the hooks are called.
pub(crate) fn fire_with<Q: HasPayload>(run: &mut Run, payload: Q::Payload) -> Result<Q::Payload> {
    enter_custom::<Q, _>(run, |run| {
        if run.hooks.table.range(Q::index(), run.at.place.phase).is_empty() {
            return Ok(payload);
        }
        run.dispatch.payloads.insert(Q::index(), Box::new(payload));
        let result = run.fire::<Q>();
        let payload = run.dispatch.payloads.remove(&Q::index()).and_then(|payload| payload.downcast().ok());
        result.map(|()| *payload.expect("it was put there above"))
    })
}

/// Runs `body`, which fires or runs a custom moment. Returns an error if that moment is already
/// being fired or run.
pub(crate) fn enter_custom<Q: Moment, R>(
    run: &mut Run,
    body: impl FnOnce(&mut Run) -> Result<R>,
) -> Result<R> {
    run.check_complaint()?;
    let moment = Q::index();
    if run.at.scopes().contains(&moment) {
        return Err(within_itself(run.at.scopes(), moment));
    }
    run.dispatch.entered.insert(moment);
    run.returning(|run| {
        run.at.enter_scope(moment);
        body(run)
    })
}

#[cold]
fn within_itself(scopes: &[usize], moment: usize) -> Error {
    let name = |moment: usize| format!("`{}`", tree::moments()[moment].path());
    let scopes: Vec<_> = scopes.iter().map(|&scope| name(scope)).collect();
    let path = if scopes.len() > 1 { format!(" ({})", scopes.join(" → ")) } else { String::new() };
    Error::usage(format!(
        "{} is already running{path}: a custom point or operation cannot be entered from within itself",
        name(moment)
    ))
}
