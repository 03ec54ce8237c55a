//! Patterns that match module names.

use std::borrow::Cow;
use std::fmt;

use wildmatch::WildMatch;

use crate::error::suggestion_for_pattern;

/// A pattern that matches module names, such as `encoder.*`.
#[derive(Clone, PartialEq, Eq)]
pub struct ModulePattern {
    pub(crate) text: Cow<'static, str>,
    /// Whether the pattern is allowed to match no module.
    pub(crate) optional: bool,
}

impl ModulePattern {
    /// Creates a pattern that must match at least one module.
    #[must_use]
    pub const fn new(text: &'static str) -> Self {
        ModulePattern { text: Cow::Borrowed(text), optional: false }
    }

    /// Allows the pattern to match no module.
    #[must_use]
    pub const fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    /// Returns whether the pattern is allowed to match no module.
    #[must_use]
    pub const fn is_optional(&self) -> bool {
        self.optional
    }

    /// Returns whether the pattern matches a name.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        WildMatch::new(&self.text).matches(name)
    }

    /// Returns a hint for a pattern that matches no candidate: that case matters, if the pattern
    /// would otherwise match, or else what [`did_you_mean`](crate::did_you_mean) returns.
    #[must_use]
    pub fn did_you_mean<'a>(&self, candidates: impl IntoIterator<Item = &'a str>) -> String {
        suggestion_for_pattern(&self.text, candidates)
    }
}

/// Formats the pattern as it is written in an attribute, but without quotes: `encoder.*`,
/// `optional(head)`.
impl fmt::Display for ModulePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.optional { write!(f, "optional({})", self.text) } else { f.write_str(&self.text) }
    }
}

impl fmt::Debug for ModulePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.to_string(), f)
    }
}

/// Patterns of module or parameter names, which select what a hook observes. Unlike the patterns in
/// an attribute, they are chosen at run time.
///
/// In a pattern, `*` matches any text and `?` any single character. A string converts to one
/// pattern, and an array or a vector of strings to several. An empty string, array or vector
/// matches no name, which is an error when the trainer is built or, for parameters, when `fit`
/// begins. The default matches every name.
///
/// To make the modules of a hook configurable, store the patterns in a field and name that field in
/// the attribute:
///
/// ```standalone_crate
/// use trainer::modules::Patterns;
/// use trainer::prelude::*;
///
/// /// Counts the calls of some modules.
/// struct Calls {
///     modules: Patterns,
///     count: u64,
/// }
///
/// #[hook]
/// impl Calls {
///     #[hook(of = self.modules)]
///     fn after_module_forward(&mut self, _: &Cx<AfterModuleForward>) {
///         self.count += 1;
///     }
/// }
///
/// fn main() {
///     let calls = Calls { modules: ["encoder.*", "head"].into(), count: 0 };
///     assert_eq!(calls.count, 0);
/// }
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Patterns(pub(crate) Vec<ModulePattern>);

impl fmt::Debug for Patterns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.0).finish()
    }
}

impl Patterns {
    /// Returns patterns that match every name.
    #[must_use]
    pub fn all() -> Self {
        Patterns::default()
    }

    /// Adds a pattern that is allowed to match no module or parameter.
    #[must_use]
    pub fn optional(mut self, pattern: impl Into<String>) -> Self {
        self.0.push(ModulePattern { text: Cow::Owned(pattern.into()), optional: true });
        self
    }

    /// The patterns, in the order in which they were added.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &ModulePattern> {
        self.0.iter()
    }

    /// Returns whether a name matches one of the patterns. Without patterns, every name matches.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        is_for(&self.0, name)
    }
}

/// Returns whether a hook with these patterns observes modules of this name. An empty list matches
/// every name.
pub(crate) fn is_for(patterns: &[ModulePattern], name: &str) -> bool {
    patterns.is_empty() || patterns.iter().any(|pattern| pattern.matches(name))
}

impl From<&str> for Patterns {
    fn from(pattern: &str) -> Self {
        pattern.to_owned().into()
    }
}

impl From<String> for Patterns {
    fn from(pattern: String) -> Self {
        Patterns(vec![ModulePattern { text: Cow::Owned(pattern), optional: false }])
    }
}

impl<S: Into<String>, const N: usize> From<[S; N]> for Patterns {
    fn from(patterns: [S; N]) -> Self {
        patterns.into_iter().collect()
    }
}

impl<S: Into<String>> From<Vec<S>> for Patterns {
    fn from(patterns: Vec<S>) -> Self {
        patterns.into_iter().collect()
    }
}

impl<S: Into<String>> FromIterator<S> for Patterns {
    fn from_iter<I: IntoIterator<Item = S>>(patterns: I) -> Self {
        let mut patterns: Vec<_> = (patterns.into_iter())
            .map(|text| ModulePattern { text: Cow::Owned(text.into()), optional: false })
            .collect();
        if patterns.is_empty() {
            patterns.push(ModulePattern::new("")); // matches no name, so `build` reports it
        }
        Patterns(patterns)
    }
}

/// A field type that can hold the patterns of a hook, as in `of = self.modules`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a list of patterns of module names",
    label = "expected `Patterns`, a string or a list of strings",
    note = "store a `trainer::modules::Patterns` in the hook, and name its field: `of = self.modules`"
)]
pub trait AsPatterns {
    /// Returns the patterns.
    fn patterns(&self) -> Patterns;
}

#[diagnostic::do_not_recommend]
impl<T: Clone + Into<Patterns>> AsPatterns for T {
    fn patterns(&self) -> Patterns {
        self.clone().into()
    }
}
