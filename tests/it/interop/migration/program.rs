//! The network, the rows and the recorder of all programs: those of `common.py`.

use std::path::Path;
use std::sync::{Arc, Mutex};

use trainer::checkpoint::{LoadWeights, load_optimizer};
use trainer::hooks::{Checkpoint, HyperparameterSchedule, Swa};
use trainer::prelude::*;
use trainer::{Span, TrainerBuilder};

use super::Series;
use crate::support::scratch;

/// A metric that does not depend on the model: its value after each epoch.
pub(super) const SCRIPT: [f64; 12] = [5.0, 4.0, 4.5, 3.95, 4.2, 4.1, 4.05, 3.9, 4.0, 4.1, 4.2, 4.3];

pub(super) type Rows2 = (Tensor, Tensor);
pub(super) type LossFn = fn(&Tensor, &Tensor) -> Tensor;

/// The normalization between the two layers.
pub(super) enum Norm {
    None,
    Batch(nn::BatchNorm),
    Layer(nn::LayerNorm),
}

pub(super) struct Model {
    vars: nn::VarStore,
    fc1: nn::Linear,
    fc2: nn::Linear,
    norm: Norm,
    loss: LossFn,
}

impl Task for Model {
    type Batch = Rows2;
    type Pred = Tensor;

    fn vars(&self) -> &nn::VarStore {
        &self.vars
    }

    fn pred(&mut self, (x, _): &Rows2, mode: Mode) -> Result<Tensor> {
        let x = x.apply(&self.fc1);
        let x = match &self.norm {
            Norm::None => x,
            Norm::Batch(norm) => x.apply_t(norm, mode == Mode::Train),
            Norm::Layer(norm) => x.apply(norm),
        };
        Ok(x.tanh().apply(&self.fc2))
    }

    fn loss(&mut self, pred: &Tensor, (_, y): &Rows2) -> Result<Tensor> {
        Ok((self.loss)(pred, y))
    }
}

/// Returns the network with the initial values of `common.py`.
pub(super) fn model(norm: fn(&nn::Path<'_>) -> Norm, outputs: i64, loss: LossFn) -> Model {
    tch::set_num_threads(1);
    let mut vars = nn::VarStore::new(Device::Cpu);
    let root = vars.root();
    let fc1 = nn::linear(&root / "fc1", 3, 4, nn::LinearConfig::default());
    let fc2 = nn::linear(&root / "fc2", 4, outputs, nn::LinearConfig::default());
    let norm = norm(&(&root / "norm"));
    drop(root);
    vars.double();
    let biases = [&fc1, &fc2].map(|layer| layer.bs.as_ref().unwrap());
    for (nth, parameter) in [&fc1.ws, biases[0], &fc2.ws, biases[1]].into_iter().enumerate() {
        let values: Vec<_> =
            (0..parameter.numel()).map(|k| ((k * 5 + nth * 3) % 13) as f64 / 13.0 - 0.45).collect();
        let values = Tensor::from_slice(&values).view_as(parameter);
        tch::no_grad(|| parameter.shallow_clone().copy_(&values));
    }
    Model { vars, fc1, fc2, norm, loss }
}

pub(super) fn no_norm(_: &nn::Path<'_>) -> Norm {
    Norm::None
}

pub(super) fn layer_norm(path: &nn::Path<'_>) -> Norm {
    Norm::Layer(nn::layer_norm(path, vec![4], nn::LayerNormConfig::default()))
}

pub(super) fn batch_norm(path: &nn::Path<'_>) -> Norm {
    // As in PyTorch: tch draws the initial weights at random.
    let config = nn::BatchNormConfig { ws_init: nn::Init::Const(1.0), ..nn::BatchNormConfig::default() };
    Norm::Batch(nn::batch_norm1d(path, 4, config))
}

pub(super) fn mse(pred: &Tensor, y: &Tensor) -> Tensor {
    pred.mse_loss(y, Reduction::Mean)
}

pub(super) fn rows(first: i64, count: i64) -> Rows2 {
    let numbers = first..first + count;
    let x: Vec<_> = numbers
        .clone()
        .flat_map(|i| (0..3).map(move |j| ((7 * i + 3 * j) % 11) as f64 / 11.0 - 0.5))
        .collect();
    let y: Vec<_> = numbers.map(|i| ((5 * i) % 7) as f64 / 7.0 - 0.3).collect();
    (Tensor::from_slice(&x).view([count, 3]), Tensor::from_slice(&y).view([count, 1]))
}

/// The inputs of `rows` with classes from 0 to 2 as targets.
pub(super) fn labeled(first: i64, count: i64) -> Rows2 {
    let labels: Vec<_> = (first..first + count).map(|i| (i * i) % 3).collect();
    (rows(first, count).0, Tensor::from_slice(&labels))
}

pub(super) fn loader(rows: Rows2, batch: usize) -> InMemory<Rows2> {
    InMemory::new(rows).unwrap().batch_size(batch)
}

pub(super) fn train_rows() -> InMemory<Rows2> {
    loader(rows(0, 20), 4)
}

pub(super) fn valid_rows() -> InMemory<Rows2> {
    loader(rows(20, 8), 4)
}

/// Returns the parameters, in the order of their names.
pub(super) fn flat<'v>(named: impl Iterator<Item = (&'v str, &'v Tensor)>) -> Vec<f64> {
    let mut named: Vec<_> = named.collect();
    named.sort_by_key(|(name, _)| *name);
    named.iter().flat_map(|(_, tensor)| numbers(tensor)).collect()
}

