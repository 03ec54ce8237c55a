//! What the program runs, and that it learns.

use template::{Settings, builder, data};
use trainer::prelude::*;

const SETTINGS: Settings = Settings { lr: 3e-3, width: 64, batch_size: 64 };

/// Fails if an update, or a change of the program, adds, removes or changes a hook or a setting. If
/// the change is meant, `TRAINER_LOCK=update cargo test` writes `hooks.lock` again.
#[test]
fn the_hooks_are_those_of_the_lock() -> Result<()> {
    let folder = std::env::temp_dir().join(format!("template-{}", std::process::id()));
    let trainer = builder(&SETTINGS).epochs(10).run_folder(folder).build()?;
    trainer::assert_locked!(trainer);
    Ok(())
}

#[test]
fn two_epochs_are_enough_for_most_points() -> Result<()> {
    let (mut train, mut valid) = data(&SETTINGS)?;
    let folder = std::env::temp_dir().join(format!("template-run-{}", std::process::id()));
    let mut trainer = builder(&SETTINGS).epochs(2).run_folder(&folder).build()?;
    let summary = trainer.fit(&mut train, Some(&mut valid))?;
    assert!(summary.metrics["valid/accuracy"] > 0.8);
    std::fs::remove_dir_all(folder).map_err(Error::new)
}
