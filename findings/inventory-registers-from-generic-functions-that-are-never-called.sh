#!/usr/bin/env bash
# Subject: Rust crates and cargo
# Guess: `inventory::submit!` within a generic function does not compile, or registers once for
# each type it is used with.
# Seen: it registers once, although the function is never called and no instance of it exists: the
# item is a static of its own, which does not belong to any instance.
# Versions: inventory 0.3.25
# Matters: a registration cannot be made to depend on a type parameter or on a function being
# used.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export CARGO_TARGET_DIR="$dir/target"
cargo init --quiet --vcs none --name finding --edition 2024 "$dir/finding"
cd "$dir/finding"
cat >> Cargo.toml <<'EOF'
inventory = "=0.3.25"
EOF
cat > src/main.rs <<'EOF'
struct Item(&'static str);
inventory::collect!(Item);

#[allow(dead_code)]
fn generic<T>(_: T) {
    inventory::submit!(Item("generic"));
}

fn main() {
    let items: Vec<&str> = inventory::iter::<Item>().map(|item| item.0).collect();
    println!("{items:?}");
    assert_eq!(items, ["generic"]);
}
EOF
cargo run --quiet
