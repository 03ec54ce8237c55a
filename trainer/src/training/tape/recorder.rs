//! [`Recorder`]: finds what has changed since it last looked, and encodes the changes as records.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use trainer_formats::tape::{Entry, EntryKind, Level, Position, Process, Record};

use super::seen::Seen;
use super::settings::Tape;
use crate::checkpoint::progress::LoopState;
use crate::error::{Error, Origin, Result};
use crate::lifecycle::at;
use crate::moment::Moment;
use crate::moments::tree;
use crate::phase::Phase;
use crate::run::changes::{Changes, Reading, names_of_states};
use crate::run::circumstances::circumstances;
use crate::run::{Hook, Modules, Run, Table};

/// Identifies an entry of the tape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    /// The state at the start of the entry point, or of the recorded batches.
    Start(&'static str),
    /// The batches since the last record of the state.
    Interval,
    /// The loader.
    Loader,
    /// The operation in this row of the dispatch table.
    Operation(usize),
    /// The named module with this index.
    Module(u32),
    /// The hook with this index in the dispatch table.
    Hook(usize),
}

/// Records a run.
pub(crate) struct Recorder {
    tape: Tape,
    /// The records that have not been written to the file yet.
    buffer: Vec<u8>,
    values: Changes,
    seen: Seen,
    /// Whether an entry point is being recorded.
    is_on: bool,
    /// Whether the last batch was one of the batches to record.
    is_in_range: bool,
    /// Whether the description of the process has been recorded.
    has_begun: bool,
    entries: HashMap<Key, u32>,
    /// The entries that are running, innermost last.
    open: Vec<Key>,
    /// The hook that ended last, if nothing else has happened since.
    last: Option<usize>,
    position: Option<Position>,
    /// The batch that was drawn last.
    batch: Option<Origin>,
}

impl Recorder {
    pub(crate) fn new(tape: Tape) -> Self {
        let reading = if tape.trusts { Reading::Counted } else { Reading::Everything };
        Recorder {
            tape,
            buffer: Vec::new(),
            values: Changes::new(reading),
            seen: Seen::default(),
            is_on: false,
            is_in_range: false,
            has_begun: false,
            entries: HashMap::new(),
            open: Vec::new(),
            last: None,
            position: None,
            batch: None,
        }
    }

    /// The settings of the tape.
    pub(crate) fn settings(&self) -> &Tape {
        &self.tape
    }

    /// Whether anything was recorded.
    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// The number of bytes that have not been written to the file yet.
    pub(crate) fn pending(&self) -> usize {
        self.buffer.len()
    }

