//! [`difference`]: finds the first difference between two runs from their tapes.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;

use trainer_files::{Error, in_file};

use super::events::{Event, Tape};
use super::record::{Entry, EntryKind, Level, Position, Process};

/// The number of changes that are read ahead to find out which run has an additional change.
const AHEAD: usize = 4096;
/// The maximum number of names that a message lists.
const LISTED: usize = 4;

/// The difference between two runs. `Display` describes it in sentences.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Difference {
    /// The first entry that had equal inputs in both runs but made different changes; `None` if
    /// there is no such entry.
    pub first: Option<First>,
    /// The hooks that only one of the runs has, except the hook in `first`. None of these hooks
    /// changed anything before the first difference.
    pub only: Vec<Only>,
    /// The end of the shorter run, if the other run continues.
    pub end: Option<End>,
    /// The circumstances that differ, by name.
    pub circumstances: BTreeMap<String, [String; 2]>,
    /// The settings that differ, by name.
    pub settings: BTreeMap<String, [String; 2]>,
    /// The differing versions of the crates that define hooks, by crate name.
    pub crates: BTreeMap<String, [String; 2]>,
    /// The number of changes that were compared and equal.
    pub compared: u64,
}

/// The first difference between two runs.
#[derive(Clone, Debug, Serialize)]
pub struct First {
    /// The kind of the difference.
    pub kind: Kind,
    /// The entry whose changes differ. If both runs have this entry, it is taken from the first
    /// run.
    pub entry: Arc<Entry>,
    /// The position in the run.
    pub position: Arc<Position>,
    /// The names of the values that differ.
    pub values: Vec<Arc<str>>,
}

/// A kind of difference between two runs.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The entry left different values.
    Values,
    /// Only this run has the hook; 0 stands for the first run.
    Only(usize),
    /// The entry changed something in this run only; 0 stands for the first run.
    Changed(usize),
    /// The hook runs at a different moment in the second run, as described by this entry.
    Moved(Arc<Entry>),
    /// The hook runs before this other hook in the first run, and after it in the second run.
    Order(Arc<Entry>),
    /// The runs differ somewhere after their last equal record of the state, which was made after
    /// this many training batches.
    Since(u64),
}

/// A hook that only one of the runs has.
#[derive(Clone, Debug, Serialize)]
pub struct Only {
    /// The run that has the hook; 0 stands for the first run.
    pub run: usize,
    /// The hook.
    pub hook: Arc<Entry>,
}

/// The end of a run, if the other run continues.
#[derive(Clone, Debug, Serialize)]
pub struct End {
    /// The run that ends; 0 stands for the first run.
    pub run: usize,
    /// The position at which the other run continues.
    pub position: Arc<Position>,
}

/// The values that an entry changed.
#[derive(Clone, Debug)]
struct Change {
    entry: Arc<Entry>,
    position: Arc<Position>,
    values: Vec<(Arc<str>, u64)>,
}

impl Change {
    /// Whether both changes were made by the same entry.
    fn is_of(&self, other: &Change) -> bool {
        is_same(&self.entry, &other.entry)
    }
}

/// Whether two entries are the same, regardless of the line of a hook and the version of its crate.
fn is_same(one: &Entry, other: &Entry) -> bool {
    (one.kind, &one.name, &one.moment) == (other.kind, &other.name, &other.moment)
}

/// One of the two runs.
struct Side {
    tape: Tape,
    /// An event that was read from the tape but must be handled again.
    held: Option<Event>,
    /// The changes that were read ahead.
    ahead: VecDeque<Change>,
    first_process: Option<Arc<Process>>,
    /// The hooks of the program.
    hooks: Vec<Arc<Entry>>,
    /// The hash of each value, as of the last event read.
    values: HashMap<Arc<str>, u64>,
    /// The name suffixes of the values in hook states that only this run has. These values are not
    /// compared.
    own_states: Vec<String>,
    /// The number of training batches at the last record of the state.
    recorded: u64,
    /// The position of the last equal change.
    position: Option<Arc<Position>>,
}

impl Side {
    fn new(tape: Tape) -> Self {
        Side {
            tape,
            held: None,
            ahead: VecDeque::new(),
            first_process: None,
            hooks: Vec::new(),
            values: HashMap::new(),
            own_states: Vec::new(),
            recorded: 0,
            position: None,
        }
    }

