//! Sequences of layers that are all named: [`seq`] and [`seq_t`].

use tch::Tensor;
use tch::nn::{self, Module, ModuleT};

use super::name::Name;
use super::named::{Naming, own_name, register};

/// A sequence of named layers, created by [`seq`].
///
/// ```
/// use trainer::modules;
/// use trainer::prelude::*;
///
/// let vs = nn::VarStore::new(Device::Cpu);
/// let path = vs.root() / "net";
/// let net = modules::seq(&path)
///     .add(nn::linear(&path / 0, 4, 8, Default::default())) // net.0
///     .add_fn(Tensor::relu); // net.1
/// let output = Tensor::zeros([2, 4], (Kind::Float, Device::Cpu)).apply(&net);
/// assert_eq!(output.size(), [2, 8]);
/// ```
#[derive(Debug)]
pub struct Sequential {
    name: Name,
    layers: Vec<Box<dyn Module>>,
}

/// A sequence of named layers whose forward pass differs between training and evaluation, created
/// by [`seq_t`]. Use [`Sequential`] if it never differs.
///
/// ```
/// use trainer::modules;
/// use trainer::prelude::*;
///
/// let vs = nn::VarStore::new(Device::Cpu);
/// let path = vs.root() / "net";
/// let net = modules::seq_t(&path)
///     .add(nn::linear(&path / 0, 4, 8, Default::default())) // net.0
///     .add_fn_t(|x, train| x.dropout(0.1, train)); // net.1
/// let output = Tensor::zeros([2, 4], (Kind::Float, Device::Cpu)).apply_t(&net, false);
/// assert_eq!(output.size(), [2, 8]);
/// ```
#[derive(Debug)]
pub struct SequentialT {
    name: Name,
    layers: Vec<Box<dyn ModuleT>>,
}

/// Creates an empty sequence like `nn::seq()` that names itself and each of its layers. The layers
/// of `seq("encoder")` are named `encoder.0`, `encoder.1` and so on, as in PyTorch. To get
/// PyTorch's names in nested sequences too, create the inner sequence with the path of its
/// variables:
///
/// ```
/// use trainer::modules;
/// use trainer::prelude::*;
///
/// let vs = nn::VarStore::new(Device::Cpu);
/// let path = vs.root() / "encoder";
/// let inner = modules::seq(&path / 0) // encoder.0
///     .add(nn::linear(&path / 0 / 0, 8, 8, Default::default())); // encoder.0.0
/// let encoder = modules::seq(&path).add(inner).add_fn(Tensor::relu); // encoder, encoder.1
/// ```
///
/// ```
/// use trainer::modules;
/// use trainer::prelude::*;
///
/// let vs = nn::VarStore::new(Device::Cpu);
/// let path = vs.root() / "encoder";
/// let encoder = modules::seq(&path)
///     .add(nn::linear(&path / 0, 8, 32, Default::default())) // encoder.0
///     .add_fn(Tensor::relu) // encoder.1
///     .add_as("out", nn::linear(&path / "out", 32, 16, Default::default())); // encoder.out
/// assert_eq!(encoder.len(), 3);
/// ```
///
/// # Panics
///
/// Panics if the name is empty.
#[must_use]
pub fn seq(name: impl Into<Name>) -> Sequential {
    register::<Sequential>(|module| module.downcast_ref().map(|sequence: &Sequential| &sequence.name));
    Sequential { name: name.into(), layers: Vec::new() }
}

/// Creates an empty sequence of [`ModuleT`] layers, like `nn::seq_t()`: see [`seq`].
///
/// # Panics
///
/// Panics if the name is empty.
#[must_use]
pub fn seq_t(name: impl Into<Name>) -> SequentialT {
    register::<SequentialT>(|module| module.downcast_ref().map(|sequence: &SequentialT| &sequence.name));
    SequentialT { name: name.into(), layers: Vec::new() }
}

macro_rules! sequence {
    ($sequence:ident, $module:ident, $named:ident) => {
        impl $sequence {
            /// Appends a layer, and names it after the sequence and its index: `encoder.0`. A layer
            /// that already has a name, such as another sequence, keeps it. To choose the name, use
            /// [`add_as`](Self::add_as).
            #[must_use]
            #[allow(clippy::should_implement_trait)]
            pub fn add<M: $module + 'static>(self, layer: M) -> Self {
                if own_name(&layer).is_some() {
                    return self.add_named(layer);
                }
                let index = self.layers.len();
                self.add_as(index.to_string(), layer)
            }

            /// Appends a layer, and names it after the sequence and `name`: `encoder.out`.
            #[must_use]
            pub fn add_as<M: $module + 'static>(self, name: impl AsRef<str>, layer: M) -> Self {
                let name = format!("{}.{}", self.name, name.as_ref());
                self.add_named(layer.$named(name))
            }

            /// Appends a layer unchanged. Use it for a layer that needs no name, or that calls
            /// [`Name::run`] itself.
            #[must_use]
            pub fn add_named<M: $module + 'static>(mut self, layer: M) -> Self {
                self.layers.push(Box::new(layer));
                self
            }

            /// Appends a closure, and names it after the sequence and its index.
            #[must_use]
            pub fn add_fn(self, f: impl Fn(&Tensor) -> Tensor + Send + 'static) -> Self {
                self.add(nn::func(f))
            }

            /// The number of layers.
            #[must_use]
            pub fn len(&self) -> usize {
                self.layers.len()
            }

            /// Whether the sequence has no layers.
            #[must_use]
            pub fn is_empty(&self) -> bool {
                self.layers.is_empty()
            }
        }
    };
}

sequence!(Sequential, Module, named);
sequence!(SequentialT, ModuleT, named_t);

impl SequentialT {
    /// Appends a closure, and names it after the sequence and its index. The second argument of the
    /// closure is `true` in training.
    #[must_use]
    pub fn add_fn_t(self, f: impl Fn(&Tensor, bool) -> Tensor + Send + 'static) -> Self {
        self.add(nn::func_t(f))
    }
}

impl Module for Sequential {
    fn forward(&self, xs: &Tensor) -> Tensor {
        self.name.run(xs, |xs| chain(&self.layers, xs, |layer, xs| layer.forward(xs)))
    }
}

impl ModuleT for SequentialT {
    fn forward_t(&self, xs: &Tensor, train: bool) -> Tensor {
        self.name.run(xs, |xs| chain(&self.layers, xs, |layer, xs| layer.forward_t(xs, train)))
    }
}

/// Applies the layers one after another. Without layers, returns a shallow clone of the input.
fn chain<L>(layers: &[L], xs: &Tensor, forward: impl Fn(&L, &Tensor) -> Tensor) -> Tensor {
    match layers.split_first() {
        None => xs.shallow_clone(),
        Some((first, rest)) => rest.iter().fold(forward(first, xs), |xs, layer| forward(layer, &xs)),
    }
}
