//! Text metrics: perplexity, BLEU, word and character error rate.

use std::collections::HashMap;
use std::hash::Hash;

use tch::{Kind, Tensor};

use super::labels::{Classes, Kinds, LIMITS, LIMITS_STATE, is_used};
use super::regression::state_of;
use super::state::{StateReduction, States};
use super::{Metric, is_float, is_int, precise, scalar, sum_kind, tokens};
use crate::error::Result;
use crate::log::history::Goal;

/// The perplexity of a language model: the exponential of the mean negative log-likelihood of the
/// targets. Corresponds to torchmetrics' `Perplexity`.
///
/// Use this when you train a language model.
///
/// Predictions are logits of shape `[n, length, vocabulary]`, and targets have shape `[n, length]`.
/// With [`of_token_losses`](Perplexity::of_token_losses), predictions are the losses of the
/// targets.
///
/// ```
/// use trainer::metrics::{Metric, Perplexity};
/// use trainer::prelude::*;
///
/// let logits = Tensor::zeros([1, 3, 4], (Kind::Float, Device::Cpu)); // all 4 tokens are equally likely
/// let mut perplexity = Perplexity::new();
/// perplexity.update(&logits, &Tensor::from_slice2(&[[0i64, 3, 1]]))?;
/// assert!((perplexity.compute()?.double_value(&[]) - 4.0).abs() < 1e-4);
/// # Ok::<(), trainer::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Perplexity {
    ignored: Option<i64>,
    are_losses: bool,
    states: States,
}

impl Perplexity {
    /// Creates the metric, which is logged as `perplexity`.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "no metric has a default")]
    pub fn new() -> Self {
        let states = [
            ("nll", StateReduction::Sum),
            ("tokens", StateReduction::Sum),
            ("vocabulary", StateReduction::Max),
            LIMITS_STATE,
        ];
        Perplexity { ignored: None, are_losses: false, states: States::new(states) }
    }

    /// Ignores tokens with this target, such as -100.
    #[must_use]
    pub fn ignore_index(mut self, target: i64) -> Self {
        self.ignored = Some(target);
        self
    }

    /// Takes the cross-entropy of each target in place of logits, in the shape of the targets, such
    /// as [`Head::token_losses`](crate::losses::Head::token_losses).
    #[must_use]
    pub fn of_token_losses(mut self) -> Self {
        self.are_losses = true;
        self
    }

    /// Adds targets with these negative log-likelihoods, which are those of any number for a target
    /// that is not used.
    fn add(&mut self, nll: &Tensor, is_used: &Tensor) {
        let nll = nll.masked_fill(&is_used.logical_not(), 0.0).sum(sum_kind(nll));
        self.states.update("nll", nll);
        self.states.update("tokens", is_used.sum(Kind::Int64));
    }
}

impl Metric for Perplexity {
    fn name(&self) -> String {
        "perplexity".to_owned()
    }

    fn goal(&self) -> Option<Goal> {
        Some(Goal::Minimize)
    }

    fn update(&mut self, pred: &Tensor, target: &Tensor) -> Result<()> {
        let shape = pred.size();
        let targets = target.size();
        if self.are_losses {
            if shape != targets || !is_float(pred) || !is_int(target) {
                return Err(self.error(&format!(
                    "the prediction has shape {shape:?} ({:?}) and the target {targets:?} ({:?}): expected the losses of the \
                     targets and integers, of one shape",
                    pred.kind(),
                    target.kind()
                )));
            }
            self.add(&precise(pred), &is_used(target, self.ignored));
            return Ok(());
        }
        if shape.len() != 3 || shape[..2] != targets || !is_float(pred) || !is_int(target) {
            return Err(self.error(&format!(
                "the prediction has shape {shape:?} ({:?}) and the target {targets:?} ({:?}): expected logits of shape \
                 [n, length, vocabulary] and integers of shape [n, length]",
                pred.kind(),
                target.kind()
            )));
        }
        if pred.numel() == 0 {
            return Ok(());
        }
        let vocabulary = shape[2];
        let target = target.to_kind(Kind::Int64).flatten(0, -1);
        let is_used = is_used(&target, self.ignored);
        let used = target.masked_fill(&is_used.logical_not(), 0);
        let index = used.clamp(0, vocabulary - 1).unsqueeze(1);
        let logits = precise(pred).reshape([-1, vocabulary]);
        let likelihood = logits.log_softmax(1, logits.kind()).gather(1, &index, false).squeeze_dim(1);
        self.add(&-likelihood, &is_used);
        self.states.update("vocabulary", Tensor::from_slice(&[vocabulary]));
        let zero = Tensor::zeros([], (Kind::Int64, pred.device()));
        let limits = [-used.min(), used.max(), zero.shallow_clone(), zero.shallow_clone(), zero];
        self.states.update(LIMITS, Tensor::stack(&limits, 0));
        Ok(())
    }

