//! The arguments of `#[hook(…)]`.

use proc_macro2::{Delimiter, Ident, Span, TokenStream, TokenTree};
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::parse::Parser;
use syn::spanned::Spanned;
use syn::{
    Expr, ExprField, ExprLit, ExprPath, ExprUnary, Lit, LitBool, LitInt, LitStr, Member, Path, TypePath, UnOp,
};

use super::foreign;
use crate::errors::Errors;
use crate::keys::{Form, nearest, split_at_commas};
use crate::lifecycle::pascal;
use crate::moments::{is_marker, is_nearly_a_point, is_operation, is_point};

/// The keys, for suggestions.
const KEYS: [&str; 18] = [
    "ord",
    "only",
    "every",
    "when",
    "of",
    "in",
    "before",
    "after",
    "auto",
    "single",
    "state",
    "settings",
    "variables",
    "trial",
    "observes",
    "writes",
    "more",
    "crate",
];

/// The keys that need no value.
const FLAGS: [&str; 9] =
    ["auto", "single", "state", "settings", "variables", "trial", "observes", "writes", "more"];

/// Words of other libraries for a key.
const SYNONYMS: [(&str, &[&str]); 13] = [
    ("when", &["if", "cond", "condition", "predicate", "run_if", "only_if", "guard", "filter"]),
    ("ord", &["order", "priority", "level"]),
    ("only", &["phase", "phases", "mode"]),
    ("in", &["set", "sets", "stage", "group", "in_set", "member_of"]),
    ("every", &["freq", "frequency", "interval", "period", "each"]),
    ("of", &["layer", "layers", "module", "modules", "target"]),
    ("auto", &["default", "automatic", "auto_register", "register"]),
    ("single", &["singleton", "unique", "once"]),
    ("state", &["stateful", "save", "saves", "saved", "state_dict", "checkpoint", "resume"]),
    ("settings", &["config", "options"]),
    ("variables", &["vars", "parameters", "params", "weights", "buffers"]),
    ("writes", &["write", "output", "outputs", "io", "side_effects"]),
    ("more", &["also", "second", "another", "further", "extend", "extends"]),
];

/// Words for a hook around an operation, which the type of its second argument replaces.
const AROUND: [&str; 6] = ["around", "wrap", "wraps", "wrapping", "surround", "replace"];
/// Words for the moment of a hook, which the type of its context replaces.
const MOMENT: [&str; 5] = ["at", "on", "point", "moment", "event"];
/// Words for a hook on rank 0 only, which the type of its context replaces.
const MAIN: [&str; 7] =
    ["main", "rank", "rank0", "rank_0", "rank_zero_only", "main_process_only", "master_only"];

/// Returns whether a word means a hook on rank 0 only.
fn is_main_only(word: &str) -> bool {
    MAIN.contains(&word) || strsim::damerau_levenshtein(word, "main_only") <= 2
}

