//! What a file contains: finding its state dicts, and messages about what they are not.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};

use super::objects::{Global, Id, Object, Objects};
use crate::error::{Error, Result, shortened};

/// The maximum number of keys that lead from the outermost `dict` to one that a message names.
const MAX_DEPTH: usize = 4;
/// The keys of the items of a `list` that a message names.
const INDICES: [&str; 4] = ["0", "1", "2", "3"];
/// The maximum number of modules within each other.
const MAX_MODULES: usize = 64;

/// The end of a message about an object that a pickle would create by a call.
const NOT_EXECUTED: &str = "nothing in the file was executed: if you trust it, load it in Python, and save only its state dict \
                            with `torch.save(model.state_dict(), …)`";

pub(super) type Entries<'a> = Vec<(Cow<'a, str>, Id)>;

/// The objects of a file.
#[derive(Clone, Copy)]
pub(super) struct Contents<'o, 'a> {
    pub(super) objects: &'o Objects<'a>,
    /// The outermost object.
    pub(super) top: Id,
}

/// A state dict within a file.
struct Candidate<'a> {
    keys: Vec<&'a str>,
    tensors: usize,
}

impl<'a> Objects<'a> {
    pub(super) fn is_tensor(&self, id: Id) -> bool {
        matches!(self[id], Object::Tensor(_) | Object::UnreadableTensor(..))
    }

    /// The entries of a `dict` whose keys are strings; `None` if the object is not a `dict`.
    pub(super) fn dict(&self, id: Id) -> Option<impl Iterator<Item = (&'a str, Id)>> {
        let Object::Dict(entries) = &self[id] else { return None };
        // Not `Objects::text`, which formats an error for each other key.
        Some(entries.iter().filter_map(|(key, value)| match self[*key] {
            Object::Text(key) => Some((key, *value)),
            _ => None,
        }))
    }
}

