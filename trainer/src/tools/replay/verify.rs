//! [`Trainer::verify`]: repeats a stretch of a certified run.

use std::fmt::Write;
use std::path::Path;

use trainer_formats::certificate::{CERTIFICATE_FILE, Certificate, Header, Place, Stretch};

use super::source::Source;
use crate::data::Loader;
use crate::error::{Error, Result};
use crate::loggers;
use crate::run::replay::Replay;
use crate::training::Trainer;
use crate::training::task::Task;

/// # Verifying a certificate
impl<T: Task> Trainer<T> {
    /// Repeats one stretch of a run that has a [certificate](crate::loggers::Certificate), and
    /// compares the losses and the data of its batches, and the state after the last batch, with
    /// the certificate.
    ///
    /// `stretch` is the number of the stretch, counted from 0. The first stretch begins at the
    /// start of the run, and each later one at the link that ends the previous one. As in a
    /// [`replay`](Trainer::replay), nothing is written, and training begins at the newest
    /// checkpoint that was written before the stretch. Returns the range of batches in the stretch.
    ///
    /// # Errors
    ///
    /// Returns an error if
    ///
    /// - the run has no certificate, its chain was changed, or it has no such stretch;
    /// - the stretch cannot be [replayed](Trainer::replay);
    /// - the state in the checkpoint is not in the certificate;
    /// - the results of the program in the stretch differ from the certificate. If circumstances
    ///   such as the processor differ, the error says so.
    pub fn verify(
        &mut self,
        train: &mut dyn Loader<T::Batch>,
        valid: Option<&mut dyn Loader<T::Batch>>,
        run: impl AsRef<Path>,
        stretch: usize,
    ) -> Result<std::ops::Range<u64>> {
        let path = run.as_ref();
        let certificate = Certificate::read(path.join(CERTIFICATE_FILE)).map_err(Error::new)?;
        let stretches = certificate.stretches();
        let Some(&stretch) = stretches.get(stretch) else {
            return Err(Error::usage(format!(
                "the certificate of {} has {} stretches, numbered from 0: there is no stretch {stretch}",
                path.display(),
                stretches.len()
            )));
        };
        let Stretch { link, start, end } = stretch;
        let source = Source::of_certificate(&self.run, path, start)?;
        let target = &certificate.links[link];
        let until = if target.place == Place::End { u64::MAX } else { end };
        let replay = Replay { place: target.place, certifies: true, ..Replay::until(until) };
        let from = source.checkpoint.as_ref().map(|(path, _)| path.display().to_string());
        let (_, replay) = self.run_replay(train, valid, &source, replay, None)?;
        if !self.is_main() {
            return Ok(start..end); // the states in the certificate are those of rank 0
        }
        let repeated = self.run.value::<loggers::Certificate>()?;
        let (steps, at_end, header) = (repeated.steps.clone(), repeated.end.clone(), repeated.header.clone());
        let own = header.clone().unwrap_or_else(|| self.run.certificate_header(String::new()));
        let fail = |why: String| {
            Err(Error::usage(format!(
                "{} of {}: {why}{}",
                stretch,
                path.display(),
                differences(&certificate.header, &own)
            )))
        };
        match (from, header) {
            (None, Some(header)) if header.state != certificate.header.state => {
                return fail("this program begins with a different state".to_owned());
            }
            (Some(from), _) => {
                let begin = replay.begin.as_ref();
                let header = &certificate.header;
                let mut known = vec![(header.batches, &header.state)];
                known.extend(certificate.links[..link].iter().map(|link| (link.batches, &link.state)));
                if !begin.is_some_and(|begin| known.contains(&(begin.batches, &begin.state))) {
                    return fail(format!("the state in {from} is not in the certificate"));
                }
            }
            _ => {}
        }
        let state = match target.place {
            Place::End => at_end.filter(|_| self.run.progress.train_batches == target.batches),
            _ => replay
                .end
                .filter(|end| end.batches == target.batches && end.place == target.place)
                .map(|end| end.state),
        };
        if steps != target.steps {
            return fail("the losses or the data of its batches differ from the certificate".to_owned());
        }
        if state.as_ref() != Some(&target.state) {
            return fail("the state after its last batch differs from the certificate".to_owned());
        }
        Ok(start..end)
    }
}

/// Lists what has changed in the program and its circumstances since the certificate was written.
/// These changes may explain why a stretch differs.
fn differences(there: &Header, here: &Header) -> String {
    let mut text = String::new();
    for (what, there, here) in [
        ("circumstances", &there.circumstances, &here.circumstances),
        ("settings", &there.settings, &here.settings),
        ("crates of hooks", &there.crates, &here.crates),
    ] {
        for (name, value) in there {
            let now = here.get(name).map_or("missing", String::as_str);
            if now != value {
                let _ = write!(text, "\n- the {what} differ: {name} was {value} and is now {now}");
            }
        }
    }
    if there.hooks != here.hooks {
        text.push_str("\n- the hooks or their order differ");
    }
    text
}