    fn event(&mut self) -> Result<Option<Event>, Error> {
        match self.held.take() {
            Some(event) => Ok(Some(event)),
            None => self.tape.next().transpose(),
        }
    }

    /// Reads the events before the first change. If the run continues from a checkpoint of a
    /// different run, returns the number of training batches before that checkpoint.
    fn begin(&mut self) -> Result<Option<u64>, Error> {
        while let Some(event) = self.event()? {
            match event {
                Event::Process(process) => {
                    self.first_process.get_or_insert(process);
                }
                Event::Entry(entry) => self.add_hook(entry),
                Event::Resumed { batches, .. } => {
                    self.held = Some(event);
                    return Ok(Some(batches));
                }
                Event::Changed { .. } | Event::Saved(_) => {
                    self.held = Some(event);
                    return Ok(None);
                }
            }
        }
        Ok(None)
    }

    /// Skips the events up to the checkpoint that the run wrote after this many training batches.
    /// If there is no such checkpoint, skips the events of these batches.
    fn skip_to(&mut self, batches: u64) -> Result<(), Error> {
        let mut saved = 0;
        for event in self.tape.reopened()? {
            saved += usize::from(event? == Event::Saved(batches));
        }
        while let Some(event) = self.event()? {
            match event {
                Event::Saved(at) if at == batches && saved > 0 => {
                    saved -= 1;
                    if saved == 0 {
                        return Ok(());
                    }
                }
                Event::Changed { ref position, .. } if saved == 0 && position.batches_seen >= batches => {
                    self.held = Some(event);
                    return Ok(());
                }
                Event::Changed { entry, position, values } => {
                    self.values.extend(values);
                    if entry.kind == EntryKind::Interval {
                        self.recorded = position.batches_seen.saturating_add(1);
                    }
                }
                Event::Resumed { values, .. } => self.values.extend(values),
                Event::Entry(entry) => self.add_hook(entry),
                Event::Process(_) | Event::Saved(_) => {}
            }
        }
        Ok(())
    }

    fn add_hook(&mut self, entry: Arc<Entry>) {
        if entry.kind == EntryKind::Hook && !self.hooks.iter().any(|hook| is_same(hook, &entry)) {
            self.hooks.push(entry);
        }
    }

    /// Reads one more change; `None` at the end of the tape.
    fn read(&mut self) -> Result<Option<Change>, Error> {
        while let Some(event) = self.event()? {
            match event {
                Event::Process(_) | Event::Saved(_) => {}
                Event::Entry(entry) => self.add_hook(entry),
                Event::Changed { entry, position, values } => {
                    self.values.extend(values.iter().cloned());
                    return Ok(Some(Change { entry, position, values }));
                }
                Event::Resumed { position, values, .. } => {
                    let differs = |(name, hash): &(Arc<str>, u64)| {
                        self.values.get(name).is_some_and(|before| before != hash)
                    };
                    let values: Vec<_> = values.into_iter().filter(differs).collect();
                    self.values.extend(values.iter().cloned());
                    if !values.is_empty() {
                        let entry = Entry {
                            kind: EntryKind::Resume,
                            name: String::new(),
                            owner: String::new(),
                            moment: String::new(),
                            place: String::new(),
                            package: String::new(),
                        };
                        return Ok(Some(Change { entry: Arc::new(entry), position, values }));
                    }
                }
            }
        }
        Ok(None)
    }

    /// Returns a change without the values in states that the other run does not have. Returns
    /// `None` if no values remain.
    fn shared(&self, mut change: Change) -> Option<Change> {
        change.values.retain(|(name, _)| !self.own_states.iter().any(|state| name.ends_with(&**state)));
        (!change.values.is_empty()).then_some(change)
    }

    /// Returns the `nth` upcoming change, counted from 0, without consuming it.
    fn peek(&mut self, nth: usize) -> Result<Option<&Change>, Error> {
        while self.ahead.len() <= nth {
            match self.read()? {
                Some(change) => {
                    let shared = self.shared(change);
                    self.ahead.extend(shared);
                }
                None => return Ok(None),
            }
        }
        Ok(self.ahead.get(nth))
    }

    /// Returns whether any of the next changes satisfies `is_like`.
    fn has_ahead(&mut self, is_like: impl Fn(&Change) -> bool) -> Result<bool, Error> {
        for nth in 0..AHEAD {
            match self.peek(nth)? {
                Some(change) if is_like(change) => return Ok(true),
                Some(_) => {}
                None => return Ok(false),
            }
        }
        Ok(false)
    }

