//! The command `trainer`: starts projects, and lists, watches, compares and starts runs, without
//! libtorch. It never changes the files of a run.

mod compare;
mod diff;
mod doctor;
mod facts;
mod libtorch;
mod new;
mod output;
mod program;
mod report;
mod runs;
mod show;
mod sweep;
mod table;
#[cfg(unix)]
mod watch;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::output::{Failure, Output};

/// Starts projects with the training library `trainer`, and lists, watches, compares and starts
/// their runs.
#[derive(Parser)]
#[command(name = "trainer", version, about)]
struct Command {
    /// Prints one JSON object per line
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Writes a project: a program, a crate of hooks, their tests, and settings
    New {
        /// The folder to create. Its name is that of the project
        folder: PathBuf,
        /// What the project trains. Defaults to a small network that classifies points
        #[arg(long)]
        template: Option<new::Template>,
        /// The clone of the library that the project uses. Defaults to the one that this command
        /// was built from, or to the registry that it was installed from
        #[arg(long, value_name = "FOLDER")]
        clone: Option<PathBuf>,
    },
    /// Downloads libtorch into the user's cache, once for all projects; continues if interrupted
    #[cfg(feature = "download")]
    Libtorch {
        /// The build for NVIDIA GPUs, which trains on the CPU too
        #[arg(long)]
        cuda: bool,
        /// The index of Python packages. Every file is compared with the hash in this command
        #[arg(long, value_name = "URL", default_value = "https://pypi.org/simple")]
        index: String,
    },
    /// Looks for what a build and a run need, and says what to do. Exits with 1 if something is
    /// wrong
    Doctor {
        /// The folder of the project
        #[arg(default_value = ".")]
        folder: PathBuf,
    },
    /// Lists the runs in a folder: status, age, duration, the settings that differ, metrics
    Runs(RunsArguments),
    /// Shows everything that is known about a run
    Show {
        /// The run folder, or its name in `runs`
        run: PathBuf,
    },
    /// Compares runs: settings, hooks, environment and metrics, with the differences first
    Compare(CompareArguments),
    /// Writes a report of runs: one HTML file with their curves, settings, hooks and profiles
    Report(ReportArguments),
    /// Runs a program once for each combination of parameters; continues if started again
    Sweep(SweepArguments),
    /// Finds where two runs first differ, from their tapes. Exits with 1 if they differ
    Diff(DiffArguments),
    /// Shows a run in the terminal while it is running: curves, progress, hooks and warnings
    #[cfg(unix)]
    Watch {
        /// The run folder, or a folder of runs, of which the newest is shown. Defaults to `runs`
        run: Option<PathBuf>,
    },
}

#[derive(Args)]
struct RunsArguments {
    /// The folder with the runs
    #[arg(default_value = "runs")]
    folder: PathBuf,
    /// A metric, a setting, or one of name, status, started, duration. For a metric, lists the best
    /// run first if its goal is known, otherwise the smallest value first. With a minus sign, lists
    /// the largest value first: `--sort -valid/accuracy`
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    sort: Option<String>,
    /// Lists only the runs that match: `status=finished`, `lr=0.1`, `valid/loss<0.5`; also `!=`,
    /// `<=`, `>`, `>=`. If there are several filters, runs must match all of them
    #[arg(long, value_name = "FILTER")]
    filter: Vec<String>,
    /// A metric to show, instead of the ones chosen by default. Several metrics are shown in the
    /// given order
    #[arg(long, value_name = "NAME")]
    metric: Vec<String>,
    /// Sorts and filters by the best value of a metric instead of the last one
    #[arg(long)]
    best: bool,
}

#[derive(Args)]
struct CompareArguments {
    /// The run folders, or their names in `runs`
    #[arg(required = true, num_args = 2.., value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// Also lists what all runs have in common
    #[arg(long)]
    all: bool,
}

#[derive(Args)]
struct ReportArguments {
    /// The run folders, their names in `runs`, or folders of runs
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// The file to write. An existing file is replaced only if it is a report
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    output: PathBuf,
}

#[derive(Args)]
struct SweepArguments {
    /// The file with the parameters, in TOML
    file: PathBuf,
    /// Prints the trials and their commands without starting them
    #[arg(long)]
    dry_run: bool,
    /// The program and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<String>,
}

#[derive(Args)]
struct DiffArguments {
    /// The run folder of the first run, or its tape
    first: PathBuf,
    /// The run folder of the second run, or its tape
    second: PathBuf,
    /// If the tapes only have the state after every few batches, trains the batches in question of
    /// both runs again, and names the hook or the operation. The program must call
    /// `replay_requested`
    #[arg(long)]
    replay: bool,
    /// The program of the second run with its arguments, as one text, if it is another one
    #[arg(long, value_name = "COMMAND", requires = "replay")]
    second_program: Option<String>,
    /// The program of the runs and its arguments, after `--`. Command lines that stand in the
    /// folders of the runs are never started
    #[arg(last = true, requires = "replay", value_name = "PROGRAM")]
    program: Vec<String>,
}

fn main() -> ExitCode {
    let Command { json, action } = Command::parse();
    let mut out = Output::new(json);
    let done = match action {
        Action::New { folder, template, clone } => new::run(&folder, template, clone.as_deref(), &mut out),
        #[cfg(feature = "download")]
        Action::Libtorch { cuda, index } => libtorch::run(cuda, &index, &mut out),
        Action::Doctor { folder } => match std::path::absolute(&folder) {
            Ok(folder) => doctor::run(&folder, &mut out),
            Err(error) => Err(Failure::new(error)),
        },
        Action::Runs(arguments) => runs::run(&arguments, &mut out),
        Action::Show { run } => show::run(&run, &mut out),
        Action::Compare(arguments) => compare::run(&arguments, &mut out),
        Action::Report(ReportArguments { runs, output }) => report::run(&runs, &output, &mut out),
        Action::Sweep(arguments) => sweep::run(&arguments, &mut out),
        Action::Diff(arguments) => diff::run(&arguments, &mut out),
        #[cfg(unix)]
        Action::Watch { run } => {
            watch::watch(run.as_deref()).map(|()| ExitCode::SUCCESS).map_err(Failure::new)
        }
    };
    done.unwrap_or_else(|failure| match failure {
        // For example, `trainer runs | head` closes the output early.
        Failure::OutputClosed => ExitCode::SUCCESS,
        Failure::Message(message) => {
            out.error(&message);
            ExitCode::from(2)
        }
    })
}