    /// Takes the bytes that have not been written to the file yet.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.buffer)
    }

    /// Starts recording an entry point, beginning with the complete state at its start.
    pub(crate) fn start(&mut self, run: &Run) -> Result<()> {
        self.begin(run)?;
        self.baseline(run, run.place().operation.name)
    }

    /// Continues recording after a resume, beginning with everything that was restored.
    pub(crate) fn resume(&mut self, run: &Run) -> Result<()> {
        self.begin(run)?;
        self.values.forget();
        if self.covers(run.phase(), run.progress()) {
            self.is_in_range = true;
            let restored = match self.tape.level {
                Level::Full => self.values.changed(run)?,
                Level::Steps(_) => Vec::new(),
            };
            self.name_new()?;
            self.go_to(run.phase(), run.progress(), run.at().loader())?;
            self.write(&Record::Resumed(run.progress().train_batches, restored))?;
        }
        Ok(())
    }

    /// Ends the recording of an entry point.
    pub(crate) fn end(&mut self) {
        self.is_on = false;
        self.open.clear();
    }

    /// Returns a warning for each pair of hooks that changed the same value in this entry point
    /// although nothing orders the two explicitly.
    pub(crate) fn conflicts(&mut self, table: &Table) -> Vec<String> {
        self.seen.conflicts(table, self.values.names())
    }

    /// The kinds of values that each hook was seen to change, by the hook's index in the dispatch
    /// table. Hooks that were not recorded are missing.
    pub(crate) fn seen(&self, table: &Table) -> BTreeMap<usize, Vec<&'static str>> {
        self.seen.by_hook(table)
    }

    /// Notes that a checkpoint of the current state is about to be written.
    pub(crate) fn saved(&mut self, batches: u64) -> Result<()> {
        if self.is_on && self.is_in_range {
            self.write(&Record::Saved(batches))?;
        }
        Ok(())
    }

    /// Records the complete state under one entry.
    fn baseline(&mut self, run: &Run, entry: &'static str) -> Result<()> {
        self.values.forget();
        self.is_in_range = self.covers(run.phase(), run.progress());
        self.record(run, Key::Start(entry))
    }

    /// Begins to record. At first, records descriptions of the process and of its hooks.
    fn begin(&mut self, run: &Run) -> Result<()> {
        self.is_on = true;
        self.is_in_range = false;
        self.open.clear();
        self.last = None;
        if std::mem::replace(&mut self.has_begun, true) {
            return Ok(());
        }
        let world = run.world();
        let facts = run.checkpoints().facts.as_ref();
        let mut settings = facts.map(|facts| facts.settings.clone()).unwrap_or_default();
        for (hook, of) in facts.iter().flat_map(|facts| &facts.hooks) {
            let named = of.settings.iter().map(|(name, value)| (format!("{hook}.{name}"), value.clone()));
            settings.extend(named);
        }
        let mut circumstances = circumstances(run.device());
        circumstances.insert("trainer".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
        self.write(&Record::Process(Process {
            rank: (world.rank(), world.size()),
            level: self.tape.level,
            batches: self.tape.batches.clone(),
            paranoid: !self.tape.trusts,
            circumstances,
            settings,
            states: names_of_states(&run.hooks().instances),
        }))?;
        let hooks = run.hooks().table.hooks();
        for nth in 0..hooks.len() {
            self.entry(hooks, run.modules(), Key::Hook(nth))?;
        }
        Ok(())
    }

    fn write(&mut self, record: &Record) -> Result<()> {
        rmp_serde::encode::write(&mut self.buffer, record)
            .map_err(|error| Error::usage(format!("the tape cannot be written: {error}")))
    }

    /// Returns the number of an entry. If the entry is new, records its description.
    fn entry(&mut self, hooks: &[Hook], modules: &Modules, key: Key) -> Result<u32> {
        if let Some(known) = self.entries.get(&key) {
            return Ok(*known);
        }
        let number = u32::try_from(self.entries.len()).expect("fewer than 2³² hooks and modules");
        self.entries.insert(key, number);
        self.write(&Record::Entry(describe(hooks, modules, key)))?;
        Ok(number)
    }

    /// Whether the current batch is one of the batches to record.
    fn covers(&self, phase: Phase, progress: &LoopState) -> bool {
        self.tape.batches.contains(&batches_seen(phase, progress))
    }

    /// Begins an entry. Earlier changes are attributed to whatever ran before this entry.
    pub(super) fn enter(&mut self, run: &Run, key: Key) -> Result<()> {
        if !self.is_on {
            return Ok(());
        }
        let follows = match (key, self.last.take()) {
            (Key::Hook(this), Some(last)) => follows(run.hooks().table.hooks(), last, this),
            _ => false,
        };
        if !follows {
            self.turn(run)?;
        }
        self.open.push(key);
        if let Key::Hook(hook) = key
            && self.is_in_range
        {
            let module = run.modules().calls.last().map(|call| call.known);
            self.seen.begin(&run.hooks().table, module, hook);
        }
        Ok(())
    }

    /// Ends an entry.
    pub(super) fn leave(&mut self, run: &Run, key: Key) -> Result<()> {
        if !self.is_on || self.open.last() != Some(&key) {
            return Ok(());
        }
        if key == Key::Operation(at::opt_step::index()) {
            self.values.refresh();
        }
        let hook = match key {
            Key::Hook(nth) => Some(&run.hooks().table.hooks()[nth]),
            _ => None,
        };
        if !hook.is_some_and(|hook| hook.definition.observes) {
            self.values.read_buffers();
        }
        self.values.look_at(hook.and_then(|hook| hook.slot));
        self.turn(run)?;
        self.open.pop();
        self.last = match key {
            Key::Hook(hook) => Some(hook),
            _ => None,
        };
        Ok(())
    }

    /// If the current batch is one of the batches to record, records what has changed under the
    /// innermost entry.
    fn turn(&mut self, run: &Run) -> Result<()> {
        if self.tape.level != Level::Full {
            return Ok(());
        }
        if !self.covers(run.phase(), run.progress()) {
            self.is_in_range = false;
            return Ok(());
        }
        if !self.is_in_range {
            return self.baseline(run, "the recorded batches");
        }
        let key = self.open.last().copied().unwrap_or(Key::Operation(at::fit::index()));
        self.record(run, key)
    }

    /// At the begin of a step, records the batch, which is what the loader has changed.
    pub(super) fn load(&mut self, run: &Run) -> Result<()> {
        let batch = Some(run.dispatch().origin);
        if run.step().batch_len.is_none() || !run.fit().failed_mid_step || self.batch == batch {
            return Ok(());
        }
        self.batch = batch;
        if !self.is_on {
            return Ok(());
        }
        self.last = None;
        self.open.push(Key::Loader);
        self.values.begin_batch();
        // Once per batch, because a hook can change the values of other hooks.
        self.values.look_at_all();
        let result = self.turn(run);
        self.open.pop();
        result
    }

    /// In a tape of level `Steps(n)`, records the state after every `n` batches, and at the end.
    pub(crate) fn interval(&mut self, run: &Run, is_end: bool) -> Result<()> {
        let Level::Steps(n) = self.tape.level else { return Ok(()) };
        if !self.is_on || run.phase() != Phase::Train || !self.covers(run.phase(), run.progress()) {
            return Ok(());
        }
        if !is_end && !run.progress().batch_number.is_multiple_of(n) {
            return Ok(());
        }
        if !self.is_in_range {
            return self.baseline(run, "the recorded batches");
        }
        // All values, so that a run that was resumed since the last record writes the same records.
        self.values.forget();
        self.record(run, Key::Interval)
    }

    /// Writes what has changed since the last comparison, under this entry.
    fn record(&mut self, run: &Run, key: Key) -> Result<()> {
        for (slot, instance) in (0..).zip(&run.hooks().instances) {
            self.values.look_at(instance.is_touched.take().then_some(slot));
        }
        let changed = self.values.changed(run)?;
        if changed.is_empty() {
            return Ok(());
        }
        if let Key::Hook(hook) = key {
            self.seen.note(&run.hooks().table, hook, &changed, self.values.names());
        }
        self.name_new()?;
        self.go_to(run.phase(), run.progress(), run.at().loader())?;
        let entry = self.entry(run.hooks().table.hooks(), run.modules(), key)?;
        self.write(&Record::Changed(entry, changed))
    }

    /// Writes the names that are new.
    fn name_new(&mut self) -> Result<()> {
        for name in self.values.new_names() {
            self.write(&Record::Name(name))?;
        }
        Ok(())
    }

    /// Writes the position, if it changed.
    fn go_to(&mut self, phase: Phase, progress: &LoopState, loader: Option<&Arc<str>>) -> Result<()> {
        let position = Position {
            fit: progress.fits_begun,
            batches_seen: batches_seen(phase, progress),
            epoch: progress.counters.epoch,
            phase: phase.to_string(),
            loader: loader.map_or_else(String::new, ToString::to_string),
            batch: if phase == Phase::Train { 0 } else { progress.batch_number.saturating_sub(1) },
        };
        if self.position.as_ref() != Some(&position) {
            self.write(&Record::At(position.clone()))?;
            self.position = Some(position);
        }
        Ok(())
    }
}

