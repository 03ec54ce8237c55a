//! Lets the examples find libtorch when they are run directly, without cargo: in the folder `lib`
//! next to a copy made by `scripts/bundle.py`, or where cargo found it.

fn main() {
    println!("cargo::rustc-link-arg=-Wl,-rpath,$ORIGIN/lib");
    if let Ok(lib) = std::env::var("DEP_TRAINER_LIBTORCH_LIB") {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{lib}");
    }
}
