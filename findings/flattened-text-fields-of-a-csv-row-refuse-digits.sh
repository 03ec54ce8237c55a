#!/usr/bin/env bash
# Subject: Serialization in Rust
# Guess: a String field of a CSV row takes any field; moving it into a struct with
# `#[serde(flatten)]` changes nothing.
# Seen: flattened fields are first typed by their looks, so "007" becomes the integer 7, and the
# String field reports "invalid type: integer `7`, expected a string". "x7" in the next row is
# read.
# Versions: csv 1.4.0, serde 1.0.229
# Matters: a file is read until the first identifier without a letter.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export CARGO_TARGET_DIR="$dir/target"
cargo init --quiet --vcs none --name finding --edition 2024 "$dir/finding"
cd "$dir/finding"
cat >> Cargo.toml <<'EOF'
serde = { version = "=1.0.229", features = ["derive"] }
csv = "=1.4.0"
EOF
cat > src/main.rs <<'EOF'
use serde::Deserialize;

#[derive(Debug, Deserialize)]
struct Id {
    id: String,
}
#[derive(Debug, Deserialize)]
struct Row {
    #[serde(flatten)]
    id: Id,
}

fn main() {
    let file = "id\n007\nx7\n";
    let direct: Vec<String> =
        csv::Reader::from_reader(file.as_bytes()).deserialize::<Id>().map(|row| row.unwrap().id).collect();
    assert_eq!(direct, ["007", "x7"]);
    let flat: Vec<Result<String, String>> = csv::Reader::from_reader(file.as_bytes())
        .deserialize::<Row>()
        .map(|row| row.map(|row| row.id.id).map_err(|error| error.to_string()))
        .collect();
    println!("direct {direct:?}, flattened {flat:?}");
    assert!(flat[0].as_ref().unwrap_err().contains("integer `7`"));
    assert_eq!(flat[1], Ok("x7".to_owned()));
}
EOF
cargo run --quiet
