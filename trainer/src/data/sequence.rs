//! [`Sequence`] and [`Sequences`]: tokens, and batches of them that are padded or packed.

use tch::{Device, Kind, Reduction, Tensor};

use super::collate::Collate;
use crate::error::{Error, Result};

/// The target that marks a token for the loss to ignore. It is the default of `ignore_index` in
/// PyTorch's cross-entropy.
pub const IGNORED: i64 = -100;

/// The tokens of one text, and for each token the target that a language model should predict.
///
/// ```
/// use trainer::data::{IGNORED, Sequence};
///
/// let text = Sequence::new(vec![5, 6, 7]);
/// assert_eq!(text.targets(), [6, 7, IGNORED]);
/// let chat = Sequence::answer(&[1, 2], &[3, 4]); // only the answer is learned
/// assert_eq!((chat.tokens(), chat.targets()), (&[1, 2, 3, 4][..], &[IGNORED, 3, 4, IGNORED][..]));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequence {
    tokens: Vec<i64>,
    targets: Vec<i64>,
}

impl Sequence {
    /// Creates a sequence in which the target of each token is the next token. The last token has
    /// no target.
    #[must_use]
    pub fn new(tokens: Vec<i64>) -> Self {
        let targets = tokens.iter().skip(1).copied().chain([IGNORED]).take(tokens.len()).collect();
        Sequence { tokens, targets }
    }

    /// Creates a sequence from a prompt and its answer. Only the tokens of the answer are targets.
    #[must_use]
    pub fn answer(prompt: &[i64], answer: &[i64]) -> Self {
        let mut sequence = Sequence::new([prompt, answer].concat());
        sequence.targets[..prompt.len().saturating_sub(1)].fill(IGNORED);
        sequence
    }

    /// Creates a sequence with one target per token: [`IGNORED`] for a token without a target.
    ///
    /// # Errors
    ///
    /// Returns an error if there are more or fewer targets than tokens.
    pub fn with_targets(tokens: Vec<i64>, targets: Vec<i64>) -> Result<Self> {
        if tokens.len() != targets.len() {
            return Err(Error::usage(format!(
                "a sequence of {} tokens has {} targets: expected one for each token, `data::IGNORED` where there is none",
                tokens.len(),
                targets.len()
            )));
        }
        Ok(Sequence { tokens, targets })
    }

    /// Returns the tokens.
    #[must_use]
    pub fn tokens(&self) -> &[i64] {
        &self.tokens
    }

    /// Returns the targets, one for each token.
    #[must_use]
    pub fn targets(&self) -> &[i64] {
        &self.targets
    }

    /// Returns the number of tokens.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Returns whether there are no tokens.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Splits the sequence into pieces of at most `length` tokens. The targets stay the same, so
    /// the target of the last token of a piece is normally the first token of the next piece.
    pub(super) fn pieces(&self, length: usize) -> impl Iterator<Item = Sequence> {
        let pairs = self.tokens.chunks(length).zip(self.targets.chunks(length));
        pairs.map(|(tokens, targets)| Sequence { tokens: tokens.to_vec(), targets: targets.to_vec() })
    }
}

impl From<Vec<i64>> for Sequence {
    fn from(tokens: Vec<i64>) -> Self {
        Sequence::new(tokens)
    }
}

/// A batch of sequences: [padded](crate::data::DataLoader::by_length) to the same length, or
/// several [packed](crate::data::DataLoader::pack) into each row.
///
/// All tensors are `Int64 [rows, length]`.
///
/// ```
/// use trainer::data::{Sequence, Sequences};
/// use trainer::prelude::*;
///
/// let texts = vec![Sequence::new(vec![5, 6, 7]), Sequence::new(vec![8, 9])];
/// let mut train = DataLoader::new(texts).batch_size(2).by_length(&[4], Sequence::len);
/// let batch: Sequences = train.batches(0, 0)?.next().expect("there is a batch")?;
/// assert_eq!(batch.tokens.size(), [2, 3]);
/// assert_eq!(batch.weight(), 3.0); // the tokens that have a target
/// # Ok::<(), trainer::Error>(())
/// ```
#[derive(Debug, crate::data::Batch, crate::data::Rows)]
#[batch(crate = crate)]
pub struct Sequences {
    /// The tokens; 0 for padding.
    pub tokens: Tensor,
    /// The target of each token; [`IGNORED`] for tokens without a target and for padding.
    pub targets: Tensor,
    /// The position of each token in its sequence, from 0; 0 for padding.
    pub positions: Tensor,
    /// The number of each token's sequence in the row, from 1; 0 for padding.
    pub segments: Tensor,
}

