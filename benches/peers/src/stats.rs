//! Medians, percentiles and ratios.

/// A percentile of sorted numbers: the smallest one that so many in a hundred do not exceed.
pub fn percentile(sorted: &[u64], percent: usize) -> f64 {
    permille(sorted, 10 * percent)
}

/// The same, of a thousand.
pub fn permille(sorted: &[u64], permille: usize) -> f64 {
    let rank = (sorted.len() * permille).div_ceil(1_000);
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

/// How far the middle eight tenths of values lie apart, in terms of their median; of less than two,
/// nobody knows.
pub fn spread(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return f64::NAN;
    }
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let tail = sorted.len() / 10;
    let (least, most) = (sorted[tail], sorted[sorted.len() - 1 - tail]);
    (most - least) / median(sorted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_ranks() {
        let hundred: Vec<u64> = (1..=100).collect();
        assert_eq!(percentile(&hundred, 50), 50.0);
        assert_eq!(percentile(&hundred, 99), 99.0);
        assert_eq!(percentile(&hundred, 100), 100.0);
        assert_eq!(permille(&hundred, 999), 100.0);
        assert_eq!(permille(&hundred, 981), 99.0);
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

    #[test]
    fn spread_is_relative_and_leaves_out_the_tails() {
        assert_eq!(spread(&[9.0, 10.0, 12.0]), 0.3);
        let mut twenty = vec![100.0; 16];
        twenty.extend([1.0, 110.0, 1e9, 90.0]);
        assert_eq!(spread(&twenty), 0.0);
        assert!(spread(&[]).is_nan() && spread(&[1.0]).is_nan());
    }
}
