//! What the points are called elsewhere. Advice, not authority: names are resolved by rustc.

/// A name of another trainer's, whose it is, and what to write here.
type Translation = (&'static str, &'static str, &'static str);

const LIGHTNING: &str = "PyTorch Lightning";
const MMENGINE: &str = "MMEngine";
const KERAS: &str = "Keras";
const HUGGING_FACE: &str = "Hugging Face";
const FASTAI: &str = "fastai";
const TRAINER_TOOLS: &str = "trainer-tools";

#[rustfmt::skip]
const NAMES: &[Translation] = &[
    ("on_fit_start", LIGHTNING, "before_fit"),
    ("on_fit_end", LIGHTNING, "after_fit"),
    ("on_train_start", LIGHTNING, "before_fit"),
    ("on_train_begin", "Keras and Hugging Face", "before_fit"),
    ("on_train_end", "PyTorch Lightning, Keras and Hugging Face", "after_fit"),
    ("on_init_end", HUGGING_FACE, "setup"),
    ("on_sanity_check_start", LIGHTNING, "before_sanity_check"),
    ("on_sanity_check_end", LIGHTNING, "after_sanity_check"),
    ("on_epoch_begin", "Keras and Hugging Face", "before_epoch"),
    ("on_epoch_end", "Keras and Hugging Face", "after_epoch"),
    ("on_train_epoch_start", LIGHTNING, "before_train_epoch"),
    ("on_train_epoch_end", LIGHTNING, "after_epoch"), // it comes after validation there
    ("on_train_batch_start", LIGHTNING, "before_step, only = train"),
    ("on_train_batch_begin", KERAS, "before_step, only = train"),
    ("on_train_batch_end", "PyTorch Lightning and Keras", "after_step, only = train"),
    ("on_batch_start", LIGHTNING, "before_step, only = train"),
    ("on_batch_end", LIGHTNING, "after_step, only = train"),
    ("on_step_begin", HUGGING_FACE, "before_step, only = train"),
    ("on_step_end", HUGGING_FACE, "after_step, only = train"),
    ("on_before_batch_transfer", LIGHTNING, "before_transfer"),
    ("on_after_batch_transfer", LIGHTNING, "after_transfer"),
    ("on_before_backward", LIGHTNING, "before_backward"),
    ("on_after_backward", LIGHTNING, "after_backward"),
    ("on_before_optimizer_step", LIGHTNING, "before_opt_step"),
    ("on_pre_optimizer_step", HUGGING_FACE, "before_opt_step"),
    ("on_optimizer_step", HUGGING_FACE, "after_opt_step"),
    ("on_before_zero_grad", LIGHTNING, "before_zero_grad"),
    ("on_validation_start", LIGHTNING, "before_valid"),
    ("on_validation_epoch_start", LIGHTNING, "before_valid"),
    ("on_validation_batch_start", LIGHTNING, "before_step, only = valid"),
    ("on_validation_batch_end", LIGHTNING, "after_step, only = valid"),
    ("on_validation_epoch_end", LIGHTNING, "after_valid"),
    ("on_validation_end", LIGHTNING, "after_valid"),
    ("on_prediction_step", HUGGING_FACE, "after_step, only = valid"),
    ("on_evaluate", HUGGING_FACE, "after_valid"),
    ("on_test_start", LIGHTNING, "before_test"),
    ("on_test_begin", KERAS, "before_valid"),
    ("on_test_end", LIGHTNING, "after_test"),
    ("on_test_batch_start", LIGHTNING, "before_step, only = test"),
    ("on_test_batch_begin", KERAS, "before_step, only = valid"),
    ("on_test_batch_end", LIGHTNING, "after_step, only = test"),
    ("on_predict_start", LIGHTNING, "before_predict"),
    ("on_predict_begin", KERAS, "before_predict"),
    ("on_predict_end", "PyTorch Lightning and Keras", "after_predict"),
    ("on_predict_batch_start", LIGHTNING, "before_predict_step"),
    ("on_predict_batch_begin", KERAS, "before_predict_step"),
    ("on_predict_batch_end", "PyTorch Lightning and Keras", "after_predict_step"),
    ("on_save_checkpoint", LIGHTNING, "before_save_checkpoint"),
    ("on_load_checkpoint", LIGHTNING, "after_load_checkpoint"),
    ("on_save", HUGGING_FACE, "before_save_checkpoint"),
    ("on_exception", LIGHTNING, "after_error"),
    ("before_run", MMENGINE, "setup"),
    ("after_run", MMENGINE, "teardown"),
    ("before_train", MMENGINE, "before_fit"),
    ("after_train", MMENGINE, "after_fit"),
    ("before_train_iter", MMENGINE, "before_step, only = train"),
    ("after_train_iter", MMENGINE, "after_step, only = train"),
    ("before_val", MMENGINE, "before_valid"),
    ("after_val", MMENGINE, "after_valid"),
    ("before_val_epoch", MMENGINE, "before_valid"),
    ("after_val_epoch", MMENGINE, "after_valid"),
    ("before_val_iter", MMENGINE, "before_step, only = valid"),
    ("after_val_iter", MMENGINE, "after_step, only = valid"),
    ("before_test_epoch", MMENGINE, "before_test"),
    ("after_test_epoch", MMENGINE, "after_test"),
    ("before_test_iter", MMENGINE, "before_step, only = test"),
    ("after_test_iter", MMENGINE, "after_step, only = test"),
    ("before_batch", FASTAI, "before_step"),
    ("after_batch", FASTAI, "after_step"),
    ("before_validate", FASTAI, "before_valid"),
    ("after_validate", FASTAI, "after_valid"),
    ("after_cancel_fit", FASTAI, "after_cancel"),
    ("transfer_batch_to_device", LIGHTNING, "around = transfer"),
    ("optimizer_step", LIGHTNING, "around = opt_step"),
    ("optimizer_zero_grad", LIGHTNING, "around = zero_grad"),
    ("training_step", LIGHTNING, "around = step, only = train"),
    ("validation_step", LIGHTNING, "around = step, only = valid"),
    ("test_step", LIGHTNING, "around = step, only = test"),
    ("do_backward", TRAINER_TOOLS, "around = backward"),
    ("do_opt_step", TRAINER_TOOLS, "around = opt_step"),
    ("do_zero_grad", TRAINER_TOOLS, "around = zero_grad"),
    ("begin_fit", TRAINER_TOOLS, "before_fit"),
    ("begin_epoch", TRAINER_TOOLS, "before_epoch"),
];

/// What another trainer's name is called here.
pub(super) struct Ours {
    /// The point or operation.
    pub(super) moment: &'static str,
    /// What to tell the user.
    pub(super) message: String,
}

pub(super) fn translate(name: &str) -> Option<Ours> {
    let (_, whose, ours) = NAMES.iter().find(|(theirs, _, _)| *theirs == name)?;
    let (moment, filter) = ours.split_once(", ").unwrap_or((ours, ""));
    let (moment, whole) = match moment.split_once("around = ") {
        Some((_, operation)) => (operation, true),
        None => (moment, !filter.is_empty()),
    };
    let written = if whole { format!("`#[hook({ours})]`") } else { format!("`{moment}`") };
    Some(Ours { moment, message: format!("`{name}` is a name of {whose}; here it is {written}") })
}
