//! The public paths of this crate's types.

use std::borrow::Cow;

/// The public modules of this crate whose types are defined in private modules below them.
const OPEN: [&str; 3] = ["hooks", "loggers", "metrics"];

/// Replaces each type of this crate in a path or type name with its public path:
/// `trainer::metrics::MetricHook` instead of `trainer::metrics::hook::MetricHook`. The macro, like
/// rustc, only knows where a type is defined.
pub(crate) fn public_path(path: &str) -> Cow<'_, str> {
    if !path.contains(concat!(env!("CARGO_CRATE_NAME"), "::")) {
        return Cow::Borrowed(path);
    }
    let mut public = String::new();
    let mut rest = path;
    while !rest.is_empty() {
        let end = rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_' && letter != ':');
        let (word, after) = rest.split_at(end.unwrap_or(rest.len()));
        match word.split("::").collect::<Vec<_>>()[..] {
            [krate, open, _, .., name] if krate == env!("CARGO_CRATE_NAME") && OPEN.contains(&open) => {
                public.extend([krate, "::", open, "::", name]);
            }
            _ => public.push_str(word),
        }
        let separator = after.chars().next();
        public.extend(separator);
        rest = &after[separator.map_or(0, char::len_utf8)..];
    }
    if public == path { Cow::Borrowed(path) } else { Cow::Owned(public) }
}
