//! Profiles: how the time of a run is divided among operations, modules, hooks and waiting for
//! data.
//!
//! [`profile`](crate::TrainerBuilder::profile) turns measuring on, and
//! [`Trainer::profile`](crate::Trainer::profile) returns the [`Profile`] of the last entry point.
//! The environment variable `TRAINER_PROFILE` turns measuring on and prints or writes the profile,
//! without changes to the program: see [`guide::profiling`](crate::guide::profiling).
//!
//! `Spans` is a [`Layer`]: while measuring is off, profiling adds no overhead.

mod format;
mod report;
#[cfg(feature = "tracing")]
pub(crate) mod tracing;

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::BoxError;
pub use crate::libtorch::KernelTrace;
use crate::moments::tree;
use crate::phase::Phase;
pub use crate::run::layers::SpanKind;
use crate::run::layers::{Call, Layer, Layers, Target};
use crate::run::recorder::{
    DATA, ENTRY, Event, KEYS_BEFORE_MOMENTS, Key, SpanRecorder, Stats, key_of, nanos,
};
use crate::run::{Modules, Run, Table};

/// The time of an entry point, divided among its spans. `Display` prints a table, sorted by self
/// time; other formats are [`json`](Profile::json) and [`chrome_trace`](Profile::chrome_trace).
///
/// A *span* is the entry point itself, one call of a hook, one run of an operation or of a named
/// module with the hooks around it, or one wait for a batch. The *self time* of a span excludes the
/// spans inside it, so the self times of all rows add up exactly to the time of the entry point.
///
/// On a GPU, spans measure host time. The host queues kernels without waiting for them, so the time
/// of a kernel appears in the span where the host waits for a result.
/// [`profile_synchronized`](crate::TrainerBuilder::profile_synchronized) waits for the device at
/// both ends of each span instead. [`waits`](ProfileRow::waits) counts how often the host waited.
///
/// ```
/// use trainer::prelude::*;
///
/// # let inputs = Tensor::randn([64, 4], (Kind::Float, Device::Cpu));
/// # let labels = inputs.select(1, 0).gt(0.0).to_kind(Kind::Int64);
/// # let vs = nn::VarStore::new(Device::Cpu);
/// # let net = nn::linear(vs.root() / "fc", 4, 2, Default::default());
/// # let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
/// # let mut train = InMemory::new((inputs, labels))?.batch_size(16);
/// let mut trainer = Trainer::builder(task).optimizer(Sgd::new(0.1)).profile(true).build()?;
/// trainer.fit(&mut train, None)?;
/// if let Some(profile) = trainer.profile() {
///     println!("{profile}");
/// }
/// # Ok::<(), trainer::Error>(())
/// ```
#[doc(alias = "SimpleProfiler")]
#[derive(Clone, Debug)]
pub struct Profile {
    entry: &'static str,
    /// When the entry point began.
    began: Instant,
    rows: Vec<ProfileRow>,
    /// The spans, each with the index of its row, sorted by start time.
    spans: Vec<(usize, Event)>,
    dropped: u64,
}

/// The statistics of all spans of one kind, name, moment and phase.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ProfileRow {
    /// The kind of the spans.
    pub kind: SpanKind,
    /// The name of the operation or module, such as `backward`; the name of the entry point's
    /// operation, such as `fit`; the path of the hook, such as `my_crate::clip`, with ` #2` for the
    /// second value of its type; or `data`.
    pub name: String,
    /// The point at which the hook ran, or the operation that it ran around; `None` if the kind is
    /// not [`SpanKind::Hook`].
    pub moment: Option<String>,
    /// Whether the hook ran around an operation.
    pub around: bool,
    /// The phase of the spans.
    pub phase: Phase,
    /// The number of spans.
    pub calls: u64,
    /// The time of all spans, including the spans inside them. A span inside another span of the
    /// same row is not counted twice.
    pub total: Duration,
    /// The time of all spans, excluding the spans inside them.
    pub self_time: Duration,
    /// The time of the longest span.
    pub max: Duration,
    /// The number of times that a thread of the process waited for a GPU during the spans,
    /// excluding the spans inside them: for example, to read a value or for a copy to finish.
    /// `None` if the task is not on a CUDA device, or if Python runs in the same process and
    /// libtorch reports the waits to it instead.
    pub waits: Option<u64>,
}

