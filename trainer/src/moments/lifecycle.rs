//! The lifecycle: the operations of the training loop, and the points at which hooks run.
//!
//! The source of this module contains the only declaration of the lifecycle. From it, a macro
//! generates the types of the moments, their names in [`at`], the list [`MOMENTS`], the order of
//! `describe_hooks`, the dispatch tables, the rules for which values exist at which moments, and
//! this page.
//!
//! An **operation** is an action of the loop, and a **point** is a position at which the loop calls
//! hooks. Both are **moments**. Every operation `x` has the points `before_x` and `after_x`. A
//! point fires in every phase that reaches it.
//!
//! ```text
//! setup
//! ├─ fit
//! │  ├─ sanity_check
//! │  │  └─ valid …
//! │  └─ epoch                        × epochs
//! │     ├─ train_epoch
//! │     │  ├─ step                   × batches
//! │     │  │  ├─ transfer            batch → device
//! │     │  │  ├─ pred                forward
//! │     │  │  │  └─ module_forward   × named modules
//! │     │  │  ├─ loss
//! │     │  │  ├─ backward            train only
//! │     │  │  ├─ opt_step            train only, at the end of an accumulation window
//! │     │  │  └─ zero_grad           train only, after an opt_step
//! │     │  └─ valid …                if validation within the epoch is set
//! │     └─ valid                     under no_grad
//! │        └─ step …                 without backward, opt_step, zero_grad
//! ├─ test     └─ step …
//! ├─ predict  └─ predict_step        transfer, pred
//! ├─ eval                            within a hook that calls the model
//! ├─ save_checkpoint, load_checkpoint
//! ├─ after_record                    every few steps, after each pass, and at the end
//! ├─ after_cancel
//! ├─ after_error
//! └─ teardown                        last, exactly once, however the entry point ends
//! ```

#[cfg(doc)]
use crate::Cx;