pub(super) fn numbers(tensor: &Tensor) -> Vec<f64> {
    Vec::try_from(tensor.detach().to_kind(Kind::Double).flatten(0, -1)).unwrap()
}

pub(super) fn parameters<T: Task>(trainer: &Trainer<T>) -> Vec<f64> {
    flat(trainer.vars().parameters().map(|var| (var.name.as_str(), &var.tensor)))
}

/// A trainer whose hooks record what it does.
pub(super) struct Program {
    pub(super) trainer: Trainer<Model>,
    seen: Arc<Mutex<Series>>,
}

type Builder = TrainerBuilder<Model>;

impl Program {
    pub(super) fn new(optimizer: impl Optimizer + 'static, with: impl FnOnce(Builder) -> Builder) -> Self {
        Program::of(model(no_norm, 1, mse), optimizer, with)
    }

    pub(super) fn of(
        model: Model,
        optimizer: impl Optimizer + 'static,
        with: impl FnOnce(Builder) -> Builder,
    ) -> Self {
        let seen: Arc<Mutex<Series>> = Arc::default();
        let push = |seen: &Arc<Mutex<Series>>| {
            let seen = seen.clone();
            move |name: &'static str, values: &[f64]| {
                seen.lock().unwrap().entry(name).or_default().extend_from_slice(values);
            }
        };
        let [losses, steps, valid, records] = [&seen; 4].map(push);
        let builder = Trainer::builder(model).optimizer(optimizer).discover(Discover::None).epochs(2);
        let builder = builder
            .on::<AfterStep>("losses", move |cx| {
                let loss = cx.step_loss().map(|loss| loss.double_value(&[]));
                match (cx.phase(), loss) {
                    (Phase::Train, Some(loss)) => losses("losses", &[loss]),
                    (Phase::Sanity, Some(loss)) => losses("sanity", &[loss]),
                    _ => {}
                }
                if cx.phase() == Phase::Valid {
                    cx.log("scripted", SCRIPT[cx.counters().epoch as usize % SCRIPT.len()]);
                }
            })
            .on::<AfterOptStep>("weights", move |cx| {
                let vars = cx.vars();
                steps("weights", &flat(vars.parameters().map(|var| (var.name.as_str(), &var.tensor))));
                steps("rates", cx.lrs());
            })
            .on::<AfterValid>("valid", move |cx| {
                if let (Phase::Valid, Some(loss)) = (cx.phase(), cx.metrics().get("valid/loss")) {
                    valid("valid", &[loss]);
                }
            })
            .on::<AfterRecord>("records", move |cx| {
                let record = cx.record();
                let loss = record.scalars().find(|(name, _)| *name == "train/loss");
                if let (Span::Steps, Some((_, loss))) = (record.span(), loss) {
                    records("recorded", &[loss]);
                    records("axis", &[record.counters().optimizer_steps as f64]);
                }
            });
        Program { trainer: with(builder).build().unwrap(), seen }
    }

    pub(super) fn fit_on(&mut self, mut train: InMemory<Rows2>, valid: Option<InMemory<Rows2>>) -> Summary {
        let summary = match valid {
            Some(mut valid) => self.trainer.fit(&mut train, Some(&mut valid)),
            None => self.trainer.fit(&mut train, None),
        };
        summary.unwrap()
    }

    /// Trains, and returns what was recorded.
    pub(super) fn fit(mut self) -> Series {
        self.fit_on(train_rows(), None);
        self.seen()
    }

    /// Trains and validates, and returns what was recorded.
    pub(super) fn fit_valid(mut self) -> Series {
        self.fit_on(train_rows(), Some(valid_rows()));
        self.seen()
    }

    /// Returns what was recorded, and the number of steps.
    pub(super) fn seen(&self) -> Series {
        let mut seen = std::mem::take(&mut *self.seen.lock().unwrap());
        seen.insert("steps", vec![self.trainer.counters().optimizer_steps as f64]);
        seen
    }
}

