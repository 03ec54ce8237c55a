//! Knowledge distillation.

use std::fmt;

use crate::Vars;
use crate::checkpoint::{SettingList, Settings};
use crate::hooks::{is_positive, refused};
use crate::modules::{self, Outputs, Patterns};
use crate::prelude::own::*;

/// Trains the model to match the predictions of a trained model, the teacher (Hinton et al.,
/// *Distilling the Knowledge in a Neural Network*, 2015). The loss is
/// `(1 - w) · loss + w · T² · KL`, where `loss` is the loss of the task, and `KL` is the mean
/// Kullback-Leibler divergence of `softmax(student / T)` from `softmax(teacher / T)`. `student` and
/// `teacher` are logits of shape `[…, classes]`. The mean is over all positions, or over those that
/// a [mask](Distillation::mask) selects.
///
/// Use this when a trained model, usually a larger one, already solves the task.
///
/// ```
/// use trainer::hooks::Distillation;
/// use trainer::prelude::*;
///
/// fn task(width: i64) -> impl Task<Batch = (Tensor, Tensor), Pred = Tensor> {
///     let vs = nn::VarStore::new(Device::Cpu);
///     let net = nn::seq()
///         .add(nn::linear(vs.root() / "fc1", 4, width, Default::default()))
///         .add_fn(Tensor::relu)
///         .add(nn::linear(vs.root() / "fc2", width, 3, Default::default()));
///     Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels))
/// }
///
/// # fn main() -> Result<()> {
/// let teacher = task(64); // with trained weights
/// let trainer = Trainer::builder(task(8))
///     .optimizer(AdamW::new(1e-3))
///     .hook(Distillation::new(teacher).temperature(4.0).weight(0.7))
///     .build()?;
/// # Ok(())
/// # }
/// ```
///
/// With [`hint`](Distillation::hint), modules of the model are also trained to match the outputs of
/// the teacher's modules. The logged `loss` is the total loss, and `distillation_loss` is the part
/// that this hook adds: `w · T² · KL` and the hints. In evaluation, the loss is only the loss of
/// the task.
///
/// The teacher receives the batches of the student after [`transfer`](crate::Transfer). It runs in
/// evaluation mode, without gradients and, with [`Amp`](crate::hooks::Amp), in mixed precision. It
/// must be on the task's device. Checkpoints do not contain the teacher. Instead, a hash of the
/// teacher's weights is computed when the hook is created, and is compared when a run resumes and
/// between ranks.
#[doc(alias = "KnowledgeDistillation")]
pub struct Distillation {
    teacher: Teach,
    device: Device,
    /// The hash of the teacher's variables.
    hash: String,
    temperature: f64,
    weight: f64,
    logits: Get,
    mask: Option<Get>,
    hints: Vec<Hint>,
    /// The outputs of the student's modules in the current batch.
    outputs: Outputs,
}

/// Computes the teacher's logits.
type Teach = Box<dyn FnMut(&Cx<Loss>) -> Result<Tensor> + Send>;
/// Returns a tensor from the prediction or the batch.
type Get = Box<dyn Fn(&Cx<Loss>) -> Result<Tensor> + Send>;

/// Two modules whose outputs should match.
#[derive(Debug)]
struct Hint {
    student: String,
    teacher: String,
    weight: f64,
}

impl Distillation {
    /// Distills the predictions of another task, whose loss is not used.
    #[must_use]
    pub fn new<T: Task<Pred = Tensor>>(mut teacher: T) -> Self {
        let (device, hash) = (teacher.vars().device(), Vars::from_store(teacher.vars()).hash());
        Distillation::with(device, hash, move |cx| teacher.pred(cx.batch::<T::Batch>()?, Mode::Eval))
    }

