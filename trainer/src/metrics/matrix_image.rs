//! Drawing a confusion matrix as an image.

use tch::Tensor;

use super::confusion::{Matrix, row_sums};
use super::labels::int;

/// The largest number of classes for which cells contain numbers. If there are more classes, each
/// cell is a single pixel.
const MAX_NUMBERED: usize = 32;

/// The largest number of digits in a count that is drawn. If any count has more digits, all cells
/// contain percentages instead.
const MAX_DIGITS: usize = 4;

/// The scale of the digits: each bitmap pixel is drawn as a square with sides of `SCALE` pixels.
const SCALE: usize = 2;

/// The bitmaps of the digits: five rows of three pixels each.
const DIGITS: [[u8; 5]; 10] = [
    [0b111, 0b101, 0b101, 0b101, 0b111],
    [0b010, 0b110, 0b010, 0b010, 0b111],
    [0b111, 0b001, 0b111, 0b100, 0b111],
    [0b111, 0b001, 0b111, 0b001, 0b111],
    [0b101, 0b101, 0b111, 0b001, 0b001],
    [0b111, 0b100, 0b111, 0b001, 0b111],
    [0b111, 0b100, 0b111, 0b101, 0b111],
    [0b111, 0b001, 0b001, 0b001, 0b001],
    [0b111, 0b101, 0b111, 0b101, 0b111],
    [0b111, 0b101, 0b111, 0b001, 0b111],
];

/// The bitmaps of the letters in the titles of the axes.
const LETTERS: [(char, [u8; 5]); 11] = [
    ('a', [0b010, 0b101, 0b111, 0b101, 0b101]),
    ('c', [0b011, 0b100, 0b100, 0b100, 0b011]),
    ('d', [0b110, 0b101, 0b101, 0b101, 0b110]),
    ('e', [0b111, 0b100, 0b110, 0b100, 0b111]),
    ('g', [0b011, 0b100, 0b101, 0b101, 0b011]),
    ('i', [0b111, 0b010, 0b010, 0b010, 0b111]),
    ('n', [0b110, 0b101, 0b101, 0b101, 0b101]),
    ('o', [0b010, 0b101, 0b101, 0b101, 0b010]),
    ('p', [0b110, 0b101, 0b110, 0b100, 0b100]),
    ('r', [0b110, 0b101, 0b110, 0b101, 0b101]),
    ('t', [0b111, 0b010, 0b010, 0b010, 0b010]),
];

/// The titles of the columns and of the rows.
const TITLES: [&str; 2] = ["prediction", "target"];

/// The height of the title of the columns, and the width of the title of the rows, in pixels.
const TITLE: usize = 9 * SCALE;

type Color = [u8; 3];

const HEADER: Color = [228, 228, 228];
const BLACK: Color = [0, 0, 0];
const WHITE: Color = [255, 255, 255];
/// The color of a cell that contains all samples of its row.
const FULL: Color = [8, 48, 107];

/// Draws a matrix of counts as an image of shape `[3, height, width]` and dtype `Uint8`, with a row
/// for each target and a column for each prediction. The greater a cell's share of its row, the
/// darker the cell. With at most [`MAX_NUMBERED`] classes, the axes have titles, the first row and
/// column show the classes, and each non-zero cell shows its count, or its share in percent if any
/// count has more than [`MAX_DIGITS`] digits.
pub(super) fn draw(matrix: &Matrix) -> Tensor {
    let classes = matrix.len();
    let shares: Matrix = (matrix.iter().zip(row_sums(matrix)))
        .map(|(row, sum)| row.iter().map(|count| if sum > 0.0 { count / sum } else { 0.0 }).collect())
        .collect();
    if classes > MAX_NUMBERED {
        let mut canvas = Canvas::new(classes);
        for (row, column, share) in cells(&shares) {
            canvas.fill(row, column, 1, shade(share));
        }
        return canvas.tensor();
    }
    let width = |numbers: &Matrix| {
        cells(numbers).map(|(_, _, number)| format!("{number:.0}").len()).max().unwrap_or(1)
    };
    let are_counts = width(matrix) <= MAX_DIGITS;
    let numbers = if are_counts {
        matrix.clone()
    } else {
        shares.iter().map(|row| row.iter().map(|share| (100.0 * share).round()).collect()).collect()
    };
    let digits = width(&numbers).max(classes.saturating_sub(1).to_string().len());
    let side = (4 * digits + 3).max(9) * SCALE;
    let [columns, rows] = TITLES;
    let mut canvas = Canvas::new(TITLE + ((classes + 1) * side).max(4 * columns.len() * SCALE));
    for (nth, letter) in columns.chars().enumerate() {
        canvas.glyph(2 * SCALE, TITLE + 4 * nth * SCALE, letter, BLACK);
    }
    for (nth, letter) in rows.chars().enumerate() {
        canvas.glyph(TITLE + 6 * nth * SCALE, 3 * SCALE, letter, BLACK);
    }
    canvas.fill(TITLE, TITLE, side, HEADER);
    for class in 0..classes {
        for (row, column) in [(0, class + 1), (class + 1, 0)] {
            let (top, left) = (TITLE + row * side, TITLE + column * side);
            canvas.fill(top, left, side, HEADER);
            canvas.write(top, left, side, &class.to_string(), BLACK);
        }
    }
    for (row, column, share) in cells(&shares) {
        let (top, left) = (TITLE + (row + 1) * side, TITLE + (column + 1) * side);
        canvas.fill(top, left, side, shade(share));
        if numbers[row][column] > 0.0 {
            let ink = if share > 0.2 { WHITE } else { BLACK };
            canvas.write(top, left, side, &format!("{:.0}", numbers[row][column]), ink);
        }
    }
    canvas.tensor()
}

