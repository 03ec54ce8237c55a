//! [`Named`] and [`NamedT`]: modules with a name.

use std::ops::Deref;

use tch::Tensor;
use tch::nn::{Module, ModuleT, Path};

use super::name::Name;

/// A module with a name, at which hooks run. It implements [`Module`], and dereferences to the
/// module that it contains.
#[derive(Debug)]
pub struct Named<M> {
    name: Name,
    module: M,
}

/// A [`ModuleT`] with a name: like [`Named`], for a module whose forward pass differs between
/// training and evaluation.
#[derive(Debug)]
pub struct NamedT<M> {
    name: Name,
    module: M,
}

impl<M: Module> Module for Named<M> {
    #[inline]
    fn forward(&self, xs: &Tensor) -> Tensor {
        self.name.run(xs, |xs| self.module.forward(xs))
    }
}

impl<M: ModuleT> ModuleT for NamedT<M> {
    #[inline]
    fn forward_t(&self, xs: &Tensor, train: bool) -> Tensor {
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
    /// Names a [`Module`]: with a string, or with the path of its variables.
    ///
    /// # Panics
    ///
    /// Panics if the name is empty.
    fn named(self, name: impl Into<Name>) -> Named<Self>
    where
        Self: Module + 'static,
    {
        Named { name: Name::of_module(name, &self), module: self }
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
        NamedT { name: Name::of_module(name, &self), module: self }
    }
}

impl<M: ModuleT> Naming for M {}

/// Builds a module at a variable path, and names it after the path.
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
