#!/usr/bin/env python3
"""Measures the compile time of a crate with 200 hooks that use `#[hook]`, against the same 200 hooks written by hand,
and that of 1,000 functions and 1,000 methods, with and without `#[hook]`.

The hand-written crate has a trait with a method for each point, a struct that implements it for each hook, and
a function that adds all of them to a list. The bodies are the same, and both crates depend on `trainer`. Only the
two crates are timed, not their dependencies.

The crates are in a separate workspace in the target folder, which shares the dependencies that are built there.
"""

import os
import pathlib
import re
import resource
import shutil
import statistics
import subprocess
import sys
import time

ROUNDS = 9
MODULES, FUNCTIONS, BLOCKS = 10, 12, 2  # functions and impl blocks in each module
METHODS = ["before_epoch", "before_step", "after_step", "after_epoch"]  # hooks of each block
WITH_LOSS = ["after_loss", "after_backward", "before_opt_step", "after_opt_step"]
POINTS = WITH_LOSS + [
    "before_epoch", "before_step", "after_step", "after_transfer", "after_pred", "after_train_epoch", "after_epoch",
]
# Keys of the attribute, and the hand-written equivalents: a method, or the start of the body.
KEYS = [
    ("", "", ""),
    ("ord = 10", "fn ord(&self) -> i32 { 10 }", ""),
    ("", "", ""),
    ("only = train", "", "if run.phase() != Phase::Train { return Ok(()); }"),
    ("every = 100", "", "if !run.counters().batches_seen.is_multiple_of(100) { return Ok(()); }"),
]

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
FOLDER = TARGET / "bench-compile"
CRATES = BY_HAND, WITH_MACRO = "hooks_by_hand", "hooks_with_macro"
FEATURES = ', features = ["download-libtorch"]' if "download-libtorch" in sys.argv else ""

# The hand-written equivalent of what the trainer provides.
STATE = """
use trainer::Value;
use trainer::prelude::*;

pub struct State {
    phase: Phase,
    counters: Counters,
    loss: Tensor,
    logged: Vec<(String, Value)>,
}

impl State {
    pub fn phase(&self) -> Phase { self.phase }
    pub fn counters(&self) -> Counters { self.counters }
    pub fn loss(&self) -> &Tensor { &self.loss }
    pub fn log(&mut self, name: &str, value: impl Into<Value>) { self.logged.push((name.into(), value.into())); }
}

pub trait Callback: Send {
    fn ord(&self) -> i32 { 0 }
"""


def camel(name):
    return "".join(word.capitalize() for word in name.split("_"))