/// Returns the key that is probably meant by a word, one of `keys`.
fn meant(word: &str, keys: &[&'static str]) -> Option<&'static str> {
    let synonym = SYNONYMS.iter().find(|(_, words)| words.contains(&word)).map(|(key, _)| *key);
    synonym.filter(|key| keys.contains(key)).or_else(|| nearest(word, keys.iter().copied()))
}

/// The module of `trainer` whose names editors suggest for a key.
const LATER: &[&str] = &["language"];
/// The module of `trainer` whose names editors suggest for a phase.
const PHASES: &[&str] = &["phase"];

/// The arguments of one `#[hook(…)]`.
#[derive(Default)]
pub(super) struct Arguments {
    /// `ord = <expression of type i32>`.
    pub(super) ord: Option<Expr>,
    /// `only = phase`, `only(phase, …)`, `only = self.phases`.
    pub(super) only: Option<Only>,
    /// `every = <expression>`, of the value if it begins with `self`, and the span of the key.
    pub(super) every: Option<(Expr, Span)>,
    /// `when = path`: a function of the context.
    pub(super) when: Option<ExprPath>,
    /// `of = "encoder.*"`, `of("a", optional("b"))`, `of = self.patterns`: the modules.
    pub(super) of: Option<Of>,
    /// `in = set`, `in(set, …)`.
    pub(super) sets: Vec<Path>,
    /// `before = hook`, `before(hook, …)`.
    pub(super) before: Vec<Target>,
    /// `after = hook`, `after(hook, …)`.
    pub(super) after: Vec<Target>,
    /// The span of the flag `auto`.
    pub(super) auto: Option<Span>,
    /// The value of `auto`, if it has one.
    pub(super) auto_if: Option<AutoIf>,
    /// The span of the key `single`.
    pub(super) single: Option<Span>,
    /// The value of `single`, if it has one: another type.
    pub(super) single_of: Option<Path>,
    /// `state`, `state = self.<field>`.
    pub(super) state: Option<SavedState>,
    /// The span of the flag `settings`.
    pub(super) settings: Option<Span>,
    /// The span of the flag `variables`.
    pub(super) variables: Option<Span>,
    /// The span of the flag `observes`.
    pub(super) observes: Option<Span>,
    /// The span of the flag `writes`.
    pub(super) writes: Option<Span>,
    /// The span of the flag `more`.
    pub(super) more: Option<Span>,
    /// `trial`, `trial = false`.
    pub(super) trial: Option<bool>,
    /// `crate = path`: the path of the `trainer` crate.
    pub(super) krate: Option<Path>,
    /// Words that the types in the signature replace.
    pub(super) moved: Vec<(Span, Moved)>,
    /// Every key that was given, to detect duplicates.
    keys: Vec<Ident>,
    /// Every word that is or may become a name, with the module of `trainer` whose names editors
    /// suggest for it.
    pub(super) words: Vec<(&'static [&'static str], Ident)>,
}

/// A word that a type in the signature of a hook replaces.
pub(super) enum Moved {
    /// The point of a hook, as written, and the name of its marker type if it is known.
    Point(String, Option<String>),
    /// The operation that a hook goes around, as written, and its marker type if it is known.
    Around(String, Option<String>),
    /// `main_only`, or a similar word.
    MainOnly(String),
}

/// The value of the key `auto`.
pub(super) enum AutoIf {
    /// `auto = ranks`.
    Ranks,
    /// `auto = path`: a function without arguments.
    Path(Path),
}

/// The value of the key `only`.
pub(super) enum Only {
    /// Names in `trainer::phase`.
    Phases(Vec<Ident>),
    /// An expression of the hook's value: `self.phases`.
    Value(Box<Expr>),
}

fn text_in_quotes(literal: &proc_macro2::Literal) -> String {
    literal.to_string().trim_matches('"').to_owned()
}

/// Returns whether an expression is one of the hook's value: `self.every`.
pub(super) fn is_of_value(expression: &Expr) -> bool {
    begins_with_self(&expression.to_token_stream())
}

fn begins_with_self(tokens: &TokenStream) -> bool {
    let mut tokens = tokens.clone().into_iter();
    match tokens.next() {
        // Not the path `self::name`.
        Some(TokenTree::Ident(word)) => {
            word == "self" && tokens.next().is_none_or(|next| next.to_string() != ":")
        }
        Some(TokenTree::Group(group)) if group.delimiter() != Delimiter::Brace => {
            begins_with_self(&group.stream())
        }
        _ => false,
    }
}

/// Returns the first word of an expression, also within parentheses or the invisible group of a
/// macro.
pub(super) fn first_word(tokens: &TokenStream) -> Option<Ident> {
    match tokens.clone().into_iter().next()? {
        TokenTree::Ident(word) => Some(word),
        TokenTree::Group(group) if group.delimiter() != Delimiter::Brace => first_word(&group.stream()),
        _ => None,
    }
}

/// The value of the key `of`.
pub(super) enum Of {
    /// Patterns of module names, each with whether it is optional.
    Patterns(Vec<(LitStr, bool)>),
    /// An expression of the hook's value: `self.patterns`.
    Value(Box<Expr>),
}

impl Of {
    /// Returns the span at which its mistakes are reported.
    pub(super) fn span(&self) -> Span {
        match self {
            Of::Patterns(patterns) => patterns.first().map_or_else(Span::call_site, |(text, _)| text.span()),
            Of::Value(value) => value.span(),
        }
    }
}

/// The value of the key `state`.
pub(super) struct SavedState {
    /// The span of the key.
    pub(super) span: Span,
    /// The field that is saved, or `None` if the type itself has a state.
    pub(super) field: Option<Member>,
}

/// A target of `before` or `after`.
pub(super) struct Target {
    /// The path of a hook function or hook type.
    pub(super) path: Path,
    /// Whether it was written `optional(…)`, so that it may be absent.
    pub(super) optional: bool,
}

impl Arguments {
    /// Parses each argument separately, so that one mistake does not hide the next.
    pub(super) fn parse(tokens: TokenStream, errors: &mut Errors) -> Self {
        let mut arguments = Arguments::default();
        for argument in split_at_commas(tokens) {
            arguments.parse_one(argument, errors);
        }
        arguments
    }

    /// Returns the paths of hooks, sets and functions in the values of keys, without generic
    /// arguments.
    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        let targets = self.before.iter().chain(&self.after).map(|target| &target.path);
        let when = self.when.iter().filter(|when| when.qself.is_none()).map(|when| &when.path);
        let paths = targets.chain(&self.sets).chain(when);
        paths.filter(|path| path.segments.iter().all(|segment| segment.arguments.is_empty()))
    }

    fn parse_one(&mut self, argument: TokenStream, errors: &mut Errors) {
        let is_semicolon =
            |token: &TokenTree| matches!(token, TokenTree::Punct(punct) if punct.as_char() == ';');
        if let Some(semicolon) = argument.clone().into_iter().find(is_semicolon) {
            return errors.push(semicolon.span(), "expected a comma between two keys, found `;`");
        }
        let span = argument.span();
        let text = argument.to_string();
        let is_string = text.starts_with('"');
        let marker = known_marker(text.trim_matches('"'));
        let mut rest = argument.clone().into_iter();
        let first = rest.next();
        let rest: TokenStream = rest.collect();
        match (first, Form::of(&rest)) {
            (Some(TokenTree::Literal(quoted)), Form::Value(_) | Form::List(_)) if is_string => {
                let key = text_in_quotes(&quoted);
                errors.push(quoted.span(), format!("a key is written without quotes: `{key} = …`"));
            }
            (None, _) => errors.push(span, "expected an argument before this comma"),
            (Some(TokenTree::Ident(key)), form @ (Form::Value(_) | Form::List(_))) => {
                if !self.moved_key(&key, &form) {
                    self.set(&key, form, errors);
                }
            }
            (Some(TokenTree::Ident(key)), form @ Form::Nothing) if is_flag(&key.to_string()) => {
                self.set(&key, form, errors);
            }
            (Some(TokenTree::Ident(first)), Form::Other) if second_argument(&rest, true).is_some() => {
                let second = second_argument(&rest, true).unwrap_or(first);
                errors.push(second.span(), format!("expected a comma before `{second}`"));
            }
            (Some(TokenTree::Ident(key)), Form::Other) if colon(&rest).is_some() => {
                let at = colon(&rest).unwrap_or(span);
                errors.push(at, format!("expected `=`: write `{key} = …`"));
            }
            _ => match Path::parse_mod_style.parse2(argument) {
                Ok(path) => self.word(&path, errors),
                Err(_) if is_string => self.moved.push((span, Moved::Point(text, marker))),
                Err(_) => errors.push(
                    span,
                    "expected a key, as in `#[hook(auto)]`, or `<key> = <value>`, as in `#[hook(ord = 10)]`",
                ),
            },
        }
    }

    /// Notes a key that a type in the signature replaces, such as `around = backward`. Returns
    /// whether it is one.
    fn moved_key(&mut self, key: &Ident, form: &Form) -> bool {
        let name = key.to_string();
        if KEYS.contains(&&*name) {
            return false;
        }
        let (Form::Value(value) | Form::List(value)) = form else { return false };
        let moment = Path::parse_mod_style.parse2(value.clone()).ok();
        let text = moment.as_ref().map_or_else(|| "…".into(), text_of);
        let marker = moment.as_ref().and_then(marker_meant);
        let moved = match &*name {
            around if AROUND.contains(&around) => {
                let marker = marker.filter(|marker| !is_point_marker(marker));
                Moved::Around(format!("{name} = {text}"), marker)
            }
            word if MOMENT.contains(&word) => Moved::Point(format!("{name} = {text}"), marker),
            main if is_main_only(main) => Moved::MainOnly(name),
            point if is_nearly_a_point(point) => Moved::Point(name.clone(), known_marker(&name)),
            _ => return false,
        };
        self.moved.push((key.span(), moved));
        true
    }

    /// Reports a word that is not a key. A moment, which a type in the signature replaces, is only
    /// noted.
    fn word(&mut self, path: &Path, errors: &mut Errors) {
        let Some(word) = path.get_ident() else {
            let span = path.segments.last().map_or_else(|| path.span(), |last| last.ident.span());
            self.moved.push((span, Moved::Point(text_of(path), marker_meant(path))));
            return;
        };
        self.words.push((LATER, word.clone()));
        let name = word.to_string();
        let follows_only = self.keys.last().is_some_and(|key| key == "only");
        let help = match &*name {
            key if KEYS.contains(&key) => format!("expected {}", form_of(key)),
            phase if follows_only && crate::phases::PHASES.contains(&phase) => {
                format!("name all phases in one list: `only(…, {phase})`")
            }
            main if is_main_only(main) => {
                return self.moved.push((word.span(), Moved::MainOnly(name)));
            }
            moment if is_point(moment) || is_marker(moment) || is_operation(moment) => {
                let marker = marker_meant(path);
                return self.moved.push((word.span(), Moved::Point(name, marker)));
            }
            phase if crate::phases::PHASES.contains(&phase) => {
                format!("a phase is a value of the key `only`: write `only = {phase}`")
            }
            _ => match (foreign::translate(&name), meant(&name, &FLAGS)) {
                (Some(ours), _) => ours.message(&name),
                (None, Some(flag)) => format!("`#[hook]` has no key `{name}`; did you mean `{flag}`?"),
                (None, None) if is_like_a_point(&name) => {
                    return self.moved.push((word.span(), Moved::Point(name, None)));
                }
                (None, None) => match meant(&name, &KEYS) {
                    Some(key) => format!("`#[hook]` has no key `{name}`; did you mean {}?", form_of(key)),
                    None if name.starts_with(char::is_uppercase) => {
                        format!("`#[hook]` has no key `{name}`; a set of hooks is named with `in = <set>`")
                    }
                    None => format!("`#[hook]` has no key `{name}`; expected one of {}", listed()),
                },
            },
        };
        errors.push(word.span(), help);
    }

    fn set(&mut self, key: &Ident, form: Form, errors: &mut Errors) {
        let name = key.to_string();
        let span = key.span();
        if self.keys.contains(key) {
            let help = match name.as_str() {
                "of" => ": write `of(\"encoder.*\", \"head\")`",
                "only" => ": name all phases in one list",
                "before" | "after" => ": name all hooks in one list",
                "in" => ": name all sets in one list",
                _ => "",
            };
            return errors.push(span, format!("duplicate key `{name}`{help}"));
        }
        self.keys.push(key.clone());
        let completed = if name == "in" { Ident::new_raw("in", span) } else { key.clone() };
        self.words.extend((key != "crate").then_some((LATER, completed)));
        if let Form::Value(value) = &form
            && let Some(TokenTree::Punct(second)) = value.clone().into_iter().next()
            && second.as_char() == '='
        {
            return errors.push(second.span(), format!("expected one `=`: write `{name} = …`"));
        }
        match (name.as_str(), form) {
            ("ord", Form::Value(value)) => self.ord = integer("ord", value, span, errors),
            ("every", Form::Value(value)) => self.every = positive(value, span, errors),
            ("when", Form::Value(value)) => self.when = condition(value, span, errors),
            ("only", Form::Value(list) | Form::List(list)) => {
                self.words.extend(placeholder(&list, "train").map(|phase| (PHASES, phase)));
                self.only = only(list, span, &mut self.words, errors);
            }
            ("of", Form::Value(list) | Form::List(list)) => self.of = modules(list, span, errors),
            ("in", Form::Value(list) | Form::List(list)) => self.sets = sets(list, span, errors),
            ("before", Form::Value(list) | Form::List(list)) => {
                self.before = targets(&name, list, span, errors);
            }
            ("after", Form::Value(list) | Form::List(list)) => {
                self.after = targets(&name, list, span, errors);
            }
            ("crate", Form::Value(value)) => self.krate = path(&name, value, span, errors),
            ("auto", Form::Nothing) => self.auto = Some(span),
            ("auto", Form::Value(value)) => {
                self.auto_if = auto_if(value, span, errors);
                self.auto = self.auto_if.is_some().then_some(span);
            }
            ("single", Form::Nothing) => self.single = Some(span),
            ("single", Form::Value(value)) => {
                self.single_of = path(&name, value, span, errors);
                self.single = self.single_of.is_some().then_some(span);
            }
            ("state", Form::Nothing) => self.state = Some(SavedState { span, field: None }),
            ("state", Form::Value(value)) => self.state = saved_field(value, span, errors),
            ("settings", Form::Nothing) => self.settings = Some(span),
            ("variables", Form::Nothing) => self.variables = Some(span),
            ("observes", Form::Nothing) => self.observes = Some(span),
            ("writes", Form::Nothing) => self.writes = Some(span),
            ("more", Form::Nothing) => self.more = Some(span),
            ("trial", Form::Nothing) => self.trial = Some(true),
            ("trial", Form::Value(value)) => self.trial = boolean("trial", value, span, errors),
            (known, _) if KEYS.contains(&known) => {
                errors.push(span, format!("expected {}", form_of(known)));
            }
            _ => {
                let help = match meant(&name, &KEYS) {
                    Some(nearest) => format!("did you mean `{nearest}`?"),
                    None => format!("expected one of {}", listed()),
                };
                errors.push(span, format!("`#[hook]` has no key `{name}`; {help}"));
            }
        }
    }
}