impl Sequences {
    /// Returns the [weight](crate::Task::weight) of the batch: the number of targets that are not
    /// [`IGNORED`], over which the cross-entropy is averaged.
    #[must_use]
    pub fn weight(&self) -> f64 {
        self.targets.not_equal(IGNORED).sum(Kind::Int64).int64_value(&[]) as f64
    }

    /// Returns the loss of a language model: the mean cross-entropy of the targets that are not
    /// [`IGNORED`]. The logits have the shape `[rows, length, vocabulary]` or
    /// `[rows · length, vocabulary]`. Half-precision logits are converted to `f32` first.
    pub fn cross_entropy(&self, logits: &Tensor) -> Tensor {
        let targets = self.targets.flatten(0, 1);
        let logits = logits.flatten(0, -2);
        let logits = if logits.kind() == Kind::Double { logits } else { logits.to_kind(Kind::Float) };
        logits.cross_entropy_loss::<Tensor>(&targets, None, Reduction::Mean, IGNORED, 0.0)
    }

    /// Returns the attention mask, `Bool [rows, 1, length, length]`: true if the token in the third
    /// dimension attends to the token in the fourth, because both are in the same sequence. Each
    /// padding position attends only to itself, so that no row of the mask is empty.
    ///
    /// Pass it to `scaled_dot_product_attention` as `attn_mask`.
    pub fn mask(&self) -> Tensor {
        let same = self.segments.unsqueeze(2).eq_tensor(&self.segments.unsqueeze(1));
        let is_token = self.segments.not_equal(0).unsqueeze(2);
        let length = self.segments.size()[1];
        let itself = Tensor::eye(length, (Kind::Bool, self.segments.device()));
        same.logical_and(&is_token).logical_or(&itself).unsqueeze(1)
    }

    /// Returns the [mask](Sequences::mask), restricted so that no token attends to a later token.
    pub fn causal_mask(&self) -> Tensor {
        self.mask().tril(0)
    }

    /// Builds a batch of rows, each a concatenation of one or more sequences. Pads the rows to
    /// `length` tokens, which no row may exceed, or to the longest row if `length` is `None`.
    pub(super) fn of_rows(rows: &[Vec<Sequence>], length: Option<usize>) -> Result<Self> {
        let longest = rows.iter().map(|row| row.iter().map(Sequence::len).sum()).max().unwrap_or(0);
        let length = length.unwrap_or(longest);
        let shape = [rows.len() as i64, length as i64];
        let join = |padding: i64, add: fn(&mut Vec<i64>, usize, &Sequence)| {
            let mut values = Vec::with_capacity(rows.len() * length);
            for (nth, row) in rows.iter().enumerate() {
                row.iter().enumerate().for_each(|(nth, sequence)| add(&mut values, nth, sequence));
                values.resize((nth + 1) * length, padding);
            }
            Ok::<_, Error>(Tensor::f_from_slice(&values)?.f_view(shape)?)
        };
        let is_full = |row: &Vec<Sequence>| matches!(&row[..], [only] if only.len() == length);
        let (positions, segments) = if rows.iter().all(is_full) {
            let integers = (Kind::Int64, Device::Cpu);
            let positions = Tensor::f_arange(shape[1], integers)?.f_repeat([shape[0], 1])?;
            (positions, Tensor::f_ones(shape, integers)?)
        } else {
            (
                join(0, |values, _, sequence| values.extend(0..sequence.len() as i64))?,
                join(0, |values, nth, sequence| {
                    values.extend(std::iter::repeat_n(nth as i64 + 1, sequence.len()));
                })?,
            )
        };
        Ok(Sequences {
            tokens: join(0, |values, _, sequence| values.extend_from_slice(&sequence.tokens))?,
            targets: join(IGNORED, |values, _, sequence| values.extend_from_slice(&sequence.targets))?,
            positions,
            segments,
        })
    }
}

impl Collate for Sequence {
    type Batch = Sequences;

    fn collate(rows: Vec<Sequence>) -> Result<Sequences> {
        let rows: Vec<Vec<Sequence>> = rows.into_iter().map(|row| vec![row]).collect();
        Sequences::of_rows(&rows, None)
    }
}
