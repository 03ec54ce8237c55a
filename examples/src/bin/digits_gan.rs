//! Trains a generative adversarial network on handwritten digits, with two optimizers, a custom
//! lifecycle from one crate, and hooks for its operations from another.

use examples::digits::Digits;
use gan::{Gan, mean_distance};
use gan_hooks as _; // links the crate, which makes its hooks active
use trainer::prelude::*;

/// Prints the metrics of every 25th epoch.
#[hook(every = 25)]
fn print_metrics(cx: &Cx<Main<AfterEpoch>>) {
    println!("epoch {:>3}  {}", cx.counters().epoch + 1, cx.metrics());
}

fn main() -> Result<()> {
    let seed: u32 = match std::env::args().nth(1) {
        Some(seed) => seed.parse().map_err(|_| {
            Error::msg(format!(
                "the first argument is `{seed}`: expected a seed, a number from 0 to {}",
                u32::MAX
            ))
        })?,
        None => 1,
    };
    tch::manual_seed(seed.into());
    tch::set_num_threads(1); // the fastest for networks this small
    let (real, held_out) = Digits::load()?;
    let mut train = InMemory::new(real.images.copy())?.batch_size(64).shuffle(seed.into());
    // A single batch, because the validation loss compares sets of samples.
    let mut valid = InMemory::new(held_out.images.copy())?.batch_size(512);

    let gan = Gan::new(nn::VarStore::new(Device::Cpu), 64);
    let count = held_out.images.size()[0];
    let untrained = tch::no_grad(|| gan.generate(count, Mode::Eval));
    let mut trainer = Trainer::builder(gan)
        .optimizer_of("generator", AdamW::new(1e-3).betas(0.5, 0.999))
        .optimizer_of("discriminator", AdamW::new(1e-3).betas(0.5, 0.999))
        .epochs(200)
        .auto_device()
        .require_crate("gan_hooks")
        .build()?;
    if trainer.is_main() {
        trainer.describe_hooks().only_used().print();
    }

    trainer.fit(&mut train, Some(&mut valid))?;
    if !trainer.is_main() {
        return Ok(()); // only one process prints the results
    }
    let trained = tch::no_grad(|| trainer.task().generate(count, Mode::Eval));
    draw(&trained.narrow(0, 0, 10));

    // A baseline: images whose pixels each come from a different real digit.
    let order = real.images.rand_like().argsort(0, false).narrow(0, 0, count);
    let mixed = real.images.gather(0, &order, false);
    println!("mean distance           to the nearest training digit  to each other");
    for (name, images) in [
        ("pixels of many digits", &mixed),
        ("untrained generator", &untrained),
        ("trained generator", &trained),
        ("held-out digits", &held_out.images),
    ] {
        let nearest = distances(images, &real.images).amin([1], false).mean(Kind::Float).double_value(&[]);
        let diversity = mean_distance(images, images).double_value(&[]);
        println!("{name:<22}  {nearest:>29.2}  {diversity:>14.2}");
    }
    let labels = real.labels.index_select(0, &distances(&trained, &real.images).argmin(1, false));
    let counts = Vec::<i64>::try_from(labels.bincount::<Tensor>(None, 10))?;
    println!("classes 0 to 9 of the training digits nearest to {count} samples: {counts:?}");
    Ok(())
}

/// Returns the distance of each row of `one` to each row of `other`.
fn distances(one: &Tensor, other: &Tensor) -> Tensor {
    Tensor::cdist(one, other, 2.0, None)
}

/// Prints images of 8×8 pixels side by side.
fn draw(images: &Tensor) {
    let shades = [' ', '░', '▒', '▓', '█'];
    for row in 0..8 {
        let mut line = String::new();
        for image in 0..images.size()[0] {
            for column in 0..8 {
                let ink = images.double_value(&[image, 8 * row + column]); // from 0 to 1
                let shade = shades[(ink * 4.0).round() as usize];
                line.extend([shade, shade]);
            }
            line.push(' ');
        }
        println!("{}", line.trim_end());
    }
    println!();
}
