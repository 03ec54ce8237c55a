//! [`ImageFolder`]: images in one folder per class.

use std::io::Cursor;
use std::path::{Path, PathBuf};

use ::image::imageops::FilterType;
use ::image::{DynamicImage, ImageBuffer, ImageDecoder, ImageFormat, ImageReader, Limits, Pixel};
use tch::{Device, Kind, Tensor};

use super::foreign::Found;
use crate::data::dataset::Dataset;
use crate::data::fingerprint::with_files;
use crate::data::rng::RowRng;
use crate::error::{Error, Result};
use crate::io::files::{Links, entries, in_file, name_of, open, read_start};

/// The extensions of image files.
const EXTENSIONS: [&str; 8] = ["bmp", "gif", "jpeg", "jpg", "png", "tif", "tiff", "webp"];

/// The default for the maximum number of pixels of an image: that of 8192 rows of 8192 pixels.
const MAX_PIXELS: u64 = 1 << 26;

/// The maximum number of bytes that a decoder needs for a pixel: four channels of 16 bits, and as
/// much again for its own memory.
const BYTES_PER_PIXEL: u64 = 16;

/// The images in a folder with one subfolder per class.
///
/// Use this when each image is a file on a local disk. For many small files, or a network disk, use
/// `Shards` of tar files.
///
/// ```no_run
/// use trainer::data::{ImageFolder, augment};
/// use trainer::prelude::*;
///
/// // flowers/daisy/1.jpg, flowers/daisy/2.jpg, flowers/tulip/1.png, …
/// let images = ImageFolder::open("flowers")?.size(224, 224);
/// let labels = images.labels();
/// let [train, valid] = images.random_split(42, [0.9, 0.1]);
/// let train = train.map(|(image, label), rng| {
///     let image = augment::horizontal_flip(&image, 0.5, rng)?;
///     Ok((augment::normalize(&image, &[0.485, 0.456, 0.406], &[0.229, 0.224, 0.225])?, label))
/// });
/// let train = DataLoader::new(train).batch_size(64).shuffle(42).workers(4);
/// # Ok::<(), trainer::Error>(())
/// ```
///
/// A row is a pair of an image, `Float [channels, height, width]` with values from 0 to 1, and the
/// number of the image's class. The classes are numbered from 0, in the order of their folder
/// names. Images are read when they are needed. The channels are red, green and blue, or the
/// luminance with [`grayscale`](ImageFolder::grayscale), with the values of Pillow; transparency is
/// dropped, and so is the lower byte of channels of 16 bits. The images of a
/// batch must have the same [`size`](ImageFolder::size). Images in subfolders of a class folder
/// belong to that class, too. Links are followed.
#[derive(Clone, Debug)]
pub struct ImageFolder {
    classes: Vec<String>,
    images: Vec<(PathBuf, usize)>,
    size: Option<(u32, u32)>,
    is_gray: bool,
    max_pixels: u64,
}

impl ImageFolder {
    /// Finds the images in the subfolders of `folder`.
    ///
    /// # Errors
    ///
    /// Returns an error if a folder cannot be read, if there are no classes, or if a class has no
    /// images.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self> {
        let folder = folder.as_ref();
        let mut folders = entries(folder)?;
        folders.retain(|path| path.is_dir() && !is_hidden(path));
        folders.sort();
        if folders.is_empty() {
            return Err(in_file(
                folder,
                "the folder has no subfolders: expected one for each class, with its images",
            ));
        }
        let mut classes = Vec::new();
        let mut images = Vec::new();
        for path in folders {
            let before = images.len();
            find_images(&path, classes.len(), &mut images)?;
            if images.len() == before {
                let text = format!("the folder of this class has no images ({})", EXTENSIONS.join(", "));
                return Err(in_file(&path, text));
            }
            classes.push(path.file_name().unwrap_or_default().to_string_lossy().into_owned());
        }
        Ok(ImageFolder { classes, images, size: None, is_gray: false, max_pixels: MAX_PIXELS })
    }

    /// Resizes the images to this height and width, in pixels, with a linear filter. The filter
    /// widens when an image is made smaller (like `antialias=True` in torchvision).
    ///
    /// # Panics
    ///
    /// Panics if `height` or `width` is 0.
    #[must_use]
    #[track_caller]
    pub fn size(mut self, height: u32, width: u32) -> Self {
        assert!(height > 0 && width > 0, "`.size({height}, {width})`: expected at least 1 pixel");
        self.size = Some((height, width));
        self
    }

    /// Converts the images to one channel of luminance, 0.299 red + 0.587 green + 0.114 blue (ITU-R
    /// BT.601, as Pillow's `convert("L")`). Off by default.
    #[must_use]
    pub fn grayscale(mut self, grayscale: bool) -> Self {
        self.is_gray = grayscale;
        self
    }

    /// Refuses images with more than this number of pixels, before they are decoded. Defaults to
    /// 67,108,864 (8192 × 8192). A decoded pixel takes up to 16 bytes, and 12 more as a tensor of
    /// three channels, which has the [`size`](ImageFolder::size) that is set, if any.
    #[doc(alias = "MAX_IMAGE_PIXELS")]
    #[must_use]
    pub fn max_pixels(mut self, pixels: u64) -> Self {
        self.max_pixels = pixels;
        self
    }

    /// Returns the names of the classes, in the order of their numbers.
    #[must_use]
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// Returns the class number of each image, for [`balanced`](Dataset::balanced).
    #[must_use]
    pub fn labels(&self) -> Vec<i64> {
        self.images.iter().map(|(_, class)| *class as i64).collect()
    }
}

