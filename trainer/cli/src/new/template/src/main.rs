//! Trains, and writes the weights.

use template::{Settings, builder, data};
use trainer::cli::SettingsParser;
use trainer::prelude::*;

fn main() -> Result<()> {
    let parser =
        SettingsParser::new().default_value("epochs", 10).default_value("run_folder", "numbered:runs");
    let (settings, args) = parser.parse::<Settings>()?;
    let (mut train, mut valid) = data(&settings)?;
    let mut trainer = args.apply(builder(&settings)).build()?;
    if trainer.describe_requested()? {
        return Ok(());
    }
    let summary = trainer.fit(&mut train, Some(&mut valid))?;
    if trainer.is_main() {
        println!("{:.1} % of the points are on the predicted arm", 100.0 * summary.metrics["valid/accuracy"]);
    }
    trainer.save_weights("weights.safetensors")
}
