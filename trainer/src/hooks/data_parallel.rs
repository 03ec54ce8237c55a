//! [`DataParallel`]: training one model in several processes, each with a share of every batch.

use std::collections::BTreeMap;

use super::{StochasticDepth, refused, stages};
use crate::checkpoint::{SettingList, Settings};
use crate::distributed::Reducer;
use crate::prelude::own::*;

/// Trains one model in several [processes](crate::distributed): broadcasts the weights of rank 0 to
/// all processes, and averages the gradients with libtorch's reducer, which sends gradients while
/// the backward pass is still running. The builder adds this hook if there are several processes.
///
/// Use [`LocalSgd`](super::LocalSgd) instead when the network between the processes is too slow to
/// exchange gradients in each step.
///
/// - Gradients are averaged in the last backward pass of an accumulation window. Hooks at
///   `before_opt_step` and around `opt_step` see the averages.
/// - If a hook replaces `backward`, or runs another backward pass with [`Cx::backward`], gradients
///   are averaged at `before_opt_step`, before all other hooks.
/// - Each part of the model that has its own optimizer has its own reducer. An optimizer that
///   [divides the gradients](crate::optim::Sharded::gradients) averages them itself.
/// - Floating-point buffers, such as the running statistics of batch normalization, are averaged
///   before each validation and each checkpoint, and at the end of a fit. The buffers of a
///   [`SyncBatchNorm`](crate::distributed::SyncBatchNorm) are the same on all ranks anyway.
///
/// ```
/// use trainer::hooks::DataParallel;
/// use trainer::prelude::*;
///
/// fn mixture_of_experts(builder: trainer::TrainerBuilder<impl Task>) -> trainer::TrainerBuilder<impl Task> {
///     builder.hook(DataParallel::new().find_unused(true))
/// }
/// ```
#[doc(alias("DistributedDataParallel", "DDP", "strategy"))]
#[derive(Debug)]
pub struct DataParallel {
    bucket_bytes: u64,
    find_unused: bool,
    static_graph: bool,
    compress: Option<Kind>,
    /// One reducer for each part of the model that has an optimizer.
    reducers: BTreeMap<String, Reducer>,
    /// For each part, the names of the parameters that its reducer was created for.
    trained: BTreeMap<String, Vec<String>>,
}

impl Default for DataParallel {
    fn default() -> Self {
        DataParallel {
            bucket_bytes: 25 << 20,
            find_unused: false,
            static_graph: false,
            compress: None,
            reducers: BTreeMap::new(),
            trained: BTreeMap::new(),
        }
    }
}

impl DataParallel {
    /// Creates the hook with its default settings.
    #[must_use]
    pub fn new() -> Self {
        DataParallel::default()
    }

    /// Sets the size of a bucket: the number of bytes of gradients that are sent at a time.
    /// Defaults to 25 MiB. As in PyTorch, the first bucket has at most 1 MiB. A size of 0 is an
    /// error when training begins.
    #[must_use]
    pub fn bucket_bytes(mut self, bytes: u64) -> Self {
        self.bucket_bytes = bytes;
        self
    }

    /// Sets whether to search the graph of each loss for parameters on which the loss does not
    /// depend, like PyTorch's `find_unused_parameters`. Defaults to `false`: a parameter without a
    /// gradient is then an error.
    ///
    /// A parameter that no rank uses in a batch has no gradient, as in a single process. If the
    /// batch has fewer rows than there are ranks, the parameter has a gradient of 0 instead.
    #[must_use]
    pub fn find_unused(mut self, find: bool) -> Self {
        self.find_unused = find;
        self
    }

    /// Declares that the loss of every batch depends on the same parameters, like PyTorch's
    /// `static_graph`. Defaults to `false`. The first backward pass records these parameters, so a
    /// model with parameters that are never used does not need
    /// [`find_unused`](DataParallel::find_unused), which searches the graph in each batch. After
    /// parameters are frozen or thawed, the next backward pass records anew which parameters the
    /// loss depends on.
    ///
    /// A loss that depends on different parameters than the recorded ones is an error. Combining
    /// this setting with `find_unused`, or with [`StochasticDepth`], which skips layers at random,
    /// is an error when training begins. If a rank may have no rows in a batch, or no batch at all,
    /// every parameter must be used, because such a rank has a gradient of 0 for each parameter.
    #[must_use]
    pub fn static_graph(mut self, is_static: bool) -> Self {
        self.static_graph = is_static;
        self
    }

