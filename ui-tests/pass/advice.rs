//! The code in the messages of the crates: each piece occurs here, so that it compiles. A test
//! compares the messages with this file, in which `…` and `{…}` of a message stand for any code.

#![allow(dead_code, clippy::needless_borrow, clippy::needless_pass_by_value, reason = "messages quote it")]

use std::time::Duration;

#[allow(unused_imports)]
use trainer::AddVariables as _;
use trainer::checkpoint::LoadWeights;
#[allow(unused_imports)]
use trainer::checkpoint::Settings as _;
use trainer::data::{DataLoader, NamedLoaders, from_fn};
use trainer::distributed::World;
use trainer::estimate::Estimate;
use trainer::finders::{BatchSizeFinder, LearningRateFinder};
use trainer::hooks::{
    Amp, Checkpoint, DataParallel, DeadUnits, Ema, Freeze, HyperparameterMonitor, HyperparameterSchedule,
    KernelProfiler, LabelSmoothing, LocalSgd, Lookahead, MixUp, NanGuard, ParameterMonitor, ReduceOnPlateau,
    Sam, SaturatedUnits, Swa,
};
use trainer::losses::LinearCrossEntropy;
use trainer::metrics::{
    Accuracy, Auroc, Average, Bleu, CalibrationError, Dice, FBeta, MeanSquaredError, Metric, PerGroup, Psnr,
    Running, Spearman, Ssim,
};
use trainer::modules::Patterns;
use trainer::optim::Sharded;
use trainer::optim::Tch;
use trainer::prelude::*;
use trainer::schedule::{
    Constant, Cosine, CosineRestarts, Linear, MultiStep, OneCycle, Polynomial, StepDecay,
};
use trainer::testing::{Harness, Ranks};
use trainer::{Autocast, Cx, HookOptions, OnSignal, RunFolder, StepDone, TrainStep, TrainerBuilder};

type Pair = (Tensor, Tensor);
type MyBatch = Pair;
type MyPred = Tensor;

fn settings<T: Task>(
    builder: TrainerBuilder<T>,
    loader: impl Loader<T::Batch> + Send + 'static,
    world: World,
) -> TrainerBuilder<T> {
    let n = 10;
    let builder = builder.rank(0).world(world).update_batch_norm(loader).validate_every(Every::Steps(n));
    let builder = builder.accumulate(0);
    let builder = builder.allow_inexact_resume(true);
    let builder = builder.device(Device::Cpu).device(Device::Cuda(0)).auto_device();
    let launch = trainer::distributed::Launch::tcp(0, 2, "127.0.0.1", 29_500);
    let builder = builder.device(Device::Cuda(launch.local_rank() as usize));
    let builder = builder.cudnn_benchmark(true);
    let builder = builder.discover(Discover::None);
    let builder = builder.discover(Discover::crates(["plugin"]));
    let builder = builder.epochs(0).min_epochs(1).max_steps(0).min_steps(1).max_time(Duration::ZERO);
    let builder = builder.fast_dev_run(0).overfit_batches(1);
    let builder = builder.hook(Checkpoint::new("runs/first"));
    let builder = builder.hook(DataParallel::new().find_unused(true));
    let builder = builder.hook(trainer::hooks::NanGuard::fail().gradients(true));
    let builder = builder.hook(NanGuard::fail().gradients(true).buffers(true));
    let builder = builder.hook(Swa::from_epoch(0));
    let builder = builder.hyperparameter("", 1.0);
    let builder = builder.on::<AfterStep>("name", |cx| cx.log("x", 1.0));
    let builder = builder.on_signal(OnSignal::Ignore);
    let builder = builder.optimizer(AdamW::new(1e-3));
    let builder = builder.optimizer_of("generator", AdamW::new(1e-3));
    let builder = builder.profile(true).profile_synchronized(true);
    let builder = builder.record_every(Every::Epochs(1)).record_every(Every::Steps(1));
    let builder = builder.clip_grad_norm(1.0);
    let builder = builder.resume(Resume::Auto);
    let builder = builder.run_folder("runs/first").run_folder(RunFolder::numbered("runs"));
    let builder = builder.seed(1).detect_anomaly(true);
    let builder = builder.world(World::solo());
    let builder = builder.validate_every(Every::Steps(10)).validate_every(Every::Fraction(0.5));
    builder.without("plugin::hook")
}