impl ProfileRow {
    /// Returns the mean time of a span, including the spans inside it.
    #[must_use]
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(nanos(self.total).checked_div(self.calls).unwrap_or_default())
    }

    /// Returns the row's label in a table or a trace: `backward`,
    /// `my_crate::clip at after_backward`.
    fn label(&self) -> String {
        match &self.moment {
            Some(moment) => format!("{} {} {moment}", self.name, if self.around { "around" } else { "at" }),
            None if self.kind == SpanKind::Entry => format!("{} (entry point)", self.name),
            None => self.name.clone(),
        }
    }
}

impl Profile {
    /// Returns the profile of the last entry point of a run, or `None` if it was not measured.
    pub(crate) fn of(layers: &Layers, table: &Table, modules: &Modules) -> Option<Self> {
        let recorder = layers.get::<Spans>()?.lock();
        let has_begun = !recorder.entry.is_empty();
        has_begun.then(|| Profile::build(table, modules, &recorder))
    }

    /// Returns the profile of the running entry point so far, or `None` if the entry point is not
    /// measured. The profile contains no spans for a trace.
    pub(crate) fn so_far(layers: &Layers, table: &Table, modules: &Modules) -> Option<Self> {
        let recorder = layers.get::<Spans>()?.lock().so_far();
        Some(Profile::build(table, modules, &recorder))
    }

    fn build(table: &Table, modules: &Modules, recorder: &SpanRecorder) -> Self {
        let names = hook_names(table);
        let mut rows = Vec::new();
        let mut row_of = HashMap::new();
        for (slot, stats) in recorder.stats.iter().enumerate().filter(|(_, stats)| stats.calls > 0) {
            let (key, phase) = key_of(slot);
            row_of.insert(slot, rows.len());
            rows.push(row((table, modules), recorder, &names, key, phase, *stats));
        }
        let spans =
            recorder.events.iter().filter_map(|event| Some((*row_of.get(&(event.slot as usize))?, *event)));
        let SpanRecorder { entry, began, dropped, .. } = *recorder;
        Profile { entry, began, spans: spans.collect(), rows, dropped }
    }

    /// Returns the name of the entry point's operation: `fit`, `valid`, `test` or `predict`.
    #[must_use]
    pub fn entry(&self) -> &'static str {
        self.entry
    }

    /// Returns the rows, sorted by self time, longest first.
    #[must_use]
    pub fn rows(&self) -> Vec<&ProfileRow> {
        let mut rows: Vec<_> = self.rows.iter().collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.self_time));
        rows
    }

    /// Returns the time of the entry point, which is the sum of the self times of all rows.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.rows.iter().filter(|row| row.kind == SpanKind::Entry).map(|row| row.total).sum()
    }

    /// Returns the number of spans that [`chrome_trace`](Profile::chrome_trace) omits, because it
    /// keeps only the first 1,000,000. The rows include them.
    #[must_use]
    pub fn dropped_spans(&self) -> u64 {
        self.dropped
    }
}

/// The layer that records the spans.
pub(crate) struct Spans(Mutex<SpanRecorder>);

impl Spans {
    pub(crate) fn new(recorder: SpanRecorder) -> Self {
        Spans(Mutex::new(recorder))
    }

    fn lock(&self) -> MutexGuard<'_, SpanRecorder> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A span that has begun. Dropping it, even while a panic unwinds, ends it.
struct Open<'a>(&'a Spans);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.lock().end();
    }
}