fn is_hidden(path: &Path) -> bool {
    name_of(path).starts_with('.')
}

/// Adds the images in a folder and its subfolders, in the order of their names.
fn find_images(folder: &Path, class: usize, images: &mut Vec<(PathBuf, usize)>) -> Result<()> {
    let mut found = entries(folder)?;
    found.sort();
    for path in found {
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        let is_image = EXTENSIONS.contains(&extension.to_lowercase().as_str());
        if is_hidden(&path) {
            continue;
        }
        if path.is_dir() {
            find_images(&path, class, images)?;
        } else if is_image {
            images.push((path, class));
        }
    }
    Ok(())
}

impl Dataset for ImageFolder {
    type Row = (Tensor, i64);

    fn len(&self) -> usize {
        self.images.len()
    }

    fn row(&self, index: usize, _: &mut RowRng) -> Result<(Tensor, i64)> {
        let (path, class) = &self.images[index];
        let (file, length) = open(path, Links::Follow)?;
        let bytes = read_start(path, &file, length)?;
        let mut image = decode(&bytes, self.max_pixels).map_err(|problem| in_file(path, problem))?;
        if let Some((height, width)) = self.size
            && (image.height(), image.width()) != (height, width)
        {
            image = image.resize_exact(width, height, FilterType::Triangle);
        }
        Ok((to_tensor(image, self.is_gray)?, *class as i64))
    }

    fn fingerprint(&self) -> String {
        let mut hash = blake3::Hasher::new();
        for (path, class) in &self.images {
            hash.update(name_of(path).as_bytes());
            hash.update(&[0]);
            hash.update(&(*class as u64).to_le_bytes());
        }
        let size =
            self.size.map_or_else(String::new, |(height, width)| format!(", {height} x {width} pixels"));
        let gray = if self.is_gray { ", grayscale" } else { "" };
        let names = &hash.finalize().to_hex()[..16];
        let images = format!("images {names} of {} classes{size}{gray}", self.classes.len());
        with_files(&images, self.images.iter().map(|(path, _)| path.as_path()))
    }

    fn row_name(&self, index: usize) -> String {
        self.images[index].0.display().to_string()
    }
}

fn decode(bytes: &[u8], max_pixels: u64) -> Result<DynamicImage, String> {
    let mut reader =
        ImageReader::new(Cursor::new(bytes)).with_guessed_format().map_err(|error| error.to_string())?;
    let Some(format) = reader.format().filter(ImageFormat::reading_enabled) else {
        return Err(Found::in_bytes(bytes).refused("an image (JPEG, PNG, WebP, GIF, BMP or TIFF)"));
    };
    // The decoder of JPEG fills what is missing with gray.
    if format == ImageFormat::Jpeg && !has_end_marker(bytes) {
        return Err(
            "the image cannot be decoded: it is truncated, because its end marker is missing".to_owned()
        );
    }
    let mut limits = Limits::default();
    limits.max_alloc = Some(max_pixels.saturating_mul(BYTES_PER_PIXEL));
    reader.limits(limits);
    let undecodable = |error| format!("the image cannot be decoded: {error}");
    let decoder = reader.into_decoder().map_err(undecodable)?;
    let (width, height) = decoder.dimensions();
    if u64::from(width) * u64::from(height) > max_pixels {
        return Err(format!(
            "the image has {height} x {width} pixels, more than the limit of {max_pixels}: if it is meant to be that \
             large, raise the limit with `.max_pixels(…)`, or `decode_image_up_to`"
        ));
    }
    DynamicImage::from_decoder(decoder).map(with_bytes).map_err(undecodable)
}

