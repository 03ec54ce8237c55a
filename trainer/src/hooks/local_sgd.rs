//! [`LocalSgd`]: ranks that train independently, and average their weights from time to time.

use super::{DataParallel, Ema, Lookahead, Swa, is_positive, refused, stages};
use crate::checkpoint::{Saved, SettingList, Settings, State};
use crate::distributed::Op;
use crate::prelude::own::*;
use crate::{Averages, wide};

/// Lets each of several [processes](crate::distributed) train independently, and averages their
/// weights after every `n` optimizer steps (Stich, *Local SGD Converges Fast and Communicates
/// Little*, 2019). The ranks then exchange their weights every `n` steps instead of their gradients
/// in every step, which suits slow networks. With [`outer`](LocalSgd::outer), this is DiLoCo
/// (Douillard et al., *DiLoCo: Distributed Low-Communication Training of Language Models*, 2023).
///
/// Use this when averaging the gradients in each step takes longer than computing them. Otherwise,
/// keep [`DataParallel`], which gives the same result as a single process, up to rounding.
///
/// If a trainer has this hook, the builder does not add [`DataParallel`]. A trainer with both hooks
/// is an error.
///
/// ```no_run
/// # use trainer::hooks::LocalSgd;
/// # use trainer::prelude::*;
/// # fn train(task: impl Task<Batch = Tensor>) -> Result<()> {
/// let trainer = Trainer::builder(task).optimizer(AdamW::new(1e-3)).hook(LocalSgd::every(16)).build()?;
/// # Ok(())
/// # }
/// ```
///
/// - The average over ranks is weighted by the [weights](Task::weight) of the batches on which each
///   rank has trained since the previous average. With plain SGD and `every(1)`, training is
///   therefore the same as with `DataParallel`, up to rounding, even if the ranks have different
///   numbers of rows. Floating-point buffers are averaged too. A rank whose batches have a weight
///   of 0 takes no step.
/// - Gradients are local to each rank, and so is what hooks do with them, such as clipping. The
///   optimizer state stays on its rank and is never averaged. All ranks take their optimizer steps
///   in the same batches, because they still exchange a small message before each batch.
/// - **Validation** between two averages uses the average of the current weights, in all evaluation
///   passes of a `fit`. Afterward, the weights of each rank are restored. Neither validation nor a
///   checkpoint affects training.
/// - **Checkpoints** contain the weights and the optimizer state of every rank, and resume exactly,
///   even between two averages. `averages.safetensors` then contains the average of the weights,
///   which [`load_weights`](crate::Trainer::load_weights) prefers; right after an average, all
///   ranks have the weights in `model.safetensors`. If the number of ranks changes, the resume is
///   not exact: each rank starts from the average.
/// - The weights are averaged at the end of a fit, so that all ranks end with the same weights.
///   Each fit begins with the weights of rank 0.
///
/// It cannot be combined with [`Ema`], [`Swa`] or [`Lookahead`], which keep their own averages, or
/// with [`Sharded`](crate::optim::Sharded), which lets each rank update only some of the
/// parameters. [`SyncBatchNorm`](crate::distributed::SyncBatchNorm) still communicates in each
/// batch.
///
/// In a single process, it does nothing unless [`outer`](LocalSgd::outer) is set.
#[doc(alias = "PostLocalSGDOptimizer")]
#[derive(Debug)]
pub struct LocalSgd {
    every: u64,
    outer: Option<OuterSgd>,
    /// The number of optimizer steps at the last average, or when the fit began.
    steps: u64,
    /// The number of batches since the last average or the start of the fit. If it is 0, all ranks
    /// have the same weights.
    batches: u64,
    /// The sum of the batch weights on this rank since the last average or the start of the fit.
    weight: f64,
    /// The state that the outer optimizer updates, one entry per parameter.
    shared: Vec<Shared>,
    /// The averages that evaluation passes use.
    averages: Averages,
}

/// The settings of the outer optimizer.
#[derive(Clone, Copy, Debug)]
struct OuterSgd {
    lr: f64,
    momentum: f64,
}

