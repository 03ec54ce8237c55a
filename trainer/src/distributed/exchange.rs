//! [`Exchange`]: gradients that are added over the ranks, each on the rank that owns its parameter.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tch::Tensor;

use super::links::Links;
use super::reducer::{REDUCTION, check_layout};
use super::{World, current};
use crate::error::{Error, Result};
use crate::libtorch::dist::RawExchange;
use crate::libtorch::{AccumulatedHook, TensorList, on_accumulated};

/// Which gradients a rank has. Clones share the value.
#[derive(Clone, Debug, Default)]
pub(crate) struct Held(Arc<AtomicU8>);

/// All gradients that this rank has computed, or none.
const OWN: u8 = 0;
/// A backward pass is running, and the gradients are exchanged.
const EXCHANGING: u8 = 1;
/// The sums over all ranks for the parameters that this rank owns, and no others.
const SHARE: u8 = 2;

impl Held {
    /// Whether this rank has the sums over all ranks for its own parameters, and no others.
    pub(crate) fn is_share(&self) -> bool {
        self.0.load(Ordering::Relaxed) == SHARE
    }

    /// Records whether the gradients that exist, if any, are sums over all ranks.
    pub(crate) fn set_share(&self, is_share: bool) {
        self.set(if is_share { SHARE } else { OWN });
    }

    fn set(&self, held: u8) {
        self.0.store(held, Ordering::Relaxed);
    }
}

/// Averages gradients over all ranks while a backward pass computes them, each on the rank that
/// owns its parameter. The other ranks drop the gradient once it is sent.
#[derive(Debug)]
pub(crate) struct Exchange {
    inner: Arc<Inner>,
    /// Switch off the callbacks of the parameters when they are dropped.
    _hooks: Vec<AccumulatedHook>,
}

#[derive(Debug)]
struct Inner {
    raw: RawExchange,
    links: Links,
    held: Held,
}

impl Inner {
    /// Notes that a backward pass has computed the gradient of a parameter.
    fn ready(&self, nth: usize) -> Result<()> {
        match self.held.0.load(Ordering::Relaxed) {
            EXCHANGING => self.raw.ready(nth),
            SHARE => Err(Error::usage(
                "a backward pass that the trainer did not run has computed the gradient of a parameter, but the gradients of \
                 this window are divided among the ranks already: call `cx.backward(&loss)` instead of `Tensor::backward`, \
                 or remove `.gradients(true)` from the optimizer",
            )),
            _ => Ok(()),
        }
    }
}

impl Exchange {
    /// Creates an exchange of the gradients of these named parameters, each of which belongs to a
    /// rank. Sends about `bucket_bytes` bytes at a time. Returns `None` in a single process. This
    /// is a collective.
    pub(crate) fn new<'a>(
        world: &World,
        params: impl IntoIterator<Item = (&'a str, &'a Tensor, u32)>,
        bucket_bytes: u64,
        held: &Held,
    ) -> Result<Option<Self>> {
        let Some(links) = world.links.as_ref() else { return Ok(None) };
        let (mut names, mut owners, mut list) = (Vec::new(), Vec::new(), Vec::new());
        for (name, tensor, owner) in params {
            names.push(name.to_owned());
            owners.push(owner.cast_signed());
            list.push(tensor.shallow_clone());
        }
        let list: TensorList = list.into_iter().collect();
        check_layout(links, &names, &list)?;
        let bytes = i64::try_from(bucket_bytes).unwrap_or(i64::MAX / 4).min(i64::MAX / 4);
        let raw = RawExchange::new(&links.group, &list, &owners, bytes)?;
        let inner = Arc::new(Inner { raw, links: links.clone(), held: held.clone() });
        let mut hooks = Vec::with_capacity(list.len());
        for (nth, tensor) in list.iter().enumerate() {
            // A callback may outlive the exchange, and must not keep the connections.
            let inner = Arc::downgrade(&inner);
            let ready = move |is_defined| match inner.upgrade().filter(|_| is_defined) {
                Some(inner) => inner.ready(nth),
                None => Ok(()),
            };
            hooks.push(on_accumulated(tensor, Box::new(ready))?);
        }
        Ok(Some(Exchange { inner, _hooks: hooks }))
    }

    /// Whether the exchange uses the connections of this world.
    pub(crate) fn is_of(&self, world: &World) -> bool {
        world.links.as_ref().is_some_and(|links| Arc::ptr_eq(&links.shared, &self.inner.links.shared))
    }

    /// Runs the backward pass of a loss, or without one only ends an earlier pass. The gradients
    /// are exchanged, together with those that this rank has computed before. Without `has_rows`,
    /// those of this rank do not count. Returns the number of gradients that the pass has computed
    /// on this rank.
    ///
    /// # Errors
    ///
    /// Returns the error of the pass, or an error if another rank failed, died or did not run the
    /// pass within the timeout. The gradients are then incomplete.
    pub(crate) fn during(
        &self,
        loss: Option<&Tensor>,
        has_rows: bool,
        pass: &mut dyn FnMut() -> Result<()>,
    ) -> Result<usize> {
        let Inner { raw, links, held } = &*self.inner;
        links.check_allowed(REDUCTION)?;
        let watch = &links.shared.watch;
        let has_sums = held.is_share();
        // A layer whose backward pass is a collective waits for the other ranks: if a gradient did
        // so too, two ranks could wait for each other.
        let may_wait = !current::has_outputs();
        watch.begin_backward(REDUCTION);
        let begun = raw.begin(loss, has_sums, has_rows, may_wait);
        held.set(EXCHANGING);
        let done = begun.and_then(|()| pass()).and_then(|()| raw.finish());
        match done {
            Ok(computed) => {
                held.set(SHARE);
                watch.end_backward();
                Ok(computed)
            }
            Err(error) => {
                held.set(OWN);
                raw.abandon();
                watch.abandon_backward();
                Err(links.explained(REDUCTION, &error))
            }
        }
    }
}
