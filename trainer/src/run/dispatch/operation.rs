//! Running operations that produce an output, with the hooks around them.

use crate::error::{BoxError, Error, Result};
use crate::hook::call::Loop;
use crate::hook::frame::Ending;
use crate::moment::{AtOperation, MomentInfo};
use crate::run::Run;

/// The output of an operation, and the method of `Cx` with which a hook sets it.
#[derive(Clone, Copy)]
pub(crate) struct OperationOutput {
    pub(crate) name: &'static str,
    pub(crate) setter: &'static str,
}

impl OperationOutput {
    /// Describes the mistake of the hook that has left an operation without its output.
    #[cold]
    pub(crate) fn missing(self, done: Ending, name: &str) -> BoxError {
        let OperationOutput { name: output, setter } = self;
        let output = match output.chars().next() {
            Some('a' | 'e' | 'i' | 'o' | 'u') => format!("an {output}"),
            _ => format!("a {output}"),
        };
        match done {
            Ending::Replaced => {
                format!(
                    "the hook replaced `{name}` without setting {output}: call `cx.{setter}(…)` in the replacement"
                )
            }
            Ending::Failed => format!(
                "the hook handled the error of `{name}` without setting {output}: return the error, or call `cx.{setter}(…)`"
            ),
            _ => format!(
                "the hook skipped `{name}`, which must produce {output}: call `next.run(cx)`, or \
                 `next.replace(cx, |cx| …)` with `cx.{setter}(…)` in it"
            ),
        }
        .into()
    }
}

impl Run {
    /// Runs an operation that produces an output, with the hooks around it.
    ///
    /// Returns an error if a hook skips the operation. Also returns an error if a hook replaces the
    /// operation, or handles its error, without setting the output.
    #[inline]
    pub(crate) fn produce<O: AtOperation>(
        &mut self,
        output: OperationOutput,
        body: impl FnOnce(&mut Run) -> Result<()>,
    ) -> Result<()> {
        self.dispatch.output_overridden = false;
        let done = self.inside::<O>(body)?;
        self.check_output::<O>(done, output)
    }

    /// Returns an error if neither the operation nor a hook produced the output.
    #[inline]
    pub(crate) fn check_output<O: AtOperation>(
        &mut self,
        done: Ending,
        output: OperationOutput,
    ) -> Result<()> {
        match done {
            Ending::Ran => Ok(()),
            Ending::Replaced | Ending::Failed if self.dispatch.output_overridden => Ok(()),
            _ => Err(self.blame_responsible(O::INFO, output.missing(done, O::INFO.name))),
        }
    }

    /// Builds an error that names the hook responsible for how the most recent operation with
    /// `around` hooks ended: the hook that skipped or replaced the operation, or handled its error.
    #[cold]
    pub(crate) fn blame_responsible(&self, operation: &'static MomentInfo, source: BoxError) -> Error {
        let responsible =
            self.dispatch.responsible.expect("a hook skipped or replaced the operation or handled its error");
        self.hook_failed(responsible, operation, source)
    }
}