/// The state of a parameter in the outer optimizer: the value of the parameter after the last
/// average, which is the same on all ranks, and the momentum.
#[derive(Debug)]
struct Shared {
    name: String,
    weight: Tensor,
    momentum: Tensor,
}

impl LocalSgd {
    /// Averages the weights of all ranks after every `steps` optimizer steps, at least 1.
    #[must_use]
    pub fn every(steps: u64) -> Self {
        LocalSgd {
            every: steps,
            outer: None,
            steps: 0,
            batches: 0,
            weight: 0.0,
            shared: Vec::new(),
            averages: Averages::default(),
        }
    }

    /// Moves the weights toward the average with an outer optimizer, SGD with Nesterov momentum,
    /// instead of replacing them with the average (DiLoCo). The outer gradient is the difference
    /// between the weights after the last average and the new average. The momentum is
    /// `momentum * previous + gradient`, and the weights change by
    /// `-lr * (gradient + momentum * new momentum)`, as in `torch.optim.SGD`. The paper averages
    /// every 500 steps, with `outer(0.7, 0.9)`. `lr` must be above 0, and `momentum` from 0 to less
    /// than 1.
    ///
    /// The outer optimizer needs two more copies of the parameters on each rank. Validation between
    /// two averages uses the plain average.
    #[must_use]
    pub fn outer(mut self, lr: f64, momentum: f64) -> Self {
        self.outer = Some(OuterSgd { lr, momentum });
        self
    }

    /// Returns an error if another hook also keeps averages.
    fn check(cx: &Cx<Setup>) -> Result<()> {
        let others = [
            ("Ema", cx.hook::<Ema>().is_ok()),
            ("Swa", cx.hook::<Swa>().is_ok()),
            ("Lookahead", cx.hook::<Lookahead>().is_ok()),
        ];
        match others.into_iter().find(|(_, is_there)| *is_there) {
            None => Ok(()),
            Some((other, _)) => Err(Error::msg(format!(
                "`LocalSgd` and `{other}` both keep averages of the weights: remove one of them"
            ))),
        }
    }

    /// Resets the counters. If there is an outer optimizer, copies the current weights, which are
    /// the same on all ranks.
    fn begin<P: OnAllRanks>(&mut self, cx: &Cx<P>) {
        self.steps = cx.counters().optimizer_steps;
        self.batches = 0;
        self.weight = 0.0;
        self.shared.clear();
        if self.outer.is_some() {
            let shared = |weight: Tensor, name: &String| Shared {
                name: name.clone(),
                momentum: weight.zeros_like(),
                weight,
            };
            let vars = cx.vars();
            self.shared
                .extend(vars.parameters().map(|var| shared(wide(&var.tensor.detach()).copy(), &var.name)));
        }
    }

    /// Replaces floating-point tensors with their averages over all ranks.
    fn average<'t, P: OnAllRanks>(
        &self,
        cx: &Cx<P>,
        tensors: impl Iterator<Item = (&'t str, Tensor)>,
    ) -> Result<()> {
        let world = cx.world();
        let total = Tensor::from(self.weight);
        world.all_reduce("the weights of the ranks", &total, Op::Sum)?;
        let total = total.double_value(&[]);
        // Exactly 1 if all ranks have the same weight.
        let factor = if total > 0.0 { self.weight * f64::from(world.size()) / total } else { 1.0 };
        let tensors: Vec<_> = tensors.filter(|(_, tensor)| tensor.is_floating_point()).collect();
        let sums: Vec<_> = tensors.iter().map(|(name, tensor)| (*name, wide(tensor))).collect();
        if factor != 1.0 {
            for (_, sum) in &sums {
                let _ = sum.shallow_clone().f_mul_scalar_(factor)?;
            }
        }
        world.average(sums.iter().map(|(name, sum)| (*name, sum)))?;
        for ((_, mut tensor), (_, sum)) in tensors.into_iter().zip(&sums) {
            if tensor.kind() != sum.kind() {
                tensor.f_copy_(sum)?;
            }
        }
        Ok(())
    }

