//! Joining the other ranks, and comparing their configuration and their progress.

use std::collections::BTreeMap;
use std::path::Path;

use tch::Device;

use super::device::{Gpu, check_one_gpu_each, kind_of};
use super::facts::{self, Audience};
use crate::checkpoint::Resume;
use crate::distributed::{Launch, Share, Unequal, World, both, check_available, current, is_same};
use crate::error::{Error, Result, shortened};
use crate::io::{files, terminal};
use crate::libtorch;
use crate::lifecycle::at;
use crate::model::vars::Vars;
use crate::moment::Moment;
use crate::moments::counters::Counters;
use crate::optim::Optimizers;
use crate::phase::Phase;
use crate::run::CheckpointState;
use crate::run::Model;
use crate::run::run_folder::now;
use crate::run::settings::SettingKind;
use crate::run::{Ranks, Run};
use crate::values::facts::{Difference, Facts};
use crate::values::float::exact;

/// Returns the rank of this process and its share of each batch. A process that trains by itself
/// has the rank that `set` or `RANK` assigns, but its share is the entire batch.
///
/// # Errors
///
/// Returns a message if the environment variables of the launcher or `RANK` are invalid, if there
/// are several processes but the feature `distributed` is disabled, or if `set` contradicts the
/// launcher or `.world(…)`.
pub(super) fn rank(world: Option<&World>, set: Option<u32>) -> Result<(u32, Share), String> {
    let share = match world {
        Some(world) => world.share(),
        None => {
            let launch = Launch::from_env().map_err(|error| error.to_string())?;
            launch.map_or(World::solo().share(), |launch| Share { rank: launch.rank(), of: launch.size() })
        }
    };
    if share.of == 1 {
        let rank = set.map_or_else(rank_from_environment, Ok)?;
        return Ok((rank, share));
    }
    let rank = share.rank;
    check_available().map_err(|error| error.to_string())?;
    if let Some(set) = set.filter(|set| *set != rank) {
        return Err(format!(
            "`.rank({set})` contradicts the launcher or `.world(…)`, which set the rank of this process to {rank}: remove \
             `.rank({set})`"
        ));
    }
    Ok((rank, share))
}

/// Reads the rank from the environment variable `RANK`, which defaults to 0.
fn rank_from_environment() -> Result<u32, String> {
    match std::env::var("RANK") {
        Err(_) => Ok(0),
        Ok(rank) => rank.parse().map_err(|_| {
            format!(
                "the environment variable `RANK` is `{rank}`: expected the rank of this process, an integer of at least 0"
            )
        }),
    }
}

/// Joins the other ranks for an entry point, if there are any.
pub(super) fn join(ranks: &mut Ranks) -> Result<()> {
    let given = ranks.given.take();
    let world = given.clone().map_or_else(World::from_env, Ok);
    *ranks = Ranks::begin(World::solo(), given);
    ranks.world = world?;
    Ok(())
}

/// Returns an error if only some of the ranks look for a checkpoint. The ranks may have different
/// paths to the folder that they share.
pub(super) fn compare_resume(checkpoints: &CheckpointState, world: &World) -> Result<()> {
    let own = match &checkpoints.resume {
        None => "not set",
        Some(Resume::Auto) => "`Resume::Auto`",
        Some(Resume::From(_)) => "`Resume::From(…)`",
    };
    let what = "the comparison of `.resume(…)`";
    match world.difference(&own.to_owned(), what)? {
        None => Ok(()),
        Some(Unequal { of_main, rank, of_rank }) => Err(Error::usage(format!(
            "`.resume(…)` is {of_main} on rank 0, but {of_rank} on rank {rank}: resume on all ranks, or on none"
        ))),
    }
}