/// Returns `name` as a placeholder for a value that is not typed yet, because editors only complete
/// words that exist. Returns `None` if there is a value.
fn placeholder(value: &TokenStream, name: &str) -> Option<Ident> {
    value.is_empty().then(|| Ident::new(name, Span::call_site()))
}

/// Returns the parts of a list, and reports a list without any.
fn parts(key: &str, list: TokenStream, at: Span, errors: &mut Errors) -> Vec<TokenStream> {
    let span = if list.is_empty() { at } else { list.span() };
    let parts = split_at_commas(list);
    if parts.is_empty() {
        errors.push(span, format!("expected {}", form_of(key)));
    }
    parts
}

/// Returns the tokens within `optional(…)` and true, or else the same tokens and false.
fn optional(part: TokenStream) -> (TokenStream, bool) {
    let tokens: Vec<TokenTree> = part.clone().into_iter().collect();
    match &tokens[..] {
        [TokenTree::Ident(word), TokenTree::Group(group)] if word == "optional" => (group.stream(), true),
        _ => (part, false),
    }
}

/// Reports a second argument, the comma before which is missing, and then returns `None`.
fn check_single(argument: &TokenStream, errors: &mut Errors) -> Option<()> {
    let Some(second) = second_argument(argument, false) else { return Some(()) };
    errors.push(second.span(), format!("expected a comma before `{second}`"));
    None
}