    /// Consumes the next change.
    fn advance(&mut self) {
        if let Some(Change { entry, position, .. }) = self.ahead.pop_front() {
            if entry.kind == EntryKind::Interval {
                self.recorded = position.batches_seen.saturating_add(1);
            }
            self.position = Some(position);
        }
    }

    fn hook_like(&self, entry: &Entry) -> Option<&Arc<Entry>> {
        self.hooks.iter().find(|hook| is_same(hook, entry))
    }
}

/// Returns the difference between the runs whose tapes are at these paths.
///
/// If one run begins with a checkpoint of the other, the runs are compared from that checkpoint on.
///
/// # Errors
///
/// Returns an error if a tape cannot be read, or if the tapes were recorded at different levels.
pub fn difference(first: impl AsRef<Path>, second: impl AsRef<Path>) -> Result<Difference, Error> {
    difference_of(Tape::open(first)?, Tape::open(second)?)
}

/// Returns the difference between the runs with these tapes, like [`difference`].
///
/// # Errors
///
/// Returns an error for the same reasons as [`difference`].
pub fn difference_of(first: Tape, second: Tape) -> Result<Difference, Error> {
    let mut sides = [Side::new(first), Side::new(second)];
    let mut found = Difference::default();
    let [one, other] = &mut sides;
    match (one.begin()?, other.begin()?) {
        (None, Some(batches)) => {
            one.skip_to(batches)?;
            other.values.clone_from(&one.values);
        }
        (Some(batches), None) => {
            other.skip_to(batches)?;
            one.values.clone_from(&other.values);
        }
        (Some(_), Some(_)) => {
            if let Some(Event::Resumed { values, .. }) = &one.held {
                other.values.extend(values.iter().cloned());
            }
        }
        (None, None) => {}
    }
    check_levels(&sides)?;
    let states = sides.each_ref().map(|side| side.first_process.clone().unwrap_or_default().states.clone());
    for (run, side) in sides.iter_mut().enumerate() {
        side.own_states =
            states[run].iter().filter(|state| !states[1 - run].contains(state)).cloned().collect();
    }
    loop {
        let [one, other] = &mut sides;
        let (Some(a), Some(b)) = (one.peek(0)?.cloned(), other.peek(0)?.cloned()) else { break };
        if !(a.is_of(&b) && a.position == b.position) {
            found.first = Some(unequal(&mut sides, &a, &b)?);
            break;
        }
        let values = differing(&a, &b);
        if !values.is_empty() {
            let kind = match a.entry.kind {
                EntryKind::Interval => Kind::Since(one.recorded),
                _ => Kind::Values,
            };
            found.first = Some(First { kind, entry: a.entry, position: a.position, values });
            break;
        }
        found.compared += 1;
        one.advance();
        other.advance();
    }
    if found.first.is_none() {
        for run in 0..2 {
            if let Some(change) = sides[1 - run].peek(0)? {
                found.end = Some(End { run, position: Arc::clone(&change.position) });
            }
        }
    }
    describe(&sides, &mut found);
    Ok(found)
}

fn check_levels(sides: &[Side; 2]) -> Result<(), Error> {
    let [one, other] =
        sides.each_ref().map(|side| side.first_process.as_ref().map_or(Level::Full, |process| process.level));
    if one == other {
        return Ok(());
    }
    let name = |level| match level {
        Level::Full => "is full".to_owned(),
        Level::Steps(n) => format!("has the state after every {n} batches"),
    };
    Err(in_file(
        sides[1].tape.path(),
        format!("this tape {}, but the first one {}: record both at the same level", name(other), name(one)),
    ))
}

/// Returns the names of the values that differ between two changes.
fn differing(a: &Change, b: &Change) -> Vec<Arc<str>> {
    if a.values == b.values {
        return Vec::new();
    }
    let (one, other): (BTreeMap<_, _>, BTreeMap<_, _>) =
        (a.values.iter().cloned().collect(), b.values.iter().cloned().collect());
    let names = a.values.iter().chain(&b.values).map(|(name, _)| name);
    let mut known = BTreeSet::new();
    names
        .filter(|name| one.get(*name) != other.get(*name) && known.insert(Arc::clone(name)))
        .map(Arc::clone)
        .collect()
}

