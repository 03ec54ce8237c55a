//! Functions that augment images, with random numbers from the generator of each row.
//!
//! ```
//! use trainer::data::augment;
//! use trainer::prelude::*;
//!
//! let images: Vec<(Vec<f32>, i64)> = vec![(vec![0.5; 3 * 32 * 32], 7); 10];
//! let augmented = images.map(|(pixels, label), rng| {
//!     let image = Tensor::from_slice(&pixels).view([3, 32, 32]);
//!     let image = augment::random_crop(&image, (32, 32), 4, rng)?;
//!     let image = augment::horizontal_flip(&image, 0.5, rng)?;
//!     let image = augment::color_jitter(&image, 0.2, 0.2, rng)?;
//!     let image = augment::normalize(&image, &[0.5; 3], &[0.25; 3])?;
//!     Ok((augment::random_erasing(&image, 0.25, rng)?, label))
//! });
//! let mut train = DataLoader::new(augmented).batch_size(10).shuffle(42).workers(2);
//! let (images, _): (Tensor, Tensor) = train.batches(0, 0)?.next().expect("there is a batch")?;
//! assert_eq!(images.size(), [10, 3, 32, 32]);
//! # Ok::<(), trainer::Error>(())
//! ```
//!
//! An image is a floating-point tensor `[channels, height, width]`. The functions do not modify it:
//! the result is a new tensor, or shares the data of the image. They draw random numbers from the
//! generator of the row, not from libtorch's, so the result is the same for any number of workers
//! and after a resume. They behave like torchvision's transforms and have the same defaults, but
//! draw different random numbers.

use rand::Rng;
use tch::Tensor;

use super::rng::RowRng;
use crate::error::{Error, Result};

/// Returns the number of channels, the height and the width of an image. `function` is the name of
/// the caller, for the error about a tensor that is not an image.
fn sizes(image: &Tensor, function: &str) -> Result<(i64, i64, i64)> {
    match image.size()[..] {
        [channels, height, width] if image.is_floating_point() => Ok((channels, height, width)),
        _ => Err(Error::usage(format!(
            "`augment::{function}` was called with a {:?} tensor of shape {:?}: expected a floating-point image of shape [channels, height, \
             width]",
            image.kind(),
            image.size()
        ))),
    }
}

fn check_probability(probability: f64, function: &str) -> Result<()> {
    if (0.0..=1.0).contains(&probability) {
        return Ok(());
    }
    Err(Error::usage(format!(
        "`augment::{function}` has the probability {probability}: expected a value from 0 to 1"
    )))
}

/// Crops the image at a random position to this height and width, in pixels. The image is first
/// padded with `padding` zeros on each side.
///
/// # Errors
///
/// Returns an error if the size is below 1 x 1 or above that of the padded image, if `padding` is
/// negative, or if the tensor is not an image.
pub fn random_crop(image: &Tensor, size: (i64, i64), padding: i64, rng: &mut RowRng) -> Result<Tensor> {
    let (_, height, width) = sizes(image, "random_crop")?;
    let (to_height, to_width) = size;
    let (padded_height, padded_width) = (height + 2 * padding, width + 2 * padding);
    if to_height < 1 || to_width < 1 || padding < 0 || to_height > padded_height || to_width > padded_width {
        return Err(Error::usage(format!(
            "`augment::random_crop` of size {size:?} and padding {padding} from an image of {height} x {width} pixels: expected at \
             least 1 x 1 and at most {padded_height} x {padded_width} pixels"
        )));
    }
    let top = rng.gen_range(0..=padded_height - to_height);
    let left = rng.gen_range(0..=padded_width - to_width);
    let padded = image.f_constant_pad_nd([padding; 4])?;
    Ok(padded.f_narrow(1, top, to_height)?.f_narrow(2, left, to_width)?)
}

/// Flips the image from left to right with this probability.
///
/// # Errors
///
/// Returns an error if the probability is not from 0 to 1, or if the tensor is not an image.
pub fn horizontal_flip(image: &Tensor, probability: f64, rng: &mut RowRng) -> Result<Tensor> {
    sizes(image, "horizontal_flip")?;
    check_probability(probability, "horizontal_flip")?;
    Ok(if rng.gen_bool(probability) { image.f_flip([2])? } else { image.shallow_clone() })
}

