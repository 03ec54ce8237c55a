//! Goldens: files with the results of the first steps of a program.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use super::file::{Format, is_update_requested, lines_of};
use super::rehearsal::{Rehearsal, Rehearsed};
use super::{Change, changes, crates, list_versions, version_changes};
use crate::data::Loader;
use crate::error::{Error, Result};
use crate::io::files::in_file;
use crate::lifecycle;
use crate::moment::Moment;
use crate::phase::Phase;
use crate::run::Run;
use crate::run::circumstances::circumstances;
use crate::training::task::Task;
use crate::training::trainer::Trainer;
use crate::training::{entry, fit, replay};

const FORMAT: Format = Format { name: "golden", title: "# What the first steps of this program compute" };
const CIRCUMSTANCES: &str = "circumstances";
const CRATES: &str = "crates";
const STEPS: &str = "steps";

/// The path of a golden and the settings of its comparison, for [`Trainer::check_golden`].
///
/// ```
/// use trainer::lock::Golden;
///
/// let golden = Golden::new("hooks.golden").steps(50).tolerance(1e-4);
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use = "pass it to `Trainer::check_golden`"]
pub struct Golden {
    path: PathBuf,
    steps: u64,
    tolerance: Option<f64>,
}

impl Golden {
    /// Creates the settings of a golden at this path: 20 steps that are compared bit by bit.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Golden { path: path.into(), steps: 20, tolerance: None }
    }

    /// Sets the number of optimizer steps, at least 1. Defaults to 20.
    pub fn steps(mut self, steps: u64) -> Self {
        self.steps = steps;
        self
    }

    /// Sets the relative tolerance of the losses, such as `1e-4`. By default, the losses have no
    /// tolerance, so any difference is an error.
    ///
    /// The tolerance applies only if the golden was recorded in different circumstances, such as on
    /// a different processor, and the bits differ. Then only the losses are compared, with this
    /// tolerance.
    ///
    /// In equal circumstances, the bits must be equal regardless of the tolerance.
    pub fn tolerance(mut self, fraction: f64) -> Self {
        self.tolerance = Some(fraction);
        self
    }

    /// Returns an error if a setting is invalid.
    fn check(&self) -> Result<()> {
        if self.steps == 0 {
            return Err(Error::usage("`Golden`: `.steps(0)` compares nothing: expected at least 1"));
        }
        match self.tolerance {
            Some(fraction) if !(fraction > 0.0 && fraction < 1.0) => Err(Error::usage(format!(
                "`Golden`: `.tolerance({fraction:?})`: expected a fraction of the loss, above 0.0 and below 1.0"
            ))),
            _ => Ok(()),
        }
    }
}

impl<P: AsRef<Path>> From<P> for Golden {
    fn from(path: P) -> Self {
        Golden::new(path.as_ref())
    }
}

/// How a golden was compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compared {
    /// Everything is equal, bit by bit.
    Bits,
    /// The circumstances and the bits differ, but the losses are equal within the
    /// [tolerance](Golden::tolerance).
    Losses,
    /// Nothing was compared, because `TRAINER_LOCK=update` requested that the file be written.
    Written,
}

/// The result of a successful [`Trainer::check_golden`]. `Display` describes it in a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GoldenCheck {
    /// How the golden was compared.
    pub compared: Compared,
    /// The number of optimizer steps that were compared or recorded.
    pub steps: usize,
    /// The circumstances that differ from those in the golden.
    pub circumstances: Vec<Change>,
    /// The version changes of crates with hooks since the golden was recorded.
    pub versions: Vec<Change>,
}

impl fmt::Display for GoldenCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps = self.steps;
        match self.compared {
            Compared::Bits => write!(f, "the first {steps} steps are equal, bit by bit")?,
            Compared::Losses => {
                write!(
                    f,
                    "only the losses of the first {steps} steps were compared and are equal within the tolerance; the bits differ, and so do the circumstances"
                )?;
            }
            Compared::Written => write!(f, "the golden of the first {steps} steps was written")?,
        }
        self.circumstances.iter().try_for_each(|change| write!(f, "; {change}"))?;
        self.versions.iter().try_for_each(|change| write!(f, "; the crate {change}"))
    }
}