fn hooks_of_task(builder: TrainerBuilder<Generic<u8>>) -> TrainerBuilder<Generic<u8>> {
    builder.task_hooks()
}

struct Generic<N>(Model, std::marker::PhantomData<N>);

#[hook]
impl<N: Send + 'static> Generic<N> {
    fn after_step(&mut self, _: &mut Cx<AfterStep>) {}
}

impl<N: Send + 'static> Task for Generic<N> {
    type Batch = Pair;
    type Pred = Tensor;

    fn vars(&self) -> &nn::VarStore {
        &self.0.vars
    }
    fn pred(&mut self, batch: &Pair, mode: Mode) -> Result<Tensor> {
        self.0.pred(batch, mode)
    }
    fn loss(&mut self, pred: &Tensor, batch: &Pair) -> Result<Tensor> {
        self.0.loss(pred, batch)
    }
}

fn entries<T: Task<Batch = Pair>>(
    builder: TrainerBuilder<T>,
    mut train: impl Loader<Pair>,
    mut valid: impl Loader<Pair>,
) -> Result<()> {
    let mut trainer = builder.build()?;
    trainer.describe_hooks().only_used().print();
    trainer.fit(&mut train, Some(&mut valid))?;
    trainer.load_weights("runs/first/step-00000010", &LoadWeights::new())?;
    let _ = trainer.is_resuming();
    Ok(())
}

fn weights() -> LoadWeights<'static> {
    let _ = LoadWeights::new().partial(true);
    let _ = LoadWeights::new().section("model");
    let options = LoadWeights::new().skip_mismatched(true).skip("head.*").section("ema");
    options.rename(|name| Some(name.to_owned())).rename_pattern("a.*", "b.*")
}

fn hooks() {
    let _ = Ema::new(0.9).every(0);
    let _ = Checkpoint::in_run_folder();
    let _ = Checkpoint::new("runs").keep_best(0, "valid/loss", Goal::Minimize).keep_last(0);
    let _ = Checkpoint::new("runs").every(Every::Fraction(0.5));
    let _ = DataParallel::new().bucket_bytes(0);
    let _ = DataParallel::new().static_graph(true);
    let _ = LocalSgd::every(0);
    let _ = Freeze::new("encoder.*").freeze_at(1, "head.*").thaw_at(1, "head.*");
    let _ = HyperparameterSchedule::momentum(Cosine::to(0.0));
    let _ = KernelProfiler::new("runs", 10..13);
    let _ = LabelSmoothing::new(0.1);
    let _ = Lookahead::new(5, 0.5);
    let _ = MixUp::new(0.2).classes(10);
    let _ = NanGuard::fail().loss(true).gradients(true);
    let _ = NanGuard::skip_batch().every(10);
    let _ = NanGuard::skip_batch().validation(true);
    let _ = NanGuard::stop();
    let _ = ParameterMonitor::new("encoder.*").weights(true).gradients(true).updates(true);
    let _ = ParameterMonitor::new("encoder.*").gradients(false);
    let _ = ParameterMonitor::new("encoder.*").histograms(false);
    let _ = ReduceOnPlateau::new("valid/loss", Goal::Minimize).factor(0.1);
    let _ = Sam::new(0.05);
    let _ = SaturatedUnits::new("relu", 0.0, 1.0);
    let _ = Amp::fp16().init_scale(1.0).growth_interval(0);
}

fn schedules() {
    let _ = Cosine::to(0.0).over(1000);
    let _ = Cosine::to(0.0).times(Constant::new(0.5));
    let _ = Cosine::to(0.0).over(0.1);
    let _ = Linear::to(0.0).over(1000);
    let _ = Constant::new(0.5).over(1000);
    let _ = Polynomial::new(1.0).over(1000);
    let _ = CosineRestarts::every(1000).growing(0);
    let _ = StepDecay::new(1000, 0.1);
    let _ = MultiStep::new([1000], 0.1);
    let _ = OneCycle::new().over(1000);
    let _ = OneCycle::new().pct_start(0.3);
    let _ = OneCycle::new().div_factor(25.0);
    let _ = OneCycle::new().momentum(0.85, 0.95);
    let _ = Linear::to(0.0).warm_up(1000).then(1000, Constant::new(0.5));
    let _ = HyperparameterSchedule::lr(|step: u64| 0.5_f64.powf(step as f64)).part("generator");
}