/// Makes the world current on this thread, and returns an error if the configuration of the
/// other ranks differs, or if the ranks cannot train together on the device of the task.
pub(super) fn compare(run: &mut Run, entry: &str) -> Result<()> {
    let world = run.world().clone();
    current::begin_entry(&world)?;
    if world.is_solo() {
        return Ok(());
    }
    run.ranks_mut().may_skip = run.hooks().table.hooks().iter().any(|hook| {
        (hook.definition.row)() == at::before_step::index()
            && hook.definition.phases().contains(Phase::Train)
            && !hook.definition.observes
    });
    if run.device() != Device::Cpu && !cfg!(feature = "nccl") {
        return Err(Error::usage(format!(
            "the task is on {:?}, but without the feature `nccl` of the crate `trainer`, {} processes can train together on the \
             CPU only: enable the feature, or use `.device(Device::Cpu)`",
            run.device(),
            world.size()
        )));
    }
    let mut facts = facts::of(run, Audience::Ranks);
    let length = run.settings().of(SettingKind::Length);
    facts.settings.extend(length.map(|(name, value)| (format!(".{name}(…)"), value)));
    if matches!(run.device(), Device::Cuda(_)) {
        let gpus = world.gather_named(&Gpu::of(run.device()), "the comparison of the GPUs")?;
        check_one_gpu_each(&gpus)?;
    }
    let own = (program(run.device(), run.vars(), entry), facts);
    let Some(Unequal { of_main, rank, of_rank }) =
        world.difference(&own, "the comparison of the programs")?
    else {
        return Ok(());
    };
    // All ranks compare the same values, so each of them returns this error.
    compare_lists(&of_main.0, &of_rank.0, rank)?;
    compare_facts(&of_main.1, &of_rank.1, rank)
}

/// Returns the lists that identify the program, the entry point and the model.
fn program(device: Device, vars: &Vars, entry: &str) -> Lists {
    let program = std::env::current_exe().ok().and_then(|path| {
        let bytes = path.metadata().ok()?.len();
        Some(format!("{} of {bytes} bytes", path.file_name()?.to_string_lossy()))
    });
    let vars = vars.iter().map(|var| format!("{} {:?} {:?}", var.name, var.tensor.kind(), var.tensor.size()));
    let one = |text: String| vec![text];
    BTreeMap::from([
        ("entry point".to_owned(), one(entry.to_owned())),
        ("program".to_owned(), program.into_iter().collect()),
        ("kind of device".to_owned(), one(kind_of(&format!("{device:?}")).to_owned())),
        ("version of `trainer`".to_owned(), one(env!("CARGO_PKG_VERSION").to_owned())),
        ("version of libtorch".to_owned(), one(libtorch::version())),
        ("variables of the model".to_owned(), vars.collect()),
    ])
}

/// Returns an error if the other ranks have different training or validation data.
pub(super) fn compare_data(world: &World, fingerprints: &[String; 2]) -> Result<()> {
    let names = ["training data", "validation data"].map(str::to_owned);
    let own: Lists = names.into_iter().zip(fingerprints.iter().map(|text| vec![text.clone()])).collect();
    match world.difference(&own, "the comparison of the data")? {
        None => Ok(()),
        Some(Unequal { of_main, rank, of_rank }) => compare_lists(&of_main, &of_rank, rank),
    }
}

/// The number of batches of a pass, which ends when the data of all ranks has ended.
pub(super) struct PassLength {
    /// The largest number on any rank, if every rank knows its own.
    pub(super) known: Option<u64>,
    /// Whether every rank knows its own number, and all of them are equal.
    pub(super) is_equal: bool,
}

/// Agrees with the other ranks on the number of batches of a pass. `own` is the number that the
/// loader of this rank reports.
pub(super) fn agree_on_length(world: &World, own: Option<u64>) -> Result<PassLength> {
    if world.is_solo() {
        return Ok(PassLength { known: own, is_equal: true });
    }
    let number = own.map_or(-1.0, |batches| batches as f64);
    let what = "the agreement on the length of a pass";
    let ([longest, negative], []) = world.combine(both(number), [], what)?;
    // The negative of the shortest length is at most 0 if all lengths are known.
    let is_known = negative <= 0.0;
    Ok(PassLength {
        known: is_known.then_some(longest as u64),
        is_equal: is_known && is_same([longest, negative]),
    })
}

