//! What a run will need: memory, and space on disk.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tch::Device;
use trainer_formats::{columns, duration};

use crate::BoxError;
use crate::checkpoint::{Saved, States};
use crate::data::{Batch, from_fn};
use crate::error::{Error, Result};
use crate::hooks::{Checkpoint, HyperparameterSchedule};
use crate::libtorch::{Flow, MemoryCounter, cuda, storage};
use crate::loggers::Csv;
use crate::profile::SpanKind;
use crate::training::Trainer;
use crate::training::live::process_memory;
use crate::training::task::Task;
use crate::training::trial::{self, Trial, trial};
use crate::values::every::Every;
use crate::{Call, Layer};

/// The number of accumulation windows that are trained before the validation: optimizers and
/// averages create their state at the end of the first one.
const WINDOWS: u64 = 3;

/// The number of batches of a window. The memory of later batches is that of the second one, so
/// longer windows are cut.
const BATCHES: u64 = 3;

/// The seconds of a day.
const DAY: f64 = 86_400.0;

/// What a run will need, as [`Trainer::estimate`] measured it in a few steps. `Display` prints a
/// table.
///
/// All sizes are in bytes, and those of memory are the bytes of tensors on the task's device.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Estimate {
    /// The parameters and the buffers of the task.
    pub parameters: u64,
    /// The gradients of the parameters that are trained.
    pub gradients: u64,
    /// The states of the optimizers.
    pub optimizer: u64,
    /// The states of hooks, such as the averages of [`Ema`](crate::hooks::Ema), and of the task.
    pub averages: u64,
    /// Tensors that the task uses and that belong to none of the above, such as a teacher in
    /// another store.
    pub others: u64,
    /// What else is allocated at the peak: the batch, its activations, and temporary results.
    pub activations: u64,
    /// What ranks need for exchanging gradients and parameters; 0 for one process.
    pub exchange: u64,
    /// The highest sum of all of these, in training or in validation.
    pub peak: u64,
    /// The peak of the memory of the whole process since it started, in which libtorch, the data
    /// and the estimate itself take part; `None` except on Linux.
    pub process_peak: Option<u64>,
    /// The number of ranks.
    pub ranks: u32,
    /// The stage of sharding.
    pub stage: u32,
    /// The bytes that each rank sends in an optimizer step, as a mean over the ranks; 0 for one
    /// process. In stage 2, an accumulation window sends the gradients of each of its batches, and
    /// this number holds without accumulation.
    pub sent: u64,
    /// The time of an optimizer step, with all batches of its accumulation window.
    pub step: Duration,
    /// The time of the hooks in an optimizer step.
    pub hooks: Duration,
    /// A checkpoint.
    pub checkpoint: u64,
    /// The bytes of checkpoints that [`Checkpoint`] writes in a day of training; `None` if there is
    /// none, or if it writes them by epochs, whose length a batch does not show.
    pub checkpoints_a_day: Option<u64>,
    /// The bytes of records that [`Csv`] writes in a day of training, with the values that the
    /// estimate's hooks log; `None` if records are only created at the end of each pass.
    pub records_a_day: Option<u64>,
    /// The bytes of the state of each parameter, the largest first.
    states: Vec<u64>,
    /// The bytes of the gradient of each parameter that is trained, the largest first.
    sizes: Vec<u64>,
}

