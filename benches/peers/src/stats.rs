//! Medians, percentiles and ratios.

/// A percentile of sorted numbers: the smallest one that so many in a hundred do not exceed.
pub fn percentile(sorted: &[u64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).map_or(f64::NAN, |value| *value as f64)
}

/// The median; of an even count, the mean of the two in the middle.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.into_iter().filter(|value| !value.is_nan()).collect();
    sorted.sort_unstable_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => sorted[count / 2],
        count => (sorted[count / 2 - 1] + sorted[count / 2]) / 2.0,
    }
}

/// The median of the ratios of what was measured in the same turn; not the ratio of two medians,
/// which may be of different hours.
pub fn median_ratio(ours: &[Option<f64>], theirs: &[Option<f64>]) -> f64 {
    let ratio = |(ours, theirs): (&Option<f64>, &Option<f64>)| Some((*ours)? / (*theirs)?);
    median(ours.iter().zip(theirs).filter_map(ratio))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_ranks() {
        let hundred: Vec<u64> = (1..=100).collect();
        assert_eq!([50, 99, 100].map(|it| percentile(&hundred, it)), [50.0, 99.0, 100.0]);
        assert_eq!(percentile(&[7], 99), 7.0);
        assert_eq!(percentile(&[1, 2], 50), 1.0);
        assert!(percentile(&[], 50).is_nan());
    }

    #[test]
    fn median_is_in_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median([5.0, f64::NAN]), 5.0);
        assert!(median([]).is_nan());
    }

    #[test]
    fn ratios_are_of_the_same_turn() {
        let ours = [Some(2.0), None, Some(30.0), Some(6.0)];
        let theirs = [Some(1.0), Some(1.0), Some(10.0), None];
        assert_eq!(median_ratio(&ours, &theirs), 2.5);
        assert!(median_ratio(&ours, &[None; 4]).is_nan());
    }
}
