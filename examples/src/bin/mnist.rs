//! Classifies MNIST with a small convolutional network, trained with a learning-rate warm-up and
//! cosine decay.

use std::path::{Path, PathBuf};

use examples::idx::Mnist;
use examples::per_class;
use trainer::data::Rows;
use trainer::hooks::{HyperparameterSchedule, Progress};
use trainer::metrics::{Accuracy, Metric, Precision};
use trainer::prelude::*;
use trainer::schedule::Cosine;

fn cnn(root: &nn::Path<'_>) -> nn::SequentialT {
    let same = nn::ConvConfig { padding: 1, ..Default::default() };
    nn::seq_t()
        .add(nn::conv2d(root / "conv1", 1, 16, 3, same))
        .add_fn(|xs| xs.relu().max_pool2d_default(2))
        .add(nn::conv2d(root / "conv2", 16, 32, 3, same))
        .add_fn(|xs| xs.relu().max_pool2d_default(2).flat_view())
        .add_fn_t(|xs, train| xs.dropout(0.25, train))
        .add(nn::linear(root / "fc1", 32 * 7 * 7, 128, Default::default()))
        .add_fn(Tensor::relu)
        .add_fn_t(|xs, train| xs.dropout(0.25, train))
        .add(nn::linear(root / "fc2", 128, 10, Default::default()))
}

fn main() -> Result<()> {
    tch::manual_seed(1);
    // By default, reads the folder that `make mnist` fills.
    let fetched = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("data/mnist");
    let folder = std::env::args_os().nth(1).map_or(fetched, PathBuf::from);
    let (all, test) = Mnist::load(folder)?;
    // A twelfth of the training images is held out for validation, so that the test set is used
    // only once, at the end.
    let all = (all.images, all.labels);
    let rows = all.rows()?;
    let held_out = all.rows()? / 12;
    let mut train = InMemory::new(all.slice(0, rows - held_out))?.batch_size(64).shuffle(1);
    let mut valid = InMemory::new(all.slice(rows - held_out, held_out))?.batch_size(500);
    let mut test = InMemory::new((test.images, test.labels))?.batch_size(500);

    let vs = nn::VarStore::new(Device::Cpu);
    let net = cnn(&vs.root());
    let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
    let mut trainer = Trainer::builder(task)
        .optimizer(AdamW::new(4e-3))
        .epochs(3)
        .auto_device()
        // The learning rate rises to 4e-3 over the first tenth of the run, then decays to 0.
        .hook(HyperparameterSchedule::lr(Cosine::to(0.0).warm_up(0.1)))
        .hook(Accuracy::multiclass(10).per_class(true))
        .hook(Precision::multiclass(10).per_class(true))
        .hook(Progress::new())
        .build()?;
    if trainer.is_main() {
        trainer.describe_hooks().only_used().print();
    }

    trainer.fit(&mut train, Some(&mut valid))?;
    let summary = trainer.test(&mut test)?;
    if !trainer.is_main() {
        return Ok(()); // only one process prints the results
    }
    let accuracy = summary.metrics["test/accuracy"];
    let loss = summary.metrics["test/loss"];
    println!("test set: accuracy {:.2} %, loss {loss:.4}", 100.0 * accuracy);
    println!("\n{}", per_class::table(&summary.metrics, "test", &["accuracy", "precision"], 10));
    Ok(())
}