/// # Estimating
impl<T: Task> Trainer<T> {
    /// Estimates what a fit with batches like this one will need: trains on copies of it for a few
    /// steps, validates, counts the memory of all tensors, and then restores everything.
    ///
    /// Use this before a long run, to find out whether it fits into memory and onto the disk.
    ///
    /// ```
    /// use trainer::hooks::Ema;
    /// use trainer::prelude::*;
    ///
    /// # fn main() -> Result<()> {
    /// let vs = nn::VarStore::new(Device::Cpu);
    /// let net = nn::linear(vs.root() / "fc", 100, 10, Default::default());
    /// let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
    /// let mut trainer = Trainer::builder(task).optimizer(AdamW::new(1e-3)).hook(Ema::new(0.99)).build()?;
    ///
    /// let inputs = Tensor::randn([64, 100], (Kind::Float, Device::Cpu));
    /// let estimate = trainer.estimate(&(inputs, Tensor::zeros([64], (Kind::Int64, Device::Cpu))))?;
    /// println!("{estimate}");
    /// assert_eq!(estimate.parameters, 4 * (100 * 10 + 10));
    /// // With the random state, which is saved too.
    /// assert!(estimate.averages >= estimate.parameters);
    /// // AdamW keeps two values of each parameter.
    /// assert!(estimate.peak > 5 * estimate.parameters);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The batch is one of this rank. Its memory counts once, or twice if batches are
    /// [accumulated](crate::TrainerBuilder::accumulate), which reads one ahead. What the loaders
    /// hold does not count: the data in memory, and batches that are prefetched. A metric that
    /// keeps all predictions grows with the validation data.
    ///
    /// Nothing changes: the weights, the states of the optimizer and the hooks, the random state,
    /// the counters and the records are those from before, as after [`find_lr`](Trainer::find_lr),
    /// which also says which hooks run. Other hooks, such as loggers and monitors, count neither in
    /// memory nor in time.
    ///
    /// The memory of the whole process is counted, so other threads should not compute meanwhile.
    ///
    /// # Errors
    ///
    /// Returns an error
    ///
    /// - if the batch cannot be copied ([`Batch::try_clone`]);
    /// - if several processes train together;
    /// - if the trainer has no optimizer, or cannot be restored as described at
    ///   [`find_lr`](Trainer::find_lr);
    /// - if the task is on a device other than the CPU or a CUDA device, or the program has set
    ///   another allocator of tensors;
    /// - for the same reasons as [`fit`](Trainer::fit).
    #[doc(alias("memory", "model_size", "estimate_memory"))]
    pub fn estimate(&mut self, batch: &T::Batch) -> Result<Estimate> {
        let checkpoints: Vec<_> = self.run.hooks().values::<Checkpoint>().map(Checkpoint::interval).collect();
        let estimate = trial(&mut self.run, "estimate", is_replaced, |trial| {
            if !trial.run.world().is_solo() {
                return Ok(Err(Error::usage(
                    "`estimate` runs in one process: call it in a program that is started without a launcher, and pass the number \
                     of ranks to `Estimate::on_ranks`",
                )));
            }
            measure::<T>(trial, batch).map(Ok)
        })??;
        let a_day = checkpoints.into_iter().filter_map(|interval| {
            let seconds = match interval {
                (Some(Every::Steps(steps)), _) => steps as f64 * estimate.step.as_secs_f64(),
                (None, Some(time)) => time.as_secs_f64(),
                _ => return None,
            };
            Some(per_day(estimate.checkpoint, seconds.max(estimate.step.as_secs_f64())))
        });
        Ok(Estimate { checkpoints_a_day: a_day.reduce(u64::saturating_add), ..estimate })
    }
}

/// Whether a hook that a trial omits makes no difference to the estimate.
fn is_replaced(hook: &(dyn std::any::Any + Send)) -> bool {
    super::finders::is_replaced(hook) || hook.is::<HyperparameterSchedule>()
}

/// The bytes of a day, if there are `bytes` every `seconds`.
fn per_day(bytes: u64, seconds: f64) -> u64 {
    (bytes as f64 * DAY / seconds) as u64
}

/// What counts the memory of tensors on the device of the task.
enum Counter {
    Cpu { counter: MemoryCounter, before: u64 },
    Cuda(Device),
}

impl Counter {
    /// Begins to count. `before` is what was allocated before on the CPU and belongs to the run.
    fn start(device: Device, before: u64) -> Result<Self> {
        match device {
            Device::Cpu => Ok(Counter::Cpu { counter: MemoryCounter::start()?, before }),
            Device::Cuda(_) => {
                cuda::reset_peaks(device)?;
                Ok(Counter::Cuda(device))
            }
            other => Err(Error::usage(format!(
                "`estimate` counts the memory of the CPU and of CUDA devices, but the task is on {other:?}: move it to one of them"
            ))),
        }
    }

