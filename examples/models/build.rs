//! Lets the documentation tests compile the code of the guide's page about models, which the
//! package `trainer` cannot: it does not depend on this one.

use std::path::Path;

fn main() {
    let page = "../../trainer/src/pages/guide/models.md";
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={page}");
    let text = std::fs::read_to_string(page).unwrap_or_else(|error| panic!("{page}: {error}"));
    let folder = std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR");
    let compiled = text.replace("```rust,ignore", "```rust,no_run");
    std::fs::write(Path::new(&folder).join("guide.md"), compiled).expect("OUT_DIR is a folder");
}