trainer_macros::root_lifecycle! {
    /// An entry point of the trainer (`fit`, `validate`, `test`, `predict`) is about to begin.
    point setup in train | valid | test | predict;

    /// Training: all epochs.
    operation fit in train {
        /// A few batches of validation before training, if enabled, so that mistakes in validation
        /// are found early.
        operation sanity_check in sanity {
            again valid;
            again after_record;
        }

        /// One epoch: training, then validation.
        operation epoch counts epochs {
            /// One pass over the training data.
            operation train_epoch {
                /// The processing of one batch.
                operation step in train | sanity | valid | test counts batches {
                    /// The batch moves to the device.
                    operation transfer in train | sanity | valid | test | predict;

                    /// The forward pass.
                    operation pred computes in train | sanity | valid | test | predict {
                        /// A named [module](crate::modules) computes its output.
                        operation module_forward;
                    }

                    /// The loss of the prediction.
                    operation loss computes {
                        again module_forward;
                    }

                    /// The backward pass: gradients of the loss.
                    operation backward in train {
                        /// The backward pass has computed the gradient of the output of a named
                        /// [module](crate::modules), and is about to compute the gradients within
                        /// the module. Fires while the pass runs, once for each call of each
                        /// module, in the order of the pass: a module that contains other modules
                        /// comes before them. Does not fire if the output requires no gradient. See
                        /// [`modules`](crate::modules#the-backward-pass).
                        point before_module_backward;

                        /// The backward pass has accumulated the gradients of all parameters of a
                        /// named [module](crate::modules): of those below its name, such as
                        /// `encoder.fc1.weight` for `encoder`, that are trained and that the loss
                        /// depends on. Fires while the pass runs, once in each pass for each module
                        /// that was called, however often: a module that contains other modules
                        /// comes after them. Does not fire for a module without such parameters.
                        /// See [`modules`](crate::modules#the-backward-pass).
                        point after_module_grads;

                        /// A backward pass has ended, in which the gradient of the output of a
                        /// named [module](crate::modules) was computed. Fires once for each call of
                        /// each module, in the order in which the gradients were computed. If a
                        /// module and its last layer have the same output, the point fires for the
                        /// module first. See [`modules`](crate::modules#the-backward-pass).
                        point after_module_backward;
                    }

                    /// The optimizer updates the parameters, at the end of an accumulation window.
                    operation opt_step in train counts steps;

                    /// The gradients are dropped if the `opt_step` took place.
                    operation zero_grad in train counts steps;
                }

                again valid;
                again after_record;
            }

            /// One pass over the validation data, without gradients.
            operation valid in sanity | valid {
                again step;
            }

            again after_record;
        }
    }

    /// One pass over the test data, without gradients.
    operation test in test {
        again step;
    }

    /// One pass over data, without loss or gradients.
    operation predict in predict {
        /// One batch of prediction.
        operation predict_step counts batches {
            again transfer;
            again pred;
        }
    }

    /// A hook computes with the model as evaluation has it: [`Cx::eval`](crate::Cx::eval). Runs in
    /// the phase `predict`, within the moment of that hook.
    operation eval computes in predict {
        again module_forward;
    }

    /// A checkpoint is written: between two batches or epochs, or when a fit ends.
    operation save_checkpoint in train | valid;

    /// A checkpoint is read, after the `setup` of a resumed fit.
    operation load_checkpoint in train;

    /// Hooks receive the logged values as a [record](crate::Record): every few optimizer steps
    /// ([`record_every`](crate::TrainerBuilder::record_every)), at the end of each pass over data,
    /// and when the entry point ends. The point fires with the phase and the counters of the
    /// record.
    point after_record in train | sanity | valid | test | predict counts records;

    /// A signal or a cancel token cancelled the run, and the loop has ended.
    point after_cancel in train | sanity | valid | test | predict;

    /// An error or a panic ended the loop.
    point after_error in train | sanity | valid | test | predict;

    /// The last point of an entry point, which fires exactly once, however the entry point ends.
    point teardown in train | valid | test | predict;

    /// The current batch: [`Cx::batch`].
    exists batch: HasBatch from before_step to after_step except module_forward, from before_predict_step to after_predict_step;

    /// The task: [`Cx::task`]. It is borrowed while its modules compute.
    exists task: HasTask from setup to teardown except module_forward;

    /// The named module that is computing, or has computed, its output: [`Cx::module`].
    exists module: HasModule from before_module_forward to after_module_forward, from before_module_backward to after_module_backward;

    /// The input of a module: [`Cx::input`].
    exists input: HasInput from before_module_forward to after_module_forward;

    /// The output of a module: [`Cx::output`].
    exists output: HasOutput at after_module_forward;

    /// The gradient of the output of a module: [`Cx::output_grad`].
    exists output_grad: HasOutputGrad at before_module_backward, at after_module_backward;

    /// The gradient of the input of a module: [`Cx::input_grad`].
    exists input_grad: HasInputGrad at after_module_backward;

    /// The gradients of the parameters of a module: [`Cx::module_grads`].
    exist module_grads: HasModuleGrads at after_module_grads;

    /// The gradient of the output of a module can be replaced, because the module has not used it
    /// yet: [`Cx::set_output_grad`].
    allows set_output_grad: CanSetOutputGrad + OnAllRanks at before_module_backward;

    /// The input of a module can be replaced: [`Cx::set_input`].
    allows set_input: CanSetInput + OnAllRanks from before_module_forward to module_forward;

    /// The activations of a module can be left out of the graph, because they are not computed yet:
    /// [`Cx::checkpoint_activations`].
    allows checkpoint_activations: CanCheckpointActivations from before_module_forward to module_forward;

    /// A hook can set the output of a module, before or after it is computed: [`Cx::set_output`].
    allows set_output: CanSetOutput + OnAllRanks from module_forward to after_module_forward;

    /// The output of the forward pass: [`Cx::pred`].
    exists prediction: HasPred from after_pred to after_step, at after_predict_step;

    /// The model can compute as in evaluation, because no graph of the batch depends on its
    /// weights: [`Cx::eval`](crate::Cx::eval).
    allows eval: CanEval from setup to before_pred, from after_backward to teardown;

    /// The loss of the current batch: [`Cx::loss`].
    exists loss: HasLoss from after_loss to after_zero_grad;

    /// The loss of the batch, if it has one: [`Cx::step_loss`].
    exists step_loss: HasStepLoss at after_step;

    /// The gradients of the parameters: [`Cx::grad`].
    exist gradients: HasGrads from after_backward to before_zero_grad;

    /// The reduced metrics of the most recent passes: [`Cx::metrics`].
    exist metrics: HasMetrics at after_train_epoch, at after_valid, at after_epoch, at after_fit, at after_test;

    /// The error that ended the run: [`Cx::error`].
    exists error: HasError at after_error;

    /// The values of the record: [`Cx::record`].
    exists record: HasRecord at after_record;

    /// The checkpoint that is being written or read: [`Cx::checkpoint`].
    exists checkpoint: HasCheckpoint from before_save_checkpoint to after_save_checkpoint, from before_load_checkpoint to after_load_checkpoint;

    /// The batch can be replaced by one that is already on the device: [`Cx::set_batch`].
    allows set_batch: CanSetBatch + OnAllRanks at transfer;

    /// The prediction can be set by a hook instead of by the task: [`Cx::set_pred`].
    allows set_pred: CanSetPred + OnAllRanks at pred, at predict_step;

    /// The loss can be set by a hook instead of by the task: [`Cx::set_loss`].
    allows set_loss: CanSetLoss + OnAllRanks at loss;

    /// The loss can be scaled, because its gradients are not computed yet: [`Cx::scale_loss`].
    allows scale_loss: CanScaleLoss + OnAllRanks from after_loss to backward;

    /// The optimizer is selected, and the gradients are not computed yet: [`Cx::scaled_loss`].
    allows scaled_loss: CanStartBackward from before_backward to backward;

    /// A backward pass can be run, because the optimizer is selected: [`Cx::backward`].
    allows backward: CanRunBackward + OnAllRanks from before_backward to backward;

    /// The batch can be skipped: [`Cx::skip_batch`].
    allows skip_batch: CanSkipBatch + OnAllRanks at before_step;

    /// A pass over the data is running, and can end early: [`Cx::end_epoch`].
    allows end_epoch: CanEndEpoch from before_train_epoch to after_step;

    /// A pass over the data is running, and the state of the run can be kept and restored:
    /// [`Cx::keep_state`], [`Cx::roll_back`].
    allows roll_back: CanRollBack from before_train_epoch to after_step;

    /// A fit is running or has ended, and a checkpoint of it can be requested:
    /// [`Cx::save_checkpoint`].
    allows save_checkpoint: CanSaveCheckpoint from before_fit to after_fit, at after_cancel, at after_error;

    /// Values can be added to the checkpoint that is about to be written: [`Cx::save`].
    allows save: CanSave at before_save_checkpoint;

    /// Values can be taken from the checkpoint that was read: [`Cx::saved`].
    allows saved: CanLoad at after_load_checkpoint;

    /// Values can be logged: [`Cx::log`].
    allows log: CanLog except at after_record;

    /// The run can be stopped: [`Cx::stop`].
    allows stop: CanStop from before_fit to after_epoch;
}