fn estimates(estimate: &Estimate, ranks: u32, stage: u32) -> Result<()> {
    let _ = estimate.on_ranks(ranks, stage)?;
    let _ = Estimate::on_ranks;
    Ok(())
}

fn finders() {
    let _ = LearningRateFinder::new().from(1e-6).to(1.0).steps(100).smoothing(0.9).stop_at(4.0);
    let _ = BatchSizeFinder::new().from(8).max(1024).steps(3);
}

fn optimizers(vs: &nn::VarStore, vars: &trainer::Vars) -> Result<()> {
    let _ = AdamW::new(1e-3).group("head.*", AdamW::new(1e-3)).layer_decay(0.9, ["encoder.0"]);
    let _ = Sgd::new(0.1).momentum(0.9).nesterov(true);
    let _ = HyperparameterSchedule::lr(Cosine::to(0.0)).group("head.*").ungrouped();
    let _ = Sharded::new(AdamW::new(1e-3)).gradients(true);
    let _ = Autocast::enable(Device::Cpu, Kind::BFloat16)?;
    let _ = LinearCrossEntropy::new().label_smoothing(0.1);
    let _ = Tch::new(nn::Adam::default(), &vs, 1e-3)?;
    let _ = net(&vs.root());
    Optimizer::bind_share(&mut Sgd::new(0.1), vars, &|_| true)?;
    Ok(())
}

fn net(path: &nn::Path<'_>) -> nn::Linear {
    nn::linear(path / "fc", 4, 2, Default::default())
}

fn data(loader: impl Loader<Pair>, inputs: Tensor) -> Result<()> {
    let _ = inputs.resolve_conj().resolve_neg();
    let _ = NamedLoaders::new().add("name", loader);
    let _ = NamedLoaders::<Pair>::new().add_every("name", from_fn(|_| Vec::<Pair>::new()), Every::Epochs(2));
    let _ = InMemory::new(inputs.copy())?.batch_size(0).drop_last(true).prefetch(0).to_device(Device::Cpu);
    let _ = from_fn(|_| Vec::<Pair>::new()).deterministic(true).sliced();
    let _ = from_fn(|_| Vec::<Pair>::new()).per_rank();
    let _ = DataLoader::new(Items).workers(2);
    let _ = trainer::distributed::main_first("data", || Ok::<_, trainer::Error>(()));
    trainer::tch::set_num_threads(1);
    Ok(())
}

struct Items;

impl trainer::data::Dataset for Items {
    type Row = Tensor;

    fn len(&self) -> usize {
        0
    }
    fn row(&self, _: usize, _: &mut trainer::data::RowRng) -> Result<Tensor> {
        Ok(Tensor::new())
    }
}

fn metrics() -> impl Metric {
    let _ = Accuracy::multiclass(10).top_k(5).threshold(0.5).ignore_index(-100).per_class(true);
    let _ = Accuracy::multiclass(2).class_names(["cat", "dog"]);
    let _ = Accuracy::multilabel(10).average(Average::Micro).only([Phase::Valid]);
    let _ = HookOptions::named("a").only([]);
    let _ = trainer::Tape::steps(0).batches(3..7);
    let _ =
        Accuracy::multiclass(10).inputs(|batch: &MyBatch, pred: &MyPred| Some((pred.copy(), batch.1.copy())));
    let _ = PerGroup::new(Accuracy::binary(), 2).groups(|batch: &MyBatch| batch.1.copy());
    let _ = PerGroup::new(MeanSquaredError::new(), 0);
    let _ = Running::new(MeanSquaredError::new(), 0);
    let _ = Auroc::binary().thresholds(100);
    let _ = Spearman::new().thresholds(100, 0.0..1.0);
    let _ = FBeta::binary().beta(2.0);
    let _ = CalibrationError::binary().bins(0);
    let _ = Dice::new(2);
    let _ = Psnr::new(1.0);
    let _ = Ssim::new(1.0).sigma(1.5).constants(0.01, 0.03);
    let _ = trainer::metrics::States::new([]);
    Bleu::new().n_gram(0)
}

