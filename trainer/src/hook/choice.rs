//! Which hooks a trainer has, and the values that they are called with.

use std::any::{TypeId, type_name};

use super::definition::{Hook, HookDef, Hooks};
use super::discovery::{Discover, discover, of_generic_task, of_task};
use crate::checkpoint::StateOf;
use crate::error::suggestion;
use crate::run::{Instance, TASK};

/// What a builder was told about the hooks of its trainer.
pub(crate) struct Choice {
    /// Those that were added, and the values they are called with.
    hooks: Vec<Hook>,
    instances: Vec<Instance>,
    /// Types of which there is to be one value, once for each that was added.
    single: Vec<(TypeId, &'static str)>,
    pub(crate) task_hooks: &'static [HookDef],
    /// How the state of the task is kept in a checkpoint.
    pub(crate) task_state: Option<StateOf>,
    pub(crate) discover: Discover,
    pub(crate) required: Vec<String>,
    pub(crate) without: Vec<String>,
}

impl Choice {
    /// Every discovered hook, and those of the task.
    pub(crate) fn for_task<T: 'static>() -> Self {
        let (task_hooks, task_state) = of_task::<T>();
        Choice {
            hooks: Vec::new(),
            instances: Vec::new(),
            single: Vec::new(),
            task_hooks,
            task_state,
            discover: Discover::All,
            required: Vec::new(),
            without: Vec::new(),
        }
    }

    /// Adds a value, and the hooks of its type.
    pub(crate) fn add<H: Hooks>(&mut self, value: H) {
        if H::SINGLE {
            self.single.push((TypeId::of::<H>(), type_name::<H>()));
        }
        self.add_instance(Instance::of(value), H::HOOKS.iter().cloned());
    }

    /// Adds a value with a hook that its type does not tell: a closure.
    pub(crate) fn add_with<V: Send + 'static>(&mut self, value: V, hook: HookDef) {
        self.add_instance(Instance::new(value), [hook]);
    }

    fn add_instance(&mut self, instance: Instance, hooks: impl IntoIterator<Item = HookDef>) {
        let slot = Some(slot_after(self.instances.len()));
        self.instances.push(instance);
        self.hooks.extend(hooks.into_iter().map(|definition| Hook { definition, slot }));
    }

    /// The explicit hooks, the discovered ones and the task's, without those that are left out; and their values.
    pub(crate) fn resolve<T: 'static>(self, mistakes: &mut Vec<String>) -> (Vec<Hook>, Vec<Instance>) {
        let Choice { mut hooks, mut instances, single, .. } = self;
        for (nth, (id, name)) in single.iter().enumerate() {
            if single[..nth].iter().any(|(other, _)| other == id) {
                mistakes.push(format!("two hooks `{name}` were added, and one is all that there may be"));
            }
        }
        // A value that the program adds takes the place of the one that would be made.
        let explicit: Vec<TypeId> = instances.iter().map(|instance| instance.type_id).collect();
        let task = TypeId::of::<T>();
        let mut automatic: Vec<Automatic> = Vec::new();
        for (definition, block) in discover(&self.discover, &self.required, mistakes) {
            let slot = match block.and_then(|block| Some((block.id?, block.make?))) {
                None => None,
                Some((id, _)) if explicit.contains(&id) || id == task => continue,
                Some((id, make)) => Some(match automatic.iter().find(|known| known.id == id) {
                    Some(known) => known.slot,
                    None => {
                        let slot = slot_after(instances.len() + automatic.len());
                        automatic.push(Automatic { id, slot, make });
                        slot
                    }
                }),
            };
            hooks.push(Hook { definition, slot });
        }
        if self.task_hooks.is_empty()
            && let Some(path) = of_generic_task::<T>()
        {
            mistakes.push(format!(
                "the task's type `{path}` is generic, so that its hooks are not found by themselves: say `.task_hooks()`"
            ));
        }
        hooks.extend(self.task_hooks.iter().map(|it| Hook { definition: it.clone(), slot: Some(TASK_SLOT) }));
        leave_out(&mut hooks, &self.without, mistakes);
        for Automatic { slot, make, .. } in automatic {
            let used = hooks.iter().any(|hook| hook.slot == Some(slot));
            instances.push(if used { make() } else { Instance::absent() });
        }
        (hooks, instances)
    }
}

/// A value that is made because its type says `#[hook(auto)]`.
struct Automatic {
    id: TypeId,
    slot: u32,
    make: fn() -> Instance,
}

/// Where the task lies among the run's instances.
const TASK_SLOT: u32 = TASK as u32;

/// The slot of the instance after so many; the task is the first of all.
fn slot_after(instances: usize) -> u32 {
    u32::try_from(instances + 1).expect("fewer than 2³² hooks")
}

fn leave_out(hooks: &mut Vec<Hook>, without: &[String], mistakes: &mut Vec<String>) {
    for path in without {
        let names: Vec<_> = (hooks.iter().map(|hook| &hook.definition.origin))
            .flat_map(|origin| [origin.path.to_string(), origin.name()])
            .collect();
        if !names.contains(path) {
            let is_crate = hooks.iter().any(|hook| hook.definition.origin.krate() == path);
            let similar = if is_crate {
                "; to leave out a whole crate, say `.discover(Discover::crates([…]))` with the others".into()
            } else {
                suggestion(path, names.iter().map(String::as_str))
            };
            mistakes.push(format!("`.without(\"{path}\")` matches no hook of this trainer{similar}"));
        }
        hooks.retain(|hook| {
            let origin = &hook.definition.origin;
            origin.path != *path && origin.name() != *path
        });
    }
}
