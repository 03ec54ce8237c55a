//! Classifies handwritten digits, stored in one folder of images per digit, with a Vision
//! Transformer, MixUp, and lower learning rates for the first layers.
//!
//! Training starts from random weights. `vit --weights DIR` instead fine-tunes a published model,
//! such as `WinKawaks/vit-tiny-patch16-224`, whose `config.json` and `model.safetensors` are in the
//! folder `DIR`. The images are then scaled to the size that this model expects, so a GPU is
//! recommended.

use std::path::{Path, PathBuf};

use examples::digits::Digits;
use models::{Files, Vit, VitConfig, loss};
use trainer::data::ImageFolder;
use trainer::hooks::{HyperparameterSchedule, MixUp, Progress};
use trainer::metrics::Accuracy;
use trainer::prelude::*;
use trainer::schedule::Cosine;

/// Returns the configuration of a small ViT for images of 8×8 pixels: 16 patches of 2×2 pixels.
fn small() -> VitConfig {
    VitConfig {
        image_size: 8,
        patch_size: 2,
        num_channels: 1,
        hidden_size: 64,
        num_hidden_layers: 4,
        num_attention_heads: 4,
        intermediate_size: 128,
        ..VitConfig::default()
    }
}

/// Returns the folder given after `--weights`, if any.
fn weights_folder() -> Result<Option<PathBuf>> {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    match &arguments[..] {
        [] => Ok(None),
        [option, folder] if option == "--weights" => Ok(Some(folder.into())),
        _ => Err(Error::msg(format!("the arguments are {arguments:?}: expected none, or `--weights DIR`"))),
    }
}

/// Returns the images below a folder, at the size that the model expects, with values from -1 to 1.
fn images(folder: &Path, config: &VitConfig) -> Result<impl Dataset<Row = (Tensor, i64)> + use<>> {
    let size = u32::try_from(config.image_size).map_err(Error::new)?;
    let images = ImageFolder::open(folder)?.size(size, size).grayscale(config.num_channels == 1);
    Ok(images.map(|(image, class), _| Ok((image * 2.0 - 1.0, class))))
}

fn main() -> Result<()> {
    tch::manual_seed(1); // for the initial weights
    tch::set_num_threads(1); // the fastest for a network this small
    let files = weights_folder()?.map(Files::in_folder).transpose()?;
    let config = match &files {
        Some(files) => VitConfig::from_json(&files.config)?,
        None => small(),
    };
    let config = config.classes(10).dropout(0.1);
    let [train, valid] = ["runs/vit/train", "runs/vit/valid"].map(Path::new);
    let digits = Digits::load()?;
    digits.0.write_images(train)?;
    digits.1.write_images(valid)?;
    let mut train = DataLoader::new(images(train, &config)?).batch_size(64).shuffle(1).workers(1);
    let mut valid = DataLoader::new(images(valid, &config)?).batch_size(128);

    let vs = nn::VarStore::new(Device::Cpu);
    let vit = Vit::new(&vs.root(), &config);
    let optimizer = AdamW::new(2e-3).weight_decay(0.05).layer_decay(0.8, vit.layers());
    let mut trainer = Trainer::builder(Supervised::new(vs, vit, loss::cross_entropy))
        .optimizer(optimizer)
        .epochs(30)
        .auto_device()
        .seed(1) // for dropout and MixUp
        .clip_grad_norm(1.0)
        .hook(HyperparameterSchedule::lr(Cosine::to(0.0).warm_up(0.1)))
        .hook(MixUp::new(0.2).classes(10))
        .hook(Accuracy::multiclass(10))
        .hook(Progress::new())
        .build()?;
    if trainer.describe_requested()? || trainer.replay_requested(&mut train, Some(&mut valid))? {
        return Ok(());
    }
    if let Some(files) = files {
        // The published classifier has the classes of ImageNet, so it is skipped.
        println!("{}", trainer.load_weights(files.weights, &Vit::published().skip_mismatched(true))?);
    }
    let summary = trainer.fit(&mut train, Some(&mut valid))?;
    println!("validation set: accuracy {:.2} %", 100.0 * summary.metrics["valid/accuracy"]);
    Ok(())
}
