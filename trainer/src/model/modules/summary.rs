//! A summary of a model: the shapes, parameters and floating-point operations of its modules.

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;

use tch::{Tensor, nn};
use trainer_formats::{columns, fit};
use unicode_width::UnicodeWidthStr;

use super::layer::Layer;
use super::name::Name;
use super::watcher::WatchGuard;
use crate::error::{Error, Result};
use crate::io::terminal::{of_stdout, one_line, print_line};
use crate::libtorch::FlopCounter;
use crate::model::vars::Vars;

/// A row of a [`SummaryTable`]: one named module.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ModuleRow {
    /// The name of the module.
    pub name: String,
    /// The [type](Layer::kind) of the layer, such as `Linear`; `None` for other modules.
    pub layer: Option<&'static str>,
    /// The nesting depth: the number of named modules that contain it.
    pub depth: usize,
    /// The number of calls in the forward pass.
    pub calls: u64,
    /// The shape of the input in the first call.
    pub input: Vec<i64>,
    /// The shape of the output in the first call.
    pub output: Vec<i64>,
    /// The number of elements of the parameters whose names in the `VarStore` begin with the
    /// module's name and a dot. If there are none, counts the parameters of the module's layer.
    pub parameters: u64,
    /// The [floating-point operations](SummaryTable::flops) of all calls of the module, including
    /// those of the modules inside it.
    pub flops: u64,
}

/// The named modules of a model in the order of a forward pass. `Display` prints a table.
///
/// ```
/// use trainer::modules;
/// use trainer::prelude::*;
///
/// let vs = nn::VarStore::new(Device::Cpu);
/// let net = nn::linear(vs.root() / "fc", 4, 2, Default::default()).named("fc");
/// let summary = modules::summary(&vs, &net, &Tensor::zeros([16, 4], (Kind::Float, Device::Cpu)))?;
/// let row = summary.get("fc").expect("it was called");
/// assert_eq!(row.output, [16, 2]);
/// # Ok::<(), trainer::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SummaryTable {
    rows: Vec<ModuleRow>,
    parameters: u64,
    trainable: u64,
    flops: u64,
}

impl SummaryTable {
    /// The modules, in the order of their first call.
    #[must_use]
    pub fn rows(&self) -> &[ModuleRow] {
        &self.rows
    }

    /// Returns the row of the module with this name; `None` if it was not called.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&ModuleRow> {
        self.rows.iter().find(|row| row.name == name)
    }

    /// The number of elements of all parameters of the model, including frozen parameters and those
    /// outside of named modules.
    #[must_use]
    pub fn parameters(&self) -> u64 {
        self.parameters
    }

    /// The number of elements of the parameters that require a gradient.
    #[must_use]
    pub fn trainable_parameters(&self) -> u64 {
        self.trainable
    }

    /// The floating-point operations of the forward pass, inside and outside of named modules.
    ///
    /// They are counted by the rules of `torch.utils.flop_counter`: two for each multiply-add in a
    /// matrix product (`linear`, `matmul`, `einsum` and others), a convolution or scaled
    /// dot-product attention, and none for anything else. A masked product, such as causal
    /// attention, is counted in full. Recurrent layers that libtorch computes in one kernel are not
    /// counted.
    #[must_use]
    pub fn flops(&self) -> u64 {
        self.flops
    }
}

/// The columns of the table. The first of these that do not fit into a terminal are left out.
const COLUMNS: [&str; 6] = ["Module", "Layer", "Input", "Output", "Parameters", "FLOPs"];
const LEFT_OUT: [usize; 4] = [2, 5, 1, 3];

impl SummaryTable {
    /// Returns the table for a terminal that has this number of columns: without the inputs, the
    /// operations, the types of the layers and the outputs, in this order, as far as it would be
    /// too wide with them.
    ///
    /// Consecutive modules that are equal except for their number are one line: `0 … 11` stands for
    /// the blocks `encoder.0` to `encoder.11`, and the lines below it for the modules in each of
    /// them. A module within another one is shown without the name of the outer one.
    #[must_use]
    pub fn terminal(&self, width: usize) -> String {
        let mut lines = vec![COLUMNS.map(String::from).to_vec()];
        self.add_lines(0..self.rows.len(), "", &mut lines);
        let mut shown: Vec<usize> = (0..COLUMNS.len()).collect();
        let lay_out = |shown: &[usize]| {
            let cells = lines.iter().map(|line| shown.iter().map(|nth| line[*nth].clone()).collect());
            columns(&cells.collect::<Vec<Vec<_>>>(), shown.iter().filter(|nth| **nth < 4).count())
        };
        let mut left_out = LEFT_OUT.iter();
        let mut table = lay_out(&shown);
        while table.iter().any(|line| line.width() > width)
            && let Some(next) = left_out.next()
        {
            shown.retain(|nth| nth != next);
            table = lay_out(&shown);
        }
        table.push(format!(
            "{} parameters ({} trainable), {} FLOPs",
            grouped(self.parameters),
            grouped(self.trainable),
            grouped(self.flops())
        ));
        table.iter().map(|line| fit(line, width)).collect::<Vec<_>>().join("\n")
    }

