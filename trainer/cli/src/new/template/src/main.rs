//! Trains, says how well, and writes the weights.

use template::{Settings, builder, parser};
use trainer::prelude::*;

fn main() -> Result<()> {
    let (settings, args) = parser().parse::<Settings>()?;
    let (mut train, mut valid) = template::task::data(&settings)?;
    let mut trainer = args.apply(builder(&settings)?).build()?;
    if trainer.describe_requested()? {
        return Ok(());
    }
    let summary = trainer.fit(&mut train, Some(&mut valid))?;
    if trainer.is_main() {
        println!("{}", template::task::report(&mut trainer, &summary)?);
    }
    trainer.save_weights("weights.safetensors")
}