/// Sends an error to the other ranks, disconnects from them, and drops the requested checkpoints.
pub(super) fn leave(run: &mut Run, error: &Error) {
    let world = std::mem::replace(&mut run.ranks_mut().world, World::solo());
    if !world.is_solo() {
        run.ranks_mut().has_left = true;
        // A checkpoint that was due would lack the states of the other ranks, which could then
        // not resume exactly.
        run.checkpoints_mut().requests.get_mut().clear();
        current::end_entry();
        let recent = world.recent();
        world.leave(&error.to_string());
        report(run.rank(), run.folder_state().path(), error, &recent);
    }
}

/// Reports the last collectives of this rank on standard error and in its log, so that the ranks
/// can be compared.
fn report(rank: u32, folder: Option<&Path>, error: &Error, recent: &[String]) {
    const SHOWN: usize = 6;
    let list = |lines: &[String]| lines.iter().map(|line| format!("\n  {line}")).collect::<String>();
    if !error.is_cancelled() {
        let last = &recent[recent.len().saturating_sub(SHOWN)..];
        terminal::eprint_line(format!("rank {rank}: its last collectives were:{}", list(last)));
    }
    if let Some(folder) = folder {
        let text = format!("{}: {error}\nthe last collectives:{}\n", now(), list(recent));
        // The error of the run is more important than an error of its log.
        let _ = append(&folder.join(LOGS).join(format!("rank-{rank}.log")), &text);
    }
}

/// The name of the folder, in the run folder, that contains a log of each failed rank.
const LOGS: &str = "ranks";

fn append(path: &Path, text: &str) -> Result<()> {
    files::create_folders(files::folder_of(path))?;
    let (mut log, length) = files::open_or_create(path)?;
    Ok(log.write_at(length, text.as_bytes())?)
}

/// Returns the result of preparing an entry point, unchanged. On an error, first disconnects from
/// the other ranks, which would otherwise wait for this rank.
pub(super) fn or_leave<R>(run: &mut Run, result: Result<R>) -> Result<R> {
    result.inspect_err(|error| leave(run, error))
}

/// Waits for the other ranks at the end of an entry point, so that the files of the entry point are
/// complete when any rank continues. If the cleanup failed, disconnects from the other ranks
/// instead.
pub(super) fn part(ranks: &mut Ranks, errors: &mut Vec<Error>) {
    let failed = errors.iter().find(|error| !error.is_cancelled()).map(ToString::to_string);
    match failed {
        Some(why) => {
            let world = std::mem::replace(&mut ranks.world, World::solo());
            current::end_entry();
            world.leave(&why);
        }
        None => errors.extend(ranks.world.combine([], [], "the end of the entry point").err()),
    }
}

/// Maps names to lists.
type Lists = BTreeMap<String, Vec<String>>;

/// Returns an error that names the first list that differs between rank 0 and rank `rank`.
fn compare_lists(first: &Lists, lists: &Lists, rank: u32) -> Result<()> {
    for name in first.keys().chain(lists.keys()) {
        let one = list(first, name);
        let other = list(lists, name);
        if one != other {
            return Err(Error::usage(format!(
                "the ranks differ in their {name}: {}; run the same program on the same data on all ranks",
                difference(one, other, rank)
            )));
        }
    }
    Ok(())
}

/// Returns an error if the settings or hooks of rank `rank` differ from those of rank 0, with a
/// line for each difference.
fn compare_facts(first: &Facts, facts: &Facts, rank: u32) -> Result<()> {
    let line = |Difference { what, one, other }| {
        format!("\n- {what} is {one} on rank 0, but {other} on rank {rank}")
    };
    let mut lines: Vec<String> = first.differences(facts).into_iter().map(line).collect();
    let version = |[krate, one, other]: [String; 3]| {
        format!("\n- the version of `{krate}` is {one} on rank 0, but {other} on rank {rank}")
    };
    lines.extend(first.versions(facts).into_iter().map(version));
    if lines.is_empty() {
        return Ok(());
    }
    Err(Error::usage(format!(
        "rank {rank} differs from rank 0: use the same settings, optimizers and hooks on all ranks:{}",
        lines.concat()
    )))
}

