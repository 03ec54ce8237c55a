//! The channels-last memory layout of images and convolution weights.

use tch::{Tensor, nn};

use crate::data::{Batch, change_tensors};
use crate::error::Result;
use crate::model::vars::Vars;

/// Converts the four-dimensional variables of a task to the channels-last layout. They remain the
/// same variables with the same values.
pub(super) fn change_weights(store: &nn::VarStore) {
    let _no_grad = tch::no_grad_guard();
    for var in Vars::from_store(store).iter() {
        if let Ok(Some(changed)) = channels_last(&var.tensor) {
            var.tensor.shallow_clone().set_data(&changed);
        }
    }
}

/// Converts the four-dimensional tensors of a batch to the channels-last layout.
pub(super) fn change_batch(batch: &mut impl Batch) -> Result<()> {
    change_tensors(batch, channels_last)
}

/// Converts a dense tensor of shape `[N, C, H, W]` to one of the same shape that is contiguous as
/// `[N, H, W, C]`. Returns `None` if the tensor is not dense and four-dimensional, or if it already
/// has this layout.
fn channels_last(tensor: &Tensor) -> Result<Option<Tensor>> {
    if !tensor.defined() || tensor.dim() != 4 || tensor.is_sparse() || tensor.is_mkldnn() {
        return Ok(None);
    }
    let by_pixel = tensor.f_permute([0, 2, 3, 1])?;
    if by_pixel.is_contiguous() {
        return Ok(None);
    }
    Ok(Some(by_pixel.f_contiguous()?.f_permute([0, 3, 1, 2])?))
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    #[test]
    fn images_are_laid_out_by_pixel_and_keep_their_values() {
        let images = Tensor::arange(2 * 3 * 4 * 5, (Kind::Float, Device::Cpu)).view([2, 3, 4, 5]);
        let labels = Tensor::zeros([2], (Kind::Int64, Device::Cpu));
        let mut batch = (images.copy(), labels.copy());
        change_batch(&mut batch).unwrap();
        assert_eq!(batch.0.stride(), [60, 1, 15, 3]);
        assert_eq!((&batch.0, &batch.1), (&images, &labels));
        let address = batch.0.data_ptr();
        change_batch(&mut batch).unwrap();
        assert_eq!(batch.0.data_ptr(), address, "it has this layout already");
    }

    #[test]
    fn the_weights_of_convolutions_are_changed_in_place() {
        let store = nn::VarStore::new(Device::Cpu);
        let conv = nn::conv2d(store.root() / "conv", 3, 8, 5, Default::default());
        let fc = nn::linear(store.root() / "fc", 3, 8, Default::default());
        let before = conv.ws.copy();
        change_weights(&store);
        assert_eq!(conv.ws.stride(), [75, 1, 15, 3]);
        assert_eq!((&conv.ws, fc.ws.stride()), (&before, vec![3, 1]));
        assert!(conv.ws.requires_grad() && conv.ws.is_leaf());
        let images = Tensor::randn([2, 3, 9, 9], (Kind::Float, Device::Cpu));
        images.apply(&conv).sum(Kind::Float).backward();
        assert!(conv.ws.grad().defined());
    }
}
