#!/usr/bin/env bash
# Subject: Serialization in Rust
# Guess: `date = 2020-01-01` read into a `serde_json::Value` or a `String` is the text
# "2020-01-01", as in other formats.
# Seen: the Value is an object with the private key `$__toml_private_datetime`, and a String field
# is refused with "invalid type: map, expected a string".
# Versions: toml 1.2.1, serde_json 1.0.154, serde 1.0.229
# Matters: settings that pass through JSON (logs, trackers, hashes) show a private key, and a
# field for any text refuses an unquoted date.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export CARGO_TARGET_DIR="$dir/target"
cargo init --quiet --vcs none --name finding --edition 2024 "$dir/finding"
cd "$dir/finding"
cat >> Cargo.toml <<'EOF'
serde = { version = "=1.0.229", features = ["derive"] }
serde_json = "=1.0.154"
toml = "=1.2.1"
EOF
cat > src/main.rs <<'EOF'
use serde::Deserialize;

#[derive(Debug, Deserialize)]
struct Settings {
    date: String,
}

fn main() {
    let text = "date = 2020-01-01";
    let value: serde_json::Value = toml::from_str(text).unwrap();
    println!("{value}");
    assert_eq!(value["date"], serde_json::json!({ "$__toml_private_datetime": "2020-01-01" }));
    let error = toml::from_str::<Settings>(text).map(|read| read.date).unwrap_err();
    println!("{}", error.message());
}
EOF
cargo run --quiet
