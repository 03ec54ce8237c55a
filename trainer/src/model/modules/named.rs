//! [`Named`] and [`NamedT`]: modules with a name.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tch::Tensor;
use tch::nn::{Module, ModuleT, Path};

use super::name::Name;

/// A module with a name. Hooks can observe its calls. It implements [`Module`], and dereferences to
/// the module that it contains.
///
/// ```standalone_crate
/// use trainer::prelude::*;
///
/// /// Logs the size of the activations.
/// #[hook(of = "encoder", every = 100)]
/// fn activations(cx: &Cx<AfterModuleForward>) {
///     cx.log("activation", cx.output().abs().mean(Kind::Float));
/// }
///
/// # fn main() {
/// let vs = nn::VarStore::new(Device::Cpu);
/// let encoder = nn::linear(vs.root() / "encoder", 4, 8, Default::default()).named("encoder");
/// # let _ = encoder;
/// # }
/// ```
#[doc(alias("named_modules", "register_forward_hook"))]
#[derive(Debug)]
pub struct Named<M> {
    name: Name,
    module: M,
    /// Whether the inner module already has this name, and therefore runs the hooks itself.
    is_repeated: bool,
}

/// A [`ModuleT`] with a name: like [`Named`], for a module whose forward pass differs between
/// training and evaluation.
///
/// ```
/// use trainer::prelude::*;
///
/// let vs = nn::VarStore::new(Device::Cpu);
/// let norm = nn::batch_norm1d(vs.root() / "norm", 8, Default::default()).named_t("norm");
/// let output = Tensor::zeros([2, 8], (Kind::Float, Device::Cpu)).apply_t(&norm, false);
/// ```
#[derive(Debug)]
pub struct NamedT<M> {
    name: Name,
    module: M,
    /// Whether the inner module already has this name, and therefore runs the hooks itself.
    is_repeated: bool,
}

/// A function that returns the name of a module, or `None` if the module is not of the type that
/// the function was registered for.
type NameOf = fn(&dyn Any) -> Option<&Name>;

/// The types of named modules that the program has created. A `dyn Any` cannot be downcast to
/// `Named<M>` for an unknown `M`, so each type is registered when its first value is created.
static NAMED: Mutex<Option<HashMap<TypeId, NameOf>>> = Mutex::new(None);

fn named_types() -> MutexGuard<'static, Option<HashMap<TypeId, NameOf>>> {
    NAMED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers a type of named modules.
pub(super) fn register<M: 'static>(name_of: NameOf) {
    named_types().get_or_insert_default().insert(TypeId::of::<M>(), name_of);
}

/// Returns the name that a module already has, if any.
pub(super) fn own_name(module: &dyn Any) -> Option<&Name> {
    let name_of = named_types().as_ref()?.get(&module.type_id()).copied()?;
    name_of(module)
}

/// Whether a module already has this name, in which case its hooks must not run again.
fn is_repeated(name: &Name, module: &dyn Any) -> bool {
    own_name(module).is_some_and(|own| own.as_str() == name.as_str())
}

impl<M: Module> Module for Named<M> {
    #[inline]
    fn forward(&self, xs: &Tensor) -> Tensor {
        if self.is_repeated {
            return self.module.forward(xs);
        }
        self.name.run(xs, |xs| self.module.forward(xs))
    }
}

impl<M: ModuleT> ModuleT for NamedT<M> {
    #[inline]
    fn forward_t(&self, xs: &Tensor, train: bool) -> Tensor {
        if self.is_repeated {
            return self.module.forward_t(xs, train);
        }
        self.name.run(xs, |xs| self.module.forward_t(xs, train))
    }
}

impl<M> Named<M> {
    /// The name of the module.
    #[must_use]
    pub fn name(&self) -> &Name {
        &self.name
    }
}

impl<M> NamedT<M> {
    /// The name of the module.
    #[must_use]
    pub fn name(&self) -> &Name {
        &self.name
    }
}

impl<M> Deref for Named<M> {
    type Target = M;

    fn deref(&self) -> &M {
        &self.module
    }
}

impl<M> Deref for NamedT<M> {
    type Target = M;

    fn deref(&self) -> &M {
        &self.module
    }
}

/// The methods that name a module.
///
/// ```
/// use trainer::prelude::*;
///
/// let vs = nn::VarStore::new(Device::Cpu);
/// let root = vs.root();
/// let net = nn::seq_t()
///     .add(nn::linear(&root / "fc1", 4, 8, Default::default()).named(&root / "fc1"))
///     .add(nn::batch_norm1d(&root / "bn1", 8, Default::default()).named_t(&root / "bn1"))
///     .add(nn::func(Tensor::relu).named("relu1"));
/// ```
pub trait Naming: Sized {
    /// Names a [`Module`], with a string or with the path of its variables. A module that already
    /// has a different name keeps it, and is observed under both names.
    ///
    /// # Panics
    ///
    /// Panics if the name is empty.
    fn named(self, name: impl Into<Name>) -> Named<Self>
    where
        Self: Module + 'static,
    {
        register::<Named<Self>>(|module| module.downcast_ref().map(Named::<Self>::name));
        let name = Name::of_module(name, &self);
        Named { is_repeated: is_repeated(&name, &self), name, module: self }
    }

    /// Names a [`ModuleT`], such as batch norm or `nn::seq_t()`.
    ///
    /// # Panics
    ///
    /// Panics if the name is empty.
    fn named_t(self, name: impl Into<Name>) -> NamedT<Self>
    where
        Self: ModuleT + 'static,
    {
        register::<NamedT<Self>>(|module| module.downcast_ref().map(NamedT::<Self>::name));
        let name = Name::of_module(name, &self);
        NamedT { is_repeated: is_repeated(&name, &self), name, module: self }
    }
}

impl<M: ModuleT> Naming for M {}

/// Builds a module at a variable path, and names it after the path. Use this when the name is the
/// path of the variables, as in PyTorch, and [`.named(…)`](Naming::named) for another name.
///
/// ```
/// use trainer::modules;
/// use trainer::prelude::*;
///
/// let vs = nn::VarStore::new(Device::Cpu);
/// let fc1 = modules::named(vs.root() / "fc1", |path| nn::linear(path, 4, 8, Default::default()));
/// assert_eq!(fc1.name().as_str(), "fc1");
/// ```
///
/// # Panics
///
/// Panics if the path is the root of its `VarStore`, which has no name.
pub fn named<'a, M: Module + 'static>(path: Path<'a>, build: impl FnOnce(&Path<'a>) -> M) -> Named<M> {
    build(&path).named(path)
}

/// Builds a [`ModuleT`] at a variable path, and names it after the path: see [`named`](named()).
///
/// # Panics
///
/// Panics if the path is the root of its `VarStore`, which has no name.
pub fn named_t<'a, M: ModuleT + 'static>(path: Path<'a>, build: impl FnOnce(&Path<'a>) -> M) -> NamedT<M> {
    build(&path).named_t(path)
}
