//! Rewrites the pages of the guide, which are plain Markdown that reads well in the repository, for
//! rustdoc. CONTRIBUTING.md says how a page is written.

use std::fmt::Write as _;
use std::path::Path;
use std::{fs, io};

/// The start of a comment with lines that belong to the example beside it, but are not shown.
const HIDDEN: &str = "<!-- hidden:";

/// The start of a comment with lines that belong to each Rust example after it, but are not shown.
const HIDDEN_IN_EACH: &str = "<!-- hidden in each example:";

/// Writes all pages of a folder into another one.
///
/// # Errors
///
/// Returns the page and the line of something that cannot be rewritten.
pub(crate) fn write(from: &Path, to: &Path) -> Result<(), String> {
    let at = |path: &Path, error: io::Error| format!("{}: {error}", path.display());
    fs::create_dir_all(to).map_err(|error| at(to, error))?;
    for entry in fs::read_dir(from).map_err(|error| at(from, error))? {
        let page = entry.map_err(|error| at(from, error))?.path();
        if page.extension().is_some_and(|extension| extension == "md") {
            let text = fs::read_to_string(&page).map_err(|error| at(&page, error))?;
            let text = for_rustdoc(&page, &text)
                .map_err(|(line, reason)| format!("{}:{line}: {reason}", page.display()))?;
            let out = to.join(page.file_name().expect("a file has a name"));
            fs::write(&out, text).map_err(|error| at(&out, error))?;
        }
    }
    Ok(())
}

/// Returns the text of a page for rustdoc, or the number of a line and what is wrong with it.
fn for_rustdoc(page: &Path, text: &str) -> Result<String, (usize, String)> {
    let mut out = String::new();
    let mut in_each = String::new();
    let mut lines = text.lines().enumerate().peekable();
    // The name of the module is the title.
    lines.next_if(|(_, line)| line.starts_with("# ")).ok_or((1, "there is no title".to_owned()))?;
    while let Some((number, line)) = lines.next() {
        let fail = |reason: String| (number + 1, reason);
        if let Some(start) = line.strip_prefix(HIDDEN_IN_EACH) {
            in_each = hidden(start, &mut lines).map_err(fail)?;
        } else if let Some(start) = line.strip_prefix(HIDDEN) {
            let hidden = hidden(start, &mut lines).map_err(fail)?;
            // Before an example, or after the one that has just ended.
            match lines.next_if(|(_, line)| line.starts_with("```rust")) {
                Some((_, fence)) => {
                    out += &format!("{fence}\n{in_each}{hidden}");
                    example(&mut out, &mut lines).map_err(fail)?;
                }
                None if out.ends_with("\n```\n") => {
                    out.truncate(out.len() - "```\n".len());
                    out += &format!("{hidden}```\n");
                }
                None => return Err(fail("hidden lines touch no example".into())),
            }
        } else if line.starts_with("```") {
            let in_each = if line.starts_with("```rust") { &*in_each } else { "" };
            out += &format!("{line}\n{in_each}");
            example(&mut out, &mut lines).map_err(fail)?;
        } else if line.starts_with("##") {
            out += &format!("{}\n", &line[1..]);
        } else {
            out += &format!("{}\n", links(line, page).map_err(fail)?);
        }
    }
    Ok(out)
}

type Lines<'a> = std::iter::Peekable<std::iter::Enumerate<std::str::Lines<'a>>>;

/// Returns the lines of a comment, as rustdoc hides them.
fn hidden(start: &str, lines: &mut Lines<'_>) -> Result<String, String> {
    if let Some(line) = start.strip_suffix("-->") {
        return Ok(format!("# {}\n", line.trim()));
    }
    let mut out = String::new();
    for (_, line) in lines {
        if line == "-->" {
            return Ok(out);
        }
        out += &format!("# {line}\n");
    }
    Err("the comment has no end".into())
}

/// Writes the lines of an example and its end. `#[test]` is shown, but not compiled: hidden lines can
/// then call the function.
fn example(out: &mut String, lines: &mut Lines<'_>) -> Result<(), String> {
    for (_, line) in lines {
        *out += &match line {
            "#[test]" => "# /*\n#[test]\n# */\n".to_owned(),
            line => format!("{line}\n"),
        };
        if line == "```" {
            return Ok(());
        }
    }
    Err("the example has no end".into())
}

/// Rewrites the links of a line.
fn links(line: &str, page: &Path) -> Result<String, String> {
    let name = page.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let mut out = String::new();
    let mut rest = line;
    while let Some(middle) = rest.find("](") {
        let end = rest[middle..].find(')').ok_or("a link has no end in this line")? + middle;
        let target = &rest[middle + 2..end];
        if target.ends_with(".png") {
            let data = fs::read(page.with_file_name(target)).map_err(|error| format!("{target}: {error}"))?;
            out += &format!("{}(data:image/png;base64,{})", &rest[..=middle], base64(&data));
        } else if let Some(target) = target_for_rustdoc(target, name) {
            out += &format!("{}({target})", &rest[..=middle]);
        } else {
            // Only the repository has this file.
            let text = rest[..middle].rfind('[').ok_or("the text of this link begins in another line")?;
            out += &rest[..text];
            out += &rest[text + 1..middle];
        }
        rest = &rest[end + 1..];
    }
    Ok(out + rest)
}

/// Returns the target of a link in rustdoc, or nothing if it has none.
fn target_for_rustdoc(target: &str, page: &str) -> Option<String> {
    if target.starts_with("https://") {
        return Some(target.to_owned());
    }
    let (file, fragment) = target.split_once('#').unwrap_or((target, ""));
    // The list of modules repeats the first sentence of a page.
    let file = if file.is_empty() { page } else { file };
    if let Some(page) = file.strip_suffix(".md").filter(|page| !page.contains('/')) {
        let page = if page == "README" { String::new() } else { format!("::{page}") };
        let fragment = if fragment.is_empty() { String::new() } else { format!("#{fragment}") };
        return Some(format!("crate::guide{page}{fragment}"));
    }
    // A migration page, which a module of its own shows.
    let migration = file.strip_prefix("../../trainer-macros/migration/");
    if let Some(framework) = migration.and_then(|file| file.strip_suffix(".md")) {
        return Some(format!("mod@crate::migration::{framework}"));
    }
    if !file.ends_with(".rs") || fragment.is_empty() {
        return None;
    }
    // A path, with the kind of the item before it and a section of its documentation after it:
    // `macro@lifecycle`, `Cx/observers`.
    let (kind, path) = match fragment.split_once('@') {
        Some((kind, path)) => (format!("{kind}@"), path),
        None => (String::new(), fragment),
    };
    Some(format!("{kind}crate::{}", path.replacen('/', "#", 1)))
}

/// Encodes bytes as in RFC 4648, section 4.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for chunk in bytes.chunks(3) {
        let bits = chunk.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte));
        let bits = bits << (8 * (3 - chunk.len()));
        for digit in 0..4 {
            let _ = match digit <= chunk.len() {
                true => write!(out, "{}", char::from(DIGITS[(bits >> (18 - 6 * digit)) as usize & 63])),
                false => write!(out, "="),
            };
        }
    }
    out
}