/// # Locking the first steps
impl<T: Task> Trainer<T> {
    /// Trains the first steps, and compares the losses and the weights of each step with a golden,
    /// a text file in the repository of the program. The comparison finds changes that a
    /// [lock](Self::check_lock) cannot show, such as a changed constant inside a hook.
    ///
    /// `golden` is a path, or a [`Golden`] that sets the number of steps or a tolerance. `train`
    /// and `valid` are the loaders for [`fit`](Self::fit). With the environment variable
    /// `TRAINER_LOCK=update`, the file is written instead of compared.
    ///
    /// The bits are guaranteed to be equal only in equal circumstances, which the file records: the
    /// number of threads, the processor and its kernels, the device, and the versions of libtorch
    /// and of the compiler. If both the bits and the circumstances differ, that is an error unless
    /// the golden has a [tolerance](Golden::tolerance). With a tolerance, only the losses are
    /// compared; the result and a line on standard error report this. They also list the crates for
    /// which only the version differs.
    ///
    /// The hooks run as in [`fit`](Self::fit), from `setup` on, and schedules see the planned
    /// length of the fit. The fit ends after these steps: `after_fit` does not fire, but `teardown`
    /// does. Nothing is written, as in a [replay](Self::replay): there is no run folder, nothing is
    /// resumed, and hooks that [write](crate::language::writes) do not run. The trainer is
    /// consumed, because it is left in the middle of a fit.
    ///
    /// The program must compute the same results each time. Set
    /// [`seed`](crate::TrainerBuilder::seed), and call `tch::manual_seed` before the model is
    /// built. All threads share libtorch's random numbers, so if the program draws any, put the
    /// test in its own file in `tests/`.
    ///
    /// ```no_run
    /// use trainer::lock::Golden;
    /// # use trainer::prelude::*;
    /// # type Data = InMemory<(Tensor, Tensor)>;
    /// # fn build() -> Result<(Trainer<impl Task<Batch = (Tensor, Tensor)>>, Data)> {
    /// #     let vs = nn::VarStore::new(Device::Cpu);
    /// #     let net = nn::linear(&vs.root() / "fc", 4, 2, Default::default());
    /// #     let task = Supervised::new(vs, net, |pred: &Tensor, labels: &Tensor| pred.cross_entropy_for_logits(labels));
    /// #     let inputs = Tensor::zeros([4, 4], (Kind::Float, Device::Cpu));
    /// #     let train = InMemory::new((inputs, Tensor::zeros([4], (Kind::Int64, Device::Cpu))))?;
    /// #     Ok((Trainer::builder(task).optimizer(Sgd::new(0.1)).build()?, train))
    /// # }
    /// # /*
    /// #[test]
    /// # */
    /// fn the_first_steps_are_those_of_the_golden() -> Result<()> {
    ///     let (trainer, mut train) = build()?;
    ///     let golden = Golden::new("hooks.golden").steps(50).tolerance(1e-4); // or only the path
    ///     println!("{}", trainer.check_golden(golden, &mut train, None)?);
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if
    ///
    /// - a step differs; the error says which one, and how;
    /// - the steps cannot be compared in these circumstances;
    /// - the file is missing or cannot be read, written or parsed;
    /// - the trainer has trained before;
    /// - several processes train together;
    /// - [`fit`](Self::fit) would return an error.
    pub fn check_golden(
        mut self,
        golden: impl Into<Golden>,
        train: &mut dyn Loader<T::Batch>,
        valid: Option<&mut dyn Loader<T::Batch>>,
    ) -> Result<GoldenCheck> {
        let golden = golden.into();
        golden.check()?;
        let path = &golden.path;
        let known = match is_update_requested()? {
            true => None,
            // Parsed first, so that an invalid file is reported before any step is trained.
            false => Some(Content::parse(&FORMAT.read(path)?).map_err(|why| in_file(path, why))?),
        };
        if self.run.progress().fits_begun > 0 {
            return Err(Error::usage(
                "`check_golden` compares the first steps, but this trainer has trained before: build a new one",
            ));
        }
        let crates = crates(&self.describe_hooks());
        let Rehearsal { start, recorded: steps, .. } =
            rehearse::<T>(&mut self.run, golden.steps, train, valid)?;
        if steps.is_empty() {
            return Err(Error::usage(
                "`check_golden` compares steps, but this fit has taken none: look for a hook that skips them",
            ));
        }
        let new = Content { circumstances: circumstances(self.run.device()), crates, start, steps };
        let Some(known) = known else {
            FORMAT.write(path, &new.text())?;
            return Ok(new.checked(Compared::Written, Vec::new(), Vec::new()));
        };
        let checked = known.compare(&new, golden.tolerance);
        let checked = checked.map_err(|why| Error::usage(format!("{}: {why}", path.display())))?;
        if checked.compared == Compared::Losses || !checked.versions.is_empty() {
            self.run.reports().notice(&format!("{}: {checked}", path.display()));
        }
        Ok(checked)
    }
}

