#!/usr/bin/env bash
# Subject: Serialization in Rust
# Guess: a number that does not fit the float type of the field is an error: serde_json refuses
# 1e400 for f64 with "number out of range".
# Seen: 1e300 for an f32 field is read as infinity, since it is a valid f64 that is then
# converted. toml does the same.
# Versions: serde_json 1.0.154, toml 1.2.1
# Matters: a limit or scale of a settings file becomes infinite, and its check `x > 0` passes.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export CARGO_TARGET_DIR="$dir/target"
cargo init --quiet --vcs none --name finding --edition 2024 "$dir/finding"
cd "$dir/finding"
cat >> Cargo.toml <<'EOF'
serde_json = "=1.0.154"
toml = "=1.2.1"
serde = { version = "=1.0.229", features = ["derive"] }
EOF
cat > src/main.rs <<'EOF'
use serde::Deserialize;

#[derive(Deserialize)]
struct Settings {
    x: f32,
}

fn main() {
    println!("f64: {}", serde_json::from_str::<f64>("1e400").unwrap_err());
    let json: f32 = serde_json::from_str("1e300").unwrap();
    let toml: Settings = toml::from_str("x = 1e300").unwrap();
    println!("f32: {json}, toml {}", toml.x);
    assert!(json.is_infinite() && toml.x.is_infinite());
}
EOF
cargo run --quiet