/// Returns the span of the `:` in `ord: 10`.
fn colon(rest: &TokenStream) -> Option<Span> {
    let mut tokens = rest.clone().into_iter();
    match (tokens.next()?, tokens.next()?) {
        (TokenTree::Punct(colon), second) if colon.as_char() == ':' && second.to_string() != ":" => {
            Some(colon.span())
        }
        _ => None,
    }
}

/// Returns the key of a second argument, if the comma before it is missing. A word can only be one
/// if it follows a value.
fn second_argument(rest: &TokenStream, mut follows_a_value: bool) -> Option<Ident> {
    let mut tokens = rest.clone().into_iter().peekable();
    while let Some(token) = tokens.next() {
        let follows = std::mem::replace(&mut follows_a_value, !matches!(token, TokenTree::Punct(_)));
        let TokenTree::Ident(word) = token else { continue };
        if !follows {
            continue; // the field in `state = self.state`, the function in `every = of(2)`
        }
        let key = word.to_string();
        let is_key = match tokens.peek() {
            Some(TokenTree::Punct(punct)) => punct.as_char() == '=' && KEYS.contains(&&*key),
            Some(TokenTree::Group(_)) => KEYS.contains(&&*key),
            Some(_) => false,
            None => is_flag(&key),
        };
        if is_key {
            return Some(word);
        }
    }
    None
}

