//! `trainer watch`: follows a run in a terminal.

mod request;
mod source;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use signal_hook::consts::{SIGHUP, SIGTERM};
use signal_hook::flag;
use trainer_formats::run::{Run, parse_time, runs_in};
use trainer_tui::{Action, NoScreen, Screen, Stream, Theme, View, check_screen, draw, next_key};

use request::Sender;
use source::Source;

/// The interval at which the run folder is read.
const INTERVAL: Duration = Duration::from_millis(500);
/// The default folder to search for runs.
const RUNS: &str = "runs";

/// Follows a run, or the newest run below a folder, until the user closes the view.
pub(crate) fn watch(run: Option<&Path>) -> Result<(), String> {
    let folder = find(run)?;
    let shown = folder.display();
    match check_screen(Stream::Stdout) {
        Ok(()) => {}
        Err(NoScreen::Background) => {
            return Err("`trainer watch` is running in the background: bring it to the foreground".into());
        }
        Err(_) => {
            return Err(format!(
                "`trainer watch` needs a terminal as its standard input and output: `trainer show {shown}` prints the run"
            ));
        }
    }
    let mut source = Source::new(folder.clone());
    source.read();
    show(&mut source).map_err(|error| format!("the terminal cannot be used: {error}"))
}

/// Returns the folder of the run to follow.
fn find(run: Option<&Path>) -> Result<PathBuf, String> {
    let below = run.unwrap_or(Path::new(RUNS));
    if run.is_none() && !below.exists() {
        return Err(format!("there is no folder `{RUNS}` here: pass a run, `trainer watch path/to/run`"));
    }
    let found = runs_in(below).map_err(|error| error.to_string())?;
    if let [only] = &found[..]
        && only.path == below
    {
        // The path is the run itself, so its error is returned.
        return only.run.as_ref().map(|run| run.path().to_owned()).map_err(ToString::to_string);
    }
    let runs = found.into_iter().filter_map(|found| found.run.ok());
    let newest = runs.max_by_key(|run| (began(run), run.path().to_owned()));
    newest.map(|run| run.path().to_owned()).ok_or_else(|| {
        format!(
            "{} holds no run: a run writes `run.json` into the folder of `.run_folder(…)`",
            below.display()
        )
    })
}

/// Returns when a run began or was last resumed.
fn began(run: &Run) -> Option<SystemTime> {
    run.file().resumed.last().and_then(|time| parse_time(time)).or_else(|| run.started())
}

/// Shows the run until the user closes the view or a signal ends this program.
fn show(source: &mut Source) -> std::io::Result<()> {
    let ends = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGHUP] {
        flag::register(signal, Arc::clone(&ends))?;
    }
    let theme = Theme::of_environment();
    let mut view = View::new(false);
    let mut sender = Sender::default();
    let mut screen = Screen::open(Stream::Stdout)?;
    let mut read = Instant::now();
    while !ends.load(Ordering::Relaxed) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        if !screen.draw(|frame| draw(frame, source.state(), &view, theme, now))? {
            return Ok(());
        }
        if let Some(key) = next_key(INTERVAL.saturating_sub(read.elapsed()))? {
            let requests = sender.requests(source);
            match view.press(key, source.state(), &requests) {
                Some(Action::Close | Action::Interrupt) => return Ok(()),
                Some(Action::Redraw) => screen.redraw()?,
                Some(Action::Stop) => view.show_message(sender.stop(source)),
                Some(Action::Checkpoint) => view.show_message(sender.checkpoint(source)),
                None => {}
            }
        }
        if read.elapsed() >= INTERVAL {
            source.read();
            read = Instant::now();
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a test has files of its own")]
mod tests {
    use std::fs;

    use trainer_formats::run::RunFile;

    use super::*;

    #[test]
    fn the_newest_run_is_followed_unless_one_is_named() {
        let root = std::env::temp_dir().join(format!("trainer-watch-find-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        let error = find(Some(&root)).unwrap_err();
        assert!(error.ends_with("into the folder of `.run_folder(…)`"), "{error}");
        for (name, started, resumed) in [
            ("0001", "2026-11-21T10:00:00Z", Some("2026-11-23T10:00:00Z")),
            ("0002", "2026-11-22T10:00:00Z", None),
            ("sweep/a", "2026-11-20T10:00:00Z", None),
        ] {
            let mut file = RunFile::new("fit", started.to_owned());
            file.resumed.extend(resumed.map(str::to_owned));
            fs::create_dir_all(root.join(name)).unwrap();
            fs::write(root.join(name).join("run.json"), file.to_text().unwrap()).unwrap();
        }
        assert_eq!(find(Some(&root)).unwrap(), root.join("0001"));
        assert_eq!(find(Some(&root.join("0002"))).unwrap(), root.join("0002"));
        assert_eq!(find(Some(&root.join("sweep"))).unwrap(), root.join("sweep/a"));
        fs::write(root.join("0002/run.json"), "{").unwrap();
        let error = find(Some(&root.join("0002"))).unwrap_err();
        assert!(error.contains("run.json: damaged"), "{error}");
        assert!(find(Some(&root.join("none"))).is_err());
        fs::remove_dir_all(&root).unwrap();
    }
}