    /// Sends gradients in this 16-bit dtype, [`Kind::BFloat16`] or [`Kind::Half`]. This halves the
    /// traffic of `f32` parameters, and rounds the gradients to 8 or 11 significant bits. With
    /// `Half`, gradients above 65504 become infinite. By default, gradients are sent in their own
    /// dtype.
    ///
    /// Any other dtype is an error of [`build`](crate::TrainerBuilder::build).
    #[must_use]
    pub fn compress(mut self, kind: Kind) -> Self {
        self.compress = Some(kind);
        self
    }

    /// Broadcasts the variables of rank 0 to all ranks.
    pub(super) fn broadcast<P: OnAllRanks>(cx: &Cx<P>) -> Result<()> {
        let vars = cx.vars();
        cx.world().broadcast(vars.iter().map(|var| (&var.name, &var.tensor)), 0)
    }

    /// Averages the floating-point buffers over all ranks.
    fn average_buffers<P: OnAllRanks>(cx: &mut Cx<P>) -> Result<()> {
        let vars = cx.vars();
        let buffers = vars.iter().filter(|var| !var.is_parameter && var.tensor.is_floating_point());
        cx.world().average(buffers.map(|var| (&var.name, &var.tensor)))
    }
}

#[hook(in = stages::Communication, auto = ranks, single, settings, trial)]
impl DataParallel {
    /// Broadcasts the variables of rank 0 to all ranks. Returns an error if the graph cannot be
    /// static or the gradients cannot be compressed.
    fn setup(&mut self, cx: &mut Cx<Setup>) -> Result<()> {
        self.reducers.clear();
        self.trained.clear();
        if self.static_graph && cx.hook::<StochasticDepth>().is_ok() {
            return Err(Error::msg(
                "`DataParallel::new().static_graph(true)` cannot be used with `StochasticDepth`, which leaves out layers at random: \
                 use `.find_unused(true)` instead",
            ));
        }
        for part in cx.parts() {
            if self.compress.is_some() && cx.optimizer_of(part)?.divided_gradients().is_some() {
                return Err(Error::msg(
                    "`DataParallel::new().compress(…)` cannot compress gradients that the optimizer divides among the ranks: remove \
                     `.compress(…)`, or `.gradients(true)` from `Sharded`",
                ));
            }
        }
        Self::broadcast(cx)
    }

    /// Broadcasts the variables of rank 0 again, including those that hooks have added in `setup`.
    fn before_fit(&mut self, cx: &mut Cx<BeforeFit>) -> Result<()> {
        Self::broadcast(cx)
    }

    /// Averages the gradients in the last backward pass of an accumulation window.
    fn reduce(&mut self, cx: &mut Cx<Backward>, next: Next<Backward>) -> Result<Done> {
        let world = cx.world();
        let part = cx.part().to_owned();
        if !part.is_empty() {
            // Detects that a hook skipped a part on some ranks only.
            world.barrier(&format!("the gradients of {part}"))?;
        }
        if cx.optimizer()?.divided_gradients().is_some() {
            return next.run(cx); // the optimizer averages them
        }
        let vars = cx.vars();
        let own = || vars.parameters().filter(|var| var.tensor.requires_grad() && var.is_in(&part));
        // Parameters may be frozen or thawed during training.
        let is_known =
            self.trained.get(&part).is_some_and(|known| own().map(|var| &var.name).eq(known.iter()));
        if !is_known && self.static_graph && !cx.is_boundary() {
            // The reducer records the graph in the first backward pass that it averages, and would
            // also count the earlier passes of the accumulation window.
            return next.run(cx);
        }
        if !is_known {
            // Detects that parameters were frozen or thawed in this batch on some ranks only: the
            // other ranks do not get here.
            world.barrier("a change of the parameters that are trained")?;
            let names = own().map(|var| var.name.clone()).collect();
            let own = own().map(|var| (var.name.as_str(), &var.tensor));
            self.reducers.remove(&part);
            let reducer = Reducer::new(&world, own, self.bucket_bytes, self.find_unused)?;
            if self.static_graph {
                reducer.set_static_graph()?;
            }
            if let Some(kind) = self.compress {
                reducer.compress(kind)?;
            }
            self.reducers.insert(part.clone(), reducer);
            self.trained.insert(part.clone(), names);
        }
        let reducer = &self.reducers[&part];
        if !cx.is_boundary() {
            return next.run(cx).map_err(|error| reducer.explained(error));
        }
        reducer.prepare(&cx.loss())?;
        let done = next.run(cx).and_then(|done| reducer.finish().map(|()| done));
        let done = done.map_err(|error| reducer.explained(error))?;
        let why = if self.static_graph {
            "the gradients cannot be averaged, because the loss depends on different parameters than in the first batch: remove \
             `.static_graph(true)`, and use `.find_unused(true)` instead"
        } else {
            "the gradients cannot be averaged, because some parameters had none: if the loss does not depend on all of \
             them, add `.hook(DataParallel::new().find_unused(true))`"
        };
        reducer.check().map_err(|error| {
            let error = error.to_string();
            Error::msg(format!("{why} ({})", error.lines().next().unwrap_or_default()))
        })?;
        cx.set_grads_averaged();
        Ok(done)
    }