/// Trains `steps` optimizer steps without writing anything.
fn rehearse<T: Task>(
    run: &mut Run,
    steps: u64,
    train: &mut dyn Loader<T::Batch>,
    valid: Option<&mut dyn Loader<T::Batch>>,
) -> Result<Rehearsal> {
    let (rehearsal, hooks) = Rehearsal::begin(steps);
    replay::begin(run, None, None, hooks)?;
    entry::enter(run, Phase::Train, lifecycle::Fit::INFO, |run| {
        if run.rank() > 0 || !run.world().is_solo() {
            return Err(Error::usage(
                "`check_golden` cannot run while several processes train together: run the test in one process",
            ));
        }
        fit::fit::<T>(run, train, valid)
    })?;
    Ok(Rehearsal::end(&rehearsal))
}

/// The content of a golden.
#[derive(Debug, PartialEq)]
struct Content {
    circumstances: BTreeMap<String, String>,
    crates: BTreeMap<String, String>,
    /// The hash of the weights before the first step.
    start: String,
    steps: Vec<Rehearsed>,
}

/// The beginning of the last column in the line of a step.
const WEIGHTS: &str = "weights ";

impl Content {
    fn text(&self) -> String {
        let start = format!("0 | {WEIGHTS}{}", self.start);
        let steps = self.steps.iter().zip(1..).map(|(step, nth)| {
            let losses = step.losses.iter();
            let losses: String =
                losses.map(|(name, loss)| format!("{name} {loss:?} {:016x} | ", loss.to_bits())).collect();
            format!("{nth} | {losses}{WEIGHTS}{}", step.weights)
        });
        FORMAT.text(&[
            (CIRCUMSTANCES, lines_of(&self.circumstances)),
            (CRATES, lines_of(&self.crates)),
            (STEPS, [start].into_iter().chain(steps).collect()),
        ])
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut content = Content {
            circumstances: BTreeMap::new(),
            crates: BTreeMap::new(),
            start: String::new(),
            steps: Vec::new(),
        };
        for section in FORMAT.sections(text)? {
            match section.title {
                CIRCUMSTANCES => content.circumstances = FORMAT.values(&section)?,
                CRATES => content.crates = FORMAT.values(&section)?,
                STEPS => {
                    for (nth, (number, line)) in section.lines.iter().enumerate() {
                        let step = parse_step(line, nth).ok_or_else(|| FORMAT.is_not(*number, line))?;
                        if nth == 0 {
                            content.start = step.weights;
                        } else {
                            content.steps.push(step);
                        }
                    }
                }
                other => return Err(format!("`[{other}]` is not a section of a golden")),
            }
        }
        if content.steps.is_empty() {
            return Err("this golden has no steps: write it with `TRAINER_LOCK=update`".to_owned());
        }
        FORMAT.check_places(text, &content.text())?;
        Ok(content)
    }

    fn checked(&self, compared: Compared, circumstances: Vec<Change>, versions: Vec<Change>) -> GoldenCheck {
        GoldenCheck { compared, steps: self.steps.len(), circumstances, versions }
    }

    /// Compares this content with newer content. Returns the result, or a message that describes
    /// the first difference.
    fn compare(&self, new: &Content, tolerance: Option<f64>) -> Result<GoldenCheck, String> {
        let circumstances = changes(&self.circumstances, &new.circumstances);
        let versions = version_changes(&self.crates, &new.crates);
        let Some(difference) = self.first_difference(new) else {
            return Ok(new.checked(Compared::Bits, circumstances, versions));
        };
        let steps = new.steps.len();
        if circumstances.is_empty() {
            return Err(difference.to_string() + &advice(&versions, new.batches_of(difference.step)));
        }
        let listed: String = circumstances.iter().map(|change| format!("\n- {change}")).collect();
        let Some(tolerance) = tolerance else {
            return Err(format!(
                "these {steps} steps cannot be compared with the golden, because it was recorded in different circumstances:{listed}\n\
                 {difference}{}\n\
                 compare it in the same circumstances, or compare only the losses, `Golden::new(…).tolerance(1e-4)`, or record \
                 it in these circumstances with `TRAINER_LOCK=update`",
                list_versions(&versions)
            ));
        };
        match self.first_beyond(new, tolerance) {
            None => Ok(new.checked(Compared::Losses, circumstances, versions)),
            Some(difference) => Err(format!(
                "{difference}\nonly the losses were compared, within a tolerance of {tolerance:?}, because the circumstances differ:{listed}{}",
                advice(&versions, new.batches_of(difference.step))
            )),
        }
    }

