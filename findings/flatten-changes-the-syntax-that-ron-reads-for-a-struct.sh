#!/usr/bin/env bash
# Subject: Serialization in Rust
# Guess: a struct with a flattened part is still read from `(a: 1, x: 2.0)`, the syntax of structs
# in RON.
# Seen: it is written and read as a map with quoted keys, `{"a":1,"x":2.0}`; the parentheses are
# refused with "expected map".
# Versions: ron 0.12.3, serde 1.0.229
# Matters: moving fields into a shared struct breaks every file of the users, although names and
# types are the same.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export CARGO_TARGET_DIR="$dir/target"
cargo init --quiet --vcs none --name finding --edition 2024 "$dir/finding"
cd "$dir/finding"
cat >> Cargo.toml <<'EOF'
serde = { version = "=1.0.229", features = ["derive"] }
ron = "=0.12.3"
EOF
cat > src/main.rs <<'EOF'
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
struct Part {
    x: f64,
}
#[derive(Debug, Serialize, Deserialize)]
struct Plain {
    a: i32,
    x: f64,
}
#[derive(Debug, Serialize, Deserialize)]
struct Flat {
    a: i32,
    #[serde(flatten)]
    part: Part,
}

fn main() {
    let text = "(a: 1, x: 2.0)";
    let plain: Plain = ron::from_str(text).unwrap();
    println!("plain {}", ron::to_string(&plain).unwrap());
    println!("flattened: {}", ron::from_str::<Flat>(text).unwrap_err());
    let flat = ron::to_string(&Flat { a: 1, part: Part { x: 2.0 } }).unwrap();
    println!("flattened {flat}");
    assert_eq!(flat, r#"{"a":1,"x":2.0}"#);
    assert!(ron::from_str::<Flat>(&flat).is_ok());
}
EOF
cargo run --quiet