/// Returns whether a word looks like the name of a point.
pub(super) fn is_like_a_point(word: &str) -> bool {
    word.starts_with("before_") || word.starts_with("after_") || ["setup", "teardown"].contains(&word)
}

/// Returns the name of the marker type for the moment that a path names: `AfterStep` for
/// `after_step`, `AfterStep` and `trainer::at::after_step`.
fn marker_meant(path: &Path) -> Option<String> {
    let last = path.segments.last()?.ident.to_string();
    if path.segments.len() > 1 && !path.segments.iter().any(|segment| segment.ident == "trainer") {
        return None;
    }
    known_marker(&last)
}

/// Returns the name of the marker type with this name, or of the moment with this name.
fn known_marker(name: &str) -> Option<String> {
    let marker = if name.starts_with(char::is_uppercase) { name.to_owned() } else { pascal(name) };
    is_marker(&marker).then_some(marker)
}

/// Returns whether a marker type is that of a point.
fn is_point_marker(marker: &str) -> bool {
    is_point(&crate::lifecycle::snake(marker))
}

/// Returns whether a key takes no value.
fn is_flag(word: &str) -> bool {
    FLAGS.contains(&word)
}

/// Returns the syntax of a key.
fn form_of(key: &str) -> &'static str {
    match key {
        "ord" => "`ord = <integer>`",
        "every" => "`every = <integer>` of at least 1, or `every = self.<field>`",
        "when" => "`when = <path>` of a function that takes the context, `&Cx<…>`, and returns a `bool`",
        "only" => "`only = <phase>`, `only(<phase>, …)` or `only = self.<field>`",
        "of" => {
            "`of = \"<module>\"`, `of(\"<module>\", …)`, `of = optional(\"<module>\")` or `of = self.<field>`"
        }
        "in" => "`in = <set>` or `in(<set>, …)`",
        "before" => "`before = <hook>`, `before(<hook>, …)` or `before = optional(<hook>)`",
        "after" => "`after = <hook>`, `after(<hook>, …)` or `after = optional(<hook>)`",
        "crate" => "`crate = <path of the trainer crate>`",
        "auto" => "`auto`, `auto = ranks` or `auto = <path>` of a function that returns a `bool`",
        "state" => "`state` or `state = self.<field>`",
        "settings" => "`settings` without a value",
        "variables" => "`variables` without a value",
        "observes" => "`observes` without a value",
        "writes" => "`writes` without a value",
        "more" => "`more` without a value",
        "trial" => "`trial` or `trial = false`",
        _ => "`single` or `single = <type>`",
    }
}