    fn peak(&self) -> Result<u64> {
        match self {
            Counter::Cpu { counter, before } => Ok(before + counter.peak()),
            Counter::Cuda(device) => Ok(cuda::memory(*device)?.peak_allocated),
        }
    }
}

fn measure<T: Task>(trial: &mut Trial<'_>, batch: &T::Batch) -> Result<Estimate> {
    trial.run.reports_mut().mute(true); // a hook may warn of a batch that repeats; the end of the trial undoes it
    let before = Sizes::of(trial)?;
    let times = HookTimes::default();
    trial.watch_calls(times.clone())?;
    let counter = Counter::start(trial.run.device(), before.known.values().sum())?;
    let accumulated = trial.run.settings().accumulate_at_most();
    let length = accumulated.min(BATCHES);
    let mut sizes = Vec::new();
    let mut others = 0;
    let mut measured = (0, Duration::ZERO, Duration::ZERO);
    for nth in 0..(WINDOWS + 1) * length {
        if nth == WINDOWS * length {
            let copy = copy(batch)?;
            let mut copies = Some(copy);
            let mut loader = from_fn(move |_| copies.take());
            trial.validate::<T>(&mut loader)?;
        }
        let flow = (nth == 0).then(Flow::start).transpose()?;
        let own = copy(batch)?;
        let ahead = (accumulated > 1).then(|| copy(batch)).transpose()?;
        let (start, hooks) = (Instant::now(), times.total());
        let is_last = (nth + 1).is_multiple_of(length);
        let _ = trial.step::<T>(own, is_last)?;
        if nth >= length {
            measured = (measured.0 + 1, measured.1 + start.elapsed(), measured.2 + (times.total() - hooks));
        }
        drop(ahead);
        if let (Some(flow), Counter::Cpu { counter, .. }) = (flow, &counter) {
            let mut own: BTreeSet<usize> = before.known.keys().copied().collect();
            batch.tensors(&mut |tensor| own.extend(storage(tensor).map(|(address, _)| address)));
            let foreign: BTreeMap<usize, u64> = flow.memory()?.into_iter().collect();
            let is_foreign = |address: &usize| !own.contains(address) && !counter.is_counted(*address);
            others = foreign.iter().filter(|(address, _)| is_foreign(address)).map(|(_, bytes)| bytes).sum();
        }
        let trained = trial.run.vars().parameters().filter(|var| var.tensor.requires_grad());
        let trained: Vec<u64> = trained.map(|var| size(&var.tensor)).collect();
        if trained.iter().sum::<u64>() > sizes.iter().sum() {
            sizes = trained;
        }
    }
    sizes.sort_unstable_by(|one, other| other.cmp(one));
    let gradients = sizes.iter().sum();
    let peak = with_margin(counter.peak()? + others);
    drop(counter);
    let Sizes { known: _, parameters, optimizer, averages, states, checkpoint } = Sizes::of(trial)?;
    let (batches, time, of_hooks) = measured;
    let scale = |time: Duration| time.mul_f64(accumulated as f64 / batches.max(1) as f64);
    let step = scale(time);
    let record = Csv::bytes_of(trial.run.logs().metrics().iter().map(|(name, _)| name));
    Ok(Estimate {
        parameters,
        gradients,
        optimizer,
        averages,
        others,
        activations: peak.saturating_sub(parameters + gradients + optimizer + averages + others),
        exchange: 0,
        peak,
        process_peak: process_memory("VmHWM"),
        ranks: 1,
        stage: 0,
        sent: 0,
        step,
        hooks: scale(of_hooks),
        checkpoint,
        checkpoints_a_day: None,
        records_a_day: trial
            .run
            .settings()
            .record_every()
            .map(|steps| per_day(record, step.as_secs_f64() * steps as f64)),
        states,
        sizes,
    })
}

