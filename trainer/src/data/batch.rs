//! [`Batch`]: the data that one step processes.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::hash::{BuildHasher, Hash};

use tch::{Device, Tensor};

/// The data that one step processes: tensors, numbers and strings, and tuples, arrays, `Vec`s,
/// `Option`s and maps of these, nested in any way.
///
/// A struct derives the trait:
///
/// ```
/// use trainer::prelude::*;
///
/// #[derive(Batch)]
/// struct Sentences {
///     tokens: Tensor,
///     texts: Vec<String>,
/// }
/// # fn main() {}
/// ```
///
/// Other types implement the trait by hand:
///
/// ```
/// use trainer::prelude::*;
///
/// /// Images with or without labels.
/// enum Images {
///     Labelled(Tensor, Tensor),
///     Bare(Tensor),
/// }
///
/// impl Batch for Images {
///     fn samples(&self) -> Option<u64> {
///         let (Images::Labelled(images, _) | Images::Bare(images)) = self;
///         images.samples()
///     }
///     fn move_to(&mut self, device: Device) {
///         match self {
///             Images::Labelled(images, labels) => {
///                 images.move_to(device);
///                 labels.move_to(device);
///             }
///             Images::Bare(images) => images.move_to(device),
///         }
///     }
///     fn describe(&self, text: &mut String) {
///         let (Images::Labelled(images, _) | Images::Bare(images)) = self;
///         images.describe(text);
///     }
///     fn tensors(&self, visit: &mut dyn FnMut(&Tensor)) {
///         match self {
///             Images::Labelled(images, labels) => [images, labels].into_iter().for_each(visit),
///             Images::Bare(images) => visit(images),
///         }
///     }
/// }
/// # fn main() {}
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a batch",
    note = "a batch is made of tensors, numbers and strings, in tuples, arrays, `Vec`, `Option`, `HashMap` and `BTreeMap`; for a struct of these, `#[derive(Batch)]`",
    note = "in a derived batch, mark a field that is not data, such as a path, with `#[batch(skip)]`"
)]
pub trait Batch: Send + 'static {
    /// Returns the number of samples, determined by the first value that has one: the first
    /// dimension of a tensor, or the length of a list whose elements have no number of samples
    /// themselves. `None` if no value has one, for example for a single number.
    fn samples(&self) -> Option<u64>;

    /// Moves every tensor to a device, in place. Tensors already on the device are not copied.
    fn move_to(&mut self, device: Device);

    /// Appends a description to `text`, for messages: the dtypes and shapes of tensors, and the
    /// types of other values.
    fn describe(&self, text: &mut String);

    /// Calls `visit` with every tensor, in an order that is always the same.
    fn tensors(&self, visit: &mut dyn FnMut(&Tensor));

    /// Returns a copy with tensors of its own, or `None` if the batch cannot be copied. A rank
    /// whose data ends before that of [other ranks](super::Loader::per_rank) processes copies.
    /// Defaults to `None`. A derived batch can be copied if every field can, and every field with
    /// `#[batch(skip)]` implements [`Clone`].
    fn try_clone(&self) -> Option<Self>
    where
        Self: Sized,
    {
        None
    }
}

impl Batch for Tensor {
    fn samples(&self) -> Option<u64> {
        crate::libtorch::rows(self)
    }

    fn move_to(&mut self, device: Device) {
        if self.device() != device {
            *self = self.to_device(device);
        }
    }

    fn describe(&self, text: &mut String) {
        let _ = match self.defined() {
            true => write!(text, "{:?} {:?}", self.kind(), self.size()),
            false => write!(text, "an undefined tensor"),
        };
    }

    fn tensors(&self, visit: &mut dyn FnMut(&Tensor)) {
        visit(self);
    }

    fn try_clone(&self) -> Option<Self> {
        Some(if self.defined() { self.detach().copy() } else { Tensor::new() })
    }
}

/// Implements [`Batch::move_to`], [`Batch::describe`] and [`Batch::tensors`] for a collection by
/// calling them on each element.
macro_rules! of_parts {
    ($self:ident, $parts:expr, $parts_mut:expr) => {
        fn move_to(&mut $self, device: Device) {
            for part in $parts_mut {
                part.move_to(device);
            }
        }

        fn describe(&$self, text: &mut String) {
            text.push('[');
            for (nth, part) in $parts.enumerate() {
                text.push_str(if nth == 0 { "" } else { ", " });
                part.describe(text);
            }
            text.push(']');
        }

        fn tensors(&$self, visit: &mut dyn FnMut(&Tensor)) {
            $parts.for_each(|part| part.tensors(visit));
        }
    };
}

impl<B: Batch> Batch for Vec<B> {
    fn samples(&self) -> Option<u64> {
        // If no element has a number of samples, as in a list of strings, the length of the list is
        // the number of samples.
        self.iter().find_map(Batch::samples).or_else(|| (!self.is_empty()).then_some(self.len() as u64))
    }

    fn try_clone(&self) -> Option<Self> {
        self.iter().map(Batch::try_clone).collect()
    }

