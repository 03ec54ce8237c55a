#!/usr/bin/env bash
# Subject: Rust crates and cargo
# Guess: a C program linked with a Rust staticlib sees the items that the library and its
# dependencies register: their constructors are in the archive.
# Seen: the linker takes only those objects of an archive that something refers to. A debug build
# registers nothing at all; a release build the items of the library's own crate, which is one
# object there, and none of its dependency. `--whole-archive` brings all of them. A cdylib has
# them, too.
# Versions: inventory 0.3.25, rustc 1.95.0
# Matters: plug-ins that register themselves vanish, by build profile, when a Rust library is
# embedded.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export CARGO_TARGET_DIR="$dir/target"
cargo init --quiet --vcs none --lib --name registry --edition 2024 "$dir/registry"
cargo init --quiet --vcs none --lib --name items --edition 2024 "$dir/items"
cargo init --quiet --vcs none --lib --name finding --edition 2024 "$dir/finding"
echo 'inventory = "=0.3.25"' | tee -a "$dir/registry/Cargo.toml" >> "$dir/items/Cargo.toml"
echo 'registry = { path = "../registry" }' >> "$dir/items/Cargo.toml"
cat >> "$dir/finding/Cargo.toml" <<'EOF'
inventory = "=0.3.25"
items = { path = "../items" }
registry = { path = "../registry" }
[lib]
crate-type = ["staticlib"]
EOF
echo 'pub struct Item(pub &'"'static"' str); inventory::collect!(Item);' > "$dir/registry/src/lib.rs"
echo 'mod module { inventory::submit!(registry::Item("dependency")); }' > "$dir/items/src/lib.rs"
cat > "$dir/finding/src/lib.rs" <<'EOF'
use items as _;

mod module {
    inventory::submit!(registry::Item("library"));
}

#[unsafe(no_mangle)]
pub extern "C" fn show() {
    let mut items: Vec<&str> = inventory::iter::<registry::Item>().map(|item| item.0).collect();
    items.sort();
    println!("{}", items.join(" "));
}
EOF
printf 'void show(void);\nint main(void) { show(); return 0; }\n' > "$dir/main.c"
cd "$dir/finding"
cargo build --quiet
cargo build --quiet --release
for profile in debug release; do
  archive="$CARGO_TARGET_DIR/$profile/libfinding.a"
  cc "$dir/main.c" "$archive" -lpthread -ldl -lm -o "$dir/plain"
  cc "$dir/main.c" -Wl,--whole-archive "$archive" -Wl,--no-whole-archive -lpthread -ldl -lm -o "$dir/whole"
  plain=$("$dir/plain") whole=$("$dir/whole")
  echo "$profile: [$plain], whole archive [$whole]"
  test "$whole" = "dependency library"
  case $profile in
    debug) test "$plain" = "" ;;
    release) test "$plain" = "library" ;;
  esac
done