impl<'a> Contents<'_, 'a> {
    /// Returns the object to which the keys lead: names of entries of a `dict`, or indices of items
    /// of a `list`.
    pub(super) fn find(self, keys: &[String]) -> Result<Id> {
        let objects = self.objects;
        let mut at = self.top;
        for (nth, key) in keys.iter().enumerate() {
            if let Object::List(items) = &objects[at]
                && let Ok(index) = key.parse::<usize>()
            {
                at = *items.get(index).ok_or_else(|| {
                    Error::msg(format!(
                        "there is no item {index} in a `list` of {}: select another one with `.section(…)`",
                        items.len()
                    ))
                })?;
                continue;
            }
            let entries: Vec<_> =
                objects.dict(at).ok_or_else(|| self.not_a_dict(&keys[..nth], at))?.collect();
            // Of two entries with one key, Python keeps the later one.
            let found = entries.iter().rfind(|(name, _)| name == key);
            at = found.map(|(_, value)| *value).ok_or_else(|| {
                let names: Vec<_> = entries.iter().map(|(name, _)| *name).collect();
                let advice =
                    self.advice(keys).unwrap_or_else(|| "select another key with `.section(…)`".to_owned());
                Error::msg(format!(
                    "there is no state dict under the key `{}`; the keys are {}: {advice}",
                    shortened(key),
                    listed(&names)
                ))
            })?;
        }
        Ok(at)
    }

    /// Returns the entries of the outermost `dict` or, if there are `keys`, of the one to which
    /// they lead.
    pub(super) fn state_dict(self, keys: &[String]) -> Result<Entries<'a>> {
        let objects = self.objects;
        let at = self.find(keys)?;
        let Object::Dict(all) = &objects[at] else { return Err(self.not_a_dict(keys, at)) };
        let entries: Vec<_> = objects.dict(at).into_iter().flatten().collect();
        if let Some((other, _)) = all.iter().find(|(key, _)| !matches!(objects[*key], Object::Text(_))) {
            let advice = self.advice(keys).unwrap_or_else(|| SAVE.to_owned());
            return Err(Error::msg(format!(
                "expected a state dict, a `dict` of tensors by name, found a `dict` with keys that are not strings, such as {}: \
                 {advice}",
                objects.what(*other)
            )));
        }
        Ok(entries.into_iter().map(|(name, value)| (Cow::Borrowed(name), value)).collect())
    }

    /// Returns the tensors of a module of TorchScript and of the modules in it, by name.
    pub(super) fn module(self, keys: &[String]) -> Result<Entries<'a>> {
        if !keys.is_empty() {
            return Err(Error::msg(format!(
                "`{}` is for files of `torch.save`, but this is a TorchScript file, which has no sections: remove the call",
                calls(keys)
            )));
        }
        let mut found = Entries::new();
        let mut open = vec![(String::new(), 0, self.top)];
        let mut visited = 0;
        while let Some((prefix, depth, module)) = open.pop() {
            // A module can be part of several, so without a limit a short file could have many.
            visited += 1;
            if depth > MAX_MODULES || prefix.len() > 1 << 12 || visited > self.objects.len() {
                return Err(Error::msg("the modules of the TorchScript file are nested too deeply"));
            }
            let Object::Foreign { state: Some(state), .. } = self.objects[module] else { continue };
            for (name, value) in self.objects.dict(state).into_iter().flatten() {
                if self.objects.is_tensor(value) {
                    // tch replaces the dots of names.
                    found.push((Cow::Owned(format!("{prefix}{}", name.replace('|', "."))), value));
                    visited += 1;
                } else if self.is_module(value) {
                    open.push((format!("{prefix}{name}."), depth + 1, value));
                }
            }
        }
        if found.is_empty() {
            return Err(Error::msg(
                "the TorchScript file has no weights: `torch.jit.freeze` makes them constants of the program; save the state \
                 dict of the model from which it was made, with `torch.save(model.state_dict(), …)`",
            ));
        }
        Ok(found)
    }

    fn is_module(self, id: Id) -> bool {
        match self.objects[id] {
            Object::Foreign { class, .. } => {
                matches!(self.objects.global(class), Global::Foreign(module, _) if module.starts_with("__torch__"))
            }
            _ => false,
        }
    }

    /// Returns the error about an entry of the selected state dict that is not a tensor.
    #[cold]
    pub(super) fn not_a_tensor(
        self,
        keys: &[String],
        entries: &BTreeMap<Cow<'a, str>, Id>,
        name: &str,
    ) -> Error {
        let what = |name: &str, value: Id| format!("`{}` is {}", shortened(name), self.objects.what(value));
        let found = entries.get(name).map_or_else(String::new, |value| what(name, *value));
        let tensors = entries.values().filter(|value| self.objects.is_tensor(**value)).count();
        let candidates = self.candidates(keys);
        if tensors > 0 && candidates.iter().all(|candidate| candidate.tensors < tensors) {
            let others = entries.iter().filter(|(_, value)| !self.objects.is_tensor(**value));
            let skips = skips(others.map(|(name, _)| &**name));
            return Error::msg(format!("{found}, not a tensor: leave it out with `{skips}`"));
        }
        let is_foreign = |value: &Id| matches!(self.objects[*value], Object::Foreign { .. });
        let help = match self.advice(keys) {
            Some(advice) => advice,
            None if entries.get(name).is_some_and(is_foreign) => NOT_EXECUTED.to_owned(),
            None => match entries.iter().find(|(_, value)| is_foreign(value)) {
                Some((name, value)) => format!("{}; {NOT_EXECUTED}", what(name, *value)),
                None => SAVE.to_owned(),
            },
        };
        Error::msg(format!("expected a state dict, but {found}, not a tensor: {help}"))
    }

    /// Returns the error about the object at `keys`, which is not a `dict`.
    #[cold]
    fn not_a_dict(self, keys: &[String], id: Id) -> Error {
        let place = if keys.is_empty() { String::new() } else { format!(" under {}", joined(keys)) };
        let what = self.objects.what(id);
        let advice = match self.objects[id] {
            Object::Foreign { .. } => NOT_EXECUTED.to_owned(),
            _ => self.advice(keys).unwrap_or_else(|| SAVE.to_owned()),
        };
        Error::msg(format!(
            "expected a state dict, a `dict` of tensors by name, found {what}{place}: {advice}"
        ))
    }

    /// Says which section has tensors, or what else the file contains; `None` if it has nothing
    /// that a message can name. `selected` is the section that has none.
    fn advice(self, selected: &[String]) -> Option<String> {
        let mut candidates = self.candidates(selected);
        if candidates.is_empty() {
            candidates = self.candidates(&[]);
            candidates.retain(|candidate| candidate.keys != selected);
        }
        let tensors =
            |count: usize| if count == 1 { "1 tensor".to_owned() } else { format!("{count} tensors") };
        match &candidates[..] {
            [] => self.optimizers().into_iter().next().map(|keys| {
                let place = if keys.is_empty() { "the file".to_owned() } else { joined(&keys) };
                format!("{place} is the state of an optimizer, which has no weights: {SAVE}")
            }),
            [only] => Some(format!(
                "the file has {} under {}: select them with `LoadWeights::new(){}`",
                tensors(only.tensors),
                joined(&only.keys),
                calls(&only.keys)
            )),
            several => {
                let shown = several.iter().take(8);
                let shown: Vec<_> =
                    shown.map(|it| format!("`{}` ({})", calls(&it.keys), tensors(it.tensors))).collect();
                let more = if several.len() > 8 {
                    format!(" and {} more", several.len() - 8)
                } else {
                    String::new()
                };
                Some(format!("the file has several state dicts: select one with {}{more}", shown.join(", ")))
            }
        }
    }

    /// Finds the state dicts below the `dict` at `keys`: those of whose values at least half are
    /// tensors. States of optimizers are left out. Those with more tensors come first.
    fn candidates(self, keys: &[String]) -> Vec<Candidate<'a>> {
        let mut found = Vec::new();
        let mut counted: HashMap<Id, Option<usize>> = HashMap::new();
        self.walk(|path, dict| {
            let is_below = path.len() > keys.len() && path.iter().zip(keys).all(|(key, own)| key == own);
            let tensors = *counted.entry(dict).or_insert_with(|| self.tensors_of_model(dict));
            if let (true, Some(tensors)) = (is_below, tensors) {
                found.push(Candidate { keys: path.to_vec(), tensors });
            }
        });
        found.sort_by(|a, b| b.tensors.cmp(&a.tensors).then_with(|| a.keys.cmp(&b.keys)));
        found
    }

    /// The number of tensors in a `dict` that can be that of a model: at least half of the values
    /// are tensors, and not all of them are single numbers, as in a record of scores.
    fn tensors_of_model(self, dict: Id) -> Option<usize> {
        let (mut tensors, mut others, mut is_model) = (0, 0, false);
        for (name, value) in self.objects.dict(dict)? {
            if self.objects.is_tensor(value) {
                tensors += 1;
                is_model |= match self.objects[value] {
                    Object::Tensor(view) => self.objects.items(view.size).is_ok_and(|size| !size.is_empty()),
                    _ => true,
                };
            } else {
                others += usize::from(!name.ends_with("_extra_state"));
            }
        }
        (is_model && tensors >= others).then_some(tensors)
    }

    /// The keys that lead to the states of optimizers.
    fn optimizers(self) -> Vec<Vec<&'a str>> {
        let mut found = Vec::new();
        let mut seen = HashSet::new();
        self.walk(|path, dict| {
            if seen.insert(dict) && self.is_optimizer(dict) {
                found.push(path.to_vec());
            }
        });
        found.sort();
        found
    }

    /// Returns the error about a section that is not the state of an optimizer.
    #[cold]
    pub(super) fn not_an_optimizer(self, id: Id) -> Error {
        let what = self.objects.what(id);
        let optimizers = self.optimizers();
        let calls: Vec<_> =
            optimizers.iter().map(|keys| format!("`LoadWeights::new(){}`", calls(keys))).collect();
        let help = match &calls[..] {
            [] => "save one in Python with `torch.save(optimizer.state_dict(), …)`".to_owned(),
            several => format!("select it with {}", several.join(" or ")),
        };
        Error::msg(format!(
            "expected the state of one of PyTorch's optimizers, a `dict` with `state` and `param_groups`, found {what}: {help}"
        ))
    }

    /// Whether an object is the state of an optimizer.
    pub(super) fn is_optimizer(self, dict: Id) -> bool {
        let has = |key: &str| {
            self.objects.dict(dict).is_some_and(|mut entries| entries.any(|(name, _)| name == key))
        };
        has("state") && has("param_groups")
    }

    /// Calls a function with each `dict` and `list` that keys lead to, and with these keys. Looks
    /// into each once, into the first items of a `list`, and not into the state of an optimizer.
    fn walk(self, mut visit: impl FnMut(&[&'a str], Id)) {
        let mut seen = HashSet::new();
        let mut open = vec![(Vec::new(), self.top)];
        while let Some((path, dict)) = open.pop() {
            visit(&path, dict);
            if path.len() == MAX_DEPTH || !seen.insert(dict) || self.is_optimizer(dict) {
                continue;
            }
            let items = match &self.objects[dict] {
                Object::List(items) => INDICES.iter().copied().zip(items.iter().copied()).collect(),
                _ => Vec::new(),
            };
            let inner = self.objects.dict(dict).into_iter().flatten().chain(items);
            let inner =
                inner.filter(|(_, value)| matches!(self.objects[*value], Object::Dict(_) | Object::List(_)));
            open.extend(inner.map(|(key, value)| ([&path[..], &[key]].concat(), value)));
        }
    }
}

/// The remedy if a file has no state dict.
const SAVE: &str = "save a state dict in Python with `torch.save(model.state_dict(), …)`";

/// The calls that leave out entries: one for each name, or for all names with a common end.
fn skips<'n>(names: impl Iterator<Item = &'n str>) -> String {
    const STATE: &str = "_extra_state";
    let mut names: Vec<&str> = names.collect();
    let mut patterns = Vec::new();
    if names.iter().filter(|name| name.ends_with(STATE)).count() > 1 {
        names.retain(|name| !name.ends_with(STATE));
        patterns.push(format!("*{STATE}"));
    }
    patterns.extend(names.into_iter().map(str::to_owned));
    let calls: Vec<_> = patterns.iter().take(8).map(|name| format!(".skip({:?})", shortened(name))).collect();
    if patterns.len() > 8 { format!("{}…", calls.concat()) } else { calls.concat() }
}

/// The calls that select a section.
fn calls(keys: &[impl AsRef<str>]) -> String {
    keys.iter().map(|key| format!(".section({:?})", shortened(key.as_ref()))).collect()
}

/// Keys as a path.
fn joined(keys: &[impl AsRef<str>]) -> String {
    let keys: Vec<_> = keys.iter().map(|key| format!("`{}`", shortened(key.as_ref()))).collect();
    keys.join(" / ")
}

fn listed(names: &[&str]) -> String {
    if names.is_empty() {
        return "none".to_owned();
    }
    let shown: Vec<_> = names.iter().take(8).map(|name| format!("`{}`", shortened(name))).collect();
    let more = if names.len() > 8 { format!(" and {} more", names.len() - 8) } else { String::new() };
    shown.join(", ") + &more
}
