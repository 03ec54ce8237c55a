//! A summary of a model: the shapes, parameters and floating-point operations of its modules.

use std::cell::RefCell;
use std::fmt::{self, Write};

use tch::{Tensor, nn};
use unicode_width::UnicodeWidthStr;

use super::layer::Layer;
use super::name::Name;
use super::watcher::WatchGuard;
use crate::error::{Error, Result};
use crate::vars::Vars;

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
    /// The number of elements of the parameters below the module's name in the `VarStore`, or, if
    /// there are none, of the parameters of its layer.
    pub parameters: u64,
    /// The floating-point operations of all calls, including those of the modules inside it.
    pub flops: u64,
}

/// The named modules of a model in the order of a forward pass. `Display` prints a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SummaryTable {
    rows: Vec<ModuleRow>,
    parameters: u64,
    trainable: u64,
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

    /// The number of elements of all parameters of the model, named or not, frozen or not.
    #[must_use]
    pub fn parameters(&self) -> u64 {
        self.parameters
    }

    /// The number of elements of the parameters that require a gradient.
    #[must_use]
    pub fn trainable_parameters(&self) -> u64 {
        self.trainable
    }

    /// The floating-point operations of all named modules in one forward pass: see
    /// [`Layer::flops`].
    #[must_use]
    pub fn flops(&self) -> u64 {
        self.rows.iter().filter(|row| row.depth == 0).map(|row| row.flops).sum()
    }
}

impl fmt::Display for SummaryTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = vec![["Module", "Layer", "Input", "Output", "Parameters", "FLOPs"].map(String::from)];
        for row in &self.rows {
            let calls = if row.calls > 1 { format!(" × {}", row.calls) } else { String::new() };
            lines.push([
                format!("{}{}{calls}", "  ".repeat(row.depth), row.name),
                row.layer.unwrap_or("–").to_owned(),
                format!("{:?}", row.input),
                format!("{:?}", row.output),
                grouped(row.parameters),
                grouped(row.flops),
            ]);
        }
        let width = |column: usize| lines.iter().map(|line| line[column].width()).max().unwrap_or(0);
        let widths: [usize; 6] = std::array::from_fn(width);
        for line in &lines {
            let mut text = String::new();
            for (nth, (cell, width)) in line.iter().zip(widths).enumerate() {
                let space = " ".repeat(width - cell.width());
                // Numbers are aligned to the right.
                if nth < 4 { write!(text, "{cell}{space}  ")? } else { write!(text, "{space}{cell}  ")? }
            }
            writeln!(f, "{}", text.trim_end())?;
        }
        write!(
            f,
            "{} parameters ({} trainable), {} FLOPs",
            grouped(self.parameters),
            grouped(self.trainable),
            grouped(self.flops())
        )
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

/// Builds a [`SummaryTable`] from the module calls of a forward pass, for hooks at `before_module`
/// and `after_module`.
#[derive(Debug, Default)]
pub struct SummaryRecorder {
    rows: Vec<ModuleRow>,
    /// The indices of the rows of the running module calls, outermost first.
    open: Vec<usize>,
}

impl SummaryRecorder {
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
        self.open.push(row);
    }

    /// Records the end of a call. Its operations also count for every module that contains it.
    pub fn end(&mut self, layer: Option<Layer>, input: &Tensor, output: &Tensor) {
        let flops = layer.map_or(0, |layer| layer.flops(input, output));
        let mut counted = Vec::new();
        for &row in &self.open {
            // A module that calls itself is in the list twice.
            if !counted.contains(&row) {
                self.rows[row].flops += flops;
                counted.push(row);
            }
        }
        if let Some(row) = self.open.pop() {
            let row = &mut self.rows[row];
            row.calls += 1;
            if row.calls == 1 {
                row.output = output.size();
            }
        }
    }

    /// Returns the summary, with parameters counted from these variables.
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
        let elements = |prefix: &str| -> Option<u64> {
            let below = |name: &str| name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('.'));
            let own = vars.parameters().filter(|var| below(&var.name));
            own.map(|var| var.tensor.numel() as u64).reduce(|one, other| one + other)
        };
        let mut rows = self.rows;
        for row in &mut rows {
            if let Some(parameters) = elements(&row.name) {
                row.parameters = parameters;
            }
        }
        let trainable = vars.parameters().filter(|var| var.tensor.requires_grad());
        Ok(SummaryTable {
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
/// Returns an error if the forward pass called no named module.
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
        let _restore = Restore(RECORDER.replace(Some(SummaryRecorder::default())));
        let (_guard, _no_grad) = (WatchGuard::summary(), tch::no_grad_guard());
        drop(net.forward_t(input, false));
        RECORDER.take().unwrap_or_default()
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
    with(&|recorder| recorder.end(name.layer, xs, &output));
    output
}