/// Adds a hundredth, for what the loop of a fit keeps besides: indices of rows, values for the log.
fn with_margin(peak: u64) -> u64 {
    peak + peak / 100
}

fn copy<B: Batch>(batch: &B) -> Result<B> {
    batch.try_clone().ok_or_else(|| {
        Error::usage("`estimate` cannot copy the batch, which it trains on several times: implement `Batch::try_clone` for it")
    })
}

fn size(tensor: &tch::Tensor) -> u64 {
    (tensor.numel() * tensor.kind().elt_size_in_bytes()) as u64
}

/// The memory of what a checkpoint of a run saves.
#[derive(Debug, Default)]
struct Sizes {
    /// The bytes of each memory, by its address.
    known: BTreeMap<usize, u64>,
    parameters: u64,
    optimizer: u64,
    averages: u64,
    /// The bytes of the optimizer's state of each parameter, the largest first.
    states: Vec<u64>,
    /// The bytes of the tensors and texts.
    checkpoint: u64,
}

impl Sizes {
    fn of(trial: &Trial<'_>) -> Result<Self> {
        let states: States = trial.states()?;
        let mut sizes = Sizes::default();
        let mut of_parameters: BTreeMap<&str, u64> = BTreeMap::new();
        for (name, saved) in &states {
            let Saved { values, tensors, averages, shares, unread: _ } = saved;
            let texts = values.iter().map(|(key, value)| (key.len() + value.len()) as u64);
            sizes.checkpoint += texts.sum::<u64>();
            let is_optimizer = trial::is_optimizer(name);
            for (key, tensor) in tensors.iter().chain(averages).chain(shares) {
                sizes.checkpoint += size(tensor);
                let Some((address, bytes)) = storage(tensor) else { continue };
                if tensor.device() != trial.run.device() || sizes.known.insert(address, bytes).is_some() {
                    continue;
                }
                let of = match name.as_str() {
                    trial::VARIABLES => &mut sizes.parameters,
                    _ if is_optimizer => &mut sizes.optimizer,
                    _ => &mut sizes.averages,
                };
                *of += bytes;
                if is_optimizer {
                    let parameter = key.split_once('/').map_or(key.as_str(), |(_, parameter)| parameter);
                    *of_parameters.entry(parameter).or_default() += bytes;
                }
            }
        }
        sizes.states = of_parameters.into_values().collect();
        sizes.states.sort_unstable_by(|one, other| other.cmp(one));
        Ok(sizes)
    }
}

/// The time of all hooks so far, without the operations that they run around.
#[derive(Clone, Debug, Default)]
struct HookTimes(std::sync::Arc<[AtomicU64; 2]>);

impl HookTimes {
    fn total(&self) -> Duration {
        Duration::from_nanos(self.0[0].load(Ordering::Relaxed))
    }
}

impl Layer for HookTimes {
    fn call(&self, call: &mut Call<'_>) -> Result<(), BoxError> {
        let [total, inner] = &*self.0;
        let outer = inner.swap(0, Ordering::Relaxed);
        let start = Instant::now();
        let result = call.run();
        let time = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let inside = inner.swap(outer.saturating_add(time), Ordering::Relaxed);
        if call.kind() == SpanKind::Hook {
            total.fetch_add(time.saturating_sub(inside), Ordering::Relaxed);
        }
        result
    }
}

