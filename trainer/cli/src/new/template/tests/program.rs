//! What the program runs, that it learns, and that it continues exactly.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use template::task::{EPOCHS, data};
use template::{Settings, builder, parser};
use trainer::prelude::*;
use trainer::testing::Harness;

/// Lets one test run at a time: libtorch has one generator of random numbers for the whole process.
static GENERATOR: Mutex<()> = Mutex::new(());

/// Returns a folder for the run of a test, which does not exist yet.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("template").join(name);
    let _ = std::fs::remove_dir_all(&folder);
    folder
}

fn settings() -> Result<Settings> {
    Ok(parser().parse_from::<Settings>(["template"])?.0)
}

/// Fails if an update, or a change of the program, adds, removes or changes a hook or a setting. If
/// the change is meant, `TRAINER_LOCK=update cargo test` writes `hooks.lock` again.
#[test]
fn the_hooks_are_those_of_the_lock() -> Result<()> {
    let _guard = GENERATOR.lock();
    let trainer = builder(&settings()?)?.epochs(EPOCHS).run_folder(folder("lock")).build()?;
    trainer::assert_locked!(trainer);
    Ok(())
}

#[test]
fn the_loss_falls_and_a_resumed_run_ends_with_the_same_weights() -> Result<()> {
    let _guard = GENERATOR.lock();
    let train = |folder: &Path, cancel_after: Option<u64>| {
        let settings = settings()?;
        let (train, valid) = data(&settings)?;
        let harness = Harness::new(builder(&settings)?.epochs(2).run_folder(folder), train).validation(valid);
        match cancel_after {
            Some(batches) => harness.cancel_after(batches).run(),
            None => harness.run(),
        }
    };
    let [whole, parts] = ["whole", "parts"].map(folder);
    let expected = train(&whole, None)?;
    assert!(expected.result.is_ok(), "{:?}", expected.result);
    let losses: Vec<f64> = expected.trainer.history().points("valid/loss").map(|(_, loss)| loss).collect();
    assert!(losses[1] < losses[0], "{losses:?}");

    assert!(train(&parts, Some(5))?.error().to_string().contains("cancelled"));
    let resumed = train(&parts, None)?;
    assert!(resumed.result.is_ok(), "{:?}", resumed.result);
    let weights = |run: &Path| std::fs::read(run.join("weights.safetensors")).map_err(Error::new);
    expected.trainer.save_weights(whole.join("weights.safetensors"))?;
    resumed.trainer.save_weights(parts.join("weights.safetensors"))?;
    assert!(weights(&whole)? == weights(&parts)?, "the weights of the resumed run differ");
    Ok(())
}
