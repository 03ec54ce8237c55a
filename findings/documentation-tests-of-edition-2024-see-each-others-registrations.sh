#!/usr/bin/env bash
# Subject: Rust crates and cargo
# Guess: each documentation test is a program of its own, so what it registers with inventory is
# seen by it alone.
# Seen: in edition 2024 the tests of a crate are compiled into one program, and each sees the
# items of all. In edition 2021, or with `standalone_crate`, each sees its own.
# Versions: rustc 1.95.0, inventory 0.3.25
# Matters: an example that registers a hook, a handler or a test changes the other examples as
# soon as the edition is raised.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export CARGO_TARGET_DIR="$dir/target"
for case in "2024 rust 2" "2024 standalone_crate 1" "2021 rust 1"; do
  set -- $case
  crate="$dir/$1-$2"
  cargo init --quiet --vcs none --lib --name finding --edition "$1" "$crate"
  echo 'inventory = "=0.3.25"' >> "$crate/Cargo.toml"
  for name in one two; do
    cat <<EOF
//! \`\`\`$2
//! inventory::submit!(finding::Item("$name"));
//! let items = inventory::iter::<finding::Item>().count();
//! println!("{items}");
//! assert_eq!(items, $3);
//! \`\`\`
EOF
  done > "$crate/src/lib.rs"
  echo 'pub struct Item(pub &'"'static"' str); inventory::collect!(Item);' >> "$crate/src/lib.rs"
  cd "$crate"
  cargo test --quiet --doc > "$dir/out" 2>&1 || { cat "$dir/out"; exit 1; }
  echo "edition $1, $2: each of two tests sees $3"
done