    /// The number of training batches up to a step.
    fn batches_of(&self, step: usize) -> u64 {
        let nth = step.clamp(1, self.steps.len().max(1)) - 1;
        self.steps.get(nth).map_or(1, |step| step.batches)
    }

    /// Compares this content with newer content bit by bit, and returns the first difference.
    fn first_difference(&self, new: &Content) -> Option<Difference> {
        if self.start != new.start {
            return Some(Difference { step: 0, found: vec![
                "the weights before the first step differ: if they are random, call `tch::manual_seed` before the model is \
                 built, and let no other test of this process draw random numbers"
                    .to_owned(),
            ] });
        }
        let steps = self.steps.iter().zip(&new.steps).zip(1..);
        let differing = steps.filter_map(|((was, is), step)| {
            let mut found = Vec::new();
            let names: Vec<&str> = was.losses.iter().map(|(name, _)| name.as_str()).collect();
            if !is.losses.iter().map(|(name, _)| name).eq(names.iter()) {
                let now: Vec<&str> = is.losses.iter().map(|(name, _)| name.as_str()).collect();
                found.push(format!("the losses were {} and are now {}", list(&names), list(&now)));
            }
            for ((name, was), (other, is)) in was.losses.iter().zip(&is.losses) {
                if name == other && was.to_bits() != is.to_bits() {
                    found.push(differing_loss(name, *was, *is));
                }
            }
            match (was.weights == is.weights, found.is_empty()) {
                (true, _) => {}
                (false, true) => {
                    found.push("the loss is equal, but the weights after the step differ".to_owned());
                }
                (false, false) => found.push("the weights after the step differ".to_owned()),
            }
            (!found.is_empty()).then_some(Difference { step, found })
        });
        differing.into_iter().next().or_else(|| self.other_count(new))
    }

    /// Compares the losses with those of newer content, and returns the difference at the first
    /// step in which a loss differs by more than a tolerance.
    fn first_beyond(&self, new: &Content, tolerance: f64) -> Option<Difference> {
        let is_equal = |was: f64, is: f64| {
            was.to_bits() == is.to_bits() || (was - is).abs() <= tolerance * was.abs().max(is.abs())
        };
        let steps = self.steps.iter().zip(&new.steps).zip(1..);
        let beyond = steps.filter_map(|((was, is), step)| {
            let of = |name: &str| is.losses.iter().find(|(other, _)| other == name).map(|(_, loss)| *loss);
            let found: Vec<String> = was
                .losses
                .iter()
                .filter_map(|(name, was)| match of(name) {
                    Some(is) if is_equal(*was, is) => None,
                    Some(is) => Some(differing_loss(name, *was, is)),
                    None => Some(format!("`{name}` was {was:?} and is no longer computed")),
                })
                .collect();
            (!found.is_empty()).then_some(Difference { step, found })
        });
        beyond.into_iter().next().or_else(|| self.other_count(new))
    }

    /// Returns the difference if newer content has a different number of steps.
    fn other_count(&self, new: &Content) -> Option<Difference> {
        let [was, is] = [self, new].map(|content| content.steps.len());
        (was != is).then(|| Difference {
            step: was.min(is) + 1,
            found: vec![format!(
                "the golden has {was} steps, but the fit took {is}: the fit has a different length, or the golden was recorded with \
                 another `.steps(…)`"
            )],
        })
    }
}

/// The first difference from a golden.
struct Difference {
    /// The number of the step, counted from 1; 0 for the weights before the first step.
    step: usize,
    found: Vec<String>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.step {
            0 => f.write_str("the first steps differ from the golden:")?,
            1 => {
                f.write_str("step 1 differs from the golden, although the weights before it are equal:")?;
            }
            2 => f.write_str("step 2 differs from the golden, although step 1 is equal:")?,
            step => {
                write!(
                    f,
                    "step {step} differs from the golden, although steps 1 to {} are equal:",
                    step - 1
                )?;
            }
        }
        self.found.iter().try_for_each(|found| write!(f, "\n- {found}"))
    }
}

