//! A crate with the name of the library. Its hooks are not those of the library.

#[path = "it/provenance.rs"]
mod provenance;
