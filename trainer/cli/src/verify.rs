//! `trainer verify`: trains random stretches of a certified run again.

use std::path::Path;
use std::process::ExitCode;

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha12Rng;
use serde_json::json;
use trainer_formats::certificate::{CERTIFICATE_FILE, Certificate, Stretch};

use crate::output::{BAD, Failure, GOOD, Output, counted};
use crate::program::{Program, errors};

/// The arguments of `trainer verify`.
pub(crate) struct Request<'a> {
    pub(crate) run: &'a Path,
    /// The number of stretches; `None` for all.
    pub(crate) stretches: Option<usize>,
    pub(crate) seed: Option<u64>,
    pub(crate) program: &'a [String],
}

/// Verifies stretches. The exit code says whether all of them were confirmed.
pub(crate) fn run(request: &Request<'_>, out: &mut Output) -> Result<ExitCode, Failure> {
    let certificate = Certificate::read(request.run.join(CERTIFICATE_FILE)).map_err(Failure::new)?;
    let all = certificate.stretches();
    let program = Program::of(request.run, request.program)?;
    let mut random = request.seed.map_or_else(ChaCha12Rng::from_entropy, ChaCha12Rng::seed_from_u64);
    let mut drawn: Vec<(usize, Stretch)> = all.iter().copied().enumerate().collect();
    drawn.shuffle(&mut random);
    drawn.truncate(request.stretches.unwrap_or(all.len()));
    drawn.sort_by_key(|(nth, _)| *nth);
    if !out.is_json() {
        let batches = certificate.links.last().map_or(0, |link| link.batches);
        out.line(format!(
            "The chain of {} is complete: {} in {}. Training {} again with {}:",
            request.run.join(CERTIFICATE_FILE).display(),
            counted(usize::try_from(batches).unwrap_or(usize::MAX), "training batch"),
            counted(all.len(), "stretch"),
            if drawn.len() == all.len() {
                "all of them".to_owned()
            } else {
                format!("{} of them", drawn.len())
            },
            program.shown()
        ))?;
    }
    let mut failed = 0;
    for (nth, stretch) in &drawn {
        let output = program.repeat(&format!("stretch:{nth}"), None)?;
        let is_confirmed = output.status.success()
            && String::from_utf8_lossy(&output.stdout).contains("confirmed the training batches");
        failed += usize::from(!is_confirmed);
        let why = if is_confirmed { String::new() } else { why(&output) };
        if out.is_json() {
            out.object(&json!({ "stretch": nth, "start": stretch.start, "end": stretch.end, "confirmed": is_confirmed, "why": why }))?;
        } else if is_confirmed {
            out.line(format!("  {stretch}: {GOOD}confirmed{GOOD:#}"))?;
        } else {
            out.line(format!("  {stretch}: {BAD}not confirmed{BAD:#}\n{}", indented(&why)))?;
        }
    }
    if !out.is_json() {
        out.line(statement(failed, drawn.len(), all.len()))?;
    }
    Ok(ExitCode::from(u8::from(failed > 0)))
}

/// Returns the reason why the program has not confirmed a stretch.
fn why(output: &std::process::Output) -> String {
    let text = errors(output);
    match (output.status.success(), text.is_empty()) {
        (true, _) => "the program has ended without a replay: it must call `trainer.replay_requested(…)` before it trains".to_owned(),
        (false, true) => format!("the program ended with {}", output.status),
        (false, false) => text,
    }
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("    {line}")).collect::<Vec<_>>().join("\n")
}

/// Returns the statement about what was and was not verified.
fn statement(failed: usize, drawn: usize, all: usize) -> String {
    if failed > 0 {
        return format!(
            "{failed} of {drawn} were not confirmed: this program does not compute what the certificate says, on this machine and \
             with this data."
        );
    }
    let rest = match all - drawn {
        0 => String::new(),
        1 => " The other stretch was not checked.".to_owned(),
        rest => format!(" The other {rest} stretches were not checked."),
    };
    format!(
        "Confirmed: in {} this program, on this machine and with this data, computes what the certificate says, bit for bit. \
         This does not show where the data comes from, or whether the run was chosen among several.{rest}",
        if drawn == all { "all stretches,".to_owned() } else { format!("{drawn} random stretches,") }
    )
}
