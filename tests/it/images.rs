//! Folders of images, CSV files, and the random changes of images.

use std::fs;
use std::path::Path;

use image::{DynamicImage, ImageFormat, Rgb, RgbImage};
use trainer::data::rand::Rng;
use trainer::data::{CsvReader, ImageFolder, RowRng, augment, decode_image, decode_image_up_to, read_csv};
use trainer::prelude::*;

use crate::sources::{Text, check};
use crate::support::scratch;

/// Returns the numbers of a tensor as text.
fn text(tensor: &Tensor) -> String {
    let numbers: Vec<f32> = Vec::try_from(tensor.view([-1])).unwrap();
    format!("{:?} {numbers:?}", tensor.size())
}

/// An image whose red is the number of the column, green that of the row, and blue `blue`.
fn picture(height: u32, width: u32, blue: u8) -> RgbImage {
    RgbImage::from_fn(width, height, |x, y| Rgb([x as u8, y as u8, blue]))
}

fn save(path: &Path, image: impl Into<DynamicImage>, format: ImageFormat) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    image.into().save_with_format(path, format).unwrap();
}

/// The values are those of Pillow 13.0.0: `convert("L")`, and `convert("RGB")` of 16 bits.
#[test]
fn luminance_and_wide_channels_are_those_of_pillow() {
    let folder = scratch("pillow");
    let colors = [[255, 0, 0], [0, 255, 0], [0, 0, 255], [10, 200, 77], [254, 255, 255]];
    let image = RgbImage::from_fn(5, 1, |x, _| Rgb(colors[x as usize]));
    save(&folder.join("a/a.png"), image, ImageFormat::Png);
    let wide =
        [[1000_u16, 0, 255], [256, 383, 384], [0xff7f, 0xff80, 0xffff], [128, 127, 32_895], [511, 512, 513]];
    let image = image::ImageBuffer::from_fn(5, 1, |x, _| Rgb(wide[x as usize]));
    save(&folder.join("a/b.png"), DynamicImage::ImageRgb16(image), ImageFormat::Png);
    let image = image::ImageBuffer::from_fn(5, 1, |x, _| image::Luma([wide[x as usize][0]]));
    save(&folder.join("a/c.png"), DynamicImage::ImageLuma16(image), ImageFormat::Png);
    let bytes = |nth: usize, is_gray: bool| {
        let images = ImageFolder::open(&folder).unwrap().grayscale(is_gray);
        let mut loader = DataLoader::new(images);
        let (image, _): (Tensor, Tensor) = loader.batches(0, nth as u64).unwrap().next().unwrap().unwrap();
        let image = (image.squeeze_dim(0) * 255.0).round().permute([1, 2, 0]).contiguous();
        Vec::<f32>::try_from(image.view([-1]))
            .unwrap()
            .into_iter()
            .map(|value| value as u8)
            .collect::<Vec<_>>()
    };
    assert_eq!(bytes(0, true), [76, 150, 29, 129, 255]);
    assert_eq!(bytes(1, false), [3, 0, 0, 1, 1, 1, 255, 255, 255, 0, 0, 128, 1, 2, 2]);
    assert_eq!(bytes(2, true), [3, 1, 255, 0, 1]);
}

