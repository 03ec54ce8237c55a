//! Activation checkpointing.

use crate::modules::Patterns;
use crate::prelude::*;

/// Saves memory in training: keeps only the inputs of modules for the backward pass, which computes
/// the activations within them again (Chen et al., *Training Deep Nets with Sublinear Memory Cost*,
/// 2016). The backward pass takes the time of one more forward pass of these modules.
///
/// Use this when the activations of a model do not fit into memory. If smaller batches with
/// [`accumulate`](crate::TrainerBuilder::accumulate) fit, they need no second computation.
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
/// - **Nothing but memory changes.** Losses, gradients, weights and statistics have the same bits
///   as without the hook, with dropout, [`Amp`](super::Amp), gradient accumulation,
///   [`DataParallel`](super::DataParallel) and gradients of gradients. The hook only observes, so a
///   run can be resumed with or without it.
/// - **What is computed again** are the operators of libtorch that the module has called, with the
///   same random numbers and autocast mode, and not its Rust code: hooks at modules inside are
///   called once, and batch normalization updates its running statistics once.
/// - **Nested modules**: the outermost module that matches is computed again as a whole.
/// - **What is kept**: the input of the module, tensors that it uses and has not computed, such as
///   its parameters, and what hooks at modules inside compute. In evaluation, nothing is kept
///   anyway.
///
/// A module that changes a tensor in place that it has not created, other than the statistics of
/// batch normalization, cannot be computed again, and ends the run with an error. So does a hook
/// that changes an activation inside in place: use [`Cx::set_output`]. The backward pass fails if
/// the input or a parameter of the module was changed in place since the forward pass.
/// [`sync_batch_norm`](crate::distributed::sync_batch_norm) on several processes must not be
/// inside.
///
/// A hook of your own can decide for each call: [`Cx::checkpoint_activations`].
#[doc(alias = "gradient_checkpointing")]
#[derive(Debug)]
pub struct ActivationCheckpointing {
    modules: Patterns,
}

impl ActivationCheckpointing {
    /// Computes the activations of the modules with these names again: a pattern such as
    /// `"blocks.*"`, several patterns, or [`Patterns`].
    #[must_use]
    pub fn new(modules: impl Into<Patterns>) -> Self {
        ActivationCheckpointing { modules: modules.into() }
    }
}

#[hook(only = train, trial)]
impl ActivationCheckpointing {
    #[hook(of = self.modules)]
    fn before_module(&mut self, cx: &Cx<BeforeModule>) {
        cx.checkpoint_activations();
    }
}