    /// Prints the table on standard output: as wide as the terminal, and otherwise in full width.
    pub fn print(&self) {
        print_line(self.terminal(of_stdout().map_or(usize::MAX, |terminal| terminal.columns)));
    }

    /// Adds a line for each module in this range, which is within the module with the name `outer`.
    fn add_lines(&self, range: Range<usize>, outer: &str, lines: &mut Vec<Vec<String>>) {
        let mut next = range.start;
        while next < range.end {
            let end = self.end_of(next);
            let mut last = next;
            let mut after = end;
            while after < range.end && self.are_equal(next..end, after..self.end_of(after)) {
                (last, after) = (after, self.end_of(after));
            }
            let row = &self.rows[next];
            let own = |name: &str| {
                let own = name.strip_prefix(outer).and_then(|own| own.strip_prefix('.')).unwrap_or(name);
                one_line(own)
            };
            let name = match last == next {
                true => own(&row.name),
                false => format!("{} … {}", own(&row.name), number_of(&self.rows[last].name)),
            };
            let calls = if row.calls > 1 { format!(" × {}", row.calls) } else { String::new() };
            lines.push(vec![
                format!("{}{name}{calls}", "  ".repeat(row.depth)),
                row.layer.unwrap_or("–").to_owned(),
                format!("{:?}", row.input),
                format!("{:?}", row.output),
                grouped(row.parameters),
                grouped(row.flops),
            ]);
            self.add_lines(next + 1..end, &row.name, lines);
            next = after;
        }
    }

    /// Returns the index after the last module within this one.
    fn end_of(&self, row: usize) -> usize {
        let depth = self.rows[row].depth;
        let inside = self.rows[row + 1..].iter().take_while(|inner| inner.depth > depth).count();
        row + 1 + inside
    }

    /// Returns whether two modules with all modules within them are equal except for the numbers at
    /// the end of their names, of which the second follows the first.
    fn are_equal(&self, one: Range<usize>, other: Range<usize>) -> bool {
        let (one, other) = (&self.rows[one], &self.rows[other]);
        let (stem, other_stem) = (stem_of(&one[0].name), stem_of(&other[0].name));
        let is_numbered = stem.len() < one[0].name.len() && other_stem.len() < other[0].name.len();
        let is_equal = |(own, theirs): (&ModuleRow, &ModuleRow)| {
            let [inner, others] = [(own, one), (theirs, other)]
                .map(|(row, all)| row.name.strip_prefix(&*all[0].name).unwrap_or(&row.name));
            let name = own.name.clone();
            inner == others && *own == ModuleRow { name, ..theirs.clone() }
        };
        is_numbered && stem == other_stem && one.len() == other.len() && one.iter().zip(other).all(is_equal)
    }
}

/// Returns the name without the number at its end.
fn stem_of(name: &str) -> &str {
    name.trim_end_matches(|letter: char| letter.is_ascii_digit())
}

/// Returns the number at the end of the name.
fn number_of(name: &str) -> &str {
    &name[stem_of(name).len()..]
}

/// Writes the table in full width; see [`terminal`](SummaryTable::terminal).
impl fmt::Display for SummaryTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.terminal(usize::MAX))
    }
}

/// Formats a number with commas: `1,234,567`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (nth, digit) in digits.chars().enumerate() {
        if nth > 0 && (digits.len() - nth).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Builds a [`SummaryTable`] from the module calls of a forward pass, for hooks at
/// `before_module_forward` and `after_module_forward`.
#[derive(Debug)]
pub struct SummaryRecorder {
    rows: Vec<ModuleRow>,
    /// For each running module call, outermost first, the index of its row and the number of
    /// operations counted before it.
    open: Vec<(usize, u64)>,
    flops: FlopCounter,
}

impl SummaryRecorder {
    /// Starts recording a forward pass on this thread and counting its operations.
    ///
    /// # Errors
    ///
    /// Returns an error if libtorch fails.
    pub fn start() -> Result<Self> {
        Ok(SummaryRecorder { rows: Vec::new(), open: Vec::new(), flops: FlopCounter::start()? })
    }