fn modules(layer: nn::Linear) {
    let _ = layer.named("model");
    let _ = Patterns::all();
    let _ = DeadUnits::new("relu").threshold(0.0).unit_dim(1);
    let _ = SaturatedUnits::new("relu", 0.0, 1.0).margin(0.01);
    let _ = HyperparameterMonitor::new().names(["lr"]);
    let _ = HookOptions::from("name").of("").every(0);
    let _ = trainer::optim::Group::new().frozen(true);
    let _ = Tensor::new().set_requires_grad(false);
}

fn tests() {
    let _ = Harness::small().phase(Phase::Valid).cancel_after(0);
    let _ = Ranks::new(0);
}

struct Model {
    vars: nn::VarStore,
    net: nn::Linear,
}

impl Task for Model {
    type Batch = Pair;
    type Pred = Tensor;

    fn vars(&self) -> &nn::VarStore {
        &self.vars
    }
    fn pred(&mut self, batch: &Pair, _: Mode) -> Result<Tensor> {
        Ok(batch.0.apply(&self.net))
    }
    fn loss(&mut self, pred: &Tensor, batch: &Pair) -> Result<Tensor> {
        Ok(pred.mse_loss(&batch.1, Reduction::None).mean(Kind::Float))
    }
    fn train_step<'s>(step: &mut TrainStep<'s, Self>) -> Result<StepDone<'s>> {
        let forward = step.pred()?;
        let loss = step.loss(forward)?;
        let gradients = step.backward_of("generator", loss)?;
        step.opt_step(gradients)
    }
}

fn of_tasks() {
    let _ = <Model as Task>::metric_inputs;
    let _ = [Task::pred as fn(&mut Model, &Pair, Mode) -> Result<Tensor>];
    let is_trained = |mode| mode == Mode::Train;
    let _ = is_trained(Mode::Eval);
    let _ = [Task::vars_mut as fn(&mut Model) -> Option<&mut nn::VarStore>];
    let _ = [Task::weight as fn(&Model, &Pair) -> f64];
    let _ = [Task::metric_inputs as fn(&Model) -> Option<trainer::MetricInputs<Model>>];
    let _ = [Kind::Float, Kind::Half, Kind::BFloat16];
}

struct Clips;

impl trainer::checkpoint::State for Clips {
    fn save(&self) -> Result<trainer::checkpoint::Saved> {
        Ok(trainer::checkpoint::Saved::new())
    }
    fn load(&mut self, _: &trainer::checkpoint::Saved) -> Result<()> {
        Ok(())
    }
}

#[hook(after = trainer::stages::Clipping, state)]
impl Clips {
    fn step(&mut self, cx: &mut Cx<OptStep>, next: Next<OptStep>) -> trainer::Result<Done> {
        let _ = cx.grads();
        next.replace(cx, |cx| cx.optimizer_mut()?.step())
    }

    #[hook]
    fn own(
        &mut self,
        cx: &mut Cx<Backward>,
        next: Next<Backward>,
    ) -> Result<Done, Box<dyn std::error::Error + Send + Sync>> {
        if cx.phase() == Phase::Train {
            return Ok(next.replace(cx, |cx| cx.backward(&cx.scaled_loss()))?);
        }
        let done = next.replace(cx, |cx| {
            let loss = cx.scaled_loss() * 2.0;
            cx.backward(&loss)
        })?;
        Err(Error::msg("refused"))?;
        Ok(done)
    }

    fn module(&mut self, cx: &mut Cx<ModuleForward>, next: Next<ModuleForward>) -> Result<Done> {
        let done = Next::run(next, cx)?;
        cx.force_output(cx.input().copy());
        Ok(done)
    }

    fn loss(&mut self, cx: &mut Cx<trainer::at::loss>, next: Next<trainer::at::loss>) -> Result<Done> {
        match cx.counters().epoch {
            0 => next.run(cx),
            1 => next.run_then(cx, |cx| {
                let scaled: Result<(), _> = Ok(());
                scaled.map(|()| cx.log("x", 1.0)) as trainer::Result<()>
            }),
            _ => Ok(next.skip()),
        }
    }

