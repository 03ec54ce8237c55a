//! [`Batch`]: the data that a task processes at once.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, Hash};
use std::marker::PhantomData;
use std::ops::Deref;

use tch::{Device, Tensor};

use crate::error::Result;

/// The data that a task processes at once: tensors, numbers and strings, and tuples, arrays,
/// `Vec`s, `Option`s and maps of these, nested in any way.
///
/// Derive the trait for a struct:
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
/// Implement it by hand for other types:
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
///     fn tensors_mut(&mut self, visit: &mut dyn FnMut(&mut Tensor)) {
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
    /// Returns the number of samples, or `None` if no value has samples, for example for a single
    /// number.
    ///
    /// The number is that of the first value that has samples. For a tensor, it is the size of the
    /// first dimension. For a list whose elements have no samples themselves, such as strings, it
    /// is the length of the list.
    fn samples(&self) -> Option<u64>;

    /// Appends a description to `text`, for use in messages: the dtypes and shapes of tensors, and
    /// the types of other values.
    fn describe(&self, text: &mut String);

    /// Calls `visit` with every tensor, always in the same order.
    fn tensors(&self, visit: &mut dyn FnMut(&Tensor));

    /// Calls `visit` with mutable access to every tensor, for example to move it to another device.
    fn tensors_mut(&mut self, visit: &mut dyn FnMut(&mut Tensor));

    /// Returns a copy that shares no tensors with the original, or `None` if the batch cannot be
    /// copied. Defaults to `None`.
    ///
    /// A rank whose data ends before that of [other ranks](super::Loader::per_rank) processes
    /// copies of its first batch. A derived batch can be copied if all its fields can; a field with
    /// `#[batch(skip)]` must implement [`Clone`].
    fn try_clone(&self) -> Option<Self>
    where
        Self: Sized,
    {
        None
    }

    /// Moves every tensor to a device. Tensors that are already on the device are not copied.
    ///
    /// Tensors in pinned memory are copied to a CUDA device asynchronously.
    /// [`Loader::to_device`](super::Loader::to_device) copies batches in this way on a background
    /// thread.
    ///
    /// # Errors
    ///
    /// Returns an error if libtorch cannot copy a tensor, for example because the device is out of
    /// memory. Some tensors may have been moved by then.
    fn move_to(&mut self, device: Device) -> Result<()>
    where
        Self: Sized,
    {
        change_tensors(self, |tensor| {
            if !tensor.defined() || tensor.device() == device {
                return Ok(None);
            }
            // Only a copy to a GPU may return before it has ended: the work that uses the tensor is
            // queued after it.
            let is_async = matches!(device, Device::Cuda(_));
            Ok(Some(tensor.f_to_device_(device, tensor.kind(), is_async, false)?))
        })
    }
}

/// Calls `change` with every tensor of a batch, and replaces the tensor with the result. If the
/// result is `None`, the tensor stays as it is.
///
/// # Errors
///
/// Returns the first error of `change`. The remaining tensors then stay as they are.
pub(crate) fn change_tensors(
    batch: &mut impl Batch,
    mut change: impl FnMut(&Tensor) -> Result<Option<Tensor>>,
) -> Result<()> {
    let mut result = Ok(());
    batch.tensors_mut(&mut |tensor| {
        if result.is_ok() {
            match change(tensor) {
                Ok(Some(changed)) => *tensor = changed,
                Ok(None) => {}
                Err(error) => result = Err(error),
            }
        }
    });
    result
}

impl Batch for Tensor {
    fn samples(&self) -> Option<u64> {
        crate::libtorch::rows(self)
    }

    fn describe(&self, text: &mut String) {
        crate::libtorch::describe(self, text);
    }

    fn tensors(&self, visit: &mut dyn FnMut(&Tensor)) {
        visit(self);
    }

    fn try_clone(&self) -> Option<Self> {
        if !self.defined() {
            return Some(Tensor::new());
        }
        crate::libtorch::copied(self, false, "the tensor").ok()
    }

    fn tensors_mut(&mut self, visit: &mut dyn FnMut(&mut Tensor)) {
        visit(self);
    }
}

/// Implements `describe`, `tensors` and `tensors_mut` of [`Batch`] for a collection by calling them
/// on each element.
macro_rules! of_parts {
    ($self:ident, $parts:expr, $parts_mut:expr) => {
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

        fn tensors_mut(&mut $self, visit: &mut dyn FnMut(&mut Tensor)) {
            $parts_mut.for_each(|part| part.tensors_mut(visit));
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

    of_parts!(self, in_order(self), in_order_mut(self));
}

/// Returns the values of a map in the order of their keys.
fn in_order<K: Ord, B, S>(map: &HashMap<K, B, S>) -> impl Iterator<Item = &B> {
    let mut parts: Vec<_> = map.iter().collect();
    parts.sort_by_key(|(key, _)| *key);
    parts.into_iter().map(|(_, part)| part)
}

/// Returns mutable access to the values of a map, in the order of their keys.
fn in_order_mut<K: Ord, B, S>(map: &mut HashMap<K, B, S>) -> impl Iterator<Item = &mut B> {
    let mut parts: Vec<_> = map.iter_mut().collect();
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

            fn tensors_mut(&mut self, visit: &mut dyn FnMut(&mut Tensor)) {
                let ($($part,)+) = self;
                $($part.tensors_mut(visit);)+
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

            fn describe(&self, text: &mut String) {
                text.push_str(stringify!($kind));
            }

            fn tensors(&self, _: &mut dyn FnMut(&Tensor)) {}

            fn try_clone(&self) -> Option<Self> {
                Some(Clone::clone(self))
            }

            fn tensors_mut(&mut self, _: &mut dyn FnMut(&mut Tensor)) {}
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

/// A field with `#[batch(skip)]` in a derived batch. If the type of the field implements `Clone`,
/// `try_clone` copies the field. Otherwise, method resolution dereferences to `NotCloned`, whose
/// `try_clone` returns `None`.
#[derive(Debug)]
pub struct Skipped<'a, T>(&'a T, NotCloned<T>);

impl<'a, T> Skipped<'a, T> {
    /// Wraps a field that has the attribute `#[batch(skip)]`.
    #[must_use]
    pub fn new(field: &'a T) -> Self {
        Skipped(field, NotCloned(PhantomData))
    }
}

impl<T: Clone> Skipped<'_, T> {
    /// Returns a copy of the field.
    #[must_use]
    pub fn try_clone(&self) -> Option<T> {
        Some(self.0.clone())
    }
}

impl<T> Deref for Skipped<'_, T> {
    type Target = NotCloned<T>;

    fn deref(&self) -> &NotCloned<T> {
        &self.1
    }
}

/// A [`Skipped`] field whose type does not implement `Clone`.
#[derive(Debug)]
pub struct NotCloned<T>(PhantomData<T>);

impl<T> NotCloned<T> {
    /// Returns `None`, because the type of the field does not implement `Clone`.
    #[must_use]
    pub fn try_clone(&self) -> Option<T> {
        None
    }
}
