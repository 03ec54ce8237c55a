//! The data and the model: a text, and a small GPT that predicts each byte from those before it.

use trainer::metrics::Perplexity;
use trainer::prelude::*;
use trainer::{Summary, TrainerBuilder};

use crate::Settings;

/// The default learning rate.
pub const LR: f64 = 2e-3;
/// The default number of units of a byte in the network.
pub const WIDTH: i64 = 64;
/// The default number of rows in each batch.
pub const BATCH_SIZE: usize = 16;
/// The default number of epochs.
pub const EPOCHS: u64 = 15;

/// The number of bytes that the network reads at once.
const LENGTH: i64 = 64;
const BYTES: i64 = 256;
const BLOCKS: i64 = 2;
const HEADS: i64 = 4;
const DROPOUT: f64 = 0.2;

type Data = InMemory<(Tensor, Tensor)>;

/// Returns data for training and, from the last tenth of the text, for validation. Each row has
/// `LENGTH` bytes, and for each of them the one that follows.
///
/// # Errors
///
/// Returns an error if `data/text.txt` cannot be read.
pub fn data(settings: &Settings) -> Result<(Data, Data)> {
    let text = Tensor::from_slice(&std::fs::read("data/text.txt").map_err(Error::new)?).to_kind(Kind::Int64);
    let rows = |text: Tensor| {
        let rows = text.unfold(0, LENGTH + 1, LENGTH);
        InMemory::new((rows.narrow(1, 0, LENGTH), rows.narrow(1, 1, LENGTH)))
    };
    let split = text.size1()? * 9 / 10;
    let train = rows(text.slice(0, 0, split, 1))?.batch_size(settings.batch_size).shuffle(1);
    Ok((train, rows(text.slice(0, split, None, 1))?.batch_size(64)))
}

/// Returns the network, whose weights are random at first. It maps bytes, `[rows, length]`, to
/// logits of the bytes that follow, `[rows, length, BYTES]`.
pub fn network(vars: &nn::Path<'_>, width: i64) -> nn::FuncT<'static> {
    let embedding = |name: &str, count| nn::embedding(vars / name, count, width, Default::default());
    let [bytes, positions] = [embedding("bytes", BYTES), embedding("positions", LENGTH)];
    let blocks: Vec<_> = (0..BLOCKS).map(|nth| block(&(vars / "blocks" / nth), width)).collect();
    let norm = nn::layer_norm(vars / "norm", vec![width], Default::default());
    let head = nn::linear(vars / "head", width, BYTES, Default::default());
    nn::func_t(move |text, is_train| {
        let places = Tensor::arange(text.size()[1], (Kind::Int64, text.device()));
        let xs = text.apply(&bytes) + places.apply(&positions);
        blocks.iter().fold(xs, |xs, block| xs.apply_t(block, is_train)).apply(&norm).apply(&head)
    })
}

/// Returns attention to the bytes before, then a network on each byte; both add to their input.
fn block(vars: &nn::Path<'_>, width: i64) -> nn::FuncT<'static> {
    let norm = |name: &str| nn::layer_norm(vars / name, vec![width], Default::default());
    let linear = |name: &str, from, to| nn::linear(vars / name, width * from, width * to, Default::default());
    let [norm1, norm2] = [norm("norm1"), norm("norm2")];
    let [qkv, out] = [linear("qkv", 1, 3), linear("out", 1, 1)];
    let [up, down] = [linear("up", 1, 4), linear("down", 4, 1)];
    nn::func_t(move |xs, is_train| {
        let heads = |xs: &Tensor| xs.unflatten(-1, [HEADS, -1]).transpose(1, 2);
        let [q, k, v] = [0, 1, 2].map(|nth| heads(&xs.apply(&norm1).apply(&qkv).chunk(3, -1)[nth]));
        let seen = Tensor::scaled_dot_product_attention::<Tensor>(&q, &k, &v, None, 0.0, true, None, false);
        let xs = xs + seen.transpose(1, 2).flatten(2, 3).apply(&out).dropout(DROPOUT, is_train);
        &xs + xs.apply(&norm2).apply(&up).gelu("tanh").apply(&down).dropout(DROPOUT, is_train)
    })
}

/// Returns the builder with the model, its loss, its optimizer and its metric.
pub(crate) fn builder(
    settings: &Settings,
) -> Result<TrainerBuilder<impl Task<Batch = (Tensor, Tensor), Pred = Tensor> + use<>>> {
    if settings.width % HEADS != 0 {
        return Err(Error::msg(format!("`--width {}`: expected a multiple of {HEADS}", settings.width)));
    }
    let vars = nn::VarStore::new(Device::Cpu);
    let net = network(&vars.root(), settings.width);
    let loss =
        |logits: &Tensor, next: &Tensor| logits.flatten(0, 1).cross_entropy_for_logits(&next.flatten(0, 1));
    let builder = Trainer::builder(Supervised::new(vars, net, loss));
    Ok(builder.optimizer(AdamW::new(settings.lr)).hook(Perplexity::new()))
}

/// Returns what the program prints after training: the perplexity, and a text that the model
/// writes.
///
/// # Errors
///
/// Returns an error if the model cannot be called.
pub fn report(
    trainer: &mut Trainer<impl Task<Batch = (Tensor, Tensor), Pred = Tensor>>,
    summary: &Summary,
) -> Result<String> {
    let device = trainer.task().vars().device();
    let mut text = b"Shall I".to_vec();
    for _ in 0..300 {
        let seen = &text[text.len().saturating_sub(LENGTH as usize)..];
        let seen = Tensor::from_slice(seen).to_kind(Kind::Int64).unsqueeze(0).to_device(device);
        let batch = (seen.shallow_clone(), seen);
        let logits = tch::no_grad(|| trainer.task_mut().pred(&batch, Mode::Eval))?;
        let next = (logits.select(0, 0).select(0, -1) / 0.7).softmax(-1, Kind::Float).multinomial(1, false);
        text.push(next.int64_value(&[0]) as u8);
    }
    let perplexity = summary.metrics["valid/perplexity"];
    Ok(format!("perplexity of a byte: {perplexity:.2}\n{}", String::from_utf8_lossy(&text)))
}
