//! Where the library of a project comes from: from where this command does.

use std::path::{Path, PathBuf};
use std::process::Command;

use trainer_files::read_text;

use crate::output::Failure;

/// The library, in the version of this command.
#[derive(Debug, PartialEq)]
pub(super) enum Library {
    /// The folder of a clone.
    Clone(PathBuf),
    /// A commit of a repository, of which cargo has a checkout.
    Repository { url: String, commit: String },
    /// The registry that has the packages of this version.
    Registry,
}

const INSTALL: &str = r#"git clone --depth 1 LIBRARY_URL ../trainer-library
          sed -i 's|^trainer = { path = .*|trainer = { path = "../trainer-library/trainer" }|' Cargo.toml
          cargo install --path ../trainer-library/trainer/cli"#;

impl Library {
    /// Returns the clone in a folder, if one is named. Otherwise, finds out from where cargo had
    /// the sources of this command, which were in the folder `source`.
    pub(super) fn find(source: &Path, clone: Option<&Path>) -> Result<Self, Failure> {
        if clone.is_none() {
            let package = concat!(env!("CARGO_PKG_NAME"), "-", env!("CARGO_PKG_VERSION"));
            if source.ends_with(package) {
                return Ok(Library::Registry);
            }
            if let Some(repository) = repository(source) {
                return Ok(repository);
            }
        }
        let clone = clone.map_or_else(|| source.join("../.."), Path::to_owned);
        let clone = clone.canonicalize().ok().filter(|clone| clone.join("trainer/Cargo.toml").is_file());
        clone.map(Library::Clone).ok_or_else(|| {
            Failure::new(
                "no clone of `trainer` was found where this command was built: name the folder of one with `--clone FOLDER`",
            )
        })
    }

    /// Returns the keys of the dependency in the manifest.
    pub(super) fn dependency(&self) -> String {
        match self {
            Library::Clone(clone) => format!("path = {:?}", clone.join("trainer").display().to_string()),
            Library::Repository { url, commit } => format!("git = {url:?}, rev = {commit:?}"),
            Library::Registry => format!("version = {:?}", env!("CARGO_PKG_VERSION")),
        }
    }

    /// Returns the commands with which a workflow installs this command, and the library if cargo
    /// does not find it.
    pub(super) fn install(&self) -> String {
        match self {
            Library::Clone(clone) => INSTALL.replace("LIBRARY_URL", &url_of(clone)),
            Library::Repository { url, commit } => {
                format!("cargo install --git {url} --rev {commit} trainer-cli")
            }
            Library::Registry => format!("cargo install trainer-cli --version {}", env!("CARGO_PKG_VERSION")),
        }
    }
}

/// Returns the repository that cargo has made a checkout of, `…/git/checkouts/NAME/COMMIT`, and
/// this package in it. Cargo removes checkouts that it has not used for a while.
fn repository(source: &Path) -> Option<Library> {
    let checkout = source.ancestors().nth(2)?;
    let (commit, name) = (checkout.file_name()?, checkout.parent()?.file_name()?);
    let git = checkout.ancestors().nth(3).filter(|git| checkout.starts_with(git.join("checkouts")))?;
    // A line is a commit, notes, and the address that it was fetched from.
    let fetched = read_text(&git.join("db").join(name).join("FETCH_HEAD")).ok()?;
    let url = fetched.lines().next()?.split_whitespace().last()?;
    is_plain(url)
        .then(|| Library::Repository { url: url.to_owned(), commit: commit.to_string_lossy().into_owned() })
}

/// Returns the address that a clone was made from, or a placeholder that says what to write there.
fn url_of(clone: &Path) -> String {
    let remote = Command::new("git").arg("-C").arg(clone).args(["remote", "get-url", "origin"]).output();
    let url = remote.ok().filter(|remote| remote.status.success());
    let url = url.map(|remote| String::from_utf8_lossy(&remote.stdout).trim().to_owned()).unwrap_or_default();
    if is_plain(&url) { url } else { "https://URL-OF-THE-LIBRARY".to_owned() }
}

/// Returns whether a text is an address without anything that does not belong in a file of a
/// project, such as a quote or a token of its user.
fn is_plain(url: &str) -> bool {
    !url.is_empty() && url.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_./:~".contains(letter))
}

#[cfg(test)]
mod tests {
    use trainer_files::{TemporaryFolder, create_folders, write};

    use super::*;

    #[test]
    fn the_library_comes_from_where_the_command_does() {
        let home = TemporaryFolder::create("library").unwrap();
        let checkout = home.path().join("git/checkouts/trainer-0123/c97507f");
        let find = |source: &Path| Library::find(source, None);
        let lost = find(&checkout.join("trainer/cli"));
        assert!(lost.is_err(), "no address is known, and there is no clone: {lost:?}");
        let db = home.path().join("git/db/trainer-0123");
        create_folders(&db).unwrap();
        let fetched = b"c97507f8f119\tnot-for-merge\tbranch 'main' of https://example.org/trainer\n";
        write(&db.join("FETCH_HEAD"), fetched).unwrap();
        let library = find(&checkout.join("trainer/cli")).unwrap();
        assert_eq!(library.dependency(), r#"git = "https://example.org/trainer", rev = "c97507f""#);
        assert_eq!(
            library.install(),
            "cargo install --git https://example.org/trainer --rev c97507f trainer-cli"
        );

        let package = format!("/registry/src/{}-{}", env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"));
        assert_eq!(find(Path::new(&package)).unwrap(), Library::Registry);
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        assert!(matches!(find(here).unwrap(), Library::Clone(_)));
    }
}