fn list<'a>(lists: &'a Lists, name: &str) -> &'a [String] {
    lists.get(name).map_or(&[], Vec::as_slice)
}

/// Describes the first difference between the list of rank 0 and that of rank `rank`.
fn difference(one: &[String], other: &[String], rank: u32) -> String {
    let alone = |list: &[String], others: &[String]| {
        list.iter().find(|item| !others.contains(item)).map(|item| shortened(item))
    };
    match (alone(one, other), alone(other, one)) {
        (Some(one), Some(other)) => format!("`{one}` on rank 0, `{other}` on rank {rank}"),
        (Some(one), None) => format!("only rank 0 has `{one}`"),
        (None, Some(other)) => format!("only rank {rank} has `{other}`"),
        (None, None) => {
            format!("rank {rank} has the same ones as rank 0, but in a different order or number")
        }
    }
}

/// The values that must be equal on all ranks before a batch.
pub(super) struct Common {
    counters: Progress,
    /// The hash of the set of trained parameters, in training.
    trained: f64,
    /// The hash of the settings of the optimizers, in training.
    settings: f64,
}

impl Common {
    /// The number of values that the ranks exchange: each value and its negative.
    pub(super) const LEN: usize = 10;

    /// Returns the values of this rank.
    pub(super) fn of(counters: Counters, model: &Model, ranks: &Ranks, is_train: bool) -> Self {
        let Model { vars, optimizers, .. } = model;
        let accumulated = if ranks.train_separately { 0.0 } else { optimizers.accumulated() };
        let [trained, settings] =
            if is_train { [trained_hash(vars), settings_hash(optimizers, ranks)] } else { [0.0; 2] };
        Common { counters: (counters.batches_seen, counters.optimizer_steps, accumulated), trained, settings }
    }

    /// Returns what the ranks exchange.
    pub(super) fn numbers(&self) -> impl Iterator<Item = f64> {
        let (batches, steps, accumulated) = self.counters;
        [batches as f64, steps as f64, accumulated, self.trained, self.settings].into_iter().flat_map(both)
    }

    /// Returns an error if the numbers of all ranks show that a value differs. All ranks then call
    /// this.
    pub(super) fn check(&self, all: &[f64], model: &Model, world: &World) -> Result<()> {
        let pairs = all.chunks_exact(2).map(|pair| is_same([pair[0], pair[1]]));
        Err(match pairs.zip(0..).find(|(is_same, _)| !is_same) {
            None => return Ok(()),
            Some((_, 0..=2)) => out_of_step(self.counters, world)?,
            Some((_, 3)) => differently_frozen(&model.vars, world)?,
            Some(_) => differently_set(&model.optimizers, world)?,
        })
    }
}

/// The progress of a rank: the number of batches, the number of optimizer steps, and the total
/// weight of the batches in the accumulation window.
type Progress = (u64, u64, f64);

/// Returns a hash of the set of trained parameters. The hash has 52 bits, so an `f64` represents it
/// exactly.
fn trained_hash(vars: &Vars) -> f64 {
    hash(vars.parameters().map(|var| u64::from(var.tensor.requires_grad())))
}

/// Returns a hash of the current settings of all optimizers, such as their learning rates. Hooks
/// may have changed them since the ranks compared their programs. 0 if each rank trains by itself.
fn settings_hash(optimizers: &Optimizers, ranks: &Ranks) -> f64 {
    if ranks.train_separately {
        return 0.0;
    }
    let groups = optimizers.parts().flat_map(|(_, optimizer, ..)| optimizer.groups());
    hash(groups.flat_map(|group| group.settings().map(|(_, value)| value.to_bits())))
}