/// Returns the first difference between two runs, given their next changes `a` and `b`, which were
/// not made by the same entry at the same position.
fn unequal(sides: &mut [Side; 2], a: &Change, b: &Change) -> Result<First, Error> {
    let first = |kind, change: &Change| First {
        kind,
        entry: Arc::clone(&change.entry),
        position: Arc::clone(&change.position),
        values: change.values.iter().map(|(name, _)| Arc::clone(name)).collect(),
    };
    for (run, change) in [a, b].into_iter().enumerate() {
        let other = &sides[1 - run];
        if change.entry.kind == EntryKind::Hook && other.hook_like(&change.entry).is_none() {
            let mut elsewhere = other.hooks.iter().filter(|hook| hook.name == change.entry.name);
            let elsewhere = elsewhere.find(|hook| sides[run].hook_like(hook).is_none());
            return Ok(match elsewhere {
                Some(there) if run == 0 => first(Kind::Moved(Arc::clone(there)), change),
                Some(there) => {
                    let here = Kind::Moved(Arc::clone(&change.entry));
                    First { entry: Arc::clone(there), ..first(here, change) }
                }
                None => first(Kind::Only(run), change),
            });
        }
    }
    if a.position == b.position {
        let is_later = |side: &mut Side, change: &Change| {
            side.has_ahead(|later| later.is_of(change) && later.position == change.position)
        };
        let [one, other] = sides;
        let (a_later, b_later) = (is_later(other, a)?, is_later(one, b)?);
        if a_later && b_later {
            return Ok(first(Kind::Order(Arc::clone(&b.entry)), a));
        }
        // If neither change occurs later in the other run, a hook is assumed to be the cause, and
        // the change with which the other run continues to be an effect.
        let is_first = |side: &Side, change: &Change| {
            let nth = side.hooks.iter().position(|hook| is_same(hook, &change.entry));
            (nth.is_none(), nth)
        };
        let is_of_one = b_later || !a_later && is_first(one, a) <= is_first(one, b);
        return Ok(if is_of_one { first(Kind::Changed(0), a) } else { first(Kind::Changed(1), b) });
    }
    // One run has moved on, while the other still changes something at the position of the last
    // common change.
    for (run, change) in [a, b].into_iter().enumerate() {
        if sides[run].position.as_ref() == Some(&change.position) {
            return Ok(first(Kind::Changed(run), change));
        }
    }
    // Otherwise, if the second run reaches the position of `a` later, `b` is an additional change.
    let goes_there = sides[1].has_ahead(|later| later.position == a.position)?;
    Ok(if goes_there { first(Kind::Changed(1), b) } else { first(Kind::Changed(0), a) })
}

/// Adds the differences in circumstances, settings, crates and hooks to `found`.
fn describe(sides: &[Side; 2], found: &mut Difference) {
    let [one, other] = sides.each_ref().map(|side| side.first_process.clone().unwrap_or_default());
    found.circumstances = unequal_values(&one.circumstances, &other.circumstances);
    found.settings = unequal_values(&one.settings, &other.settings);
    let [one, other] = sides.each_ref().map(|side| {
        let packages = side.hooks.iter().filter_map(|hook| hook.package.split_once(' '));
        packages.map(|(name, version)| (name.to_owned(), version.to_owned())).collect::<BTreeMap<_, _>>()
    });
    found.crates = unequal_values(&one, &other);
    found.crates.retain(|_, [one, other]| one != ABSENT && other != ABSENT);
    let blamed = found.first.as_ref().map(|first| Arc::clone(&first.entry));
    for (run, side) in sides.iter().enumerate() {
        let only = side.hooks.iter().filter(|hook| {
            sides[1 - run].hook_like(hook).is_none()
                && blamed.as_ref().is_none_or(|entry| entry.name != hook.name)
        });
        found.only.extend(only.map(|hook| Only { run, hook: Arc::clone(hook) }));
    }
}

/// The text for a value that one run does not have.
const ABSENT: &str = "none";

fn unequal_values(
    one: &BTreeMap<String, String>,
    other: &BTreeMap<String, String>,
) -> BTreeMap<String, [String; 2]> {
    let names: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
    let both = names.into_iter().map(|name| {
        (name.clone(), [one, other].map(|of| of.get(name).map_or_else(|| ABSENT.to_owned(), Clone::clone)))
    });
    both.filter(|(_, [one, other])| one != other).collect()
}

/// Returns `first` or `second`.
fn nth(run: usize) -> &'static str {
    if run == 0 { "first" } else { "second" }
}

