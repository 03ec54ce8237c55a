//! Activation checkpointing.

use crate::modules::Patterns;
use crate::prelude::own::*;

/// Saves memory in training: keeps only the inputs of selected modules, and recomputes their
/// activations in the backward pass (Chen et al., *Training Deep Nets with Sublinear Memory Cost*,
/// 2016). This adds the time of one forward pass of these modules to the backward pass.
///
/// Use this when the activations of a model do not fit into memory. If smaller batches with
/// [`accumulate`](crate::TrainerBuilder::accumulate) fit, prefer them, because they need no
/// recomputation.
///
/// ```
/// use trainer::hooks::ActivationCheckpointing;
/// use trainer::modules;
/// use trainer::prelude::*;
///
/// let vs = nn::VarStore::new(Device::Cpu);
/// let block = |nth: i64| {
///     let path = vs.root() / "blocks" / nth;
///     modules::seq_t(&path)
///         .add(nn::linear(&path / 0, 16, 16, Default::default()))
///         .add_fn_t(|xs, train| xs.gelu("none").dropout(0.1, train))
/// };
/// let net = nn::seq_t().add(block(0)).add(block(1)).add(block(2));
/// let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
/// let mut trainer = Trainer::builder(task)
///     .optimizer(AdamW::new(1e-3))
///     .hook(ActivationCheckpointing::new("blocks.*"))
///     .build()?;
///
/// let inputs = Tensor::randn([64, 16], (Kind::Float, Device::Cpu));
/// let labels = inputs.argmax(1, false);
/// trainer.fit(&mut InMemory::new((inputs, labels))?.batch_size(16), None)?;
/// # Ok::<(), trainer::Error>(())
/// ```
///
/// - **Nothing but memory changes.** Losses, gradients, weights and statistics are bit-identical to
///   those without the hook, even with dropout, [`Amp`](super::Amp), gradient accumulation,
///   [`DataParallel`](super::DataParallel) and gradients of gradients. The hook only observes, so a
///   run can be resumed with or without it.
/// - **What is recomputed**: the libtorch operators that the module called, with the same random
///   numbers and autocast mode, but not its Rust code. Hooks at modules inside it are therefore
///   called only once, and batch normalization updates its running statistics only once.
/// - **Nested modules**: the outermost matching module is recomputed as a whole.
/// - **What is kept**: the module's input; the tensors that the module uses but does not compute,
///   such as its parameters; and the results of hooks at modules inside it. In evaluation, nothing
///   is kept, with or without the hook.
///
/// A module cannot be recomputed if it modifies in place a tensor that it did not create: the run
/// then ends with an error. The statistics of batch normalization are an exception. The run also
/// ends with an error if a hook modifies in place an activation that is computed inside the module:
/// use [`Cx::set_output`] instead. The same applies to changes that libtorch does not count: those
/// through `tensor.data()`, and data that `set_data` replaces. The backward pass fails if the
/// module's input or one of its parameters was modified in place after the forward pass. With
/// several processes, the module must not contain
/// [`sync_batch_norm`](crate::distributed::sync_batch_norm).
///
/// With [`Cx::checkpoint_activations`], a custom hook can decide for each call of a module whether
/// to recompute its activations.
#[doc(alias = "gradient_checkpointing")]
#[derive(Debug)]
pub struct ActivationCheckpointing {
    modules: Patterns,
}

impl ActivationCheckpointing {
    /// Recomputes the activations of the modules with these names: a pattern such as `"blocks.*"`,
    /// several patterns, or [`Patterns`].
    #[must_use]
    pub fn new(modules: impl Into<Patterns>) -> Self {
        ActivationCheckpointing { modules: modules.into() }
    }
}

#[hook(only = train, trial)]
impl ActivationCheckpointing {
    #[hook(of = self.modules)]
    fn before_module_forward(&mut self, cx: &Cx<BeforeModuleForward>) {
        cx.checkpoint_activations();
    }
}
