//! Plain tables for terminals: columns as wide as they need to be, and numbers in the units people read.

use crate::commands::print_now;

/// Prints rows under a header: columns of figures are aligned to the right, the others to the left.
pub(crate) fn print(header: &[&str], rows: &[Vec<String>]) -> anyhow::Result<()> {
    print_now(&render(header, rows))
}

/// The same as text.
pub(crate) fn render(header: &[&str], rows: &[Vec<String>]) -> String {
    let header: Vec<String> = header.iter().map(|&cell| cell.to_owned()).collect();
    let columns: Vec<(usize, bool)> = (0..header.len())
        .map(|column| {
            let cells = || rows.iter().map(|row| row[column].as_str());
            let width = cells().chain([header[column].as_str()]).map(|cell| cell.chars().count()).max();
            (width.unwrap_or(0), cells().all(is_figure))
        })
        .collect();
    let lines = std::iter::once(&header).chain(rows).map(|cells| {
        let padded = cells
            .iter()
            .zip(&columns)
            .map(|(cell, &(width, right))| if right { format!("{cell:>width$}") } else { format!("{cell:<width$}") });
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    });
    lines.collect()
}

/// Whether a cell holds a number, or stands for one that is not known.
fn is_figure(cell: &str) -> bool {
    cell.starts_with('?') || cell.starts_with(|first: char| first.is_ascii_digit())
}

/// Bytes in the unit that fits.
pub(crate) fn bytes(count: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} B") } else { format!("{value:.1} {}", units[unit]) }
}

#[cfg(test)]
mod tests {
    #[test]
    fn figures_stand_to_the_right_and_words_to_the_left() {
        let rows = [["a", "1 B", "x"], ["bc", "?", "yz"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(super::render(&["n", "size", "word"], &rows), "n   size  word\na    1 B  x\nbc     ?  yz\n");
    }

    #[test]
    fn bytes_take_the_unit_that_fits() {
        assert_eq!(super::bytes(1023), "1023 B");
        assert_eq!(super::bytes(98_362_432), "93.8 MiB");
    }
}
