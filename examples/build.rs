//! Lets the examples find libtorch when they are run directly, without cargo.

fn main() {
    let lib = std::env::var("DEP_TRAINER_LIBTORCH_LIB").unwrap_or_default();
    println!("cargo::rustc-link-arg=-Wl,-rpath,{lib}");
}