    /// Averages the weights of all ranks, and takes a step of the outer optimizer if there is one.
    fn synchronize<P: OnAllRanks>(&mut self, cx: &Cx<P>) -> Result<()> {
        let _no_grad = tch::no_grad_guard();
        let vars = cx.vars();
        self.average(cx, vars.iter().map(|var| (var.name.as_str(), var.tensor.detach())))?;
        if let Some(OuterSgd { lr, momentum }) = self.outer {
            for shared in &mut self.shared {
                let parameter = vars.get(&shared.name)?;
                let mut weight = parameter.detach();
                if !parameter.requires_grad() {
                    shared.weight.f_copy_(&weight)?; // frozen
                    continue;
                }
                let gradient = shared.weight.f_sub(&weight)?;
                let _ = shared.momentum.f_mul_scalar_(momentum)?.f_add_(&gradient)?;
                let step = gradient.f_add(&shared.momentum.f_mul_scalar(momentum)?)?;
                let _ = shared.weight.f_sub_(&step.f_mul_scalar(lr)?)?;
                weight.f_copy_(&shared.weight)?;
            }
        }
        self.steps = cx.counters().optimizer_steps;
        self.batches = 0;
        self.weight = 0.0;
        Ok(())
    }

    /// Computes the averages that evaluation passes and checkpoints use, unless they are already
    /// known or all ranks have the same weights.
    fn compute_averages<P: OnAllRanks>(&mut self, cx: &Cx<P>) -> Result<()> {
        if self.batches == 0 || !self.averages.is_empty() || cx.vars().share().of == 1 {
            return Ok(());
        }
        let _no_grad = tch::no_grad_guard();
        let mut averages = Averages::default();
        averages.update(&cx.vars(), 1.0, true)?; // copies the live values
        self.average(cx, averages.iter().map(|(name, average)| (name, average.shallow_clone())))?;
        self.averages = averages;
        Ok(())
    }
}

#[hook(in = stages::Averaging, ord = -1, single = DataParallel, state, settings)]
impl LocalSgd {
    /// Broadcasts the variables of rank 0 to all ranks. Returns an error if an optimizer or another
    /// hook cannot be combined with this one.
    fn setup(&mut self, cx: &mut Cx<Setup>) -> Result<()> {
        Self::check(cx)?;
        cx.train_separately()?;
        self.averages = Averages::default();
        DataParallel::broadcast(cx)
    }

    /// Broadcasts the variables of rank 0 again, including those that hooks have added in `setup`,
    /// unless each rank has loaded its own from a checkpoint.
    fn before_fit(&mut self, cx: &mut Cx<BeforeFit>) -> Result<()> {
        if !cx.is_resuming() {
            DataParallel::broadcast(cx)?;
            self.begin(cx);
        } else if self.outer.is_some() && self.shared.is_empty() {
            self.begin(cx); // the checkpoint was written without this hook
        }
        Ok(())
    }

    /// Uses the averages in evaluation passes and the weights of this rank in training, even after
    /// an evaluation pass that ended early.
    #[hook(only(train, valid))]
    fn before_step(&mut self, cx: &mut Cx<BeforeStep>) -> Result<()> {
        if cx.phase() == Phase::Train {
            self.averages.swap_out(&cx.vars())?;
            self.averages = Averages::default(); // the weights change now
            return Ok(());
        }
        self.compute_averages(cx)?;
        self.averages.swap_in(&cx.vars())
    }

    /// Uses the averages while a hook computes with the model, unless an evaluation pass uses them.
    fn eval(&mut self, cx: &mut Cx<Eval>, next: Next<Eval>) -> Result<Done> {
        if self.averages.are_in_use() {
            return next.run(cx);
        }
        self.compute_averages(cx)?;
        self.averages.swap_in(&cx.vars())?;
        let done = next.run(cx);
        self.averages.swap_out(&cx.vars())?;
        done
    }

    /// Averages the weights after every `n` optimizer steps.
    #[hook(only = train)]
    fn after_step(&mut self, cx: &mut Cx<AfterStep>) -> Result<()> {
        self.averages = Averages::default(); // computed by a hook since the last batch
        self.batches += 1;
        self.weight += cx.weight();
        if cx.counters().optimizer_steps - self.steps >= self.every { self.synchronize(cx) } else { Ok(()) }
    }

