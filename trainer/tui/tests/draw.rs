//! The view of a run, drawn for terminals of several sizes.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::{Color, Modifier};
use trainer_formats::run::{HookTime, Live, LiveHook, LiveValue, RunFile, Span, Status};
use trainer_tui::{Requests, State, Theme, View, draw};

/// The time at which everything is drawn, two seconds after the last update.
const NOW: f64 = 1002.0;

/// Returns the state of a run in its third epoch.
fn running(has_times: bool) -> State {
    let mut state = State::new("runs/0001");
    let mut file = RunFile::new("fit", "2026-11-21T10:00:00Z".to_owned());
    file.resumed.push("2026-11-21T11:00:00Z".to_owned());
    state.set_run(&file, Status::Running);
    for step in 0..=600_u32 {
        let loss = 2.0 * (-f64::from(step) / 150.0).exp() + 0.1 * f64::from(step % 7);
        state.add("train/loss", Span::Steps, step.into(), loss);
        state.add("train/grad_norm/backbone.layer4.1.bn2.weight", Span::Steps, step.into(), loss * 3.0);
        if step % 200 == 0 {
            state.add("train/loss", Span::Pass, step.into(), loss + 0.2);
            state.add("valid/loss", Span::Pass, step.into(), loss + 0.3);
            state.add("valid/正確さ", Span::Pass, step.into(), 0.9 - loss / 4.0);
        }
    }
    state.add("train/scale", Span::Steps, 600, f64::NAN);
    let mut live = Live::new("fit", "train");
    (live.epoch, live.epochs, live.batch, live.batches) = (2, Some(10), 180, Some(200));
    (live.optimizer_steps, live.first_step, live.planned_steps) = (600, 400, Some(2000));
    (live.elapsed, live.samples_seen, live.memory) = (61.0, 38_400, Some(1_288_490_188));
    live.hooks = [
        ("trainer::hooks::LrSchedule", "before_opt_step"),
        ("my_hooks::gradients::log_norms", "after_backward"),
        ("trainer::metrics::正確さ", "after_step"),
        ("trainer::hooks::Checkpoint", "after_step"),
        ("trainer::loggers::Csv", "after_record"),
    ]
    .map(|(name, moment)| LiveHook::new(name.to_owned(), moment.to_owned()))
    .to_vec();
    if has_times {
        for (nth, hook) in live.hooks.iter_mut().enumerate().skip(1) {
            hook.time =
                Some(HookTime { calls: 200 * nth as u64, nanos: 3_000_000 * nth as u64 * nth as u64 });
        }
    }
    live.logged = vec![
        LiveValue::new("train/loss".into(), None, None),
        LiveValue::new("train/grad_norm/backbone.layer4.1.bn2.weight".into(), Some(1), None),
        LiveValue::new("valid/正確さ".into(), Some(2), Some(0.5)),
    ];
    live.warnings = vec![
        "the mean training loss of epoch 1 is NaN: if the weights are NaN too, training cannot recover; \
         `.hook(trainer::hooks::NanGuard::fail())` ends the run at the first batch with such a loss"
            .to_owned(),
    ];
    live.written = 990.0;
    live.batch = 80;
    state.set_live(live.clone());
    live.written = 1000.0;
    live.batch = 180;
    state.set_live(live);
    state
}

fn requests() -> Requests {
    Requests { stop: Ok("stop runs/0001, process 123?".into()), checkpoint: Err("no `Checkpoint`".into()) }
}

/// Returns the view after these keys were pressed.
fn pressed(state: &State, has_log: bool, keys: &[KeyCode]) -> View {
    let mut view = View::new(has_log);
    for key in keys {
        view.press(KeyEvent::new(*key, KeyModifiers::NONE), state, &requests());
    }
    view
}

fn buffer(state: &State, view: &View, theme: Theme, (width, height): (u16, u16)) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, state, view, theme, NOW)).unwrap();
    terminal.backend().buffer().clone()
}

fn drawn(state: &State, view: &View, size: (u16, u16)) -> String {
    let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).unwrap();
    terminal.draw(|frame| draw(frame, state, view, Theme::colored(), NOW)).unwrap();
    terminal.backend().to_string()
}

#[test]
fn a_running_run_is_drawn_at_80_by_24() {
    let state = running(false);
    insta::assert_snapshot!(drawn(&state, &View::new(false), (80, 24)));
}

