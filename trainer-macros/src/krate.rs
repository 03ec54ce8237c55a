//! The path by which an expansion refers to the `trainer` crate.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::errors::Errors;

/// The name of the crate's package.
const PACKAGE: &str = "trainer";

/// The path of the `trainer` crate: the user's `crate = path`, or the name of the dependency.
pub(crate) enum Krate<'a> {
    Path(&'a syn::Path),
    Dependency(String),
}

impl<'a> Krate<'a> {
    pub(crate) fn of(path: Option<&'a syn::Path>) -> Self {
        match path {
            Some(path) => Krate::Path(path),
            None => Krate::Dependency(dependency().unwrap_or_else(|| PACKAGE.to_owned())),
        }
    }

    /// Returns whether `trainer` can be named, by `crate = path` or as a dependency. Otherwise,
    /// reports an error that shows `example` as the way to write `crate = path`.
    pub(crate) fn check(path: Option<&syn::Path>, example: &str, errors: &mut Errors) -> bool {
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

    /// If the user gave a path, returns the import with which the expansion starts, so that the
    /// path occurs only once. The import names an item that only `trainer` has. If the path leads
    /// to a different crate, rustc therefore reports only that mistake.
    pub(crate) fn import(&self) -> Option<TokenStream> {
        match self {
            Krate::Path(path) => {
                let last = path.segments.last().map_or_else(Span::call_site, |last| last.ident.span());
                let private = Ident::new("__private", Span::call_site().located_at(last));
                Some(quote!(use #path::#private::trainer as __trainer;))
            }
            Krate::Dependency(_) => None,
        }
    }

    /// Returns the path, located at `span`. rustc points at a part of an expression only if all
    /// tokens of that part have the same location.
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
/// manifest lists no such dependency. If there is no manifest to read, as under other build
/// systems, returns this crate's own name.
fn dependency() -> Option<String> {
    /// The path of the manifest that was read last, and the name that was found in it. The path can
    /// change, because an editor's macro server expands the macros of many packages.
    static LAST: Mutex<Option<(String, Option<String>)>> = Mutex::new(None);

    let default = Some(PACKAGE.to_owned());
    // In a unit test, the environment describes this package itself.
    if !proc_macro::is_available() {
        return default;
    }
    let Ok(path) = std::env::var("CARGO_MANIFEST_PATH") else { return default };
    let Ok(mut last) = LAST.lock() else { return default };
    if let Some((known, found)) = &*last
        && *known == path
    {
        return found.clone();
    }
    let found = dependency_of(Path::new(&path));
    *last = Some((path, found.clone()));
    found
}

/// Returns the same as [`dependency`] for the package with this manifest.
fn dependency_of(path: &Path) -> Option<String> {
    // A cargo script has its manifest in its source file.
    let text = fs::read_to_string(path)
        .ok()
        .filter(|_| path.extension().is_some_and(|extension| extension == "toml"));
    let manifest = text.as_deref().and_then(|text| DeTable::parse(text).ok());
    let Some(manifest) = manifest else { return Some(PACKAGE.to_owned()) };
    let manifest = manifest.get_ref();
    let package = manifest.get("package").map(Spanned::get_ref);
    let text = |key| package?.get(key)?.get_ref().as_str();
    let folder = path.parent().unwrap_or(Path::new(""));
    let found = dependency_in(manifest, &|key, of| {
        if of.get("workspace").is_some() { inherits(folder, text("workspace"), key) } else { names(key, of) }
    });
    // `trainer` itself, its examples, tests and documentation.
    found.or_else(|| (text("name") == Some(PACKAGE)).then(|| PACKAGE.to_owned()))
}

/// Returns the crate name of the dependency on `trainer` in a manifest, if there is one.
/// `is_trainer` decides from the key and the value of a dependency whether it is `trainer`.
fn dependency_in(manifest: &DeTable<'_>, is_trainer: &dyn Fn(&str, &DeValue<'_>) -> bool) -> Option<String> {
    let targets = manifest.get("target").and_then(|targets| targets.get_ref().as_table());
    let of_targets =
        targets.into_iter().flat_map(DeTable::values).filter_map(|target| target.get_ref().as_table());
    let places: Vec<&DeTable<'_>> = [manifest].into_iter().chain(of_targets).collect();
    // The library sees only the first kind, tests the first two, and build scripts the last.
    for kind in
        ["dependencies", "dev-dependencies", "dev_dependencies", "build-dependencies", "build_dependencies"]
    {
        let tables = places.iter().filter_map(|place| place.get(kind)?.get_ref().as_table());
        let found = tables.flatten().filter(|(key, of)| is_trainer(key.get_ref(), of.get_ref()));
        let names: Vec<&str> = found.map(|(key, _)| &**key.get_ref()).collect();
        if let Some(name) = names.iter().find(|name| **name == PACKAGE).or(names.first()) {
            return Some(name.replace('-', "_"));
        }
    }
    None
}

/// Returns whether a dependency with this key and value is `trainer`, assuming that it is not
/// inherited from the workspace.
fn names(key: &str, of: &DeValue<'_>) -> bool {
    of.get("package").map_or(key, |package| package.get_ref().as_str().unwrap_or_default()) == PACKAGE
}

/// Returns whether the workspace of the package in `folder` declares `trainer` under this
/// dependency key. `root` is the path of the workspace, if the package's manifest specifies it.
fn inherits(folder: &Path, root: Option<&str>, key: &str) -> bool {
    let roots: Vec<PathBuf> = match root {
        Some(root) => vec![folder.join(root)],
        None => folder.ancestors().map(Path::to_owned).collect(),
    };
    for root in roots {
        let Ok(text) = fs::read_to_string(root.join("Cargo.toml")) else { continue };
        let Ok(manifest) = DeTable::parse(&text) else { continue };
        let workspace = manifest.get_ref().get("workspace");
        let dependencies = workspace.and_then(|workspace| workspace.get_ref().get("dependencies"));
        if let Some(declared) = dependencies.and_then(|dependencies| dependencies.get_ref().get(key)) {
            return names(key, declared.get_ref());
        }
    }
    key == PACKAGE
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name, the manifests of a package and its workspace, and the crate name to find.
    type Case = (&'static str, &'static str, &'static str, Option<&'static str>);

    const CASES: [Case; 41] = [
        ("plain", "[dependencies]\ntrainer = \"1\"", "", Some("trainer")),
        ("none", "[dependencies]\nmy_framework = \"1\"\n[features]\ntrainer = []", "", None),
        ("no tables", "", "", None),
        (
            "comment after the header",
            "[dependencies] # what we need\ntrainer = \"1\" # this",
            "",
            Some("trainer"),
        ),
        ("comment that names it", "[dependencies]\n# trainer = \"1\"", "", None),
        ("spaces in the header", "[ dependencies ]\ntrainer = \"1\"", "", Some("trainer")),
        ("dotted key of the document", "dependencies.trainer = \"1\"", "", Some("trainer")),
        ("dotted rename of the document", "dependencies.t.package = \"trainer\"", "", Some("t")),
        (
            "inline table of the document",
            "dependencies = { t = { version = \"1\", package = \"trainer\" } }",
            "",
            Some("t"),
        ),
        ("dotted version", "[dependencies]\ntrainer.version = \"1\"", "", Some("trainer")),
        ("dotted package", "[dependencies]\nt.package = \"trainer\"\nt.version = \"1\"", "", Some("t")),
        (
            "rename",
            "[dependencies]\nmy-training = { version = \"1\", package = \"trainer\" }",
            "",
            Some("my_training"),
        ),
        ("rename with literal strings", "[dependencies]\nt = { package = 'trainer' }", "", Some("t")),
        ("rename with escapes", "[dependencies]\nt = { package = \"tr\\u0061iner\" }", "", Some("t")),
        ("rename in a table", "[dependencies.t]\nversion = \"1\"\npackage = \"trainer\"", "", Some("t")),
        (
            "rename first in a table",
            "[dependencies.t]\npackage = \"trainer\"\nversion = \"1\"",
            "",
            Some("t"),
        ),
        ("table", "[dependencies.trainer]\nversion = \"1\"", "", Some("trainer")),
        (
            "table over several lines",
            "[dependencies]\nt = {\n  version = \"1\",\n  package = \"trainer\", # renamed\n}",
            "",
            Some("t"),
        ),
        (
            "array over several lines",
            "[dependencies]\nt = { package = \"trainer\", features = [\n  \"distributed\",\n] }",
            "",
            Some("t"),
        ),
        (
            "path with the word package",
            "[dependencies]\ntrainer = { path = \"../package = \\\"x\\\"\" }",
            "",
            Some("trainer"),
        ),
        (
            "path into a folder package",
            "[dependencies]\ntrainer = { path = \"package/trainer\" }",
            "",
            Some("trainer"),
        ),
        (
            "another package of this name",
            "[dependencies]\ntrainer = { version = \"1\", package = \"other\" }",
            "",
            None,
        ),
        ("another package in its folder", "[dependencies]\nother = { path = \"trainer\" }", "", None),
        ("quoted key", "[dependencies]\n\"trainer\" = \"1\"", "", Some("trainer")),
        ("literal key", "['dependencies']\n't' = { 'package' = \"trainer\" }", "", Some("t")),
        ("quoted header", "[\"dependencies\".\"t\"]\n\"package\" = \"trainer\"", "", Some("t")),
        ("Windows line ends", "[dependencies]\r\ntrainer = \"1\"\r\n", "", Some("trainer")),
        ("byte order mark", "\u{feff}[dependencies]\ntrainer = \"1\"", "", Some("trainer")),
        (
            "two names",
            "[dependencies]\nold = { package = \"trainer\", version = \"0.1\" }\ntrainer = \"1\"",
            "",
            Some("trainer"),
        ),
        (
            "the library's name before that of tests",
            "[dev-dependencies]\ntrainer = \"1\"\n[dependencies]\nt = { package = \"trainer\" }",
            "",
            Some("t"),
        ),
        ("tests", "[package]\nname = \"x\"\n\n[dev-dependencies]\ntrainer = \"1\"", "", Some("trainer")),
        ("build script", "[build-dependencies]\nt = { package = \"trainer\" }", "", Some("t")),
        ("target", "[target.'cfg(unix)'.dependencies]\nt = { package='trainer' }", "", Some("t")),
        (
            "tests of a target",
            "[target.x86_64-pc-windows-gnu.dev-dependencies]\ntrainer = \"1\"",
            "",
            Some("trainer"),
        ),
        ("table of a target", "[target.\"cfg(unix)\".dependencies.t]\npackage = \"trainer\"", "", Some("t")),
        (
            "inherited",
            "[dependencies]\ntrainer.workspace = true",
            "[workspace.dependencies]\ntrainer = \"1\"",
            Some("trainer"),
        ),
        (
            "rename in the workspace",
            "[dependencies]\nt = { workspace = true, features = [\"nvml\"] }",
            "[workspace]\nmembers = [\"member\"]\n[workspace.dependencies]\nt = { version = \"1\", package = \"trainer\" }",
            Some("t"),
        ),
        (
            "another package in the workspace",
            "[dependencies]\ntrainer.workspace = true",
            "[workspace.dependencies]\ntrainer = { version = \"1\", package = \"other\" }",
            None,
        ),
        (
            "not inherited",
            "[dependencies]\nother.workspace = true",
            "[workspace.dependencies]\ntrainer = \"1\"\nother = \"1\"",
            None,
        ),
        ("trainer itself", "[package]\nname = \"trainer\"\n[dependencies]\ntch = \"1\"", "", Some("trainer")),
        (
            "a program called trainer",
            "[package]\nname = \"trainer\"\n[dependencies]\nframework = { package = \"trainer\", version = \"1\" }",
            "",
            Some("framework"),
        ),
    ];

    /// Writes the manifests of a workspace and its member to a new folder. Returns the path of the
    /// member's manifest.
    fn written(nth: usize, member: &str, workspace: &str) -> PathBuf {
        let root = std::env::temp_dir().join(format!("trainer-manifests-{}-{nth}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(root.join("crates/member")).unwrap();
        fs::write(root.join("Cargo.toml"), workspace).unwrap();
        let path = root.join("crates/member/Cargo.toml");
        fs::write(&path, member).unwrap();
        path
    }

    #[test]
    fn dependency_name_is_read_from_the_manifest() {
        for (nth, (name, manifest, workspace, expected)) in CASES.into_iter().enumerate() {
            let path = written(nth, manifest, workspace);
            assert_eq!(dependency_of(&path).as_deref(), expected, "{name}:\n{manifest}");
        }
    }

    #[test]
    fn workspace_is_found_where_cargo_finds_it() {
        let renamed = "[workspace.dependencies]\nt = { version = \"1\", package = \"trainer\" }";
        let member = "[dependencies]\nt.workspace = true";
        // The package is the root of the workspace.
        let root = written(100, "", &format!("{member}\n{renamed}"));
        let root = root.ancestors().nth(3).unwrap();
        assert_eq!(dependency_of(&root.join("Cargo.toml")).as_deref(), Some("t"));
        // Here the manifest names a root that is not a parent folder of the package.
        let named = format!("[package]\nname = \"x\"\nworkspace = \"../../root\"\n{member}");
        let path = written(101, &named, "[workspace.dependencies]\nt = \"1\"");
        assert_eq!(dependency_of(&path), None);
        let root = path.ancestors().nth(3).unwrap().join("root");
        fs::create_dir_all(&root).unwrap();
        fs::write(root.join("Cargo.toml"), renamed).unwrap();
        assert_eq!(dependency_of(&path).as_deref(), Some("t"));
    }

    #[test]
    fn manifests_that_cannot_be_read_do_not_prevent_the_expansion() {
        for text in ["[dependencies", "\0", "[dependencies]\ntrainer = "] {
            assert_eq!(dependency_of(&written(102, text, "")).as_deref(), Some("trainer"));
        }
        assert_eq!(dependency_of(Path::new("/nowhere/Cargo.toml")).as_deref(), Some("trainer"));
        let script = written(103, "", "").with_file_name("script.rs");
        fs::write(&script, "fn main() {}").unwrap();
        assert_eq!(dependency_of(&script).as_deref(), Some("trainer"));
    }
}