/// Parses a constant expression. A literal must be an integer that fits into `i32`.
fn integer(key: &str, value: TokenStream, at: Span, errors: &mut Errors) -> Option<Expr> {
    if value.is_empty() {
        errors.push(at, format!("expected {}", form_of(key)));
        return None;
    }
    check_single(&value, errors)?;
    if begins_with_self(&value) {
        errors.push(
            value.span(),
            format!("`{key}` is a constant, and the same for all values of the type: write a number, or the path of a `const`"),
        );
        return None;
    }
    let expression = errors.keep(syn::parse2::<Expr>(value))?;
    let literal = match &expression {
        Expr::Lit(ExprLit { lit, .. }) => Some((lit, false)),
        Expr::Unary(ExprUnary { op: UnOp::Neg(_), expr, .. }) => match &**expr {
            Expr::Lit(ExprLit { lit, .. }) => Some((lit, true)),
            _ => None,
        },
        _ => None,
    };
    match literal {
        None => Some(expression),
        Some((Lit::Int(digits), negative)) => {
            let sign = if negative { "-" } else { "" };
            if format!("{sign}{}", digits.base10_digits()).parse::<i32>().is_err() {
                let message = format!(
                    "`{key}` is out of range for an `i32`: expected an integer from {} to {}",
                    i32::MIN,
                    i32::MAX
                );
                errors.push(expression.span(), message);
                return None;
            }
            Some(expression)
        }
        Some((other, _)) => {
            errors.push(expression.span(), format!("expected `{key} = <integer>`, found {}", kind_of(other)));
            None
        }
    }
}

/// Parses the condition of `auto`.
fn auto_if(value: TokenStream, at: Span, errors: &mut Errors) -> Option<AutoIf> {
    check_single(&value, errors)?;
    let span = value.span();
    let path = path("auto", value, at, errors)?;
    if path
        .get_ident()
        .is_some_and(|word| word != "ranks" && strsim::damerau_levenshtein(&word.to_string(), "ranks") <= 2)
    {
        errors.push(span, format!("expected {}", form_of("auto")));
        return None;
    }
    Some(if path.is_ident("ranks") { AutoIf::Ranks } else { AutoIf::Path(path) })
}

/// Parses `true` or `false`.
fn boolean(key: &str, value: TokenStream, at: Span, errors: &mut Errors) -> Option<bool> {
    let span = if value.is_empty() { at } else { value.span() };
    check_single(&value, errors)?;
    match syn::parse2::<LitBool>(value) {
        Ok(value) => Some(value.value),
        Err(_) => {
            errors.push(span, format!("expected {}", form_of(key)));
            None
        }
    }
}

/// Parses a constant expression, or one that begins with `self`. A literal must be a positive
/// integer.
fn positive(value: TokenStream, at: Span, errors: &mut Errors) -> Option<(Expr, Span)> {
    let span = if value.is_empty() { at } else { value.span() };
    check_single(&value, errors)?;
    let value = by_value(value, "every", errors)?;
    const UNITS: [&str; 10] = [
        "batch",
        "batches",
        "step",
        "steps",
        "epoch",
        "epochs",
        "record",
        "records",
        "iteration",
        "iterations",
    ];
    if UNITS.contains(&&*value.to_string()) {
        errors.push(
            span,
            "expected a number: the moment of the hook decides whether `every` counts batches, optimizer steps, epochs or records",
        );
        return None;
    }
    if let [TokenTree::Literal(_), TokenTree::Ident(unit)] =
        &value.clone().into_iter().collect::<Vec<_>>()[..]
    {
        errors.push(
            unit.span(),
            format!("remove `{unit}`: `every` counts the batches, optimizer steps, epochs or records of the hook's moment"),
        );
        return None;
    }
    let is_negative = value.to_string().starts_with('-');
    let message = match syn::parse2::<Expr>(value) {
        Ok(Expr::Lit(ExprLit { lit: Lit::Int(digits), .. }))
            if digits.base10_parse::<u64>().is_ok_and(|n| n == 0) =>
        {
            "expected `every = <integer>` of at least 1".into()
        }
        Ok(Expr::Lit(ExprLit { lit: Lit::Int(digits), .. })) if digits.base10_parse::<u64>().is_err() => {
            format!("`every` is out of range for a `u64`: expected an integer from 1 to {}", u64::MAX)
        }
        Ok(Expr::Lit(ExprLit { lit, .. })) if !matches!(lit, Lit::Int(_)) => {
            format!("expected `every = <integer>`, found {}", kind_of(&lit))
        }
        Ok(Expr::Lit(ExprLit { lit: Lit::Int(digits), attrs })) if digits.suffix().is_empty() => {
            let literal = LitInt::new(&format!("{}u64", digits.base10_digits()), digits.span());
            return Some((Expr::Lit(ExprLit { lit: Lit::Int(literal), attrs }), at));
        }
        Ok(_) if is_negative => "expected `every = <integer>` of at least 1".into(),
        Ok(expression) => return Some((expression, at)),
        Err(_) => format!("expected {}", form_of("every")),
    };
    errors.push(span, message);
    None
}