    of_parts!(self, self.iter(), self.iter_mut());
}

impl<B: Batch, const N: usize> Batch for [B; N] {
    fn samples(&self) -> Option<u64> {
        self.iter().find_map(Batch::samples).or((N > 0).then_some(N as u64))
    }

    fn try_clone(&self) -> Option<Self> {
        let parts: Option<Vec<B>> = self.iter().map(Batch::try_clone).collect();
        parts?.try_into().ok()
    }

    of_parts!(self, self.iter(), self.iter_mut());
}

impl<B: Batch> Batch for Option<B> {
    fn samples(&self) -> Option<u64> {
        self.as_ref().and_then(Batch::samples)
    }

    fn try_clone(&self) -> Option<Self> {
        self.as_ref().map_or(Some(None), |part| part.try_clone().map(Some))
    }

    of_parts!(self, self.iter(), self.iter_mut());
}

// The iteration order of a hash map differs from run to run: use the order of the keys.
impl<K, B, S> Batch for HashMap<K, B, S>
where
    K: Ord + Hash + Clone + Send + 'static,
    B: Batch,
    S: BuildHasher + Default + Send + 'static,
{
    fn samples(&self) -> Option<u64> {
        in_order(self).find_map(Batch::samples)
    }

    fn try_clone(&self) -> Option<Self> {
        let mut copy = HashMap::with_capacity_and_hasher(self.len(), S::default());
        for (key, part) in self {
            copy.insert(key.clone(), part.try_clone()?);
        }
        Some(copy)
    }

    of_parts!(self, in_order(self), self.values_mut());
}

/// Returns the values of a map in the order of their keys.
fn in_order<K: Ord, B, S>(map: &HashMap<K, B, S>) -> impl Iterator<Item = &B> {
    let mut parts: Vec<_> = map.iter().collect();
    parts.sort_by_key(|(key, _)| *key);
    parts.into_iter().map(|(_, part)| part)
}

impl<K: Ord + Clone + Send + 'static, B: Batch> Batch for BTreeMap<K, B> {
    fn samples(&self) -> Option<u64> {
        self.values().find_map(Batch::samples)
    }

    fn try_clone(&self) -> Option<Self> {
        self.iter().map(|(key, part)| Some((key.clone(), part.try_clone()?))).collect()
    }

    of_parts!(self, self.values(), self.values_mut());
}

macro_rules! tuples {
    ($(($($part:ident)+))+) => {$(
        #[allow(non_snake_case)]
        impl<$($part: Batch),+> Batch for ($($part,)+) {
            fn samples(&self) -> Option<u64> {
                let ($($part,)+) = self;
                None$(.or_else(|| $part.samples()))+
            }

            fn move_to(&mut self, device: Device) {
                let ($($part,)+) = self;
                $($part.move_to(device);)+
            }

            fn describe(&self, text: &mut String) {
                let ($($part,)+) = self;
                let mut between = "(";
                $(
                    text.push_str(between);
                    $part.describe(text);
                    between = ", ";
                )+
                let _ = between;
                text.push(')');
            }

            fn tensors(&self, visit: &mut dyn FnMut(&Tensor)) {
                let ($($part,)+) = self;
                $($part.tensors(visit);)+
            }

            fn try_clone(&self) -> Option<Self> {
                let ($($part,)+) = self;
                Some(($($part.try_clone()?,)+))
            }
        }
    )+};
}

tuples! { (A) (A B) (A B C) (A B C D) (A B C D E) (A B C D E F) (A B C D E F G) (A B C D E F G H) }

macro_rules! without_tensors {
    ($($kind:ty),+) => {$(
        impl Batch for $kind {
            fn samples(&self) -> Option<u64> {
                None
            }

            fn move_to(&mut self, _: Device) {}

            fn describe(&self, text: &mut String) {
                text.push_str(stringify!($kind));
            }

            fn tensors(&self, _: &mut dyn FnMut(&Tensor)) {}

            fn try_clone(&self) -> Option<Self> {
                Some(Clone::clone(self))
            }
        }
    )+};
}

without_tensors!(
    (),
    bool,
    i8,
    i16,
    i32,
    i64,
    u8,
    u16,
    u32,
    u64,
    isize,
    usize,
    f32,
    f64,
    char,
    String,
    &'static str
);

/// A field of a derived batch with `#[batch(skip)]`, which can be copied if its type implements
/// `Clone`. The method with the bound is found first; without the bound, that of [`NotCloned`] is.
#[derive(Debug)]
pub struct Skipped<'a, T>(pub &'a T);

impl<T: Clone> Skipped<'_, T> {
    /// Returns a copy.
    #[must_use]
    pub fn try_clone(&self) -> Option<T> {
        Some(self.0.clone())
    }
}

/// A [`Skipped`] field whose type does not implement `Clone`.
pub trait NotCloned<T> {
    /// Returns `None`.
    fn try_clone(&self) -> Option<T>;
}

impl<T> NotCloned<T> for Skipped<'_, T> {
    fn try_clone(&self) -> Option<T> {
        None
    }
}
