//! Plain tables for terminals: columns as wide as they need to be.

/// Prints rows under a header. The first column is aligned to the left, the others to the right.
pub(crate) fn print(header: &[&str], rows: &[Vec<String>]) {
    let widths: Vec<usize> = (0..header.len())
        .map(|column| {
            let cells = rows.iter().map(|row| row[column].chars().count());
            cells.chain([header[column].chars().count()]).max().unwrap_or(0)
        })
        .collect();
    let line = |cells: &[String]| {
        let padded = cells.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let header: Vec<String> = header.iter().map(|&cell| cell.to_owned()).collect();
    println!("{}", line(&header));
    rows.iter().for_each(|row| println!("{}", line(row)));
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
    fn bytes_take_the_unit_that_fits() {
        assert_eq!(super::bytes(1023), "1023 B");
        assert_eq!(super::bytes(98_362_432), "93.8 MiB");
    }
}
