//! Lets the documentation tests compile the code of the guide's page about models. The package
//! `trainer` cannot do this, because it does not depend on this package.

#[path = "../../trainer/build/guide.rs"]
mod guide;

use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../../trainer/guide");
    println!("cargo::rerun-if-changed=../../trainer/build/guide.rs");
    let out = std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR");
    let out = Path::new(&out).join("guide");
    guide::write(Path::new("../../trainer/guide"), &out).unwrap_or_else(|error| panic!("{error}"));
    let page = out.join("models.md");
    let text = std::fs::read_to_string(&page).expect("it was just written");
    std::fs::write(page, text.replace("```rust,ignore", "```rust,no_run")).expect("OUT_DIR is a folder");
}