fn differing_loss(name: &str, was: f64, is: f64) -> String {
    format!("`{name}` was {was:?} and is now {is:?}")
}

fn list(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// Lists the crates whose versions differ, and says how to find the responsible hook by recording
/// the first `batches` training batches.
fn advice(versions: &[Change], batches: u64) -> String {
    let versions = match versions {
        [] => "\nno crate with hooks has a different version: the change is in the program, its data, or a crate without hooks"
            .to_owned(),
        versions => list_versions(versions),
    };
    format!(
        "{versions}\nto find the hook, run the program before and after the change with `TRAINER_TAPE=full:0..{batches}`, and \
         compare the two runs with `trainer diff`\nif the change is intended, update the golden with `TRAINER_LOCK=update`"
    )
}

/// Parses the line of a step. Returns `None` if the line is invalid or is not that of step `nth`.
fn parse_step(line: &str, nth: usize) -> Option<Rehearsed> {
    let cells: Vec<&str> = line.split(" | ").collect();
    let [number, losses @ .., weights] = &cells[..] else { return None };
    let number: usize = number.parse().ok()?;
    let weights = weights.strip_prefix(WEIGHTS)?.to_owned();
    let losses = losses.iter().map(|cell| {
        let mut words = cell.rsplitn(3, ' ');
        let (bits, decimal, name) = (words.next()?, words.next()?, words.next()?);
        let loss = f64::from_bits(u64::from_str_radix(bits, 16).ok()?);
        // The bits and the decimal number differ if the file was edited by hand.
        (format!("{loss:?}") == decimal).then(|| (name.to_owned(), loss))
    });
    let losses = losses.collect::<Option<_>>()?;
    (number == nth).then_some(Rehearsed { losses, weights, batches: nth as u64 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(threads: &str, version: &str, losses: &[f64]) -> Content {
        let pair = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
        let step = |(loss, nth): (&f64, u64)| Rehearsed {
            losses: vec![("loss".to_owned(), *loss)],
            weights: format!("{:032x}", loss.to_bits()),
            batches: nth * 4,
        };
        Content {
            circumstances: pair("threads", threads),
            crates: pair("denoise", version),
            start: "00".to_owned(),
            steps: losses.iter().zip(1..).map(step).collect(),
        }
    }

    #[test]
    fn a_golden_is_read_as_it_was_written() {
        let written = content("1", "0.1.0", &[0.1, f64::NAN, f64::INFINITY, -0.0, 1e-300]);
        let text = written.text();
        assert!(text.contains("\n1 | loss 0.1 3fb999999999999a | weights 0000000000000000"), "{text}");
        let read = Content::parse(&text).unwrap();
        assert_eq!(read.text(), text);
        assert_eq!(read.compare(&written, None).unwrap().compared, Compared::Bits);
        for (was, is, why) in [
            ("loss 0.1 3fb", "loss 0.2 3fb", "does not belong in a golden: `1 | loss 0.2 3fb999999999999a"),
            ("\n3 | ", "\n7 | ", "does not belong in a golden: `7 | loss inf"),
            ("[steps]", "[more]", "`[more]` is not a section of a golden"),
            ("[circumstances]", "threads", "line 3 does not belong in a golden: `threads`"),
            (", version 1.", ", version 9.", "this is not a golden of this version"),
        ] {
            let error = Content::parse(&text.replacen(was, is, 1)).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        // Each line has one place: none can be moved, removed or repeated.
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let changed = |change: &dyn Fn(&mut Vec<String>)| {
            let mut lines = lines.clone();
            change(&mut lines);
            Content::parse(&lines.join("\n")).map(drop)
        };
        for (nth, line) in lines.iter().enumerate().filter(|(_, line)| !line.is_empty()) {
            assert!(changed(&|lines| lines.insert(nth, line.clone())).is_err(), "repeated: {line}");
            assert!(changed(&|lines| lines.push(line.clone())).is_err(), "repeated at the end: {line}");
            // The names of values are free.
            let is_other = |other: &String| {
                other != line && !other.is_empty() && !(other.contains(" = ") && line.contains(" = "))
            };
            for to in (0..lines.len()).filter(|to| lines.get(*to).is_some_and(is_other)) {
                assert!(changed(&|lines| lines.swap(nth, to)).is_err(), "{line} and line {to} are exchanged");
            }
        }
        for section in ["[steps]", "[steps]\n0 | weights 00", "[crates]"] {
            assert!(Content::parse(&format!("{text}{section}\n")).is_err(), "{section}");
        }
        for line in lines.iter().filter(|line| line.starts_with("0 |") || line.starts_with("2 |")) {
            assert!(changed(&|lines| lines.retain(|other| other != line)).is_err(), "removed: {line}");
        }
        Content::parse(&text.replace('\n', "\r\n\r\n")).unwrap();
        let empty = text.split("0 | ").next().unwrap();
        assert!(Content::parse(empty).unwrap_err().contains("this golden has no steps"));
    }

    #[test]
    fn bits_are_compared_in_equal_circumstances_and_losses_in_others_if_requested() {
        let golden = || content("1", "0.1.0", &[0.5, 0.25, 0.125]);
        let near = || [0.5, 0.250_001, 0.125];
        let check = |new: Content, tolerance| golden().compare(&new, tolerance);

        // Equal bits are accepted in any circumstances and with any versions; the differences are
        // listed.
        let equal = check(content("2", "0.2.0", &[0.5, 0.25, 0.125]), None).unwrap();
        assert_eq!(equal.compared, Compared::Bits);
        assert_eq!(
            equal.to_string(),
            "the first 3 steps are equal, bit by bit; `threads` was 1 and is now 2; the crate `denoise` was 0.1.0 and is now 0.2.0"
        );

        // A tolerance changes nothing in equal circumstances.
        for tolerance in [None, Some(0.1)] {
            let error = check(content("1", "0.2.0", &near()), tolerance).unwrap_err();
            assert_eq!(
                error,
                "step 2 differs from the golden, although step 1 is equal:\n\
                 - `loss` was 0.25 and is now 0.250001\n\
                 - the weights after the step differ\n\
                 the crate `denoise` was 0.1.0 and is now 0.2.0\n\
                 to find the hook, run the program before and after the change with `TRAINER_TAPE=full:0..8`, and compare the \
                 two runs with `trainer diff`\n\
                 if the change is intended, update the golden with `TRAINER_LOCK=update`"
            );
        }

        let error = check(content("2", "0.1.0", &near()), None).unwrap_err();
        assert!(
            error.starts_with(
                "these 3 steps cannot be compared with the golden, because it was recorded in different circumstances:\n\
                 - `threads` was 1 and is now 2\nstep 2 differs from the golden"
            ),
            "{error}"
        );
        let losses = check(content("2", "0.1.0", &near()), Some(1e-4)).unwrap();
        assert_eq!(losses.compared, Compared::Losses);
        assert!(
            losses.to_string().starts_with("only the losses of the first 3 steps were compared"),
            "{losses}"
        );
        assert!(
            losses.to_string().ends_with("and so do the circumstances; `threads` was 1 and is now 2"),
            "{losses}"
        );
        let error = check(content("2", "0.1.0", &near()), Some(1e-6)).unwrap_err();
        assert!(
            error.starts_with(
                "step 2 differs from the golden, although step 1 is equal:\n- `loss` was 0.25 and is now 0.250001\n\
                 only the losses were compared, within a tolerance of 1e-6, because the circumstances differ:\n\
                 - `threads` was 1 and is now 2\nno crate with hooks has a different version"
            ),
            "{error}"
        );
    }

    #[test]
    fn every_kind_of_difference_is_named() {
        let golden = content("1", "0.1.0", &[0.5, 0.25, 0.125]);
        let changed = |change: fn(&mut Content)| {
            let mut new = content("1", "0.1.0", &[0.5, 0.25, 0.125]);
            change(&mut new);
            golden.compare(&new, None).unwrap_err()
        };
        for (error, expected) in [
            (
                changed(|new| new.start.push('1')),
                "the weights before the first step differ: if they are random",
            ),
            (
                changed(|new| new.steps[2].weights.push('1')),
                "step 3 differs from the golden, although steps 1 to 2 are equal:\n- the loss is equal, but the weights",
            ),
            (
                changed(|new| new.steps[0].losses[0].0 = "other".to_owned()),
                "although the weights before it are equal:\n- the losses were `loss` and are now `other`",
            ),
            (changed(|new| drop(new.steps.pop())), "step 3 differs from the golden"),
            (changed(|new| drop(new.steps.pop())), "- the golden has 3 steps, but the fit took 2"),
            (changed(|new| new.steps[1].losses[0].1 = f64::NAN), "- `loss` was 0.25 and is now NaN"),
        ] {
            assert!(error.contains(expected), "{expected}\n{error}");
        }
    }
}