#[test]
fn images_are_read_from_a_folder_per_class_with_values_from_0_to_1() {
    let folder = scratch("images");
    save(&folder.join("cat/b.png"), picture(2, 3, 255), ImageFormat::Png);
    save(&folder.join("cat/a/deep.BMP"), picture(2, 3, 51), ImageFormat::Bmp);
    save(&folder.join("dog/1.webp"), picture(2, 3, 102), ImageFormat::WebP);
    save(&folder.join("dog/2.gif"), RgbImage::from_pixel(3, 2, Rgb([255; 3])), ImageFormat::Gif);
    save(&folder.join("eel/jpeg.jpg"), RgbImage::from_pixel(3, 2, Rgb([128, 128, 128])), ImageFormat::Jpeg);
    fs::write(folder.join("cat/notes.txt"), "not an image").unwrap();
    fs::write(folder.join("cat/.hidden.png"), "not an image").unwrap();
    fs::write(folder.join("readme.png"), "not in a class").unwrap();
    let images = ImageFolder::open(&folder).unwrap();
    assert_eq!(images.classes(), ["cat", "dog", "eel"]);
    assert_eq!(images.labels(), [0, 0, 1, 1, 2]);
    let row = |images: &ImageFolder, nth: u64| -> (Tensor, i64) {
        let mut loader = DataLoader::new(images.clone());
        let (image, label): (Tensor, Tensor) = loader.batches(0, nth).unwrap().next().unwrap().unwrap();
        (image.squeeze_dim(0), label.int64_value(&[0]))
    };
    let (image, label) = row(&images, 0);
    assert_eq!((image.size(), image.kind(), label), (vec![3, 2, 3], Kind::Float, 0));
    let bytes = |image: &Tensor| (image * 255.0).round().to_kind(Kind::Int64);
    // Red is the column, green the row, in the order [channels, height, width].
    let expected = Tensor::from_slice(&[0_i64, 1, 2, 0, 1, 2, 0, 0, 0, 1, 1, 1, 51, 51, 51, 51, 51, 51]);
    assert_eq!(bytes(&image), expected.view([3, 2, 3]));
    assert_eq!(
        [row(&images, 1).0.double_value(&[2, 0, 0]), row(&images, 3).0.double_value(&[1, 0, 0])],
        [1.0, 1.0]
    );
    assert_eq!(row(&images, 2).0.select(0, 2), Tensor::full([2, 3], 0.4, (Kind::Float, Device::Cpu)));
    assert_eq!(bytes(&row(&images, 4).0), Tensor::full([3, 2, 3], 128, (Kind::Int64, Device::Cpu)));
    // A constant image stays constant, and a gray one has one channel.
    let small = images.clone().size(1, 5).grayscale(true);
    assert_eq!(row(&small, 3).0, Tensor::ones([1, 1, 5], (Kind::Float, Device::Cpu)));
    // Halving the width takes the mean of about two columns.
    let halved = row(&ImageFolder::open(&folder).unwrap().size(2, 1), 0).0;
    assert_eq!(bytes(&halved).select(0, 0), Tensor::from_slice2(&[[1_i64], [1]]));
    assert_ne!(small.fingerprint(), images.fingerprint());

    fs::write(folder.join("dog/1.webp"), &fs::read(folder.join("dog/1.webp")).unwrap()[..20]).unwrap();
    fs::write(folder.join("dog/2.gif"), "no image").unwrap();
    let rows = || {
        let images = ImageFolder::open(&folder).unwrap();
        images.map(|(image, class), _| Ok(Text(format!("{class} {}", text(&image)))))
    };
    let mut loader = DataLoader::new(rows());
    let errors = loader.batches(0, 0).unwrap().filter_map(|batch| batch.err().map(|error| error.to_string()));
    let errors: Vec<String> = errors.collect();
    assert!(errors[0].contains("1.webp") && errors[0].contains("cannot be decoded"), "{errors:?}");
    assert!(
        errors[1].contains("2.gif")
            && errors[1].contains(
                "expected an image (JPEG, PNG, WebP, GIF, BMP or TIFF), but the file is a text file"
            ),
        "{errors:?}"
    );
    assert_eq!(check(rows, true).concat().len(), 3);

    fs::create_dir(folder.join("fox")).unwrap();
    let error = ImageFolder::open(&folder).unwrap_err().to_string();
    assert!(error.contains("fox") && error.contains("no images (bmp, gif"), "{error}");
    let error = ImageFolder::open(folder.join("fox")).unwrap_err().to_string();
    assert!(error.contains("expected one for each class"), "{error}");
    fs::remove_dir_all(folder).unwrap();
}