    fn pred(&mut self, cx: &mut Cx<Pred>, next: Next<Pred>) -> Result<Done> {
        next.run_or(cx, |cx, _| cx.set_pred(Tensor::zeros([1], (Kind::Float, Device::Cpu))))
    }

    fn after_step(&mut self, cx: &mut Cx<AfterStep>) {
        if cx.is_main() || cx.is_record_due() {
            cx.log("x", 1.0);
            let (name, text, flag) = ("x", "y", true);
            cx.log("flag", f64::from(flag));
            cx.log_text(name, text);
        }
    }
}

#[allow(dead_code)]
fn optimizer_of_tch(vs: nn::VarStore, lr: f64) -> Result<impl trainer::optim::Optimizer> {
    use trainer::optim;
    let config = nn::Adam::default();
    let optimizer = optim::Tch::new(config, &vs, lr)?;
    Ok(optimizer)
}

mod conditions {
    use super::*;

    type C = Cx<AfterStep>;

    #[allow(dead_code)]
    fn is_early(cx: &C) -> bool {
        fn is_late(cx: &C) -> bool {
            cx.is_main()
        }
        is_late(cx)
    }
    #[allow(dead_code)]
    fn is_late<P>(cx: &Cx<P>) -> bool {
        cx.is_main()
    }
}

struct Ordered {
    phases: trainer::PhaseSet,
}

#[hook]
impl Ordered {
    #[hook(only = self.phases)]
    fn before_fit(&mut self, _: &Cx<BeforeFit>) {}

    #[hook(after = optional(Clips), only(train, valid))]
    fn after_step(&mut self, _: &mut Cx<AfterStep>) {}

    #[hook(before = optional(Clips), of = optional("encoder.*"))]
    fn after_module_forward(&mut self, _: &mut Cx<AfterModuleForward>) {}

    #[hook(before(Clips), of("encoder.*", "head"))]
    fn before_module_forward(&mut self, _: &mut Cx<BeforeModuleForward>) {}

    #[hook(after(Clips))]
    fn before_step(&mut self, _: &mut Cx<BeforeStep>) {}
}

/// A point with a payload.
pub mod payloads {
    use trainer::prelude::*;

    /// What it carries.
    #[derive(Debug)]
    pub struct Samples;

    trainer::lifecycle! {
        within step {
            /// Samples were drawn.
            point sampled(Samples);
            /// Samples are drawn.
            operation drawing {
                /// A sample was drawn.
                point drawn;
            }
        }
    }

    #[hook]
    fn sample(cx: &mut Cx<AfterStep>) -> Result<()> {
        let payload = Samples;
        cx.fire_with::<Sampled>(payload)?;
        cx.run::<Drawing>(|cx| cx.fire::<Drawn>())?;
        Ok(())
    }

    #[hook]
    fn own_transfer(cx: &mut Cx<Transfer>, next: Next<Transfer>) -> Result<Done> {
        next.replace(cx, |cx| {
            let batch = Tensor::new();
            cx.set_batch(batch)?;
            Ok::<(), Error>(())
        })
    }

    #[hook]
    fn own_loss(cx: &mut Cx<Loss>, next: Next<Loss>) -> Result<Done> {
        next.replace(cx, |cx| {
            let loss = Tensor::new();
            cx.set_loss(loss);
        })
    }

    #[hook]
    fn own_output(cx: &mut Cx<ModuleForward>, next: Next<ModuleForward>) -> Result<Done> {
        next.replace(cx, |cx| {
            let output = Tensor::new();
            cx.set_output(output)?;
            Ok::<(), Error>(())
        })
    }

    #[hook]
    fn own_pred(cx: &mut Cx<Pred>, next: Next<Pred>) -> Result<Done> {
        next.replace(cx, |cx| {
            let pred = Tensor::new();
            cx.set_pred(pred)?;
            Ok::<(), Error>(())
        })
    }
}

fn main() {}

/// A moment that is a parameter.
pub mod moments {
    use std::marker::PhantomData;

    use trainer::moment::AtPoint;
    use trainer::prelude::*;

    struct Counts<P>(u64, PhantomData<fn(P)>);

    #[hook]
    impl<P: AtPoint> Counts<P> {
        fn count(&mut self, _: &Cx<P>) {
            self.0 += 1;
        }
    }
}