impl Estimate {
    /// Returns the estimate for each of `ranks` processes that train together on batches like this
    /// one, from the sizes that one process has measured.
    ///
    /// In stage 0, each rank has everything, and keeps the buckets of the gradients from step to
    /// step. In stage 1 ([`Sharded`](crate::optim::Sharded)), the state of the optimizer is
    /// divided. In stage 2 ([`gradients(true)`](crate::optim::Sharded::gradients)), the gradients
    /// are divided too, and sent in buckets of the default size. The estimate is that of the
    /// fullest rank, and an upper bound: it was not measured on several ranks, and at the peak of
    /// one process, the gradients may already exist. In stage 2, those that the rank does not keep
    /// count as temporary results.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no rank, or no such stage.
    pub fn on_ranks(&self, ranks: u32, stage: u32) -> Result<Estimate> {
        if ranks == 0 || stage > 2 {
            return Err(Error::usage(format!(
                "`on_ranks({ranks}, {stage})`: expected at least one rank, and stage 0 (everything on each rank), 1 (`Sharded`, \
                 which divides the state of the optimizer) or 2 (`.gradients(true)`, which divides the gradients too); the \
                 trainer does not divide parameters (stage 3)"
            )));
        }
        if (self.ranks, self.stage) != (1, 0) {
            return Err(Error::usage(
                "`on_ranks` was called on an estimate for several ranks: call it on the one that `estimate` returned",
            ));
        }
        if ranks == 1 {
            return Ok(Estimate { stage, ..self.clone() });
        }
        let optimizer = if stage == 0 { self.optimizer } else { largest_share(&self.states, ranks) };
        let gradients = if stage < 2 { self.gradients } else { largest_share(&self.sizes, ranks) };
        let own = self.peak - self.optimizer + optimizer;
        let exchange = match stage {
            2 => {
                let received = u64::from(ranks) * (2 * BUCKET_BYTES / u64::from(ranks)).max(64 << 10);
                2 * (BUCKET_BYTES + received)
            }
            _ => self.gradients,
        };
        let activations = self.activations + (self.gradients - gradients);
        let once = self.gradients as f64 * f64::from(ranks - 1) / f64::from(ranks);
        // An all-reduce sends everything twice.
        let sent = [2.0, 3.0, 2.0][stage as usize] * once;
        Ok(Estimate {
            ranks,
            stage,
            optimizer,
            gradients,
            activations,
            exchange,
            sent: sent.round() as u64,
            peak: own + exchange,
            ..self.clone()
        })
    }
}

/// The size of a bucket of divided gradients.
const BUCKET_BYTES: u64 = 4 << 20;

/// Returns the bytes of the fullest rank, if each of `parts` belongs to one rank: the largest
/// first, each to the rank that has the least.
fn largest_share(parts: &[u64], ranks: u32) -> u64 {
    let mut loads = vec![0; ranks as usize];
    for bytes in parts {
        if let Some(least) = loads.iter_mut().min() {
            *least += bytes;
        }
    }
    loads.into_iter().max().unwrap_or(0)
}