/// Reports a field of the value with a reference, `&self.field`, and then returns `None`.
fn by_value(value: TokenStream, key: &str, errors: &mut Errors) -> Option<TokenStream> {
    let mut tokens = value.clone().into_iter();
    let first = tokens.next();
    let rest: TokenStream = tokens.collect();
    match first {
        Some(TokenTree::Punct(reference)) if reference.as_char() == '&' && begins_with_self(&rest) => {
            let field = rest.to_string().replace(' ', "");
            errors.push(reference.span(), format!("write `{key} = {field}`, without `&`"));
            None
        }
        _ => Some(value),
    }
}

/// Parses phases, or an expression that begins with `self`.
fn only(
    list: TokenStream,
    at: Span,
    words: &mut Vec<(&'static [&'static str], Ident)>,
    errors: &mut Errors,
) -> Option<Only> {
    let list = by_value(list, "only", errors)?;
    if begins_with_self(&list) {
        check_single(&list, errors)?;
        return errors.keep(syn::parse2(list)).map(|value| Only::Value(Box::new(value)));
    }
    let phases = phases(list, at, words, errors);
    (!phases.is_empty()).then_some(Only::Phases(phases))
}

/// Parses each phase separately, so that one mistake does not hide the next.
fn phases(
    list: TokenStream,
    at: Span,
    words: &mut Vec<(&'static [&'static str], Ident)>,
    errors: &mut Errors,
) -> Vec<Ident> {
    if check_single(&list, errors).is_none() {
        return Vec::new();
    }
    let mut phases = Vec::new();
    for part in parts("only", list, at, errors) {
        match syn::parse2::<Ident>(part.clone()) {
            Ok(name) if phases.contains(&name) => {
                errors.push(name.span(), format!("duplicate phase `{name}`"));
            }
            Ok(name) => {
                words.push((PHASES, name.clone()));
                phases.extend(crate::phases::check(name, errors));
            }
            Err(_) => {
                if let Some(second) = second_word(&part) {
                    errors.push(second.span(), format!("expected a comma before `{second}`"));
                    continue;
                }
                let phase = last_word(&part).map(|last| last.to_lowercase());
                let phase = phase.filter(|phase| crate::phases::PHASES.contains(&&**phase));
                let help = phase.map_or_else(String::new, |phase| format!(": write `only = {phase}`"));
                errors.push(part.span(), format!("expected {}{help}", form_of("only")));
            }
        }
    }
    phases
}

/// Returns the last word of a path, `Train` in `Phase::Train`, or the text of a string.
fn last_word(part: &TokenStream) -> Option<String> {
    if let Ok(text) = syn::parse2::<LitStr>(part.clone()) {
        return Some(text.value());
    }
    let path = Path::parse_mod_style.parse2(part.clone()).ok()?;
    Some(path.segments.last()?.ident.to_string())
}

/// Returns the second of two words without a comma between them.
fn second_word(part: &TokenStream) -> Option<Ident> {
    match &part.clone().into_iter().collect::<Vec<_>>()[..] {
        [TokenTree::Ident(_), TokenTree::Ident(second), ..] => Some(second.clone()),
        _ => None,
    }
}

/// Formats a path with the usual spacing.
pub(super) fn text_of(path: &impl ToTokens) -> String {
    path.to_token_stream().to_string().replace(' ', "").replace(',', ", ")
}

/// Parses the path of an operation or a crate.
fn path(key: &str, value: TokenStream, at: Span, errors: &mut Errors) -> Option<Path> {
    let span = if value.is_empty() { at } else { value.span() };
    let parsed = Path::parse_mod_style.parse2(value);
    parsed.map_err(|_| errors.push(span, format!("expected {}", form_of(key)))).ok()
}