    /// Distills the logits that a function computes from a batch of type `B`, the task's batch
    /// type. `vars` contains the variables that the function uses. The function must run its model
    /// in evaluation mode, for example with `net.forward_t(inputs, false)`.
    #[must_use]
    pub fn from_fn<B: 'static>(
        vars: nn::VarStore,
        mut teacher: impl FnMut(&B) -> Result<Tensor> + Send + 'static,
    ) -> Self {
        let (device, hash) = (vars.device(), Vars::from_store(&vars).hash());
        Distillation::with(device, hash, move |cx| {
            let _vars = &vars; // keeps the variables alive as long as the function
            teacher(cx.batch::<B>()?)
        })
    }

    fn with(
        device: Device,
        hash: String,
        teacher: impl FnMut(&Cx<Loss>) -> Result<Tensor> + Send + 'static,
    ) -> Self {
        Distillation {
            teacher: Box::new(teacher),
            device,
            hash,
            temperature: 2.0,
            weight: 0.5,
            logits: Box::new(|cx| Ok(cx.pred::<Tensor>()?.shallow_clone())),
            mask: None,
            hints: Vec::new(),
            outputs: Outputs::new(),
        }
    }

    /// Sets the temperature `T`, above 0, that divides the logits of the student and of the
    /// teacher. Defaults to 2.
    #[must_use]
    pub fn temperature(mut self, temperature: f64) -> Self {
        self.temperature = temperature;
        self
    }

    /// Sets the weight `w` of the teacher, at least 0 and at most 1. Defaults to 0.5.
    #[doc(alias = "alpha")]
    #[must_use]
    pub fn weight(mut self, weight: f64) -> Self {
        self.weight = weight;
        self
    }

    /// Sets how to find the student's logits in a prediction of type `P`, the task's prediction
    /// type. Defaults to the prediction itself, if it is a tensor.
    #[must_use]
    pub fn logits<P: 'static>(mut self, find: impl Fn(&P) -> &Tensor + Send + 'static) -> Self {
        self.logits = Box::new(move |cx| Ok(find(cx.pred::<P>()?).shallow_clone()));
        self
    }

    /// Limits the mean to the positions where a mask is not 0, such as those that are not padding.
    /// `find` returns the mask for a batch of type `B`, the task's batch type. The mask has the
    /// shape of the logits without the last dimension. Use this when the loss of the task is a mean
    /// over the same positions.
    #[must_use]
    pub fn mask<B: 'static>(mut self, find: impl Fn(&B) -> Tensor + Send + 'static) -> Self {
        self.mask = Some(Box::new(move |cx| Ok(find(cx.batch::<B>()?))));
        self
    }

    /// Adds a term to the loss: `weight`, which must be above 0, times the mean squared difference
    /// between the outputs of the module `student` and of the teacher's module `teacher` (based on
    /// Romero et al., *FitNets: Hints for Thin Deep Nets*, 2015). Both modules must have
    /// [names](crate::modules), and their outputs the same shape.
    #[must_use]
    pub fn hint(mut self, student: impl Into<String>, teacher: impl Into<String>, weight: f64) -> Self {
        self.hints.push(Hint { student: student.into(), teacher: teacher.into(), weight });
        self
    }

    /// Returns the teacher's logits and the outputs of its modules.
    fn teach(&mut self, cx: &Cx<Loss>) -> Result<(Tensor, Outputs)> {
        let _no_grad = tch::no_grad_guard();
        if self.hints.is_empty() {
            return Ok(((self.teacher)(cx)?, Outputs::new()));
        }
        let names: Patterns = self.hints.iter().map(|hint| hint.teacher.clone()).collect();
        let (logits, outputs) = modules::outputs(&names, || (self.teacher)(cx));
        Ok((logits?, outputs))
    }

    /// Returns `T² · KL`.
    fn divergence(&self, student: &Tensor, teacher: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let (own, its) = (student.size(), teacher.size());
        if own != its || own.is_empty() || student.device() != teacher.device() {
            return Err(Error::msg(format!(
                "the student's logits have the shape {own:?} and are on {:?}, but the teacher's have the shape {its:?} and are on {:?}: expected the same \
                 shape `[…, classes]` on one device",
                student.device(),
                teacher.device()
            )));
        }
        let kind = if student.kind() == Kind::Double { Kind::Double } else { Kind::Float };
        let log_softmax = |logits: &Tensor| -> Result<Tensor> {
            Ok(logits.f_to_kind(kind)?.f_div_scalar(self.temperature)?.f_log_softmax(-1, kind)?)
        };
        let (student, teacher) = (log_softmax(student)?, log_softmax(teacher)?);
        let each = teacher.f_exp()?.f_mul(&teacher.f_sub(&student)?)?;
        let each = each.f_sum_dim_intlist([-1].as_slice(), false, kind)?;
        let mean = match mask {
            None => each.f_mean(kind)?,
            Some(mask) if mask.size() != each.size() => {
                return Err(Error::msg(format!(
                    "the mask has the shape {:?}: expected {:?}, the shape of the logits without the class dimension",
                    mask.size(),
                    each.size()
                )));
            }
            Some(mask) => {
                let kept = mask.f_ne(0.0)?;
                // Not a product with the mask, because a masked position may have an infinite
                // value.
                let sum = each.f_where_self(&kept, &each.f_zeros_like()?)?.f_sum(kind)?;
                sum.f_div(&kept.f_sum(kind)?.f_clamp_min(1.0)?)?
            }
        };
        Ok(mean.f_mul_scalar(self.temperature * self.temperature)?)
    }

    /// Returns the sum of the weighted differences between the outputs of modules; `None` without
    /// hints.
    fn hints(&self, teacher: &Outputs) -> Result<Option<Tensor>> {
        let mut total: Option<Tensor> = None;
        for Hint { student: own, teacher: its, weight } in &self.hints {
            let outputs = |of: &Outputs, name: &str, whose| match of.get(name) {
                Some(outputs) => Ok(outputs.iter().map(Tensor::shallow_clone).collect::<Vec<_>>()),
                None => Err(Error::msg(format!(
                    "`.hint(\"{own}\", \"{its}\", …)`: the forward pass of the {whose} called no module `{name}`: name it \
                     with `.named(…)`"
                ))),
            };
            let (student, teacher) =
                (outputs(&self.outputs, own, "student")?, outputs(teacher, its, "teacher")?);
            let shapes = |outputs: &[Tensor]| outputs.iter().map(Tensor::size).collect::<Vec<_>>();
            if shapes(&student) != shapes(&teacher) {
                return Err(Error::msg(format!(
                    "`.hint(\"{own}\", \"{its}\", …)`: the outputs of the student have the shapes {:?}, and those of the \
                     teacher {:?}: expected the same",
                    shapes(&student),
                    shapes(&teacher)
                )));
            }
            for (student, teacher) in student.iter().zip(&teacher) {
                let kind = if student.kind() == Kind::Double { Kind::Double } else { Kind::Float };
                let difference = student.f_to_kind(kind)?.f_sub(&teacher.f_to_kind(kind)?)?;
                let term = difference.f_square()?.f_mean(kind)?.f_mul_scalar(*weight)?;
                total = Some(match total {
                    Some(total) => total.f_add(&term)?,
                    None => term,
                });
            }
        }
        Ok(total)
    }
}