/// Lists the first few names of values, and the number of remaining ones.
fn listed(values: &[Arc<str>]) -> String {
    let names = values.iter().take(LISTED).map(|name| &**name).collect::<Vec<_>>().join(", ");
    match values.len().saturating_sub(LISTED) {
        0 => names,
        more => format!("{names} and {more} more"),
    }
}

impl fmt::Display for First {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let First { kind, entry, position, values } = self;
        let values = listed(values);
        match kind {
            Kind::Values if entry.kind == EntryKind::Start => {
                write!(f, "The runs begin {} with different values: {values}", at_start(entry))
            }
            Kind::Values if entry.kind == EntryKind::Loader => {
                write!(f, "{position}: the loaders of the two runs yield different data: {values}")
            }
            Kind::Values => {
                write!(
                    f,
                    "{position}: {entry} had equal inputs in both runs, but left different values: {values}"
                )
            }
            Kind::Only(run) => {
                write!(f, "{position}: only the {} run has the {entry}, which changed {values}", nth(*run))
            }
            Kind::Changed(run) if entry.kind == EntryKind::Resume => {
                write!(
                    f,
                    "{position}: the {} run was resumed or rolled back, with different values than before: {values}",
                    nth(*run)
                )
            }
            Kind::Changed(run) => write!(
                f,
                "{position}: {entry} changed {values} in the {} run, but not in the {} run",
                nth(*run),
                nth(1 - *run)
            ),
            Kind::Moved(there) => write!(
                f,
                "{position}: the {entry} runs at {} in the second run ({}); it changed {values}",
                there.moment, there.place
            ),
            Kind::Order(other) => write!(
                f,
                "{position}: the {entry} runs before the {other} in the first run, and after it in the second; the first of \
                 them changed {values}"
            ),
            Kind::Since(batches) => write!(
                f,
                "The runs differ within the training batches {batches} to {}: {values}. To find the hook or the operation, \
                 train these batches of both runs again, with `trainer diff --replay`, or record them with \
                 `TRAINER_TAPE=full:{batches}..{}`",
                position.batches_seen,
                position.batches_seen.saturating_add(1)
            ),
        }
    }
}

fn at_start(entry: &Entry) -> String {
    format!("`{}`", entry.name)
}

impl Difference {
    /// Returns whether all changes are equal, up to the end of the shorter run.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Returns whether the first difference is in code that both runs share. Only then can other
    /// differences, such as those in settings, explain it.
    fn is_in_common_code(&self) -> bool {
        let of_hook = |first: &First| first.entry.kind == EntryKind::Hook;
        self.first.as_ref().is_some_and(|first| matches!(first.kind, Kind::Values) && !of_hook(first))
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.first {
            Some(first) => write!(f, "{first}")?,
            None => write!(f, "The runs are equal in all {} changes", self.compared)?,
        }
        f.write_str(".\n")?;
        if let Some(End { run, position }) = &self.end {
            writeln!(
                f,
                "The {} run ends before {position}, which the {} run reaches.",
                nth(*run),
                nth(1 - *run)
            )?;
        }
        let pairs = |f: &mut fmt::Formatter<'_>, title: &str, all: &BTreeMap<String, [String; 2]>| {
            if all.is_empty() {
                return Ok(());
            }
            writeln!(f, "{title}:")?;
            all.iter().try_for_each(|(name, [one, other])| writeln!(f, "  {name}: {one}; {other}"))
        };
        let title = match self.is_in_common_code() {
            true => "The circumstances differ, which can be the reason",
            false => "The circumstances differ",
        };
        pairs(f, title, &self.circumstances)?;
        pairs(f, "The settings differ", &self.settings)?;
        pairs(f, "The versions of crates with hooks differ", &self.crates)?;
        for run in 0..2 {
            let only: Vec<_> = self.only.iter().filter(|only| only.run == run).collect();
            if !only.is_empty() {
                writeln!(
                    f,
                    "Only the {} run has these hooks, which had changed nothing until then:",
                    nth(run)
                )?;
                for owner in only.iter().map(|only| &*only.hook.owner).collect::<BTreeSet<_>>() {
                    let hooks: Vec<_> = only.iter().filter(|only| only.hook.owner == owner).collect();
                    match hooks[..] {
                        [one] => writeln!(f, "  {}", one.hook)?,
                        _ => writeln!(f, "  `{owner}` ({} hooks)", hooks.len())?,
                    }
                }
            }
        }
        Ok(())
    }
}