    /// Restores the weights of this rank.
    fn after_valid(&mut self, cx: &mut Cx<AfterValid>) -> Result<()> {
        self.averages.swap_out(&cx.vars())
    }

    /// Restores the weights of this rank and computes the averages, because the checkpoint saves
    /// both. The next batch of an evaluation pass uses the averages again.
    fn before_save_checkpoint(&mut self, cx: &mut Cx<BeforeSaveCheckpoint>) -> Result<()> {
        self.averages.swap_out(&cx.vars())?;
        self.compute_averages(cx)
    }

    /// Moves the loaded tensors to the task's device.
    fn after_load_checkpoint(&mut self, cx: &Cx<AfterLoadCheckpoint>) {
        for Shared { weight, momentum, .. } in &mut self.shared {
            *weight = weight.to_device(cx.device());
            *momentum = momentum.to_device(cx.device());
        }
    }

    /// Averages the weights, so that all ranks end with the same weights.
    fn after_fit(&mut self, cx: &mut Cx<AfterFit>) -> Result<()> {
        self.averages.swap_out(&cx.vars())?;
        if self.batches > 0 {
            self.synchronize(cx)?;
            self.averages = Averages::default();
        }
        Ok(())
    }

    /// Restores the weights of this rank, however the entry point ended.
    fn teardown(&mut self, cx: &mut Cx<Teardown>) -> Result<()> {
        self.averages.swap_out(&cx.vars())
    }
}

/// Saves the state of the outer optimizer, the counters since the last average, and the averages.
/// The settings come from the program.
#[diagnostic::do_not_recommend]
impl State for LocalSgd {
    fn save(&self) -> Result<Saved> {
        let mut saved = Saved::new();
        saved.set("steps", &self.steps)?;
        saved.set("batches", &self.batches)?;
        saved.set("weight", &self.weight)?;
        for Shared { name, weight, momentum } in &self.shared {
            saved.set_tensor(&format!("weight/{name}"), weight)?;
            saved.set_tensor(&format!("momentum/{name}"), momentum)?;
        }
        self.averages.save(&mut saved)?;
        Ok(saved)
    }

    fn load(&mut self, saved: &Saved) -> Result<()> {
        self.steps = saved.get("steps")?;
        self.batches = saved.get("batches")?;
        self.weight = saved.get("weight")?;
        let tensors: Vec<(&str, &Tensor)> = saved.tensors().collect();
        let momentum = |name: &str| {
            let found = tensors.iter().find(|(own, _)| own.strip_prefix("momentum/") == Some(name));
            let found = found.ok_or_else(|| Error::msg(format!("the momentum of `{name}` is missing")))?;
            Ok::<_, Error>(wide(found.1).copy())
        };
        self.shared = tensors
            .iter()
            .filter_map(|(own, weight)| Some((own.strip_prefix("weight/")?, weight)))
            .map(|(name, weight)| {
                Ok(Shared { name: name.to_owned(), weight: wide(weight).copy(), momentum: momentum(name)? })
            })
            .collect::<Result<_>>()?;
        self.averages = Averages::default(); // they are computed from the weights
        Ok(())
    }
}

#[diagnostic::do_not_recommend]
impl Settings for LocalSgd {
    fn settings(&self) -> SettingList {
        let LocalSgd { every, outer, steps: _, batches: _, weight: _, shared: _, averages: _ } = self;
        let list = SettingList::new().with("every", every);
        list.with_optional("outer.lr", outer.map(|outer| outer.lr))
            .with_optional("outer.momentum", outer.map(|outer| outer.momentum))
    }

    fn mistakes(&self) -> Vec<String> {
        let OuterSgd { lr, momentum } = self.outer.unwrap_or(OuterSgd { lr: 1.0, momentum: 0.0 });
        refused([
            (self.every == 0, "`LocalSgd::every(0)`: expected at least 1 optimizer step".to_owned()),
            (
                !(is_positive(lr) && (0.0..1.0).contains(&momentum)),
                format!(
                    "`.outer({lr:?}, {momentum:?})`: expected a learning rate above 0.0, and a momentum from 0.0 to less than 1.0"
                ),
            ),
        ])
    }
}