/// Parses the path of a condition, which may have generic arguments.
fn condition(value: TokenStream, at: Span, errors: &mut Errors) -> Option<ExprPath> {
    let span = if value.is_empty() { at } else { value.span() };
    check_single(&value, errors)?;
    let parsed = syn::parse2::<ExprPath>(value);
    parsed.map_err(|_| errors.push(span, format!("expected {}", form_of("when")))).ok()
}

/// Parses patterns of module names, each of which may be `optional(…)`, or an expression that
/// begins with `self`.
fn modules(list: TokenStream, at: Span, errors: &mut Errors) -> Option<Of> {
    check_single(&list, errors)?;
    let list = by_value(list, "of", errors)?;
    if begins_with_self(&list) {
        return errors.keep(syn::parse2(list)).map(|value| Of::Value(Box::new(value)));
    }
    let mut patterns = Vec::new();
    for part in parts("of", list, at, errors) {
        let at_part = part.span();
        let (inner, optional) = optional(part);
        let span = if inner.is_empty() { at_part } else { inner.span() };
        match syn::parse2::<LitStr>(inner) {
            Ok(text) if text.value().is_empty() => {
                errors
                    .push(text.span(), "expected the name of a module, or a pattern such as `\"encoder.*\"`");
            }
            Ok(text) => patterns.push((text, optional)),
            Err(_) => {
                errors.push(span, format!("expected the name of a module as a string: {}", form_of("of")));
            }
        }
    }
    (!patterns.is_empty()).then_some(Of::Patterns(patterns))
}

/// Parses the field of `state = self.<field>`.
fn saved_field(value: TokenStream, key: Span, errors: &mut Errors) -> Option<SavedState> {
    check_single(&value, errors)?;
    let at = if value.is_empty() { key } else { value.span() };
    if let Ok(Expr::Field(ExprField { base, member, .. })) = syn::parse2(value)
        && matches!(&*base, Expr::Path(base) if base.path.is_ident("self"))
    {
        return Some(SavedState { span: key, field: Some(member) });
    }
    let form = form_of("state");
    errors.push(at, format!("expected {form}; several values can be one field that is a struct"));
    None
}

/// Parses the paths of sets.
fn sets(list: TokenStream, at: Span, errors: &mut Errors) -> Vec<Path> {
    if check_single(&list, errors).is_none() {
        return Vec::new();
    }
    let mut sets = Vec::new();
    for part in parts("in", list, at, errors) {
        let span = part.span();
        match syn::parse2::<syn::TypePath>(part) {
            Ok(TypePath { path, qself: None, .. }) if sets.contains(&path) => {
                errors.push(span, "the hook is in this set already");
            }
            Ok(TypePath { path, qself: None, .. }) => {
                if begins_lowercase(&path) {
                    // A function, as in `after`, or a module.
                    errors.push(
                        span,
                        format!(
                            "a set is a type, whose name begins with a capital letter: {}",
                            form_of("in")
                        ),
                    );
                }
                sets.push(path);
            }
            _ => errors.push(span, format!("expected the path of a set of hooks: {}", form_of("in"))),
        }
    }
    sets
}

/// Returns whether the last word of a path begins with a lowercase letter, which names of types do
/// not.
fn begins_lowercase(path: &Path) -> bool {
    let last = path.segments.last().map(|segment| segment.ident.unraw().to_string());
    last.is_some_and(|last| last.starts_with(char::is_lowercase))
}

/// Parses the paths of hooks, each of which may be `optional(…)`.
fn targets(key: &str, list: TokenStream, at: Span, errors: &mut Errors) -> Vec<Target> {
    let targets = parts(key, list, at, errors).into_iter().filter_map(|part| {
        let at_part = part.span();
        let (inner, optional) = optional(part);
        let span = if inner.is_empty() { at_part } else { inner.span() };
        let second = split_at_commas(inner.clone()).into_iter().nth(1).filter(|_| optional);
        if let Some(second) = second {
            errors.push(second.span(), "`optional` takes one path: write one for each");
            return None;
        }
        match syn::parse2::<syn::TypePath>(inner) {
            Ok(written) if written.qself.is_none() => Some(Target { path: written.path, optional }),
            _ => {
                errors.push(
                    span,
                    format!("expected the path of a hook function or hook type: {}", form_of(key)),
                );
                None
            }
        }
    });
    targets.collect()
}

fn kind_of(literal: &Lit) -> &'static str {
    match literal {
        Lit::Str(_) => "a string",
        Lit::Float(_) => "a floating-point number",
        Lit::Bool(_) => "a boolean",
        Lit::Char(_) => "a character",
        _ => "another literal",
    }
}

fn listed() -> String {
    KEYS.map(|key| format!("`{key}`")).join(", ")
}