/// Normalizes each channel: subtracts its `mean`, and divides by its `std`.
///
/// # Errors
///
/// Returns an error if
///
/// - the number of means or of standard deviations differs from the number of channels;
/// - a standard deviation is 0;
/// - the tensor is not an image.
pub fn normalize(image: &Tensor, mean: &[f64], std: &[f64]) -> Result<Tensor> {
    let (channels, ..) = sizes(image, "normalize")?;
    if mean.len() as i64 != channels || std.len() as i64 != channels || std.contains(&0.0) {
        return Err(Error::usage(format!(
            "`augment::normalize` with the means {mean:?} and the standard deviations {std:?} of an image of {channels} channels: \
             expected one mean and one nonzero standard deviation for each channel"
        )));
    }
    let each = |values: &[f64]| {
        let values = Tensor::f_from_slice(values)?.f_view([channels, 1, 1])?;
        Ok::<_, Error>(values.f_to_kind(image.kind())?.f_to_device(image.device())?)
    };
    Ok(image.f_sub(&each(mean)?)?.f_div(&each(std)?)?)
}

/// Changes brightness and contrast at random.
///
/// The image is multiplied by a random factor from `1 - brightness` to `1 + brightness`. Then the
/// difference between each value and the mean luminance is multiplied by a random factor from
/// `1 - contrast` to `1 + contrast`. Both results are clamped to the range from 0 to 1. The values
/// of the image must be in this range, so call this before [`normalize`].
///
/// Three channels are interpreted as red, green and blue. For any other number of channels, the
/// luminance is their mean.
///
/// # Errors
///
/// Returns an error if `brightness` or `contrast` is not from 0 to 1, or if the tensor is not an
/// image.
pub fn color_jitter(image: &Tensor, brightness: f64, contrast: f64, rng: &mut RowRng) -> Result<Tensor> {
    let (channels, ..) = sizes(image, "color_jitter")?;
    for (name, amount) in [("brightness", brightness), ("contrast", contrast)] {
        if !(0.0..=1.0).contains(&amount) {
            return Err(Error::usage(format!(
                "`augment::color_jitter` has the {name} {amount}: expected a value from 0 to 1"
            )));
        }
    }
    let brightness = rng.gen_range(1.0 - brightness..=1.0 + brightness);
    let contrast = rng.gen_range(1.0 - contrast..=1.0 + contrast);
    let bright = image.f_mul_scalar(brightness)?.f_clamp(0.0, 1.0)?;
    let luminance = if channels == 3 {
        // The weights of torchvision's `rgb_to_grayscale`, from ITU-R BT.601.
        let weights = Tensor::from_slice(&[0.2989, 0.587, 0.114]).f_view([3, 1, 1])?;
        let weights = weights.f_to_kind(image.kind())?.f_to_device(image.device())?;
        bright.f_mul(&weights)?.f_sum_dim_intlist([0_i64].as_slice(), true, image.kind())?
    } else {
        bright.f_mean_dim([0_i64].as_slice(), true, image.kind())?
    };
    let mean = luminance.f_mean(image.kind())?;
    Ok(bright.f_sub(&mean)?.f_mul_scalar(contrast)?.f_add(&mean)?.f_clamp(0.0, 1.0)?)
}

/// Sets a random rectangle of the image to 0, with this probability.
///
/// The rectangle has from 2 % to 33 % of the area of the image, and a ratio of height to width from
/// 0.3 to 3.3, as in [Zhong et al., 2017](https://arxiv.org/abs/1708.04896). If none of 10 random
/// rectangles fits into the image, the image is returned unchanged.
///
/// # Errors
///
/// Returns an error if the probability is not from 0 to 1, or if the tensor is not an image.
pub fn random_erasing(image: &Tensor, probability: f64, rng: &mut RowRng) -> Result<Tensor> {
    let (_, height, width) = sizes(image, "random_erasing")?;
    check_probability(probability, "random_erasing")?;
    if !rng.gen_bool(probability) {
        return Ok(image.shallow_clone());
    }
    for _ in 0..10 {
        let area = rng.gen_range(0.02..0.33) * (height * width) as f64;
        let ratio = rng.gen_range(0.3_f64.ln()..3.3_f64.ln()).exp();
        let (rows, columns) = ((area * ratio).sqrt().round() as i64, (area / ratio).sqrt().round() as i64);
        if rows < 1 || columns < 1 || rows >= height || columns >= width {
            continue;
        }
        let (top, left) = (rng.gen_range(0..=height - rows), rng.gen_range(0..=width - columns));
        let mut erased = image.f_empty_like()?;
        erased.f_copy_(image)?;
        let mut rectangle = erased.f_narrow(1, top, rows)?.f_narrow(2, left, columns)?;
        let _ = rectangle.f_zero_()?;
        return Ok(erased);
    }
    Ok(image.shallow_clone())
}