    /// Averages gradients that a hook computed by replacing the `backward` operation or by running
    /// another backward pass. Returns an error if the ranks have gradients of different parameters.
    #[hook(in = stages::First, ord = i32::MIN)]
    fn before_opt_step(&mut self, cx: &mut Cx<BeforeOptStep>) -> Result<()> {
        if cx.grads_are_averaged() {
            return Ok(());
        }
        let part = cx.part().to_owned();
        let own = cx.grads().filter(|(name, _)| name.is_in(&part));
        cx.world().average(own).map_err(|error| {
            Error::msg(format!(
                "cannot average the gradients that a hook computed: run the same backward passes on all ranks ({error})"
            ))
        })?;
        cx.set_grads_averaged();
        Ok(())
    }

    /// Averages the buffers.
    fn before_valid(&mut self, cx: &mut Cx<BeforeValid>) -> Result<()> {
        Self::average_buffers(cx)
    }

    /// Averages the buffers.
    fn before_save_checkpoint(&mut self, cx: &mut Cx<BeforeSaveCheckpoint>) -> Result<()> {
        Self::average_buffers(cx)
    }

    /// Averages the buffers.
    fn after_fit(&mut self, cx: &mut Cx<AfterFit>) -> Result<()> {
        Self::average_buffers(cx)
    }

    /// Drops the reducers.
    #[hook(only = train)]
    fn teardown(&mut self, _: &Cx<Teardown>) {
        self.reducers.clear();
        self.trained.clear();
    }
}

#[diagnostic::do_not_recommend]
impl Settings for DataParallel {
    fn settings(&self) -> SettingList {
        let DataParallel { bucket_bytes, find_unused, static_graph, compress, reducers: _, trained: _ } =
            self;
        let list = SettingList::new().with("bucket_bytes", bucket_bytes).with("find_unused", find_unused);
        // Omitted unless it is on, so that checkpoints written before this setting existed can be
        // resumed.
        let static_graph = static_graph.then_some(true);
        list.with_optional("static_graph", static_graph.as_ref()).with_optional("compress", compress.as_ref())
    }

    fn mistakes(&self) -> Vec<String> {
        refused([
            (
                self.bucket_bytes == 0,
                "`DataParallel::new().bucket_bytes(0)`: expected at least 1".to_owned(),
            ),
            (
                self.static_graph && self.find_unused,
                "`DataParallel::new().static_graph(true)` already determines the unused parameters in the first batch: remove \
                 `.find_unused(true)`"
                    .to_owned(),
            ),
            (
                !matches!(self.compress, None | Some(Kind::BFloat16 | Kind::Half)),
                format!(
                    "`DataParallel::new().compress(…)`: gradients cannot be compressed to {:?}: expected `Kind::BFloat16` or `Kind::Half`",
                    self.compress.unwrap_or(Kind::Float)
                ),
            ),
        ])
    }
}
