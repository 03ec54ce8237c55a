//! The path by which an expansion refers to the `trainer` crate.

use std::sync::Mutex;

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::Path;

use crate::errors::Errors;

/// The name of the crate's package.
const PACKAGE: &str = "trainer";

/// The path of the `trainer` crate: the user's `crate = path`, or the name of the dependency.
pub(crate) enum Krate<'a> {
    Path(&'a Path),
    Dependency(String),
}

impl<'a> Krate<'a> {
    pub(crate) fn of(path: Option<&'a Path>) -> Self {
        match path {
            Some(path) => Krate::Path(path),
            None => Krate::Dependency(dependency().unwrap_or_else(|| PACKAGE.to_owned())),
        }
    }

    /// Returns whether the crate can be named: by `crate = path`, or by a dependency. Otherwise
    /// reports it, with `example` as the way to write `crate = path`.
    pub(crate) fn check(path: Option<&Path>, example: &str, errors: &mut Errors) -> bool {
        let found = path.is_some() || dependency().is_some();
        if !found {
            errors.push(
                Span::call_site(),
                format!(
                    "this package does not depend on the `trainer` crate: add the dependency, or name a re-export, `{example}`"
                ),
            );
        }
        found
    }

    /// The import that an expansion starts with, if the user gave a path: the path then occurs only
    /// once.
    pub(crate) fn import(&self) -> Option<TokenStream> {
        match self {
            Krate::Path(path) => Some(quote!(use #path as __trainer;)),
            Krate::Dependency(_) => None,
        }
    }

    /// The path, located at `span`. rustc points at a part of an expression only if all its tokens
    /// have the same location.
    pub(crate) fn at(&self, span: Span) -> TokenStream {
        match self {
            Krate::Path(_) => Ident::new("__trainer", Span::call_site().located_at(span)).into_token_stream(),
            Krate::Dependency(name) => {
                let name = Ident::new(name, span);
                quote_spanned!(span=> ::#name)
            }
        }
    }
}

/// Returns the name under which the package being compiled depends on `trainer`, or `None` if its
/// manifest lists no such dependency.
///
/// Within `trainer` itself, and without a manifest to read, as under another build system, this is
/// the crate's own name.
fn dependency() -> Option<String> {
    /// The path of the last manifest read, with its result. An editor's server expands macros of
    /// many packages.
    static LAST: Mutex<Option<(String, Option<String>)>> = Mutex::new(None);

    let default = Some(PACKAGE.to_owned());
    // In a unit test, the environment describes this crate itself.
    if !proc_macro::is_available() || std::env::var("CARGO_PKG_NAME").is_ok_and(|name| name == PACKAGE) {
        return default;
    }
    let Ok(path) = std::env::var("CARGO_MANIFEST_PATH") else { return default };
    let Ok(mut last) = LAST.lock() else { return default };
    if let Some((known, found)) = &*last
        && *known == path
    {
        return found.clone();
    }
    // A cargo script has its manifest in its source file.
    let text = std::fs::read_to_string(&path).ok().filter(|_| path.ends_with(".toml"));
    let found = text.map_or(default, |text| dependency_in(&text));
    *last = Some((path, found.clone()));
    found
}

/// Returns the crate name of the dependency on `trainer` in the text of a manifest, or `None` if
/// there is no such dependency.
fn dependency_in(manifest: &str) -> Option<String> {
    let (mut table, mut renamed) = (String::new(), None);
    for line in manifest.lines().map(str::trim) {
        if let Some(header) = line.strip_prefix('[') {
            table = header.trim_end_matches(']').trim().to_owned();
        }
        // `[dependencies]`, `[target.'cfg(unix)'.dev-dependencies]`, `[dependencies.name]`.
        let (before, name) = match table.rsplit_once('.') {
            Some((before, name)) if before.ends_with("dependencies") => (before, Some(name)),
            _ => (&*table, None),
        };
        if !before.ends_with("dependencies") || before.starts_with("workspace") {
            continue;
        }
        let (key, value) = line.split_once('=').unwrap_or_default();
        let key = name.unwrap_or_else(|| key.trim().split('.').next().unwrap_or_default());
        let key = key.trim().trim_matches(['"', '\'']);
        let line = if name.is_some() { line } else { value };
        let package = line.split_once("package").and_then(|(_, rest)| rest.trim().strip_prefix('='));
        match package.and_then(|rest| rest.split(['"', '\'']).nth(1)) {
            Some(PACKAGE) => renamed = Some(key.replace('-', "_")),
            // A different package under this name.
            Some(_) => {}
            None if key == PACKAGE => return Some(PACKAGE.to_owned()),
            None => {}
        }
    }
    renamed
}

#[cfg(test)]
mod tests {
    use super::dependency_in;

    #[test]
    fn dependency_name_is_read_from_the_manifest() {
        let cases = [
            ("[dependencies]\ntrainer = \"1\"\n", Some("trainer")),
            ("[package]\nname = \"x\"\n\n[dev-dependencies]\ntrainer.workspace = true\n", Some("trainer")),
            (
                "[dependencies]\nmy-training = { version = \"1\", package = \"trainer\" }\n",
                Some("my_training"),
            ),
            ("[target.'cfg(unix)'.dependencies]\nother = { package='trainer' }\n", Some("other")),
            ("[dependencies.renamed]\nversion = \"1\"\npackage = \"trainer\"\n", Some("renamed")),
            ("[dependencies.trainer]\nversion = \"1\"\n", Some("trainer")),
            (
                "[dependencies]\nold = { package = \"trainer\", version = \"0.1\" }\ntrainer = \"1\"\n",
                Some("trainer"),
            ),
            ("[dependencies]\nmy_framework = \"1\"\n[features]\ntrainer = []\n", None),
            ("[workspace.dependencies]\ntrainer = \"1\"\n", None),
        ];
        for (manifest, expected) in cases {
            assert_eq!(dependency_in(manifest).as_deref(), expected, "{manifest}");
        }
    }
}
