//! Mapping the names of tensors in a file to those of the variables of a task.

use std::fmt;

use wildmatch::WildMatch;

use crate::error::{Error, Result, suggestion_for_pattern};

/// Maps the name of a tensor to a new one; `None` skips the tensor.
type Function<'a> = Box<dyn Fn(&str) -> Option<String> + 'a>;

/// One step of the mapping.
enum Rule<'a> {
    Function(Function<'a>),
    Pattern { from: String, to: String },
    Skip(String),
}

/// The mapping: each rule is applied to the result of the one before it.
#[derive(Default)]
pub(super) struct Rules<'a>(Vec<Rule<'a>>);

impl<'a> Rules<'a> {
    pub(super) fn add_function(&mut self, function: impl Fn(&str) -> Option<String> + 'a) {
        self.0.push(Rule::Function(Box::new(function)));
    }

    pub(super) fn add_pattern(&mut self, from: String, to: String) {
        self.0.push(Rule::Pattern { from, to });
    }

    pub(super) fn add_skip(&mut self, pattern: String) {
        self.0.push(Rule::Skip(pattern));
    }

    /// Applies the rules to the names of the tensors in a file. The result is `None` for each
    /// tensor to skip.
    ///
    /// # Errors
    ///
    /// Returns an error if a pattern matches no name, or if its new name has more `*` than the
    /// pattern.
    pub(super) fn apply(&self, names: &[String]) -> Result<Vec<Option<String>>> {
        let mut mapped: Vec<Option<String>> = names.iter().cloned().map(Some).collect();
        for rule in &self.0 {
            let mut has_matched = false;
            let before: Vec<String> = mapped.iter().flatten().cloned().collect();
            for name in &mut mapped {
                let Some(old) = name.take() else { continue };
                *name = match rule {
                    Rule::Function(function) => {
                        has_matched = true;
                        function(&old)
                    }
                    Rule::Skip(pattern) if WildMatch::new(pattern).matches(&old) => {
                        has_matched = true;
                        None
                    }
                    Rule::Pattern { from, to } => match captures(from, &old) {
                        Some(texts) => {
                            has_matched = true;
                            Some(replaced(from, to, &texts)?)
                        }
                        None => Some(old),
                    },
                    Rule::Skip(_) => Some(old),
                };
            }
            let names = before.iter().map(String::as_str);
            match rule {
                Rule::Pattern { from, .. } | Rule::Skip(from) if !has_matched => {
                    return Err(Error::usage(format!(
                        "{rule:?}: no tensor has a name that matches{}",
                        suggestion_for_pattern(from, names)
                    )));
                }
                _ => {}
            }
        }
        Ok(mapped)
    }
}

/// Formats the rule as the call that added it.
impl fmt::Debug for Rule<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rule::Function(_) => f.write_str("`.rename(…)`"),
            Rule::Pattern { from, to } => write!(f, "`.rename_pattern({from:?}, {to:?})`"),
            Rule::Skip(pattern) => write!(f, "`.skip({pattern:?})`"),
        }
    }
}

/// Returns the text that each `*` of a pattern matches in a name, each as short as possible; `None`
/// if the pattern does not match. All other characters, including `?`, are literal.
fn captures<'n>(pattern: &str, name: &'n str) -> Option<Vec<&'n str>> {
    let mut parts = pattern.split('*');
    let mut rest = name.strip_prefix(parts.next()?)?;
    let mut texts = Vec::new();
    let mut parts = parts.peekable();
    while let Some(part) = parts.next() {
        let end = if parts.peek().is_some() {
            rest.find(part)?
        } else if rest.ends_with(part) {
            rest.len() - part.len()
        } else {
            return None;
        };
        texts.push(&rest[..end]);
        rest = &rest[end + part.len()..];
    }
    rest.is_empty().then_some(texts)
}

/// Replaces each `*` of the new name with the matched text at the same position.
fn replaced(from: &str, to: &str, texts: &[&str]) -> Result<String> {
    let mut texts = texts.iter();
    let mut parts = to.split('*');
    let mut name = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        name += texts.next().ok_or_else(|| {
            Error::usage(format!(
                "`.rename_pattern({from:?}, {to:?})`: the new name has more `*` than the pattern"
            ))
        })?;
        name += part;
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::{captures, replaced};

    #[test]
    fn each_wildcard_matches_as_few_characters_as_possible() {
        let cases: [(&str, &str, Option<&[&str]>); 9] = [
            ("module.*", "module.fc.weight", Some(&["fc.weight"])),
            ("*", "fc", Some(&["fc"])),
            ("*.gamma", "a.gamma.gamma", Some(&["a.gamma"])),
            ("layers.*.fc*.weight", "layers.0.fc1.weight", Some(&["0", "1"])),
            ("*.*", "a.b.c", Some(&["a", "b.c"])),
            ("fc", "fc", Some(&[])),
            ("fc", "fc1", None),
            ("module.*", "fc", None),
            ("a*a", "a", None),
        ];
        for (pattern, name, expected) in cases {
            assert_eq!(captures(pattern, name).as_deref(), expected, "{pattern} {name}");
        }
        assert_eq!(replaced("*.*", "*:*", &["a", "b"]).unwrap(), "a:b");
        assert_eq!(replaced("*.*", "x", &["a", "b"]).unwrap(), "x");
        assert!(replaced("a", "*", &[]).is_err());
    }
}