/// Encodes an image of noise.
fn encoded(format: ImageFormat) -> Vec<u8> {
    let mut bytes = std::io::Cursor::new(Vec::new());
    let noise = |x: u32, y: u32| (x * 37 + y * 101 + x * y * 13) as u8;
    let image = RgbImage::from_fn(40, 40, |x, y| Rgb([noise(x, y), noise(y, x + 3), noise(x + 5, y)]));
    DynamicImage::from(image).write_to(&mut bytes, format).unwrap();
    bytes.into_inner()
}

#[test]
fn truncated_images_are_refused_in_every_format() {
    use ImageFormat::{Bmp, Gif, Jpeg, Png, Tiff, WebP};
    for format in [Jpeg, Png, WebP, Gif, Bmp, Tiff] {
        let bytes = encoded(format);
        let whole = decode_image(&bytes).unwrap();
        for percent in [5, 30, 60, 90, 99] {
            let result = decode_image(&bytes[..bytes.len() * percent / 100]);
            // What is missing may be no pixels.
            assert!(result.is_err() || result.unwrap() == whole, "{format:?} of {percent} %");
        }
    }
    let mut jpeg = encoded(Jpeg);
    // A preview in a segment has an end marker of its own.
    let segment = [&[0xff, 0xe1, 0, 8][..], &[0xff, 0xd8, 0xff, 0xd9, 0, 0]].concat();
    jpeg.splice(2..2, segment);
    let whole = decode_image(&jpeg).unwrap();
    let error = decode_image(&jpeg[..jpeg.len() - 2]).unwrap_err().to_string();
    assert!(error.contains("truncated, because its end marker is missing"), "{error}");
    // Bytes after the end, as cameras write them, are no damage.
    assert_eq!(decode_image(&[&jpeg[..], b"more"].concat()).unwrap(), whole);
    let folder = scratch("truncated-images");
    fs::create_dir(folder.join("cat")).unwrap();
    fs::write(folder.join("cat/a.jpg"), &jpeg[..jpeg.len() / 2]).unwrap();
    fs::write(folder.join("cat/b.jpg"), &jpeg).unwrap();
    let mut loader = DataLoader::new(ImageFolder::open(&folder).unwrap()).skip_damaged(true);
    let batches: Vec<Result<(Tensor, Tensor)>> = loader.batches(0, 0).unwrap().collect();
    assert_eq!(batches.len(), 1);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn images_above_the_limit_of_pixels_are_refused_before_they_are_decoded() {
    // A PNG whose header declares 60,000 rows and columns, and that has no data.
    let mut png = encoded(ImageFormat::Png);
    png[16..20].copy_from_slice(&60_000_u32.to_be_bytes());
    png[20..24].copy_from_slice(&60_000_u32.to_be_bytes());
    let crc = crc32fast::hash(&png[12..29]).to_be_bytes();
    png[29..33].copy_from_slice(&crc);
    let error = decode_image(&png).unwrap_err().to_string();
    assert!(error.contains("60000 x 60000 pixels, more than the limit of 67108864"), "{error}");
    let small = encoded(ImageFormat::Png);
    assert!(decode_image_up_to(&small, 1600).is_ok());
    let error = decode_image_up_to(&small, 1599).unwrap_err().to_string();
    assert!(error.contains("raise the limit"), "{error}");
    let folder = scratch("large-images");
    fs::create_dir(folder.join("cat")).unwrap();
    fs::write(folder.join("cat/a.png"), &small).unwrap();
    let images = |pixels| {
        let mut loader = DataLoader::new(ImageFolder::open(&folder).unwrap().max_pixels(pixels));
        let row: Result<(Tensor, Tensor)> = loader.batches(0, 0).unwrap().next().unwrap();
        row
    };
    assert!(images(1600).is_ok());
    assert!(images(1599).unwrap_err().to_string().contains("a.png: the image has 40 x 40 pixels"));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn csv_files_of_other_programs_are_read_or_refused_with_what_to_do() {
    #[derive(Clone, Debug, PartialEq, serde::Deserialize)]
    struct Row {
        is_good: bool,
        count: Option<i64>,
        size: f32,
    }
    let folder = scratch("foreign-csv");
    let path = folder.join("rows.csv");
    let read = |reader: &CsvReader, content: &[u8]| {
        fs::write(&path, content).unwrap();
        reader.read::<Row>(&path).map(|rows| rows.to_vec()).map_err(|error| error.to_string())
    };
    let row = |is_good, count, size| Row { is_good, count, size };
    let pandas = b"is_good,count,size\nTrue,1.0,1\nFalse,, 2.5\nTRUE, 3e2,1e-3\ntrue,-4,5\n";
    let rows = [
        row(true, Some(1), 1.0),
        row(false, None, 2.5),
        row(true, Some(300), 0.001),
        row(true, Some(-4), 5.0),
    ];
    assert_eq!(read(&CsvReader::new(), pandas).unwrap(), rows);
    assert_eq!(read(&CsvReader::new(), &[b"\xef\xbb\xbf", &pandas[..]].concat()).unwrap(), rows);
    let plain = CsvReader::new().delimiter(b';').comment(b'#').names(["is_good", "count", "size"]);
    assert_eq!(read(&plain, b"# no names\ntrue;7;1\n#false;0;0\n").unwrap(), [row(true, Some(7), 1.0)]);
    let tabs = CsvReader::new().delimiter(b'\t');
    assert_eq!(read(&tabs, b"size\tis_good\tcount\n1\tTrue\t2\n").unwrap(), [row(true, Some(2), 1.0)]);
    for (content, expected) in [
        (
            &b"is_good,count,size\ntrue,1.5,1\n"[..],
            "line 2, column 2 (`count`): invalid digit found in string, in \"1.5\"",
        ),
        (b"is_good,count,size\nyes,1,1\n", "line 2, column 1 (`is_good`): "),
        // More than a floating-point number tells apart.
        (b"is_good,count,size\ntrue,18014398509481984.0,1\n", "line 2, column 2"),
        (b"\x1f\x8b\x08\0\0\0\0\0\0\x03", "compressed with gzip: decompress it"),
        (b"\x28\xb5\x2f\xfd", "compressed with zstd: decompress it"),
        (b"\xff\xfei\x00s\x00", "a text in UTF-16: convert it to UTF-8"),
    ] {
        let error = read(&CsvReader::new(), content).unwrap_err();
        assert!(error.contains(expected) && error.contains("rows.csv"), "{error}: {expected}");
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn csv_files_are_read_or_refused_with_the_line_and_the_column() {
    #[derive(Clone, Debug, PartialEq, serde::Deserialize)]
    struct Row {
        name: String,
        size: f32,
        #[serde(rename = "class")]
        label: Option<i64>,
    }
    let folder = scratch("csv");
    let path = folder.join("rows.csv");
    let read = |content: &str| {
        fs::write(&path, content).unwrap();
        read_csv::<Row>(&path).map(|rows| rows.to_vec()).map_err(|error| error.to_string())
    };
    let row = |name: &str, size, label| Row { name: name.to_owned(), size, label };
    let rows = read("class,other,name,size\r\n3,x,\"a, \"\"b\"\"\nc\",1.5\n,y,d,-2\n").unwrap();
    assert_eq!(rows, [row("a, \"b\"\nc", 1.5, Some(3)), row("d", -2.0, None)]);
    assert_eq!(read("name,size,class\n").unwrap(), []);
    for (content, expected) in [
        ("name,size,class\na,1,2\nb,x,2\n", "line 3, column 2 (`size`): invalid float literal"),
        ("name,size,class\n\"a\nb\",1,2\nb,2\n", "line 4: it has 2 fields: expected 3, as in the first line"),
        ("name,class\na,1\n", "line 2: missing field `size`"),
    ] {
        let error = read(content).unwrap_err();
        assert!(error.contains(expected) && error.contains("rows.csv"), "{error}: {expected}");
    }
    fs::write(&path, b"name,size,class\na,1,2\n\xff,1,2\n").unwrap();
    let error = read_csv::<Row>(&path).unwrap_err().to_string();
    assert!(error.contains("line 3, column 1: it is not UTF-8"), "{error}");
    fs::remove_file(&path).unwrap();
    assert!(read_csv::<Row>(&path).unwrap_err().to_string().contains("rows.csv"));
    fs::remove_dir_all(folder).unwrap();
}

/// An image whose channels count from 0.01, 0.31 and 0.61, in rows.
fn image(height: i64, width: i64) -> Tensor {
    let count = Tensor::arange(height * width, (Kind::Float, Device::Cpu)).view([1, height, width]);
    let starts = Tensor::from_slice(&[0.01_f32, 0.31, 0.61]).view([3, 1, 1]);
    count * 0.01 + starts
}

/// Calls `change` with the random numbers of many rows.
fn with_rows(rows: usize, change: impl Fn(&mut RowRng) + Send + Sync + 'static) {
    let changed = vec![0_i64; rows].map(move |row, rng| {
        change(rng);
        Ok(row)
    });
    let mut loader = DataLoader::new(changed).batch_size(rows);
    let _: Tensor = loader.batches(0, 0).unwrap().next().unwrap().unwrap();
}

#[test]
fn crops_and_flips_use_the_numbers_of_the_given_generator() {
    with_rows(50, |rng| {
        let image = image(3, 4);
        let mut twin = rng.clone();
        let crop = augment::random_crop(&image, (2, 3), 1, rng).unwrap();
        let (top, left) = (twin.gen_range(0..=3), twin.gen_range(0..=3));
        for (row, column) in [(0, 0), (0, 2), (1, 0), (1, 2)] {
            let (from_row, from_column) = (top + row - 1, left + column - 1);
            let is_inside = (0..3).contains(&from_row) && (0..4).contains(&from_column);
            let expected = if is_inside { image.double_value(&[1, from_row, from_column]) } else { 0.0 };
            assert_eq!(crop.double_value(&[1, row, column]), expected, "{top}, {left}: {row}, {column}");
        }
        let mut twin = rng.clone();
        let flipped = augment::horizontal_flip(&image, 0.5, rng).unwrap();
        let expected = if twin.gen_bool(0.5) { image.flip([2]) } else { image.shallow_clone() };
        assert_eq!(flipped, expected);
        assert_eq!(
            augment::horizontal_flip(&image, 1.0, rng).unwrap().double_value(&[0, 0, 0]),
            image.double_value(&[0, 0, 3])
        );
    });
}

#[test]
fn color_changes_match_values_computed_by_hand() {
    let image = Tensor::from_slice(&[0.2_f64, 0.4, 0.5, 0.9, 1.0, 0.0]).view([3, 1, 2]);
    let normal = augment::normalize(&image, &[0.2, 0.5, 0.5], &[0.1, 0.2, 0.5]).unwrap();
    let expected = Tensor::from_slice(&[0.0, 2.0, 0.0, 2.0, 1.0, -1.0]).view([3, 1, 2]);
    assert!((normal - expected).abs().max().double_value(&[]) < 1e-12);
    with_rows(50, |rng| {
        let pixels = [[0.2_f64, 0.4], [0.5, 0.9], [1.0, 0.0]];
        let image = Tensor::from_slice(pixels.as_flattened()).view([3, 1, 2]);
        let mut twin = rng.clone();
        let jittered = augment::color_jitter(&image, 0.3, 0.8, rng).unwrap();
        let (brightness, contrast) = (twin.gen_range(0.7..=1.3), twin.gen_range(1.0 - 0.8..=1.8));
        let bright = pixels.map(|channel| channel.map(|pixel: f64| (pixel * brightness).clamp(0.0, 1.0)));
        let luminance = |at: usize| 0.2989 * bright[0][at] + 0.587 * bright[1][at] + 0.114 * bright[2][at];
        let mean = f64::midpoint(luminance(0), luminance(1));
        for (channel, pixels) in bright.iter().enumerate() {
            for (column, pixel) in pixels.iter().enumerate() {
                let expected = ((pixel - mean) * contrast + mean).clamp(0.0, 1.0);
                let found = jittered.double_value(&[channel as i64, 0, column as i64]);
                assert!((found - expected).abs() < 1e-12, "{found}, {expected}");
            }
        }
    });
}

#[test]
fn one_rectangle_is_erased_in_a_copy_of_the_image() {
    with_rows(200, |rng| {
        let image = image(20, 30);
        let erased = augment::random_erasing(&image, 1.0, rng).unwrap();
        assert_eq!(image, self::image(20, 30));
        let zeros = erased.select(0, 0).eq(0.0);
        assert_eq!(erased.eq(0.0).sum(Kind::Int64), zeros.sum(Kind::Int64) * 3, "in all channels");
        let (rows, columns) = (zeros.any_dim(1, false), zeros.any_dim(0, false));
        let sides = [rows, columns].map(|side| side.sum(Kind::Int64).int64_value(&[]));
        let area = zeros.sum(Kind::Int64).int64_value(&[]);
        assert_eq!(area, sides[0] * sides[1], "a rectangle");
        let fraction = area as f64 / 600.0;
        assert!((0.01..0.36).contains(&fraction), "{fraction}");
        let untouched = augment::random_erasing(&image, 0.0, rng).unwrap();
        assert_eq!(untouched, image);
    });
}

#[test]
fn augmentation_does_not_depend_on_workers_ranks_or_earlier_draws() {
    let augmented = || {
        vec![0_i64; 40].map(|_, rng| {
            let image = augment::random_crop(&image(6, 8), (5, 5), 2, rng)?;
            let image = augment::horizontal_flip(&image, 0.5, rng)?;
            let image = augment::color_jitter(&image, 0.4, 0.4, rng)?;
            Ok(Text(text(&augment::random_erasing(&image, 0.5, rng)?)))
        })
    };
    check(augmented, false);
}

#[test]
fn invalid_augmentation_arguments_are_named() {
    with_rows(1, |rng| {
        let image = image(3, 4);
        let bytes = image.to_kind(Kind::Uint8);
        let cases = [
            (
                augment::random_crop(&image, (6, 2), 1, rng),
                "size (6, 2) and padding 1 from an image of 3 x 4",
            ),
            (augment::random_crop(&image, (0, 2), 1, rng), "at least 1 x 1"),
            (augment::horizontal_flip(&image, 1.5, rng), "probability 1.5"),
            (
                augment::horizontal_flip(&bytes, 0.5, rng),
                "Uint8 tensor of shape [3, 3, 4]: expected a floating-point image",
            ),
            (augment::normalize(&image, &[0.5], &[0.5]), "of 3 channels: expected one mean"),
            (augment::normalize(&image, &[0.5; 3], &[0.0; 3]), "one nonzero standard deviation"),
            (augment::color_jitter(&image, 2.0, 0.0, rng), "the brightness 2"),
            (augment::color_jitter(&image, 0.0, f64::NAN, rng), "the contrast NaN"),
            (
                augment::random_erasing(&image.select(0, 0), 0.5, rng),
                "shape [3, 4]: expected a floating-point image",
            ),
        ];
        for (result, expected) in cases {
            let error = result.unwrap_err().to_string();
            assert!(error.contains(expected), "{error}: {expected}");
        }
    });
}