    /// Records the beginning of a call.
    pub fn begin(&mut self, name: &str, layer: Option<Layer>, input: &Tensor) {
        let row = self.rows.iter().position(|row| row.name == name).unwrap_or_else(|| {
            self.rows.push(ModuleRow {
                name: name.to_owned(),
                layer: layer.map(|layer| layer.kind()),
                depth: self.open.len(),
                calls: 0,
                input: input.size(),
                output: Vec::new(),
                parameters: layer.map_or(0, |layer| layer.parameters()),
                flops: 0,
            });
            self.rows.len() - 1
        });
        self.open.push((row, self.flops.count()));
    }

    /// Records the end of the innermost call. The operations of this call also count toward every
    /// enclosing module.
    pub fn end(&mut self, output: &Tensor) {
        let Some((index, before)) = self.open.pop() else { return };
        let row = &mut self.rows[index];
        // The outer call of a module that calls itself includes the inner one.
        if self.open.iter().all(|(outer, _)| *outer != index) {
            row.flops += self.flops.count() - before;
        }
        row.calls += 1;
        if row.calls == 1 {
            row.output = output.size();
        }
    }

    /// Returns the summary. `vars` are the model's variables, whose parameters are counted.
    ///
    /// # Errors
    ///
    /// Returns an error if no module was recorded.
    pub fn finish(self, vars: &Vars) -> Result<SummaryTable> {
        if self.rows.is_empty() {
            return Err(Error::usage(
                "the forward pass called no named module: name the layers with `.named(…)` (see `trainer::modules`)",
            ));
        }
        let SummaryRecorder { mut rows, flops, .. } = self;
        for row in &mut rows {
            let own = vars
                .parameters()
                .filter(|var| var.name.strip_prefix(&*row.name).is_some_and(|rest| rest.starts_with('.')));
            let elements = own.map(|var| var.tensor.numel() as u64).reduce(|one, other| one + other);
            if let Some(elements) = elements {
                row.parameters = elements;
            }
        }
        let trainable = vars.parameters().filter(|var| var.tensor.requires_grad());
        Ok(SummaryTable {
            flops: flops.count(),
            rows,
            parameters: vars.parameters().map(|var| var.tensor.numel() as u64).sum(),
            trainable: trainable.map(|var| var.tensor.numel() as u64).sum(),
        })
    }
}

thread_local! {
    static RECORDER: RefCell<Option<SummaryRecorder>> = const { RefCell::new(None) };
}

/// Runs one forward pass in evaluation mode, without gradients, and returns the shapes, parameters
/// and floating-point operations of the named modules.
///
/// The hook [`ModelSummary`](crate::hooks::ModelSummary) prints the same summary during a run.
///
/// ```
/// use trainer::modules;
/// use trainer::prelude::*;
///
/// let vs = nn::VarStore::new(Device::Cpu);
/// let path = vs.root() / "net";
/// let net = modules::seq(&path)
///     .add(nn::linear(&path / 0, 4, 8, Default::default()))
///     .add_fn(Tensor::relu)
///     .add(nn::linear(&path / 2, 8, 2, Default::default()));
/// let summary = modules::summary(&vs, &net, &Tensor::zeros([16, 4], (Kind::Float, Device::Cpu)))?;
/// println!("{summary}");
/// assert_eq!(summary.parameters(), 4 * 8 + 8 + 8 * 2 + 2);
/// assert_eq!(summary.flops(), 2 * 16 * (4 * 8 + 8 * 2));
/// # Ok::<(), trainer::Error>(())
/// ```
///
/// # Errors
///
/// Returns an error if the forward pass called no named module, or if libtorch fails.
///
/// # Panics
///
/// Panics if the forward pass panics.
pub fn summary(vs: &nn::VarStore, net: &dyn nn::ModuleT, input: &Tensor) -> Result<SummaryTable> {
    /// Restores the recorder of an outer `summary` call, even after a panic.
    struct Restore(Option<SummaryRecorder>);

    impl Drop for Restore {
        fn drop(&mut self) {
            RECORDER.set(self.0.take());
        }
    }
    let recorder = {
        let _restore = Restore(RECORDER.replace(Some(SummaryRecorder::start()?)));
        let _guard = WatchGuard::summary();
        let _no_grad = tch::no_grad_guard();
        drop(net.forward_t(input, false));
        RECORDER.take().expect("only an inner call replaces the recorder, and restores it")
    };
    recorder.finish(&Vars::from_store(vs))
}

/// Runs the forward pass of a module, and records the call.
pub(crate) fn record(name: &Name, xs: &Tensor, forward: &mut dyn FnMut(&Tensor) -> Tensor) -> Tensor {
    let with = |then: &dyn Fn(&mut SummaryRecorder)| {
        RECORDER.with_borrow_mut(|recorder| recorder.as_mut().map(then));
    };
    with(&|recorder| recorder.begin(name.as_str(), name.layer, xs));
    let output = forward(xs);
    with(&|recorder| recorder.end(&output));
    output
}
