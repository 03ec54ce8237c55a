//! [`Image`]: the pixels of a logged image.

use std::borrow::Cow;

use tch::{Device, Kind, Tensor};

use crate::error::{Error, Result};
use crate::libtorch;

/// An image with 8 bits per channel.
///
/// ```
/// use trainer::Image;
///
/// let image = Image { width: 2, height: 1, channels: 1, pixels: vec![0, 255] };
/// let enlarged = image.enlarged(16);
/// assert_eq!((enlarged.width, enlarged.height), (16, 8));
/// assert!(enlarged.png()?.starts_with(b"\x89PNG"));
/// # Ok::<(), trainer::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// The width in pixels.
    pub width: u32,
    /// The height in pixels.
    pub height: u32,
    /// The number of channels: 1 (gray), 3 (RGB) or 4 (RGBA).
    pub channels: u8,
    /// The pixels, row by row from the top left, with one byte for each channel of a pixel.
    pub pixels: Vec<u8>,
}

/// The maximum width and height in pixels.
const MAX_SIDE: i64 = 16_384;

/// The error for a checkpoint tensor that cannot be an image.
const INVALID: &str = "the checkpoint contains an invalid image: resume from another checkpoint";

impl Image {
    /// Encodes the image as PNG.
    ///
    /// # Errors
    ///
    /// Returns an error if
    ///
    /// - the width or the height is 0;
    /// - the number of channels is not 1, 3 or 4;
    /// - the length of `pixels` is not `width * height * channels`.
    pub fn png(&self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, self.width, self.height);
        encoder.set_depth(png::BitDepth::Eight);
        encoder.set_color(match self.channels {
            1 => png::ColorType::Grayscale,
            3 => png::ColorType::Rgb,
            4 => png::ColorType::Rgba,
            other => {
                return Err(Error::usage(format!(
                    "expected an image with 1, 3 or 4 channels, found {other}"
                )));
            }
        });
        let mut writer = encoder.write_header().map_err(Error::new)?;
        writer.write_image_data(&self.pixels).map_err(Error::new)?;
        writer.finish().map_err(Error::new)?;
        Ok(bytes)
    }

    /// Enlarges a small image by an integer factor, without smoothing, so that its longer side has
    /// at least `side` pixels. A large image is returned unchanged.
    #[must_use]
    pub fn enlarged(&self, side: u32) -> Cow<'_, Image> {
        let factor = side.div_ceil(self.width.max(self.height).max(1));
        if factor <= 1 || self.width == 0 || self.channels == 0 {
            return Cow::Borrowed(self);
        }
        let times = factor as usize;
        let pixel_length = usize::from(self.channels);
        let mut pixels = Vec::with_capacity(self.pixels.len() * times * times);
        for row in self.pixels.chunks(self.width as usize * pixel_length) {
            let wide: Vec<u8> = row.chunks(pixel_length).flat_map(|pixel| pixel.repeat(times)).collect();
            pixels.extend(wide.repeat(times));
        }
        Cow::Owned(Image { width: self.width * factor, height: self.height * factor, pixels, ..*self })
    }

    /// Converts a tensor of shape `[channels, height, width]` or `[height, width]` to pixels of
    /// shape `[height, width, channels]` on its device, without synchronizing. Floating-point
    /// values from 0 to 1 become 0 to 255; values outside this range are clamped. Returns an error
    /// if the tensor has any other shape or an unsupported dtype.
    pub(super) fn convert(tensor: &Tensor) -> Result<Tensor> {
        let _no_grad = tch::no_grad_guard();
        let tensor = libtorch::dense(tensor, "the image")?;
        let image = match tensor.size()[..] {
            [_, _] => tensor.f_unsqueeze(0)?,
            _ => tensor.shallow_clone(),
        };
        let is_image = match image.size()[..] {
            [channels, height, width] => {
                matches!(channels, 1 | 3 | 4)
                    && (1..=MAX_SIDE).contains(&height)
                    && (1..=MAX_SIDE).contains(&width)
            }
            _ => false,
        };
        if !is_image {
            return Err(Error::usage(format!(
                "expected an image of shape [channels, height, width] with 1, 3 or 4 channels, or of shape \
                 [height, width], with sides up to {MAX_SIDE}; found a tensor of shape {:?}",
                tensor.size()
            )));
        }
        let pixels = image.f_permute([1, 2, 0])?;
        let pixels = match pixels.kind() {
            Kind::Uint8 => pixels,
            Kind::Float | Kind::Double | Kind::Half | Kind::BFloat16 => {
                let scaled =
                    pixels.f_to_kind(Kind::Float)?.f_nan_to_num(0.0, 1.0, 0.0)?.f_mul_scalar(255.0)?;
                scaled.f_clamp(0.0, 255.0)?.f_to_kind(Kind::Uint8)?
            }
            other => {
                return Err(Error::usage(format!(
                    "expected an image of floating-point numbers from 0 to 1, or of dtype `Uint8`; found dtype `{other:?}`"
                )));
            }
        };
        Ok(pixels.f_contiguous()?)
    }

    /// Builds an image from the pixels that [`convert`](Image::convert) returned.
    pub(super) fn from_pixels(pixels: &Tensor) -> Result<Self> {
        let pixels = pixels.f_to_device(Device::Cpu)?;
        let [height, width, channels] = pixels.size()[..] else {
            return Err(Error::usage(INVALID));
        };
        let side = |side: i64| u32::try_from(side).map_err(|_| Error::usage(INVALID));
        Ok(Image {
            width: side(width)?,
            height: side(height)?,
            channels: u8::try_from(channels).map_err(|_| Error::usage(INVALID))?,
            pixels: Vec::try_from(&pixels.f_reshape([-1])?)?,
        })
    }
}
