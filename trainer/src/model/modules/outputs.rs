//! The outputs of the modules in a forward pass.

use std::cell::RefCell;
use std::collections::BTreeMap;

use tch::Tensor;

use super::name::Name;
use super::pattern::Patterns;
use super::watcher::WatchGuard;

/// The outputs for each module name, in the order of the calls.
pub type Outputs = BTreeMap<String, Vec<Tensor>>;

struct OutputRecorder {
    modules: Patterns,
    outputs: Outputs,
}

thread_local! {
    static RECORDER: RefCell<Option<OutputRecorder>> = const { RefCell::new(None) };
}

/// Runs `forward`, and returns its result and the outputs of modules whose names match `modules`.
///
/// Only modules that `forward` calls on this thread are included. Their outputs are part of the
/// autograd graph.
///
/// `forward` is usually a forward pass outside of a run. No hook observes such a pass. In a hook
/// around `pred` or `loss`, `forward` can be the rest of the operation, `|| next.run(cx)`; the
/// outputs then include the effects of the run's hooks.
///
/// [`hooks::FeatureRecorder`](crate::hooks::FeatureRecorder) records outputs during a run.
///
/// ```
/// use trainer::modules;
/// use trainer::prelude::*;
///
/// let vs = nn::VarStore::new(Device::Cpu);
/// let path = vs.root() / "net";
/// let net = modules::seq(&path).add(nn::linear(&path / 0, 4, 8, Default::default())).add_fn(Tensor::relu);
/// let inputs = Tensor::zeros([2, 4], (Kind::Float, Device::Cpu));
/// let (features, outputs) = modules::outputs(&"net.0".into(), || inputs.apply(&net));
/// assert!(features.equal(&outputs["net.0"][0].relu()));
/// ```
///
/// # Panics
///
/// Panics if `forward` panics.
pub fn outputs<R>(modules: &Patterns, forward: impl FnOnce() -> R) -> (R, Outputs) {
    /// Restores the recorder of an outer call, even after a panic.
    struct Restore(Option<OutputRecorder>);

    impl Drop for Restore {
        fn drop(&mut self) {
            RECORDER.set(self.0.take());
        }
    }
    let recorder = OutputRecorder { modules: modules.clone(), outputs: Outputs::new() };
    let _restore = Restore(RECORDER.replace(Some(recorder)));
    let _guard = WatchGuard::outputs();
    let result = forward();
    let recorder = RECORDER.take().expect("only an inner call replaces the recorder, and restores it");
    (result, recorder.outputs)
}

/// Whether [`outputs`] is running on this thread.
pub(crate) fn is_recording() -> bool {
    RECORDER.with_borrow(Option::is_some)
}

/// Runs the forward pass of a module, and records its output if its name matches.
pub(crate) fn record(name: &Name, xs: &Tensor, forward: &mut dyn FnMut(&Tensor) -> Tensor) -> Tensor {
    let output = forward(xs);
    RECORDER.with_borrow_mut(|recorder| {
        if let Some(OutputRecorder { modules, outputs }) = recorder
            && modules.matches(name.as_str())
        {
            outputs.entry(name.as_str().to_owned()).or_default().push(output.shallow_clone());
        }
    });
    output
}