/// Formats a number of bytes.
fn bytes(count: u64) -> String {
    let (value, unit) = match count {
        0..1_000 => return format!("{count} B"),
        1_000..1_000_000 => (count as f64 / 1e3, "kB"),
        1_000_000..1_000_000_000 => (count as f64 / 1e6, "MB"),
        1_000_000_000..1_000_000_000_000 => (count as f64 / 1e9, "GB"),
        _ => (count as f64 / 1e12, "TB"),
    };
    format!("{value:.1} {unit}")
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = [
            ("parameters and buffers", self.parameters),
            ("gradients", self.gradients),
            ("state of the optimizer", self.optimizer),
            ("averages and other states", self.averages),
            ("tensors outside of the store", self.others),
            ("batch, activations, temporary results", self.activations),
            ("exchange between ranks", self.exchange),
        ];
        let mut rows: Vec<_> = rows.into_iter().filter(|(_, bytes)| *bytes > 0).collect();
        rows.push(("peak of all tensors", self.peak));
        let per_cent =
            |part: f64, of: f64| if of > 0.0 { format!("{:.0} %", 100.0 * part / of) } else { String::new() };
        let mut rows: Vec<_> = rows
            .into_iter()
            .map(|(name, size)| [name.to_owned(), bytes(size), per_cent(size as f64, self.peak as f64)])
            .collect();
        if let Some(peak) = self.process_peak {
            rows.push(["peak of the process so far".to_owned(), bytes(peak), String::new()]);
        }
        if self.ranks > 1 {
            writeln!(
                f,
                "on each of {} ranks, sharding stage {}, which sends {} in a step",
                self.ranks,
                self.stage,
                bytes(self.sent)
            )?;
        }
        columns(&rows, 1).iter().try_for_each(|line| writeln!(f, "{line}"))?;
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let share = self.hooks.as_secs_f64() / self.step.as_secs_f64().max(f64::MIN_POSITIVE);
        writeln!(f, "a step takes {}, of which hooks {:.1} %", duration(nanos(self.step)), 100.0 * share)?;
        write!(f, "a checkpoint has {}", bytes(self.checkpoint))?;
        if let Some(a_day) = self.checkpoints_a_day {
            write!(f, ", all of a day {}", bytes(a_day))?;
        }
        if let Some(a_day) = self.records_a_day {
            write!(f, "\na logger writes about {} a day", bytes(a_day))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estimate() -> Estimate {
        Estimate {
            parameters: 4_000_000,
            gradients: 4_000_000,
            optimizer: 8_000_000,
            averages: 0,
            others: 0,
            activations: 1_234_567,
            exchange: 0,
            peak: 17_234_567,
            process_peak: Some(412_000_000),
            ranks: 1,
            stage: 0,
            sent: 0,
            step: Duration::from_micros(12_345),
            hooks: Duration::from_micros(123),
            checkpoint: 12_000_500,
            checkpoints_a_day: Some(1_500_000_000),
            records_a_day: None,
            states: vec![4_000_000, 2_000_000, 2_000_000],
            sizes: vec![2_000_000, 1_000_000, 1_000_000],
        }
    }

    #[test]
    fn an_estimate_is_a_table_without_empty_rows() {
        let text = estimate().to_string();
        assert_eq!(
            text,
            "parameters and buffers                   4.0 MB   23 %\n\
             gradients                                4.0 MB   23 %\n\
             state of the optimizer                   8.0 MB   46 %\n\
             batch, activations, temporary results    1.2 MB    7 %\n\
             peak of all tensors                     17.2 MB  100 %\n\
             peak of the process so far             412.0 MB\n\
             a step takes 12.3 ms, of which hooks 1.0 %\n\
             a checkpoint has 12.0 MB, all of a day 1.5 GB"
        );
        assert!(
            estimate().on_ranks(2, 1).unwrap().to_string().lines().all(|line| line.chars().count() <= 80)
        );
    }

    #[test]
    fn stages_divide_the_state_and_the_gradients_by_parameters() {
        let on = |ranks, stage| estimate().on_ranks(ranks, stage).unwrap();
        assert_eq!(on(1, 1), Estimate { stage: 1, ..estimate() });
        assert_eq!((on(2, 0).optimizer, on(2, 0).exchange), (8_000_000, 4_000_000));
        assert_eq!(on(2, 0).peak, 21_234_567);
        assert_eq!((on(2, 1).optimizer, on(2, 1).exchange), (4_000_000, 4_000_000));
        assert_eq!(on(2, 1).peak, 17_234_567);
        // The state of a parameter is not divided.
        assert_eq!(on(1024, 1).optimizer, 4_000_000);
        assert_eq!(on(1, 2), Estimate { stage: 2, ..estimate() });
        assert_eq!((on(2, 2).optimizer, on(2, 2).gradients), (4_000_000, 2_000_000));
        assert_eq!(on(1024, 2).gradients, 2_000_000);
        assert_eq!([0, 1, 2].map(|stage| on(4, stage).sent), [6_000_000, 9_000_000, 6_000_000]);
        for estimate in [on(2, 0), on(4, 1), on(4, 2), on(1024, 2)] {
            let parts = estimate.parameters + estimate.gradients + estimate.optimizer + estimate.exchange;
            assert_eq!(parts + estimate.activations, estimate.peak);
        }
        for (ranks, stage) in [(0, 0), (8, 3)] {
            let error = estimate().on_ranks(ranks, stage).unwrap_err().to_string();
            assert!(
                error.contains(&format!("`on_ranks({ranks}, {stage})`: expected at least one rank")),
                "{error}"
            );
        }
        assert!(on(2, 1).on_ranks(4, 1).is_err());
    }
}