/// The number of training batches before the current one.
fn batches_seen(phase: Phase, progress: &LoopState) -> u64 {
    if phase == Phase::Train { progress.train_batches.saturating_sub(1) } else { progress.train_batches }
}

/// Whether the hook `this` is called right after the hook `last`, so that nothing else can have
/// changed a value.
fn follows(hooks: &[Hook], last: usize, this: usize) -> bool {
    let row = |hook: usize| (hooks[hook].definition.row)();
    let is_at_point = !hooks[this].definition.goes_around();
    is_at_point && last < this && row(last) == row(this)
}

/// Describes an entry.
fn describe(hooks: &[Hook], modules: &Modules, key: Key) -> Entry {
    let plain = |kind, name: &str| Entry {
        kind,
        name: name.to_owned(),
        owner: String::new(),
        moment: String::new(),
        place: String::new(),
        package: String::new(),
    };
    match key {
        Key::Start(entry) => plain(EntryKind::Start, entry),
        Key::Interval => plain(EntryKind::Interval, ""),
        Key::Loader => plain(EntryKind::Loader, ""),
        Key::Operation(row) => plain(EntryKind::Operation, &tree::moments()[row].path()),
        Key::Module(known) => plain(EntryKind::Module, &modules.known[known as usize].name),
        Key::Hook(nth) => {
            let definition = &hooks[nth].definition;
            let origin = &definition.origin;
            let moment = definition.moment.path();
            Entry {
                kind: EntryKind::Hook,
                name: origin.name(),
                owner: origin.path.to_string(),
                moment: if definition.goes_around() { format!("around {moment}") } else { moment },
                place: format!("{}:{}", origin.file, origin.line),
                package: match origin.version {
                    Some(version) => format!("{} {version}", origin.krate()),
                    None => String::new(),
                },
            }
        }
    }
}
