//! A summary of the model, printed once.

use crate::modules::{SummaryRecorder, SummaryTable};
use crate::prelude::own::*;

/// Prints the named modules of the model after the first forward pass: their shapes, parameters and
/// floating-point operations. [`modules::summary`](crate::modules::summary()) returns the same
/// table without a run.
///
/// Use this when every run should print the table, for example into its log.
///
/// ```
/// use trainer::hooks::ModelSummary;
/// use trainer::modules;
/// use trainer::prelude::*;
///
/// let vs = nn::VarStore::new(Device::Cpu);
/// let path = vs.root() / "net";
/// let net = modules::seq(&path)
///     .add(nn::linear(&path / 0, 4, 8, Default::default()))
///     .add_fn(Tensor::relu)
///     .add(nn::linear(&path / 2, 8, 2, Default::default()));
/// let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
/// let mut trainer = Trainer::builder(task).hook(ModelSummary::new()).build()?;
///
/// let inputs = Tensor::randn([64, 4], (Kind::Float, Device::Cpu));
/// let labels = Tensor::zeros([64], (Kind::Int64, Device::Cpu));
/// trainer.predict(&mut InMemory::new((inputs, labels))?.batch_size(16))?;
/// let table = trainer.hook::<ModelSummary>()?.table().expect("a batch was predicted");
/// assert_eq!(table.get("net").unwrap().output, [16, 2]);
/// # Ok::<(), trainer::Error>(())
/// ```
///
/// All operations of the forward pass are counted, inside and outside of named modules, including
/// those of other hooks at modules. Only the trainer's first forward pass is summarized, whichever
/// phase it belongs to. If that pass calls no named module, there is no summary, and a warning says
/// so.
#[doc(alias("RichModelSummary", "torchinfo"))]
#[derive(Debug, Default)]
pub struct ModelSummary {
    /// The recorder of the current forward pass.
    recorder: Option<SummaryRecorder>,
    table: Option<SummaryTable>,
    is_quiet: bool,
}

impl ModelSummary {
    /// Creates the hook.
    #[must_use]
    pub fn new() -> Self {
        ModelSummary::default()
    }

    /// Whether to print nothing, for programs that read the [`table`](ModelSummary::table).
    /// Defaults to `false`.
    #[must_use]
    pub fn quiet(mut self, quiet: bool) -> Self {
        self.is_quiet = quiet;
        self
    }

    /// The summary; `None` until the first forward pass has ended.
    #[must_use]
    pub fn table(&self) -> Option<&SummaryTable> {
        self.table.as_ref()
    }
}

#[hook(in = trainer::stages::Last, single, may_fail)]
impl ModelSummary {
    /// Starts recording. Discards the records of a forward pass that did not finish.
    fn before_pred(&mut self, _: &Cx<Main<BeforePred>>) -> Result<()> {
        if self.table.is_none() {
            self.recorder = Some(SummaryRecorder::start()?);
        }
        Ok(())
    }

    /// Records the beginning of a module's call.
    fn before_module_forward(&mut self, cx: &Cx<Main<BeforeModuleForward>>) {
        if let Some(recorder) = &mut self.recorder {
            recorder.begin(cx.module(), cx.layer(), cx.input());
        }
    }

    /// Records the end of a module's call.
    fn after_module_forward(&mut self, cx: &Cx<Main<AfterModuleForward>>) {
        if let Some(recorder) = &mut self.recorder {
            recorder.end(cx.output());
        }
    }

    /// Builds the summary of the first forward pass, and prints it unless `quiet` is set. Returns
    /// an error, which is a warning, if the pass called no named module.
    fn after_pred(&mut self, cx: &Cx<Main<AfterPred>>) -> Result<()> {
        let Some(recorder) = self.recorder.take() else { return Ok(()) };
        let table = recorder.finish(&cx.vars())?;
        if !self.is_quiet {
            table.print();
        }
        self.table = Some(table);
        Ok(())
    }

    /// Stops recording a forward pass that did not finish.
    fn teardown(&mut self, _: &Cx<Main<Teardown>>) {
        self.recorder = None;
    }
}
