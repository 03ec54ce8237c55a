//! [`Certificate`]: writes a chain of hashes that a replay can verify.

use serde::Serialize;
use trainer_formats::certificate::{CERTIFICATE_FILE, Header, Link, Place, add_batch};

use super::{GrowingFile, stages};
use crate::checkpoint::{Saved, State};
use crate::prelude::*;
use crate::training::digest;

/// Writes the certificate of a run: a chain of hashes
/// ([BLAKE3](https://github.com/BLAKE3-team/BLAKE3)) over all training batches, with a link at each
/// checkpoint and at the end of the fit. A verifier who has the program, the data and the
/// checkpoints can check any stretch between links with `trainer verify`, which
/// [trains that stretch again](Trainer::verify).
///
/// Use this when others should be able to check what a run has computed. To compare two runs of
/// your own, a [tape](crate::Tape) is enough.
///
/// The file is `run.certificate` in the [run folder](crate::TrainerBuilder::run_folder). A link
/// contains two hashes: one of the whole state (weights, optimizers, random numbers, stateful
/// hooks), and one of the losses and the data of all batches so far. The losses and the data are
/// read after each batch. See the [guide](crate::guide::tape#the-certificate) for what a
/// certificate proves, and what it does not.
///
/// ```
/// use trainer::hooks::Checkpoint;
/// use trainer::loggers::Certificate;
/// # use trainer::prelude::*;
/// # let vs = nn::VarStore::new(Device::Cpu);
/// # let net = nn::linear(&vs.root() / "fc", 4, 2, Default::default());
/// # let task = Supervised::new(vs, net, |pred: &Tensor, labels: &Tensor| pred.cross_entropy_for_logits(labels));
///
/// let trainer = Trainer::builder(task)
///     .optimizer(Sgd::new(0.1))
///     .run_folder("runs/first")
///     .hook(Checkpoint::in_run_folder().every(Every::Steps(500)).keep_last(1000))
///     .hook(Certificate::new())
///     .build()?;
/// # Ok::<(), trainer::Error>(())
/// ```
#[derive(Debug)]
pub struct Certificate {
    /// The file, on rank 0.
    file: Option<GrowingFile>,
    /// The header of the chain, if this process began the chain.
    pub(crate) header: Option<Header>,
    /// The hash of the last line.
    previous: String,
    /// The hash of all batches so far.
    pub(crate) steps: String,
    /// The position of the last link.
    last: Option<(u64, Place)>,
    /// The hash of the state at the end of the fit.
    pub(crate) end: Option<String>,
}

impl Certificate {
    /// Creates the hook.
    #[must_use]
    pub fn new() -> Self {
        Certificate {
            file: None,
            header: None,
            previous: String::new(),
            steps: String::new(),
            last: None,
            end: None,
        }
    }

    /// Appends a line, except in a replay and on ranks other than 0.
    fn append<P>(&mut self, cx: &Cx<P>, line: &impl Serialize) -> Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let mut text = serde_json::to_vec(line).map_err(Error::new)?;
        text.push(b'\n');
        file.append(cx, &text)
    }

    /// Begins the chain with this state.
    fn begin<P>(&mut self, cx: &Cx<P>, state: String) -> Result<()> {
        let header = cx.as_run().certificate_header(state);
        self.append(cx, &header)?;
        self.previous = header.hash().map_err(Error::new)?;
        self.steps.clone_from(&self.previous);
        self.header = Some(header);
        Ok(())
    }

    /// Adds a link, unless the last link is already at this position.
    fn link<P>(&mut self, cx: &Cx<P>, batches: u64, place: Place, state: String) -> Result<()> {
        if self.last.is_some_and(|(at, last)| at == batches && (last == place || last == Place::End)) {
            return Ok(());
        }
        let link = Link::after(&self.previous, batches, place, self.steps.clone(), state);
        self.append(cx, &link)?;
        self.previous = link.link;
        self.last = Some((batches, place));
        Ok(())
    }
}

impl Default for Certificate {
    fn default() -> Self {
        Certificate::new()
    }
}

#[hook(in = stages::Last, single, state, writes)]
impl Certificate {
    /// Creates the file of a new run.
    #[hook(only = train)]
    fn setup(&mut self, cx: &Cx<Setup>) -> Result<()> {
        if cx.is_replay() {
            self.file = None;
        } else if cx.is_main() && self.file.is_none() {
            self.file = Some(GrowingFile::in_run_folder(CERTIFICATE_FILE));
        }
        self.file.as_mut().map_or(Ok(()), |file| file.begin(cx))
    }

    /// Begins the chain.
    fn before_fit(&mut self, cx: &Cx<BeforeFit>) -> Result<()> {
        let state = digest::of(cx.as_run())?;
        if !self.previous.is_empty() {
            let (batches, _) = cx.link_place();
            self.last = None;
            return self.link(cx, batches, Place::Start, state);
        }
        self.begin(cx, state)
    }

    /// Continues the file of a resumed run, or begins the chain of a run that continues another
    /// run.
    fn after_load_checkpoint(&mut self, cx: &Cx<AfterLoadCheckpoint>) -> Result<()> {
        if let Some(file) = &mut self.file {
            file.continue_after_resume(cx)?;
        }
        if self.previous.is_empty() { self.begin(cx, digest::of(cx.as_run())?) } else { Ok(()) }
    }

    /// Adds the batch to the hash of all batches.
    #[hook(only = train)]
    fn after_step(&mut self, cx: &Cx<AfterStep>) -> Result<()> {
        let loss = match cx.step_loss() {
            Some(loss) => Some(loss.f_double_value(&[])?),
            None => None,
        };
        let (batches, _) = cx.link_place();
        self.steps = add_batch(&self.steps, batches, loss, &cx.batch_digest()?);
        Ok(())
    }

    /// Adds a link with the state that the checkpoint will have, before other hooks prepare it.
    #[hook(in = stages::First, ord = i32::MIN)]
    fn before_save_checkpoint(&mut self, cx: &Cx<BeforeSaveCheckpoint>) -> Result<()> {
        let (batches, Some(place)) = cx.link_place() else { return Ok(()) };
        let state = digest::of(cx.as_run())?;
        self.link(cx, batches, place, state)
    }

    /// Adds the last link of the fit.
    fn after_fit(&mut self, cx: &Cx<AfterFit>) -> Result<()> {
        let (batches, _) = cx.link_place();
        let state = digest::of(cx.as_run())?;
        self.end = Some(state.clone());
        self.link(cx, batches, Place::End, state)
    }

    /// Writes the remaining lines, or reports them as missing.
    fn teardown(&mut self, cx: &Cx<Teardown>) -> Result<()> {
        self.file.as_mut().map_or(Ok(()), |file| file.finish(cx))
    }
}

/// Saves the chain and the state of the file.
#[diagnostic::do_not_recommend]
impl State for Certificate {
    fn save(&self) -> Result<Saved> {
        let mut saved = self.file.as_ref().map_or_else(|| Ok(Saved::new()), State::save)?;
        saved.set("chain", &(&self.previous, &self.steps, &self.last))?;
        Ok(saved)
    }

    /// Returns `false`, because a certificate also covers batches that were rolled back.
    fn rolls_back(&self) -> bool {
        false
    }

    fn load(&mut self, saved: &Saved) -> Result<()> {
        (self.previous, self.steps, self.last) = saved.get("chain")?;
        match &mut self.file {
            Some(file) if saved.contains("position") => file.load(saved),
            _ => Ok(()),
        }
    }
}
