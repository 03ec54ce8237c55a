//! Which tensors contain NaN or infinite values.

use tch::{Device, Kind, Tensor};

use crate::error::Result;

/// What a floating-point tensor contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Content {
    Finite,
    Infinite,
    /// NaN, and possibly infinite values too.
    Nan,
}

/// Returns what each tensor contains. Integers, and tensors without elements, are finite. Reads
/// each tensor once, and waits for a device once.
pub(crate) fn contents<'t>(tensors: impl IntoIterator<Item = &'t Tensor>) -> Result<Vec<Content>> {
    let _no_grad = tch::no_grad_guard();
    let mut contents = Vec::new();
    let mut flags = Vec::new();
    let mut read = Vec::new();
    for tensor in tensors {
        contents.push(Content::Finite);
        if let Some(values) = values_of(tensor)? {
            // NaN takes precedence over every number.
            let (min, max) = values.f_aminmax(None, false)?;
            let is_infinite = min.f_isinf()?.f_logical_or(&max.f_isinf()?)?;
            flags.push(Tensor::f_stack(&[min.f_isnan()?, is_infinite], 0)?);
            read.push(contents.len() - 1);
        }
    }
    let Some(device) = flags.first().map(Tensor::device) else { return Ok(contents) };
    let on_device = flags.iter().map(|flag| flag.f_to_device(device)).collect::<Result<Vec<_>, _>>()?;
    let flags = Tensor::f_stack(&on_device, 0)?.f_to_device(Device::Cpu)?;
    for (nth, place) in read.into_iter().enumerate() {
        let is_set = |flag: i64| flags.int64_value(&[nth as i64, flag]) != 0;
        contents[place] = match () {
            () if is_set(0) => Content::Nan,
            () if is_set(1) => Content::Infinite,
            () => Content::Finite,
        };
    }
    Ok(contents)
}

/// Returns the stored floating-point values of a tensor in a dtype that libtorch compares; `None`
/// if it has none.
fn values_of(tensor: &Tensor) -> Result<Option<Tensor>> {
    if !tensor.defined() {
        return Ok(None);
    }
    let values = if tensor.is_sparse() { tensor.f_coalesce()?.f_values()? } else { tensor.f_detach()? };
    let values = match values.kind() {
        Kind::Float | Kind::Double | Kind::Half | Kind::BFloat16 => values,
        Kind::ComplexHalf | Kind::ComplexFloat | Kind::ComplexDouble => {
            values.f_resolve_conj()?.f_view_as_real()?
        }
        _ if values.is_floating_point() => values.f_to_kind(Kind::Float)?,
        _ => return Ok(None),
    };
    Ok((values.numel() > 0).then_some(values))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dtype_and_layout_is_read() {
        let of = |values: &[f64], kind| Tensor::from_slice(values).to_kind(kind);
        let kinds = [
            Kind::Float,
            Kind::Double,
            Kind::Half,
            Kind::BFloat16,
            Kind::ComplexFloat,
            Kind::ComplexDouble,
            Kind::Float8e4m3fn,
            Kind::Float8e5m2,
        ];
        for kind in kinds {
            let tensors = [
                of(&[1.0, -2.0, 0.0], kind),
                of(&[1.0, f64::NAN, f64::INFINITY], kind),
                Tensor::zeros([0], (kind, Device::Cpu)),
            ];
            assert_eq!(
                contents(&tensors).unwrap(),
                [Content::Finite, Content::Nan, Content::Finite],
                "{kind:?}"
            );
            // The dtype `Float8e4m3fn` has no infinity.
            if kind != Kind::Float8e4m3fn {
                let infinite = of(&[1.0, f64::NEG_INFINITY], kind);
                assert_eq!(contents([&infinite]).unwrap(), [Content::Infinite], "{kind:?}");
            }
        }
        let matrix = of(&[0.0, f64::NAN, 0.0, 1.0], Kind::Float).reshape([2, 2]);
        let odd = [
            matrix.tr(),
            matrix.to_sparse_sparse_dim(2),
            matrix.internal_neg_view(),
            matrix.unsqueeze(0).expand([3, 2, 2], false),
            of(&[f64::NAN], Kind::Float).reshape([0i64; 0]),
        ];
        assert_eq!(contents(&odd).unwrap(), [Content::Nan; 5]);
        let none = [Tensor::new(), Tensor::from_slice(&[1i64, i64::MAX]), Tensor::from_slice(&[true, false])];
        assert_eq!(contents(&none).unwrap(), [Content::Finite; 3]);
        // Large values of a wide dtype are finite, whatever a narrower one could hold.
        assert_eq!(contents([&of(&[1e300], Kind::Double)]).unwrap(), [Content::Finite]);
        assert_eq!(contents(&[] as &[Tensor]).unwrap(), []);
    }
}