    fn compute(&mut self) -> Result<Tensor> {
        let nll = self.states.floats("nll")?;
        let tokens = self.states.floats("tokens")?;
        let tokens = tokens.first().filter(|tokens| **tokens > 0.0);
        let (Some(nll), Some(tokens)) = (nll.first(), tokens) else { return Err(self.no_data()) };
        if self.are_losses {
            return Ok(scalar((nll / tokens).exp()));
        }
        let vocabulary = self.states.ints("vocabulary")?.first().and_then(|len| usize::try_from(*len).ok());
        let classes =
            Classes { ignored: self.ignored, ..Classes::new(Kinds::Multiclass(vocabulary.unwrap_or(0))) };
        classes.check_limits("perplexity", &self.states)?;
        Ok(scalar((nll / tokens).exp()))
    }

    state_of!();
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Adds integers to a state, without tensor operations if its value is in main memory.
fn add(states: &mut States, name: &str, numbers: &[i64]) {
    match states.counts_mut(name, numbers.len()) {
        Some(counts) => counts.iter_mut().zip(numbers).for_each(|(count, number)| *count += number),
        None => states.update(name, Tensor::from_slice(numbers)),
    }
}

macro_rules! error_rate {
    ($(#[$docs:meta])* $type:ident, $name:literal, |$text:ident| $units:expr) => {
        $(#[$docs])*
        #[derive(Clone, Debug)]
        pub struct $type {
            padding: Option<i64>,
            states: States,
        }

        impl $type {
            #[doc = concat!("Creates the metric, which is logged as `", $name, "`.")]
            #[must_use]
            #[expect(clippy::new_without_default, reason = "no metric has a default")]
            pub fn new() -> Self {
                let rates = [("errors", StateReduction::Sum), ("total", StateReduction::Sum)];
                $type { padding: None, states: States::new(rates.into_iter().chain(tokens::STATES)) }
            }

            /// Sets the padding token, which is ignored in tensors of tokens.
            #[must_use]
            pub fn padding(mut self, token: i64) -> Self {
                self.padding = Some(token);
                self
            }

            /// Adds predicted and target texts.
            ///
            /// # Errors
            ///
            /// Returns an error if the numbers of predictions and targets differ.
            pub fn update_texts(&mut self, preds: &[impl AsRef<str>], targets: &[impl AsRef<str>]) -> Result<()> {
                check_len(self, preds.len(), targets.len(), "targets")?;
                for (pred, target) in preds.iter().zip(targets) {
                    let [pred, target] = [pred.as_ref(), target.as_ref()].map(|$text| $units);
                    self.add(&pred, &target);
                }
                Ok(())
            }

            fn add<T: PartialEq>(&mut self, pred: &[T], target: &[T]) {
                add(&mut self.states, "errors", &[tokens::edit_distance(pred, target)]);
                add(&mut self.states, "total", &[super::labels::int(target.len())]);
            }
        }

        impl Metric for $type {
            fn name(&self) -> String {
                $name.to_owned()
            }

            fn goal(&self) -> Option<Goal> {
                Some(Goal::Minimize)
            }

            /// Adds a batch of token sequences: predictions and targets, each of shape
            /// `[n, length]`. They are compared when the metric is computed.
            fn update(&mut self, pred: &Tensor, target: &Tensor) -> Result<()> {
                tokens::update(self, pred, target)
            }

            fn compute(&mut self) -> Result<Tensor> {
                if self.states.is_empty() {
                    return Err(self.no_data());
                }
                let mut all = self.clone();
                for [pred, target] in tokens::read(&self.states, self.padding)? {
                    all.add(&pred, &target);
                }
                let errors = all.states.floats("errors")?;
                let total = all.states.floats("total")?;
                Ok(scalar(errors.iter().sum::<f64>() / total.iter().sum::<f64>()))
            }

            state_of!();
        }
    };
}

fn check_len(metric: &impl Metric, preds: usize, targets: usize, of_targets: &str) -> Result<()> {
    if preds == targets {
        return Ok(());
    }
    Err(metric.error(&format!(
        "the number of predictions is {preds}, and the number of {of_targets} is {targets}: expected the same number"
    )))
}

error_rate! {
    /// The word error rate: the edit distance in words, divided by the number of words in the
    /// targets. Corresponds to torchmetrics' `WordErrorRate`.
    ///
    /// Use this when you train a speech recognition model.
    ///
    /// ```
    /// use trainer::metrics::{Metric, WordErrorRate};
    ///
    /// let mut rate = WordErrorRate::new();
    /// rate.update_texts(&["this is the prediction"], &["this is the reference"])?;
    /// assert_eq!(rate.compute()?.double_value(&[]), 0.25);
    /// # Ok::<(), trainer::Error>(())
    /// ```
    #[doc(alias = "WER")]
    WordErrorRate, "wer", |text| text.split_whitespace().collect::<Vec<_>>()
}

error_rate! {
    /// The character error rate: the edit distance in characters, divided by the number of
    /// characters in the targets. Corresponds to torchmetrics' `CharErrorRate`.
    ///
    /// Use this when you train a model that recognizes handwritten or printed text, or when words
    /// are not separated by spaces.
    ///
    /// ```
    /// use trainer::metrics::{CharErrorRate, Metric};
    ///
    /// let mut rate = CharErrorRate::new();
    /// rate.update_texts(&["house"], &["mouse"])?;
    /// assert_eq!(rate.compute()?.double_value(&[]), 0.2);
    /// # Ok::<(), trainer::Error>(())
    /// ```
    #[doc(alias = "CER")]
    CharErrorRate, "cer", |text| text.chars().collect::<Vec<_>>()
}

/// The BLEU score of a corpus. Corresponds to torchmetrics' `BLEUScore` (Papineni et al., *BLEU: a
/// method for automatic evaluation of machine translation*, 2002).
///
/// Use this when you train a translation model and have reference translations.
///
/// ```
/// use trainer::metrics::{Bleu, Metric};
///
/// let mut bleu = Bleu::new();
/// let references = vec!["there is a cat on the mat", "a cat is on the mat"];
/// bleu.update_texts(&["the cat is on the mat"], &[references])?;
/// assert!((bleu.compute()?.double_value(&[]) - 0.7598).abs() < 1e-4);
/// # Ok::<(), trainer::Error>(())
/// ```
#[doc(alias = "BLEUScore")]
#[derive(Clone, Debug)]
pub struct Bleu {
    n: usize,
    is_smooth: bool,
    padding: Option<i64>,
    states: States,
}

impl Bleu {
    /// Creates the metric for n-grams of up to 4 tokens. It is logged as `bleu`.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "no metric has a default")]
    pub fn new() -> Self {
        let sums = [
            ("matches", StateReduction::Sum),
            ("n_grams", StateReduction::Sum),
            ("lens", StateReduction::Sum),
        ];
        Bleu {
            n: 4,
            is_smooth: false,
            padding: None,
            states: States::new(sums.into_iter().chain(tokens::STATES)),
        }
    }

    /// Sets the maximum length of the n-grams. Defaults to 4.
    #[must_use]
    pub fn n_gram(mut self, n: usize) -> Self {
        self.n = n;
        self
    }

    /// Sets whether to add 1 to the counts of n-grams of 2 or more tokens (Lin and Och, 2004).
    /// Defaults to `false`.
    #[must_use]
    pub fn smooth(mut self, smooth: bool) -> Self {
        self.is_smooth = smooth;
        self
    }

    /// Sets the padding token, which is ignored in tensors of tokens.
    #[must_use]
    pub fn padding(mut self, token: i64) -> Self {
        self.padding = Some(token);
        self
    }

    /// Adds texts, each with one or more reference translations. Words are separated by whitespace.
    ///
    /// # Errors
    ///
    /// Returns an error if the numbers of predictions and of reference lists differ, or if a
    /// reference list is empty.
    pub fn update_texts<S: AsRef<str>>(
        &mut self,
        preds: &[impl AsRef<str>],
        references: &[Vec<S>],
    ) -> Result<()> {
        self.check()?;
        check_len(self, preds.len(), references.len(), "lists of references")?;
        for (pred, references) in preds.iter().zip(references) {
            let references: Vec<_> = references.iter().map(|reference| words(reference.as_ref())).collect();
            if references.is_empty() {
                return Err(self.error(
                    "a list of references is empty: expected at least 1 reference for each prediction",
                ));
            }
            self.add(&words(pred.as_ref()), &references);
        }
        Ok(())
    }

    fn add<T: Eq + Hash>(&mut self, pred: &[T], references: &[Vec<T>]) {
        let mut expected: HashMap<&[T], i64> = HashMap::new();
        for reference in references {
            for (n_gram, count) in tokens::n_grams(reference, self.n) {
                let largest = expected.entry(n_gram).or_insert(0);
                *largest = count.max(*largest);
            }
        }
        let mut matches = vec![0; self.n];
        let mut all = vec![0; self.n];
        for (n_gram, count) in tokens::n_grams(pred, self.n) {
            all[n_gram.len() - 1] += count;
            matches[n_gram.len() - 1] += count.min(expected.get(n_gram).copied().unwrap_or(0));
        }
        let closest = references.iter().map(Vec::len).min_by_key(|len| len.abs_diff(pred.len())).unwrap_or(0);
        add(&mut self.states, "matches", &matches);
        add(&mut self.states, "n_grams", &all);
        add(&mut self.states, "lens", &[super::labels::int(pred.len()), super::labels::int(closest)]);
    }
}

impl Metric for Bleu {
    fn name(&self) -> String {
        "bleu".to_owned()
    }

    fn goal(&self) -> Option<Goal> {
        Some(Goal::Maximize)
    }

    fn check(&self) -> Result<()> {
        if self.n == 0 { Err(self.error("`.n_gram(0)`: expected at least 1")) } else { Ok(()) }
    }

    /// Adds a batch of token sequences: predictions and one reference for each, both of shape
    /// `[n, length]`. They are compared when the metric is computed.
    fn update(&mut self, pred: &Tensor, target: &Tensor) -> Result<()> {
        self.check()?;
        tokens::update(self, pred, target)
    }

    #[expect(clippy::cast_precision_loss, reason = "a length")]
    fn compute(&mut self) -> Result<Tensor> {
        self.check()?;
        if self.states.is_empty() {
            return Err(self.no_data());
        }
        let mut all = self.clone();
        for [pred, target] in tokens::read(&self.states, self.padding)? {
            all.add(&pred, &[target]);
        }
        let matches = all.states.floats("matches")?;
        let n_grams = all.states.floats("n_grams")?;
        let lens = all.states.floats("lens")?;
        if matches.contains(&0.0) || matches.is_empty() {
            return Ok(scalar(0.0));
        }
        let precisions = matches.iter().zip(&n_grams).enumerate().map(|(nth, (matches, n_grams))| {
            let added = f64::from(self.is_smooth && nth > 0);
            ((matches + added) / (n_grams + added)).ln()
        });
        let logs: f64 = precisions.sum();
        let penalty = if lens[0] > lens[1] { 1.0 } else { (1.0 - lens[1] / lens[0]).exp() };
        Ok(scalar(penalty * (logs / self.n as f64).exp()))
    }

    state_of!();
}
