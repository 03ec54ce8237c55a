#!/usr/bin/env bash
# Subject: Rust crates and cargo
# Guess: `ProgressBar::println` prints a line above the bar, and a plain line if there is no
# terminal.
# Seen: without a terminal (a job, a pipe, CI) the line is dropped, for MultiProgress too, which
# returns Ok. `suspend` runs its closure in both cases, so printing there is safe.
# Versions: indicatif 0.18.6
# Matters: messages that the author saw while developing are missing in the log of the job.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export CARGO_TARGET_DIR="$dir/target"
cargo init --quiet --vcs none --name finding --edition 2024 "$dir/finding"
cd "$dir/finding"
cat >> Cargo.toml <<'EOF'
indicatif = "=0.18.6"
EOF
cat > src/main.rs <<'EOF'
fn main() {
    let bar = indicatif::ProgressBar::new(10);
    bar.println("line of the bar");
    bar.suspend(|| eprintln!("line in suspend"));
    bar.finish();
    assert!(indicatif::MultiProgress::new().println("line of several bars").is_ok());
}
EOF
cargo build --quiet
"$CARGO_TARGET_DIR/debug/finding" > "$dir/out" 2>&1 < /dev/null
cat "$dir/out"
test "$(cat "$dir/out")" = "line in suspend"
