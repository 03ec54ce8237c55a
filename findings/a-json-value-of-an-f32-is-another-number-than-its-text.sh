#!/usr/bin/env bash
# Subject: Serialization in Rust
# Guess: `to_value(0.1f32)` prints what `to_string(&0.1f32)` prints.
# Seen: `to_string` writes the shortest text for an f32, `0.1`; a Value holds an f64, and prints
# `0.10000000149011612`. It does not equal the Value that is read from the text of the same
# number. toml behaves in the same way.
# Versions: serde_json 1.0.154, toml 1.2.1
# Matters: a configuration differs from itself after it went through a Value, and so does its
# hash.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export CARGO_TARGET_DIR="$dir/target"
cargo init --quiet --vcs none --name finding --edition 2024 "$dir/finding"
cd "$dir/finding"
cat >> Cargo.toml <<'EOF'
serde_json = "=1.0.154"
toml = "=1.2.1"
EOF
cat > src/main.rs <<'EOF'
use serde_json::{Value, from_str, to_string, to_value};

fn main() {
    let text = to_string(&0.1f32).unwrap();
    let value = to_value(0.1f32).unwrap();
    println!("text {text}, value {value}");
    assert_eq!(text, "0.1");
    assert_eq!(value.to_string(), "0.10000000149011612");
    assert_ne!(value, from_str::<Value>(&text).unwrap());
    let value = toml::Value::try_from(0.1f32).unwrap();
    println!("toml value {value}");
    assert_eq!(value.to_string(), "0.10000000149011612");
}
EOF
cargo run --quiet