/// Returns what was recorded with another series.
pub(super) fn with(mut seen: Series, name: &'static str, values: Vec<f64>) -> Series {
    seen.insert(name, values);
    seen
}

/// Returns what was recorded with a series under another name.
pub(super) fn renamed(mut seen: Series, from: &'static str, to: &'static str) -> Series {
    let values = seen.remove(from).unwrap_or_default();
    with(seen, to, values)
}

pub(super) fn sgd() -> Sgd {
    Sgd::new(0.1)
}

/// Trains with windows of `n` batches, whose sums are divided by `n` even if a window is shorter.
pub(super) fn divided_by_the_window(n: u64) -> Series {
    let divide = move |cx: &mut Cx<BeforeOptStep>| {
        let batches = cx.counters().batch_idx % n + 1;
        cx.grads().for_each(|(_, mut grad)| drop(grad.g_mul_scalar_(batches as f64 / n as f64)));
    };
    Program::new(sgd(), |b| b.accumulate(n).on::<BeforeOptStep>("divide", divide)).fit()
}

/// Returns the values of a metric at the end of each epoch.
pub(super) fn logged(batch: usize, name: &str) -> Series {
    let largest = |cx: &mut Cx<AfterStep>| cx.log_as("largest", cx.step_loss().unwrap(), Reduce::Max);
    let mut program = Program::new(sgd(), |b| b.on::<AfterStep>("largest", largest));
    let summary = program.fit_on(loader(rows(0, 20), batch), None);
    with(program.seen(), "logged", summary.history[name].to_vec())
}

/// Returns the epochs after which the checkpoints in a folder were written.
pub(super) fn kept(folder: &std::path::Path, steps_per_epoch: u64) -> Vec<f64> {
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let steps = names.filter_map(|name| name.to_str()?.strip_prefix("step-")?.parse::<u64>().ok());
    let mut epochs: Vec<_> = steps.map(|step| step / steps_per_epoch - 1).collect();
    epochs.sort_unstable();
    epochs.into_iter().map(|epoch| epoch as f64).collect()
}

/// Resumes a run after its third step, within an epoch, and records what follows.
pub(super) fn resumed<O: Optimizer + 'static>(optimizer: fn() -> O) -> Series {
    let folder = scratch("migration-resume");
    let checkpoint = Checkpoint::new(&folder).every(Every::Steps(3)).keep_last(9);
    Program::new(optimizer(), |b| b.hook(checkpoint)).fit();
    Program::new(optimizer(), |b| b.resume(&*folder.join("step-00000003"))).fit()
}

/// Trains for three epochs, and returns the weights that the model has then, or those of the best
/// epoch, loaded into it.
pub(super) fn best<O: Optimizer + 'static>(optimizer: fn() -> O, loads: bool) -> Series {
    let keep = Checkpoint::new(scratch("migration-best")).keep_best(1, "valid/scripted", Goal::Minimize);
    let mut program = Program::new(optimizer(), |b| b.epochs(3).hook(keep));
    program.fit_on(train_rows(), Some(valid_rows()));
    if loads {
        let (best, _) = program.trainer.hook::<Checkpoint>().unwrap().best().unwrap();
        program.trainer.load_weights(best, &trainer::checkpoint::LoadWeights::new()).unwrap();
    }
    let last = parameters(&program.trainer);
    with(program.seen(), "final", last)
}

/// Trains with a schedule of the rate.
pub(super) fn scheduled(optimizer: impl Optimizer + 'static, schedule: impl Schedule) -> Series {
    Program::new(optimizer, |b| b.hook(HyperparameterSchedule::lr(schedule))).fit()
}