impl Layer for Spans {
    fn call(&self, call: &mut Call<'_>) -> Result<(), BoxError> {
        if call.target == Target::Entry {
            self.lock().restart(call.run.at.place.operation.name);
        }
        let operations = KEYS_BEFORE_MOMENTS + tree::moments().len();
        let key = match (call.target, call.module()) {
            (Target::Entry, _) => ENTRY,
            (Target::Loader, _) => DATA,
            (Target::Hook(hook), _) => operations + hook,
            (_, Some(known)) => operations + call.run.hooks.table.hooks().len() + known as usize,
            (Target::Operation(row) | Target::Body(row), None) => KEYS_BEFORE_MOMENTS + row,
        };
        self.lock().begin(key, call.phase(), call.is_body());
        let span = Open(self);
        let result = call.run();
        drop(span);
        if call.target == Target::Entry {
            let Run { hooks, modules, reports, .. } = &*call.run;
            report::report(&hooks.table, modules, reports, &self.lock());
        }
        result
    }
}

/// Returns the number of calls and the self time, in nanoseconds, of a hook over all phases; `None`
/// if the run has no profile. `hook` is the index of the hook in the table.
pub(crate) fn time_of_hook(layers: &Layers, hook: usize) -> Option<(u64, u64)> {
    let recorder = layers.get::<Spans>()?.lock();
    let of_phases = recorder.of(KEYS_BEFORE_MOMENTS + tree::moments().len() + hook);
    Some(of_phases.iter().fold((0, 0), |(calls, own), stats| (calls + stats.calls, own + stats.own)))
}

fn row(
    (table, modules): (&Table, &Modules),
    recorder: &SpanRecorder,
    names: &[String],
    key: Key,
    phase: Phase,
    Stats { calls, total, own, max, waits, .. }: Stats,
) -> ProfileRow {
    let hooks = KEYS_BEFORE_MOMENTS + tree::moments().len();
    let mut around = false;
    let (kind, name, moment) = match key {
        ENTRY => (SpanKind::Entry, recorder.entry.to_owned(), None),
        DATA => (SpanKind::Data, "data".to_owned(), None),
        _ if key < hooks => (SpanKind::Operation, tree::moments()[key - KEYS_BEFORE_MOMENTS].path(), None),
        _ if key >= hooks + names.len() => {
            let module = &modules.known[key - hooks - names.len()];
            (SpanKind::Module, module.name.to_string(), None)
        }
        _ => {
            let hook = &table.hooks()[key - hooks].definition;
            around = hook.goes_around();
            (SpanKind::Hook, names[key - hooks].clone(), Some(hook.moment.path()))
        }
    };
    let [total, self_time, max] = [total, own, max].map(Duration::from_nanos);
    let waits = recorder.counts_waits.then_some(waits);
    ProfileRow { kind, name, moment, around, phase, calls, total, self_time, max, waits }
}

/// Returns the name of each hook as in `describe_hooks`: with the name of the method if it differs
/// from the name of the moment, with the label of its value, and with a number if several values of
/// the type and label have a hook at the same moment.
pub(crate) fn hook_names(table: &Table) -> Vec<String> {
    let keys = table.hooks().iter().map(|hook| {
        let label = hook.label.as_ref().map_or_else(String::new, |label| format!("({label})"));
        (hook.definition.shown() + &label, (hook.definition.row)())
    });
    let keys: Vec<_> = keys.collect();
    let mut counts: HashMap<_, u32> = HashMap::new();
    for key in &keys {
        *counts.entry(key).or_default() += 1;
    }
    let mut seen: HashMap<_, u32> = HashMap::new();
    let numbered = keys.iter().map(|key| {
        let number = seen.entry(key).or_default();
        *number += 1;
        if counts[key] > 1 { format!("{} #{number}", key.0) } else { key.0.clone() }
    });
    numbered.collect()
}