fn rows(tokens: trainer::data::TokenFile, loader: DataLoader<Vec<Vec<i64>>>) -> Result<()> {
    use trainer::data::{RowRng, Sequence, TokenFile, augment};
    let _ = TokenFile::open("tokens.npy")?;
    let _ = (Tensor::read_npy("tokens.npy")?, Tensor::read_npz("tokens.npz")?);
    let _ = TokenFile::u16("tokens.bin")?;
    let _ = TokenFile::u8("tokens.bin")?;
    let _ = TokenFile::u32("tokens.bin")?;
    let _ = tokens.sequence(0);
    let _ = tokens.windows(0, 1);
    let rows = || vec![Sequence::new(vec![1])];
    let _ = rows().balanced(&[0]);
    let _ = rows().folds(5, 42);
    let _ = rows().random_split(42, [0.9, 0.1]);
    let _ = rows().subset(vec![0]);
    let _ = Dataset::order(&rows(), 0, None)?;
    let _ = |rng: &mut RowRng| Dataset::row(&rows(), 0, rng);
    let _ = loader.pack(0).read_ahead(0);
    let _ = DataLoader::new(rows()).by_length(&[64], Sequence::len);
    let _ = trainer::data::IGNORED;
    let _ = trainer::data::pad(&[vec![1_i64]], 0)?;
    let _ = |image: &Tensor, rng: &mut RowRng| augment::color_jitter(image, 0.1, 0.1, rng);
    let _ = |image: &Tensor, rng: &mut RowRng| augment::random_crop(image, (1, 1), 0, rng);
    let _ = |image: &Tensor| augment::normalize(image, &[0.5], &[0.5]);
    Ok(())
}

fn added<T: Task>(trainer: Trainer<T>, teacher: trainer::hooks::Distillation) -> Result<()> {
    use trainer::hooks::{Lora, SpikeGuard};
    let _ = Lora::new("*", 8).alpha(16.0).dropout(0.1).transposed("*");
    let _ = trainer.hook::<Lora>()?;
    let _ = trainer.vars();
    let _ = &trainer.eval_vars()?;
    trainer.task().vars().save("live.safetensors")?;
    let _ = teacher.hint("a", "b", 1.0).temperature(2.0).weight(0.5);
    let _ = SpikeGuard::new().limit(3);
    Ok(())
}

fn roll_back(cx: &mut Cx<AfterLoss>) {
    cx.keep_state();
    cx.roll_back("the loss is too high");
}

/// The keys with each form of their values.
pub mod keys {
    use trainer::modules::Patterns;
    use trainer::prelude::*;

    struct Grouped;

    impl HookSet for Grouped {}

    fn is_late(cx: &Cx<AfterStep>) -> bool {
        cx.is_main()
    }

    struct Keyed {
        every: u64,
        modules: Patterns,
        seen: u64,
    }

    #[hook(state = self.seen)]
    impl Keyed {
        #[hook(ord = 3, only = train, every = self.every, when = is_late)]
        fn in_training(&mut self, _: &Cx<AfterStep>) {
            self.seen += 1;
        }

        #[hook(every = 10, only = valid, in = Grouped)]
        fn in_validation(&mut self, _: &Cx<AfterStep>) {}

        #[hook(only = test, of = self.modules)]
        fn in_tests(&mut self, _: &Cx<AfterModuleForward>) {}

        #[hook(only = predict, of = "encoder.*", trial = false)]
        fn in_prediction(&mut self, _: &Cx<BeforeModuleForward>) {}
    }
}

/// What messages about data and losses advise.
fn data_and_losses(pred: &Tensor, target: &Tensor) {
    let _ = pred.squeeze_dim(-1);
    let _ = target.unsqueeze(-1);
    let _ = Checkpoint::new("checkpoints").every(Every::Steps(1));
    let _ = Every::Fraction(1.0);
    let _ = Kind::Int64;
    let _ = Resume::From("checkpoints".into());
    let _ = DataParallel::new().compress(Kind::BFloat16);
    let loader = from_fn(|_| [Tensor::new()]).with_fingerprint("version 3");
    let _: &dyn Loader<Tensor> = &loader;
}