fn cells(matrix: &Matrix) -> impl Iterator<Item = (usize, usize, f64)> {
    let rows = matrix.iter().enumerate();
    rows.flat_map(|(row, cells)| cells.iter().enumerate().map(move |(column, cell)| (row, column, *cell)))
}

/// Returns the color for a share. Taking the square root of the share makes rare confusions
/// visible.
fn shade(share: f64) -> Color {
    let part = share.clamp(0.0, 1.0).sqrt();
    std::array::from_fn(|channel| {
        let white = f64::from(WHITE[channel]);
        (white + part * (f64::from(FULL[channel]) - white)).round() as u8
    })
}

/// A square image.
struct Canvas {
    side: usize,
    pixels: Vec<Color>,
}

impl Canvas {
    fn new(side: usize) -> Self {
        Canvas { side, pixels: vec![WHITE; side * side] }
    }

    fn fill(&mut self, top: usize, left: usize, side: usize, color: Color) {
        for row in top..top + side {
            let start = row * self.side + left;
            self.pixels[start..start + side].fill(color);
        }
    }

    /// Writes digits in the center of a square.
    fn write(&mut self, top: usize, left: usize, side: usize, digits: &str, color: Color) {
        let width = 4 * digits.len() - 1;
        let top = top + (side - 5 * SCALE) / 2;
        let left = left + (side - width * SCALE) / 2;
        for (nth, digit) in digits.chars().enumerate() {
            self.glyph(top, left + 4 * nth * SCALE, digit, color);
        }
    }

    /// Writes a digit or a letter of a title. Any other character is left out.
    fn glyph(&mut self, top: usize, left: usize, character: char, color: Color) {
        let digit = character.to_digit(10).map(|digit| DIGITS[digit as usize]);
        let letter = || LETTERS.iter().find(|(known, _)| *known == character).map(|(_, rows)| *rows);
        for (row, bits) in digit.or_else(letter).into_iter().flatten().enumerate() {
            for column in (0..3).filter(|column| bits >> (2 - column) & 1 == 1) {
                self.fill(top + row * SCALE, left + column * SCALE, SCALE, color);
            }
        }
    }

    fn tensor(&self) -> Tensor {
        let side = int(self.side);
        Tensor::from_slice(self.pixels.as_flattened()).view([side, side, 3]).permute([2, 0, 1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_matrix_can_be_drawn() {
        for (classes, count, side) in [
            (1, 5.0, 18 + 80),
            (2, 0.0, 18 + 80),
            (11, 1234.0, 18 + 12 * 38),
            (32, 1e9, 18 + 33 * 22),
            (33, 3.0, 33),
            (200, 1.0, 200),
        ] {
            let image = draw(&vec![vec![count; classes]; classes]);
            assert_eq!(image.size(), [3, side, side], "{classes} classes with {count}");
            assert_eq!(image.kind(), tch::Kind::Uint8);
        }
        // One row has all of its samples in one cell, the other row has no samples.
        let matrix = vec![vec![7.0, 0.0], vec![0.0, 0.0]];
        let corner = |row: i64, column: i64| {
            Vec::<u8>::try_from(draw(&matrix).select(1, (row + 1) * 18).select(1, (column + 1) * 18)).unwrap()
        };
        assert_eq!([corner(0, 0), corner(1, 1)], [HEADER.to_vec(), FULL.to_vec()]);
        assert_eq!(
            [corner(1, 2), corner(2, 1), corner(2, 2)],
            [WHITE.to_vec(), WHITE.to_vec(), WHITE.to_vec()]
        );
    }
}