impl fmt::Debug for Distillation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Distillation")
            .field("temperature", &self.temperature)
            .field("weight", &self.weight)
            .field("hints", &self.hints)
            .finish_non_exhaustive()
    }
}

#[hook(only = train, settings, trial)]
impl Distillation {
    /// Returns an error if the teacher is not on the device of the task.
    fn setup(&mut self, cx: &Cx<Setup>) -> Result<()> {
        self.outputs.clear();
        if cx.device() == self.device {
            return Ok(());
        }
        Err(Error::msg(format!(
            "the teacher is on {:?}, and the task on {:?}: create its `VarStore` on the device of the task",
            self.device,
            cx.device()
        )))
    }

    /// Keeps the outputs of the student's modules for the hints.
    fn pred(&mut self, cx: &mut Cx<Pred>, next: Next<Pred>) -> Result<Done> {
        if self.hints.is_empty() {
            return next.run(cx);
        }
        let names: Patterns = self.hints.iter().map(|hint| hint.student.clone()).collect();
        let (done, outputs) = modules::outputs(&names, || next.run(cx));
        self.outputs = outputs;
        done
    }

    /// Adds the distillation loss to the loss of the task.
    fn loss(&mut self, cx: &mut Cx<Loss>, next: Next<Loss>) -> Result<Done> {
        let done = next.run(cx)?;
        let Some(loss) = cx.computed_loss() else { return Ok(done) };
        let (teacher, outputs) = self.teach(cx)?;
        let mask = self.mask.as_ref().map(|mask| mask(cx)).transpose()?;
        let divergence = self.divergence(&(self.logits)(cx)?, &teacher, mask.as_ref())?;
        let mut added = divergence.f_mul_scalar(self.weight)?;
        if let Some(hints) = self.hints(&outputs)? {
            added = added.f_add(&hints)?;
        }
        self.outputs.clear();
        cx.log("distillation_loss", added.detach());
        cx.set_loss(loss.f_mul_scalar(1.0 - self.weight)?.f_add(&added.f_reshape(loss.size())?)?);
        Ok(done)
    }
}

#[diagnostic::do_not_recommend]
impl Settings for Distillation {
    fn settings(&self) -> SettingList {
        let Distillation {
            teacher: _,
            device: _,
            hash,
            temperature,
            weight,
            logits: _,
            mask,
            hints,
            outputs: _,
        } = self;
        let hints: Vec<_> =
            hints.iter().map(|Hint { student, teacher, weight }| (student, teacher, weight)).collect();
        SettingList::new()
            .with("teacher", hash)
            .with("temperature", temperature)
            .with("weight", weight)
            .with("has_mask", mask.is_some())
            .with("hints", hints)
    }

    fn mistakes(&self) -> Vec<String> {
        let (temperature, weight) = (self.temperature, self.weight);
        let own = refused([
            (
                !is_positive(temperature),
                format!("`.temperature({temperature:?})`: expected a finite number above 0"),
            ),
            (
                !(0.0..=1.0).contains(&weight),
                format!("`.weight({weight:?})`: expected at least 0.0 and at most 1.0"),
            ),
        ]);
        let hints = self.hints.iter().filter(|hint| !is_positive(hint.weight));
        let of_hint = |Hint { student, teacher, weight }: &Hint| {
            format!("`.hint(\"{student}\", \"{teacher}\", {weight:?})`: expected a finite weight above 0")
        };
        own.into_iter().chain(hints.map(of_hint)).collect()
    }
}