#[test]
fn names_keep_their_beginnings_at_60_by_24() {
    let state = running(false);
    let text = drawn(&state, &View::new(false), (60, 24));
    assert!(text.contains("s stop") && text.contains("LrSchedule"), "{text}");
    insta::assert_snapshot!(text);
}

#[test]
fn hook_times_and_several_curves_are_shown_in_a_large_terminal() {
    let state = running(true);
    let down = KeyCode::Down;
    let view = pressed(&state, false, &[KeyCode::Char(' '), down, down, KeyCode::Char(' '), down]);
    insta::assert_snapshot!(drawn(&state, &view, (140, 40)));
}

#[test]
fn warnings_are_wrapped_and_a_question_replaces_the_keys() {
    let state = running(false);
    let view = pressed(&state, false, &[KeyCode::Tab, KeyCode::Char('s')]);
    insta::assert_snapshot!(drawn(&state, &view, (80, 24)));
}

#[test]
fn help_is_shown_above_the_view() {
    let state = running(false);
    insta::assert_snapshot!(drawn(&state, &pressed(&state, false, &[KeyCode::Char('?')]), (80, 24)));
}

#[test]
fn a_failed_run_with_a_log_shows_its_error() {
    let mut state = running(false);
    let mut file = RunFile::new("fit", "2026-11-21T10:00:00Z".to_owned());
    file.error = Some("the loss is NaN at after_loss, epoch 2, batch 180".to_owned());
    state.set_run(&file, Status::Failed);
    for epoch in 1..=12 {
        state.add_line(format!("epoch {epoch:2}/20  train/loss 0.{epoch}  valid/loss 0.{epoch}  1.5 s"));
    }
    state.add_line("a line with a tab\tand wide letters 損失損失損失損失損失損失損失損失損失損失損失損失損失損失損失損失");
    insta::assert_snapshot!(drawn(&state, &View::new(true), (80, 24)));
}

#[test]
fn runs_without_a_logger_and_without_any_data_are_drawn() {
    let mut state = State::new("runs/0002");
    let empty = drawn(&state, &View::new(false), (80, 16));
    let mut live = running(false).live().unwrap().clone();
    live.planned_steps = None;
    live.written = NOW - 90.0;
    state.set_live(live);
    let live = drawn(&state, &View::new(false), (80, 16));
    insta::assert_snapshot!(format!("{empty}\n{live}"));
}

#[test]
fn every_size_is_drawn_without_a_panic() {
    let state = running(true);
    for keys in [&[][..], &[KeyCode::Char('?')], &[KeyCode::Tab, KeyCode::Char(' '), KeyCode::Down]] {
        let view = pressed(&state, true, keys);
        for width in (1..60).chain([200]) {
            for height in (1..30).chain([100]) {
                drawn(&state, &view, (width, height));
            }
        }
    }
    let tiny = drawn(&state, &View::new(false), (30, 5));
    assert!(tiny.contains("at least 40 × 10"), "{tiny}");
}

#[test]
fn extreme_values_are_drawn() {
    let mut state = State::new("run");
    for (step, value) in [f64::MAX, f64::MIN, 0.0, f64::NAN, f64::INFINITY].into_iter().enumerate() {
        state.add("a", Span::Steps, step as u64, value);
    }
    state.add("b", Span::Steps, u64::MAX, 5.0);
    state.add("c", Span::Steps, 1, f64::NAN);
    for keys in [&[][..], &[KeyCode::Down], &[KeyCode::Down, KeyCode::Down]] {
        drawn(&state, &pressed(&state, false, keys), (80, 24));
    }
}

#[test]
fn without_colors_only_modifiers_are_drawn() {
    let state = running(true);
    let view = pressed(&state, false, &[KeyCode::Tab]);
    let colors = |theme| {
        let buffer = buffer(&state, &view, theme, (100, 30));
        buffer.content().iter().filter(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset).count()
    };
    assert!(colors(Theme::colored()) > 100);
    assert_eq!(colors(Theme::plain()), 0);
    let plain = buffer(&state, &view, Theme::plain(), (100, 30));
    assert!(plain.content().iter().any(|cell| cell.modifier.contains(Modifier::REVERSED)));
}