/// Returns the rates of a schedule in a run of ten steps.
pub(super) fn rates(lr: f64, schedule: &dyn Schedule) -> Series {
    let rates = (0..10).map(|step| lr * schedule.factor(step, Some(10)).unwrap()).collect();
    with(Series::new(), "rates", rates)
}

/// Returns the statistics of batch norm for the averages of the epochs from `from` on.
pub(super) fn batch_norm_updated(epochs: u64, from: u64) -> Series {
    let mut program = Program::of(model(batch_norm, 1, mse), sgd(), |b| {
        b.epochs(epochs).hook(Swa::from_epoch(from)).update_batch_norm(train_rows())
    });
    program.fit_on(train_rows(), None);
    let folder = scratch("migration-statistics");
    program.trainer.save_weights(folder.join("average.safetensors")).unwrap();
    let saved = Tensor::read_safetensors(folder.join("average.safetensors")).unwrap();
    let of =
        |name: &str| saved.iter().find(|(own, _)| own == name).map(|(_, tensor)| numbers(tensor)).unwrap();
    with(Series::new(), "statistics", [of("norm.running_mean"), of("norm.running_var")].concat())
}

/// Returns the first random numbers of a seed.
pub(super) fn random_numbers() -> Series {
    tch::manual_seed(5);
    let options = (Kind::Double, Device::Cpu);
    let (normal, uniform) = (Tensor::randn([20], options), Tensor::rand([3], options));
    [("numbers", [numbers(&normal), numbers(&uniform)].concat())].into()
}

/// The names of the parameters of [`model`], in the order of PyTorch.
pub(super) const NAMES: [&str; 4] = ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"];

/// The optimizers of runs that continue here: those of `common.py`.
pub(super) fn adamw_of_both() -> AdamW {
    AdamW::new(0.01).betas(0.9, 0.95).weight_decay(0.1)
}

pub(super) fn sgd_of_both() -> Sgd {
    Sgd::new(0.1).momentum(0.9).dampening(0.1).weight_decay(0.01)
}

/// A file, and the sections in it.
pub(super) type File<'a> = (&'a Path, &'a [&'a str]);

/// Continues a run of a framework: loads its weights and the state of its optimizer, whose
/// parameters begin with `prefix` there, and trains ten steps.
pub(super) fn continued(
    mut program: Program,
    prefix: &str,
    weights: File<'_>,
    (file, sections): File<'_>,
    names: &[&str],
) -> Series {
    let how = |sections: &[&str]| {
        let how = sections.iter().fold(LoadWeights::new(), |how, section| how.section(*section));
        if prefix.is_empty() { how } else { how.rename_pattern(format!("{prefix}*"), "*") }
    };
    program.trainer.load_weights(weights.0, &how(weights.1)).unwrap();
    let names: Vec<_> = names.iter().map(|name| format!("{prefix}{name}")).collect();
    load_optimizer(program.trainer.optimizer_mut().unwrap(), file, &names, &how(sections)).unwrap();
    program.fit()
}

/// Returns what was recorded in one run, and then in another.
pub(super) fn both(mut first: Series, second: Series) -> Series {
    for (name, values) in second {
        first.entry(name).or_default().extend(values);
    }
    first
}

/// Returns whether the random numbers of the steps of a resumed run are those of the run that was
/// not interrupted.
pub(super) fn draws_continue() -> Series {
    let folder = scratch("migration-draws");
    let draws = |with: &dyn Fn(Builder) -> Builder| {
        let seen: Arc<Mutex<Vec<f64>>> = Arc::default();
        let own = seen.clone();
        let draw = move |_: &mut Cx<BeforeBackward>| {
            own.lock().unwrap().push(Tensor::rand([], (Kind::Double, Device::Cpu)).double_value(&[]));
        };
        Program::new(sgd(), |b| with(b.on::<BeforeBackward>("draw", draw))).fit();
        std::mem::take(&mut *seen.lock().unwrap())
    };
    let whole = draws(&|b| b.hook(Checkpoint::new(&folder).every(Every::Steps(3)).keep_last(9)));
    let resumed = draws(&|b| b.resume(&*folder.join("step-00000003")));
    with(Series::new(), "same numbers", vec![f64::from(u8::from(whole[3..5] == resumed[..2]))])
}