/// Returns a hash that an `f64` represents exactly: 52 bits.
fn hash(values: impl Iterator<Item = u64>) -> f64 {
    let mix = |hash: u64, value: u64| {
        (hash ^ value).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23)
    };
    (values.fold(0, mix) >> 12) as f64
}

/// Returns the error for ranks whose optimizers have different settings. Every rank must call this.
#[cold]
fn differently_set(optimizers: &Optimizers, world: &World) -> Result<Error> {
    let mut own: Vec<(String, String)> = Vec::new();
    for (part, optimizer, ..) in optimizers.parts() {
        let part = if part.is_empty() { String::new() } else { format!(" of `{part}`") };
        for (nth, group) in optimizer.groups().iter().enumerate() {
            let group_name =
                group.pattern().map_or_else(|| nth.to_string(), |pattern| format!("`{pattern}`"));
            let named =
                |name: &str| format!("`{name}` of the parameter group {group_name} of the optimizer{part}");
            own.extend(group.settings().map(|(name, value)| (named(name), exact(value))));
        }
    }
    let what = match world.difference(&own, "the comparison of the settings of the optimizers")? {
        None => String::new(),
        Some(Unequal { of_main, rank, of_rank }) => {
            let mut pairs = of_main.iter().zip(&of_rank);
            let pair = pairs.find(|(main, other)| main != other);
            pair.map_or_else(String::new, |((name, main), (_, other))| {
                format!(": {name} is {main} on rank 0, but {other} on rank {rank}")
            })
        }
    };
    Ok(Error::usage(format!(
        "the ranks are out of step, because their optimizers have different settings{what}; make hooks set the same values on every \
         rank, for example from numbers that are averaged over the ranks (`World::average`)"
    )))
}

/// Returns the error for ranks that train different parameters. Every rank must call this.
#[cold]
fn differently_frozen(vars: &Vars, world: &World) -> Result<Error> {
    let frozen = vars.parameters().filter(|var| !var.tensor.requires_grad());
    let frozen: Vec<String> = frozen.map(|var| var.name.clone()).collect();
    let what = match world.difference(&frozen, "the comparison of the frozen parameters")? {
        None => String::new(),
        Some(Unequal { of_main, rank, of_rank }) => {
            let [main, other] = [(&of_main, &of_rank), (&of_rank, &of_main)]
                .map(|(one, other)| one.iter().find(|name| !other.contains(name)));
            let (name, frozen, trained) = main.map_or((other, rank, 0), |name| (Some(name), 0, rank));
            let name = name.map_or("", String::as_str);
            format!(": `{}` is frozen on rank {frozen}, but trained on rank {trained}", shortened(name))
        }
    };
    Ok(Error::usage(format!(
        "the ranks are out of step, because they train different parameters{what}; make hooks freeze and thaw the same \
         parameters on every rank"
    )))
}

/// Returns the error for ranks that have not trained the same number of batches and steps, or have
/// not accumulated the gradients of the same batches. Every rank must call this.
#[cold]
fn out_of_step(own: Progress, world: &World) -> Result<Error> {
    let what = match world.difference(&own, "the comparison of the counters")? {
        None => String::new(),
        Some(Unequal { of_main: (batches, steps, weight), rank, of_rank }) => {
            let (other_batches, other_steps, other_weight) = of_rank;
            let accumulated = if weight == other_weight {
                String::new()
            } else {
                format!(", and gradients of weight {weight} and {other_weight} are accumulated")
            };
            format!(
                ": rank 0 has trained {batches} batches and taken {steps} optimizer steps, but rank {rank} has trained \
                 {other_batches} and taken {other_steps}{accumulated}"
            )
        }
    };
    Ok(Error::usage(format!(
        "the ranks are out of step{what}; a hook skipped work on one rank only: make it decide the same way on every rank"
    )))
}