/// Drops the lower byte of components of 16 bits, as Pillow and OpenCV do. The conversions of the
/// `image` crate round, so one value in four would be one level higher or lower.
fn with_bytes(image: DynamicImage) -> DynamicImage {
    fn cut<P>(image: &ImageBuffer<P, Vec<u16>>) -> Vec<u8>
    where
        P: Pixel<Subpixel = u16>,
    {
        image.as_raw().iter().map(|&component| (component >> 8) as u8).collect()
    }
    let (width, height) = (image.width(), image.height());
    let same_size = "as many components as before";
    match &image {
        DynamicImage::ImageLuma16(wide) => {
            DynamicImage::ImageLuma8(ImageBuffer::from_raw(width, height, cut(wide)).expect(same_size))
        }
        DynamicImage::ImageLumaA16(wide) => {
            DynamicImage::ImageLumaA8(ImageBuffer::from_raw(width, height, cut(wide)).expect(same_size))
        }
        DynamicImage::ImageRgb16(wide) => {
            DynamicImage::ImageRgb8(ImageBuffer::from_raw(width, height, cut(wide)).expect(same_size))
        }
        DynamicImage::ImageRgba16(wide) => {
            DynamicImage::ImageRgba8(ImageBuffer::from_raw(width, height, cut(wide)).expect(same_size))
        }
        _ => image,
    }
}

/// Returns the luminance of each pixel with the weights of ITU-R BT.601, 0.299, 0.587 and 0.114, in
/// the arithmetic of Pillow's `convert("L")`. The `image` crate has those of BT.709.
fn luminance(image: DynamicImage) -> Vec<u8> {
    if !image.color().has_color() {
        return image.into_luma8().into_raw();
    }
    let pixels = image.into_rgb8();
    let weighted = pixels.pixels().map(|pixel| {
        let [red, green, blue] = pixel.0.map(u32::from);
        ((19_595 * red + 38_470 * green + 7_471 * blue + 0x8000) >> 16) as u8
    });
    weighted.collect()
}

/// Whether a JPEG has the marker at its end. Segments are skipped by their length, because a
/// preview in one has an end marker of its own (ITU-T T.81, annex B).
fn has_end_marker(bytes: &[u8]) -> bool {
    let mut at = 0;
    loop {
        // In compressed data, 0 follows a byte of 0xff.
        while bytes.get(at) != Some(&0xff) || matches!(bytes.get(at + 1), Some(0 | 0xff)) {
            if at >= bytes.len() {
                return false;
            }
            at += 1;
        }
        match bytes.get(at + 1) {
            None => return false,
            Some(0xd9) => return true,
            // Markers without a segment.
            Some(0x01 | 0xd0..=0xd8) => at += 2,
            Some(_) => match bytes.get(at + 2..at + 4) {
                None => return false,
                Some(length) => at += 2 + usize::from(u16::from_be_bytes([length[0], length[1]])),
            },
        }
    }
}

fn to_tensor(image: DynamicImage, is_gray: bool) -> Result<Tensor> {
    let (height, width) = (i64::from(image.height()), i64::from(image.width()));
    let (bytes, channels) = if is_gray { (luminance(image), 1) } else { (image.into_rgb8().into_raw(), 3) };
    let pixels = Tensor::f_from_slice(&bytes)?.f_view([height, width, channels])?.f_permute([2, 0, 1])?;
    drop(bytes);
    // As in torchvision's `to_tensor`: bytes divided by 255.
    let mut image = Tensor::f_empty([channels, height, width], (Kind::Float, Device::Cpu))?;
    image.f_copy_(&pixels)?;
    Ok(image.f_div_scalar_(255.0)?)
}

/// Decodes the bytes of an image file into `Float [3, height, width]`: RGB values from 0 to 1. The
/// formats are JPEG, PNG, WebP, GIF (only the first frame), BMP and TIFF. Of channels with 16 bits,
/// the lower byte is dropped, as in Pillow.
///
/// # Errors
///
/// Returns an error if the bytes are not an image in one of these formats, if the image is
/// damaged or truncated, or if it has more than 67,108,864 pixels (8192 × 8192): see
/// [`decode_image_up_to`].
pub fn decode_image(bytes: &[u8]) -> Result<Tensor> {
    decode_image_up_to(bytes, MAX_PIXELS)
}

/// Does the same as [`decode_image`] for images with at most this number of pixels.
///
/// # Errors
///
/// Returns an error if the bytes are not an image in a known format, if the image is damaged or
/// truncated, or if it has more pixels.
pub fn decode_image_up_to(bytes: &[u8], max_pixels: u64) -> Result<Tensor> {
    to_tensor(decode(bytes, max_pixels).map_err(Error::msg)?, false)
}
