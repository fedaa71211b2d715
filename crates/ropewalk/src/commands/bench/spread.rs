//! Several measurements of the same thing.

use serde::Serialize;

/// The middle and the ends of some measurements.
#[derive(Serialize, Clone, Copy)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

impl Spread {
    /// `None` of nothing.
    pub(super) fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (&min, &max) = (values.first()?, values.last()?);
        let (low, high) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
        Some(Self { median: (low + high) / 2.0, min, max })
    }

    pub(super) fn shown(this: Option<Self>) -> String {
        this.map_or_else(|| "?".to_owned(), |Self { median, min, max }| format!("{median:.1} ({min:.1} to {max:.1})"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        let spread = Spread::of(vec![4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!((spread.median, spread.min, spread.max), (2.5, 1.0, 4.0));
        assert!(Spread::of(Vec::new()).is_none());
    }
}
