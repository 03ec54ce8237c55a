//! The state of one of PyTorch's optimizers, as its `state_dict` returns it: `param_groups`, each
//! with settings and the keys of its parameters, and `state`, the tensors of each key.

use std::collections::{BTreeMap, HashMap};

use tch::Tensor;

use super::contents::Contents;
use super::objects::{Id, Object, Objects, malformed};
use super::{Opened, Storages};
use crate::error::{Error, Result, shortened};
use crate::io::format::Format;

/// What identifies a parameter in the state of an optimizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::checkpoint) enum Key<'a> {
    /// Its position in the optimizer.
    Position(i64),
    /// Its name, as `torch.distributed.checkpoint` writes it.
    Name(&'a str),
}

/// A parameter group.
pub(in crate::checkpoint) struct SavedGroup<'a> {
    settings: BTreeMap<&'a str, Id>,
    pub(in crate::checkpoint) parameters: Vec<Key<'a>>,
    /// The names of the parameters, if the optimizer was created with them.
    pub(in crate::checkpoint) names: Option<Vec<&'a str>>,
}

/// The state of an optimizer in a file.
pub(in crate::checkpoint) struct SavedOptimizer<'a> {
    objects: Objects<'a>,
    storages: Storages<'a>,
    pub(in crate::checkpoint) groups: Vec<SavedGroup<'a>>,
    states: HashMap<Key<'a>, BTreeMap<&'a str, Id>>,
}

impl<'a> SavedOptimizer<'a> {
    /// Reads the state to which the keys of `section` lead. `remedy` returns what to do about an
    /// archive of another format.
    pub(in crate::checkpoint) fn open(
        bytes: &'a [u8],
        section: &[String],
        remedy: impl FnOnce(Format) -> &'static str,
    ) -> Result<Self> {
        let Opened { objects, top, storages, .. } = Opened::read(bytes, "the state of an optimizer", remedy)?;
        let contents = Contents { objects: &objects, top };
        let at = contents.find(section)?;
        if !contents.is_optimizer(at) {
            return Err(contents.not_an_optimizer(at));
        }
        let mut copied = Copied { count: 0, most: 4 * objects.len() };
        let (groups, states) = (groups(&objects, at, &mut copied)?, states(&objects, at, &mut copied)?);
        Ok(SavedOptimizer { objects, storages, groups, states })
    }

    /// The number that a setting of a group has, or one of its items; `None` if it is not a number.
    pub(in crate::checkpoint) fn number(&self, group: usize, name: &str, item: Option<usize>) -> Option<f64> {
        let value = *self.groups[group].settings.get(name)?;
        let value = match item {
            None => value,
            Some(item) => *self.objects.sequence(value)?.get(item)?,
        };
        self.objects.number(value)
    }

    /// The text that a setting of a group has; `None` if it is not a text.
    pub(in crate::checkpoint) fn text(&self, group: usize, name: &str) -> Option<&'a str> {
        self.objects.text(*self.groups[group].settings.get(name)?).ok()
    }

    /// Whether a group has a setting.
    pub(in crate::checkpoint) fn has(&self, group: usize, name: &str) -> bool {
        self.groups[group].settings.contains_key(name)
    }

    /// Returns the names of the values that a parameter has, except those that are `None`.
    pub(in crate::checkpoint) fn names_of(&self, parameter: Key<'a>) -> Vec<&'a str> {
        let values = self.states.get(&parameter).into_iter().flatten();
        values.filter(|(_, value)| !self.objects.is_none(**value)).map(|(name, _)| *name).collect()
    }

    /// Reads a value of a parameter: a tensor, or a number as a tensor without dimensions.
    pub(in crate::checkpoint) fn value(&mut self, parameter: Key<'a>, name: &str) -> Result<Tensor> {
        let value = self.states.get(&parameter).and_then(|values| values.get(name));
        let Some(value) = value else { return Err(Error::msg("the state does not have this value")) };
        match self.objects.number(*value) {
            Some(number) => Ok(Tensor::from(number)),
            None => self.storages.tensor(&self.objects, *value),
        }
    }
}

/// The number of items that are copied from lists and dicts. A short file can refer to one of them
/// many times, so without a limit it could have many.
struct Copied {
    count: usize,
    most: usize,
}

impl Copied {
    fn add(&mut self, objects: &Objects<'_>, id: Id) -> Result<()> {
        self.count += match &objects[id] {
            Object::Dict(entries) => entries.len(),
            _ => objects.sequence(id).map_or(0, <[Id]>::len),
        };
        if self.count > self.most {
            return Err(malformed("the state of the optimizer refers to one object too often"));
        }
        Ok(())
    }
}

/// Returns the value of a `dict`. Of two entries with one key, Python keeps the later one.
fn entry(objects: &Objects<'_>, dict: Id, key: &str) -> Option<Id> {
    objects.dict(dict)?.filter(|(name, _)| *name == key).last().map(|(_, value)| value)
}

fn key<'a>(objects: &Objects<'a>, id: Id) -> Result<Key<'a>> {
    match objects[id] {
        Object::Int(position) => Ok(Key::Position(position)),
        Object::Text(name) => Ok(Key::Name(name)),
        _ => Err(unexpected("the key of a parameter is", &objects.what(id))),
    }
}

fn groups<'a>(objects: &Objects<'a>, optimizer: Id, copied: &mut Copied) -> Result<Vec<SavedGroup<'a>>> {
    let list = entry(objects, optimizer, "param_groups").and_then(|groups| objects.sequence(groups));
    let list = list.ok_or_else(|| unexpected("`param_groups` is", "not a `list`"))?;
    let mut groups = Vec::new();
    for group in list {
        copied.add(objects, *group)?;
        let settings: BTreeMap<_, _> =
            objects.dict(*group).ok_or_else(|| unexpected("a group is", &objects.what(*group)))?.collect();
        for name in ["params", "param_names"] {
            settings.get(name).map_or(Ok(()), |list| copied.add(objects, *list))?;
        }
        let parameters = settings.get("params").and_then(|list| objects.sequence(*list));
        let parameters = parameters.ok_or_else(|| unexpected("`params` of a group is", "not a `list`"))?;
        let names = settings.get("param_names").and_then(|list| objects.sequence(*list));
        let names =
            names.map(|names| names.iter().map(|name| objects.text(*name)).collect::<Result<Vec<_>>>());
        groups.push(SavedGroup {
            parameters: parameters.iter().map(|id| key(objects, *id)).collect::<Result<_>>()?,
            names: names.transpose()?,
            settings,
        });
    }
    Ok(groups)
}

type States<'a> = HashMap<Key<'a>, BTreeMap<&'a str, Id>>;

fn states<'a>(objects: &Objects<'a>, optimizer: Id, copied: &mut Copied) -> Result<States<'a>> {
    let Some(state) = entry(objects, optimizer, "state") else { return Ok(States::new()) };
    let Object::Dict(entries) = &objects[state] else {
        return Err(unexpected("`state` is", &objects.what(state)));
    };
    let each = entries.iter().map(|(of, values)| {
        copied.add(objects, *values)?;
        let values =
            objects.dict(*values).ok_or_else(|| malformed("the state of a parameter is not a `dict`"))?;
        Ok((key(objects, *of)?, values.collect()))
    });
    each.collect()
}

#[cold]
fn unexpected(what: &str, found: &str) -> Error {
    Error::msg(format!(
        "the state of the optimizer is not one of PyTorch's: {what} {}; save one with `torch.save(optimizer.state_dict(), …)` \
         in Python",
        shortened(found)
    ))
}