def function(nth):
    """A hook without a state, which logs the loss or a value from a counter: with the macro, by hand, and as a value."""
    point = POINTS[nth % len(POINTS)]
    keys, ord_by_hand, start_by_hand = KEYS[nth // len(POINTS) % len(KEYS)]
    body = f"""
        let counters = run.counters();
        let share = counters.batch_idx as f64 / (counters.batches_seen + {nth}) as f64;
        run.log("share_{nth}", share);
        Ok(())"""
    if point in WITH_LOSS and nth % 2:
        body = f"""
        let loss = run.loss().double_value(&[]);
        if loss.is_nan() {{ return Err(Error::msg("the loss is NaN")); }}
        run.log("loss_{nth}", loss * {nth}.0);
        Ok(())"""
    docs = f"/// Logs the number {nth}."
    with_macro = f"""
    {docs}
    #[hook({keys})]
    pub fn hook_{nth}(run: &mut Cx<{camel(point)}>) -> Result<()> {{{body}
    }}
"""
    by_hand = f"""
    {docs}
    pub struct Hook{nth};
    impl Callback for Hook{nth} {{
        {ord_by_hand}
        fn {point}(&mut self, run: &mut State) -> Result<()> {{
        {start_by_hand}{body}
        }}
    }}
"""
    return with_macro, by_hand, [f"Hook{nth}"]


def block(nth):
    """Stateful hooks, each of which counts: with the macro, by hand, and as values."""
    def struct(name):
        return f"""
    /// Counts for the number {nth}.
    pub struct {name} {{ pub seen: u64, pub mean: f64 }}
"""

    def method(point, context):
        return f"""
        /// Counts at this point.
        fn {point}(&mut self, run: &mut {context}) -> Result<()> {{
            self.seen += run.counters().batch_idx + {nth};
            self.mean += (run.counters().epoch as f64 - self.mean) / (self.seen + 1) as f64;
            Ok(())
        }}
"""

    methods = "".join(method(point, f"Cx<{camel(point)}>") for point in METHODS)
    with_macro = f"{struct(f'Counter{nth}')}    #[hook]\n    impl Counter{nth} {{{methods}    }}\n"
    names = {point: f"Counter{nth}{camel(point)}" for point in METHODS}
    by_hand = "".join(
        f"{struct(name)}    impl Callback for {name} {{{method(point, 'State')}    }}\n" for point, name in names.items())
    return with_macro, by_hand, [f"{name} {{ seen: 0, mean: 0.0 }}" for name in names.values()]


def thousand(with_hook):
    """Returns a crate of 1,000 functions and one of 1,000 methods in 250 blocks, with or without `#[hook]`."""
    attribute = "#[hook]" if with_hook else ""
    start = "//! A thousand.\n#![allow(missing_docs)]\nuse trainer::prelude::*;\n"
    functions = "".join(f"""
/// Logs the number {nth}.
{attribute}
pub fn log_{nth}(cx: &mut Cx<AfterStep>) -> Result<()> {{
    cx.log("share_{nth}", cx.counters().batch_idx as f64 / (cx.counters().batches_seen + {nth}) as f64);
    Ok(())
}}
""" for nth in range(1000))
    blocks = ""
    for nth in range(250):
        methods = "".join(f"""
    /// Counts at this point.
    pub fn {point}(&mut self, cx: &mut Cx<{camel(point)}>) -> Result<()> {{
        self.seen += cx.counters().batch_idx + {nth};
        Ok(())
    }}
""" for point in METHODS)
        blocks += f"pub struct Counter{nth} {{ pub seen: u64 }}\n{attribute}\nimpl Counter{nth} {{{methods}}}\n"
    return {"functions": start + functions, "methods": start + blocks}


def sources():
    """Returns the source text of each crate."""
    points = "".join(f"    fn {point}(&mut self, _: &mut State) -> Result<()> {{ Ok(()) }}\n" for point in POINTS)
    with_macro, by_hand, pushes = "", f"{STATE}{points}}}\n", ""
    for module in range(MODULES):
        hooks = [function(module * FUNCTIONS + nth) for nth in range(FUNCTIONS)]
        hooks += [block(module * BLOCKS + nth) for nth in range(BLOCKS)]
        start = f"\npub mod part_{module} {{\n    use trainer::prelude::*;\n"
        with_macro += start + "".join(text for text, _, _ in hooks) + "}\n"
        by_hand += start + "    use super::{Callback, State};\n" + "".join(text for _, text, _ in hooks) + "}\n"
        values = [value for _, _, values in hooks for value in values]
        pushes += "".join(f"    list.push(Box::new(part_{module}::{value}));\n" for value in values)
    by_hand += f"\npub fn register(list: &mut Vec<Box<dyn Callback>>) {{\n{pushes}}}\n"
    return {BY_HAND: by_hand, WITH_MACRO: with_macro}


def write(texts):
    """Writes the crates into a workspace."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    for name, text in texts.items():
        (FOLDER / name / "src").mkdir(parents=True)
        (FOLDER / name / "src" / "lib.rs").write_text(text)
        (FOLDER / name / "Cargo.toml").write_text(
            f'[package]\nname = "{name}"\nversion = "0.1.0"\nedition = "2024"\n\n'
            f'[dependencies]\ntrainer = {{ path = "{(ROOT / "trainer").as_posix()}"{FEATURES} }}\n')
    # The profile and lock file of the repository, or torch-sys would be built again.
    profile = (ROOT / "Cargo.toml").read_text().partition("[profile.dev]")[2]
    (FOLDER / "Cargo.toml").write_text(
        f'[workspace]\nresolver = "3"\nmembers = ["*"]\n\n[profile.dev]{profile}')
    shutil.copy(ROOT / "Cargo.lock", FOLDER)


def cargo(verb, name, *options):
    """Runs cargo and returns the seconds that it takes."""
    command = ["cargo", verb, "--manifest-path", FOLDER / "Cargo.toml", "-p", name, *options]
    start = time.perf_counter()
    # In the repository, because its configuration has the path of libtorch.
    if subprocess.run(command, cwd=ROOT, env=dict(os.environ, CARGO_TARGET_DIR=TARGET)).returncode != 0:
        sys.exit(f"bench-compile: `cargo {verb}` failed for the crate {FOLDER / name}; see its output above")
    return time.perf_counter() - start


def from_scratch(verb, name, text, _):
    """Compiles the whole crate without an incremental cache."""
    for cache in (TARGET / "debug" / "incremental").glob(f"{name}-*"):
        shutil.rmtree(cache)
    (FOLDER / name / "src" / "lib.rs").write_text(text)
    return cargo(verb, name, "--quiet")


def edited(verb, name, text, nth):
    """Compiles the crate after a change in the body of one hook."""
    (FOLDER / name / "src" / "lib.rs").write_text(re.sub(r"batches_seen \+ \d+", f"batches_seen + {1000 + nth}", text, count=1))
    return cargo(verb, name, "--quiet")


def compare(title, compile, verb, texts):
    """Prints median times, and the median of the ratios within each round."""
    rounds, cargo_alone = [], []
    for nth in range(ROUNDS + 1):
        order = CRATES if nth % 2 else CRATES[::-1]
        taken = {name: compile(verb, name, texts[name], nth) for name in order}
        if nth > 0:  # round 0 warms up
            rounds.append((taken[BY_HAND], taken[WITH_MACRO]))
            cargo_alone.append(cargo(verb, BY_HAND, "--quiet"))  # up to date, so that this is the time of cargo itself
    by_hand, with_macro = (statistics.median(times) for times in zip(*rounds))
    ratio = statistics.median(other / one for one, other in rounds)
    own = statistics.median(cargo_alone)
    rustc = statistics.median((other - own) / (one - own) for one, other in rounds)
    print(f"{title:<28} {by_hand:8.3f} s {with_macro:8.3f} s {ratio:7.2f} × {rustc:12.2f} ×", flush=True)


def processor_time(verb, name, text):
    """Returns the seconds of processor time that it takes to compile a crate, without those of cargo itself."""
    def used():
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    taken = []
    for _ in range(3):
        start = used()
        from_scratch(verb, name, text, 0)
        middle = used()
        cargo(verb, name, "--quiet")  # up to date
        taken.append((middle - start) - (used() - middle))
    return min(taken)


def compare_thousands(texts):
    """Prints the processor time and the size of 1,000 functions and methods without hooks and with them."""
    print(f"\n{'1,000 of each':<28} {'without':>10} {'#[hook]':>10} {'a hook':>12} {'library':>18}")
    for kind in ("functions", "methods"):
        for verb in ("check", "build"):
            names = [f"{kind}_plain", f"{kind}_hooks"]
            plain, hooks = (processor_time(verb, name, texts[name]) for name in names)
            sizes = [(TARGET / "debug" / f"lib{name}.rlib").stat().st_size / 1e6 for name in names] if verb == "build" else []
            library = f"{sizes[0]:.1f} → {sizes[1]:.1f} MB" if sizes else ""
            print(f"{f'{kind}, cargo {verb}':<28} {plain:8.2f} s {hooks:8.2f} s {hooks - plain:9.2f} ms {library:>18}", flush=True)


def main():
    texts = sources()
    others = {f"{kind}_{suffix}": text for suffix, on in [("plain", False), ("hooks", True)] for kind, text in thousand(on).items()}
    write(texts | others)
    if "thousand" in sys.argv:
        compare_thousands(others)
        return
    for verb in ("check", "build"):
        for name in CRATES:
            cargo(verb, name)
    print(f"\n200 hooks, medians of {ROUNDS} rounds\n{'':<28} {'by hand':>10} {'#[hook]':>10} {'ratio':>9} {'less cargo':>14}")
    compare("cargo check", from_scratch, "check", texts)
    compare("cargo build", from_scratch, "build", texts)
    compare("cargo check after an edit", edited, "check", texts)
    compare("cargo build after an edit", edited, "build", texts)
    compare_thousands(others)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("bench-compile: interrupted")
