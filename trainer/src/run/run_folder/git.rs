//! The commit of a git repository, read from its files.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use crate::io::files::{Links, open, read_text};

/// Returns the hash of the commit that is checked out in the repository of the working directory,
/// if there is one.
pub(crate) fn commit() -> Option<String> {
    let here = std::env::current_dir().ok()?;
    here.ancestors().find_map(git_folder).and_then(|folder| commit_of(&folder))
}

/// Returns the `.git` folder of a work tree; for a linked work tree, its folder inside the `.git`
/// folder of the repository.
fn git_folder(tree: &Path) -> Option<PathBuf> {
    let git = tree.join(".git");
    if git.is_dir() {
        return Some(git);
    }
    let text = read_text(&git).ok()?;
    Some(tree.join(text.strip_prefix("gitdir:")?.trim()))
}

fn commit_of(folder: &Path) -> Option<String> {
    let head = read_text(&folder.join("HEAD")).ok()?;
    let Some(reference) = head.strip_prefix("ref:").map(str::trim) else { return hash(&head) };
    // Branches of a linked work tree are in the folder of the repository.
    let common = read_text(&folder.join("commondir")).ok();
    let common = common.map_or_else(|| folder.to_owned(), |path| folder.join(path.trim()));
    let loose = [folder, &common].into_iter().find_map(|parent| read_text(&parent.join(reference)).ok());
    if let Some(text) = loose {
        return hash(&text);
    }
    // Has a line for each branch and tag, so its length is not limited.
    let (packed, _) = open(&common.join("packed-refs"), Links::Follow).ok()?;
    let mut lines = BufReader::new(packed).lines().map_while(Result::ok);
    lines.find_map(|line| {
        line.split_once(' ').filter(|(_, name)| *name == reference).and_then(|(id, _)| hash(id))
    })
}

fn hash(text: &str) -> Option<String> {
    let text = text.trim();
    let is_hash = matches!(text.len(), 40 | 64) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hash.then(|| text.to_owned())
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn commits_are_read_from_loose_packed_and_detached_heads() {
        let root = std::env::temp_dir().join(format!("trainer-git-{}", std::process::id()));
        let git = root.join(".git");
        fs::create_dir_all(git.join("refs/heads")).unwrap();
        let one = "1".repeat(40);
        let other = "a".repeat(40);
        fs::write(git.join("HEAD"), "ref: refs/heads/main\n").unwrap();
        assert_eq!(commit_of(&git), None);
        let tags: String = (0..400_000).map(|nth| format!("{one} refs/tags/{nth}\n")).collect();
        fs::write(git.join("packed-refs"), format!("# pack-refs\n{tags}{other} refs/heads/main\n")).unwrap();
        assert_eq!(commit_of(&git_folder(&root).unwrap()), Some(other.clone()));
        fs::write(git.join("refs/heads/main"), format!("{one}\n")).unwrap();
        assert_eq!(commit_of(&git), Some(one));
        fs::write(git.join("HEAD"), format!("{other}\n")).unwrap();
        assert_eq!(commit_of(&git), Some(other.clone()));

        let (tree, own) = (root.join("tree"), git.join("worktrees/tree"));
        fs::create_dir_all(&tree).unwrap();
        fs::create_dir_all(&own).unwrap();
        fs::write(tree.join(".git"), format!("gitdir: {}\n", own.display())).unwrap();
        fs::write(own.join("HEAD"), "ref: refs/heads/main\n").unwrap();
        fs::write(own.join("commondir"), "../..\n").unwrap();
        assert_eq!(commit_of(&git_folder(&tree).unwrap()), Some("1".repeat(40)));
        fs::remove_dir_all(root).unwrap();
    }
}
