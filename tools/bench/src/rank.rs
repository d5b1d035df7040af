//! Tests whether two sets of figures differ: the exact permutation test of rank sums (Wilcoxon
//! 1945, Mann and Whitney 1947), two-sided. The test assumes only that the order of the figures in
//! a set means nothing. It assumes no shape of their distribution, because latencies have long
//! tails and one bad run must not decide.

/// Result of the test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Difference {
    /// Probability of a rank difference at least as large, if the sets do not differ.
    pub p: f64,
    /// Median of the ratios of all pairs (Hodges and Lehmann 1963).
    pub ratio: f64,
}

/// Compares two sets of non-negative figures. `None` if one set is empty.
#[must_use]
pub fn difference(base: &[f64], new: &[f64]) -> Option<Difference> {
    if base.is_empty() || new.is_empty() {
        return None;
    }
    let all: Vec<f64> = base.iter().chain(new).copied().collect();
    let ranks = doubled_ranks(&all);
    // `sum` is the rank sum of the second set, and `expected` is its mean if the sets do not
    // differ. Both are doubled, as the ranks are.
    let expected = new.len() as i64 * (all.len() as i64 + 1);
    let sum: i64 = ranks[base.len()..].iter().sum();
    let p = share_as_extreme(&ranks, new.len(), expected, (sum - expected).abs());
    Some(Difference { p, ratio: ratio(base, new) })
}

/// The smallest `p` that sets of these sizes can have.
#[must_use]
pub fn smallest_p(base: usize, new: usize) -> f64 {
    // The two most extreme choices, divided by the number of all choices.
    let ways = (1..=new).fold(1.0, |ways, at| ways * (base + at) as f64 / at as f64);
    (2.0 / ways).min(1.0)
}

/// Twice the rank of each figure, so that all are whole numbers: equal figures share the mean of
/// their ranks.
fn doubled_ranks(all: &[f64]) -> Vec<i64> {
    let below = |value: f64| all.iter().filter(|other| **other < value).count() as i64;
    let equal = |value: f64| all.iter().filter(|other| **other <= value).count() as i64;
    all.iter().map(|value| below(*value) + equal(*value) + 1).collect()
}

/// Of all ways to choose `count` of `ranks`, the share whose sum differs from `expected` by at
/// least `distance`. The loop takes one rank after another, and counts the choices of each size by
/// their sum.
fn share_as_extreme(ranks: &[i64], count: usize, expected: i64, distance: i64) -> f64 {
    let most = ranks.iter().sum::<i64>() as usize;
    let mut ways = vec![vec![0.0; most + 1]; count + 1];
    ways[0][0] = 1.0;
    for rank in ranks.iter().map(|rank| *rank as usize) {
        for size in (0..count).rev() {
            let (smaller, larger) = ways.split_at_mut(size + 1);
            for (from, to) in smaller[size].iter().zip(&mut larger[0][rank..]) {
                *to += from;
            }
        }
    }
    let all: f64 = ways[count].iter().sum();
    let by_sum = (0_i64..).zip(&ways[count]);
    let extreme = by_sum.filter(|(sum, _)| (sum - expected).abs() >= distance);
    extreme.map(|(_, ways)| ways).sum::<f64>() / all
}

fn ratio(base: &[f64], new: &[f64]) -> f64 {
    let one = |new: f64, base: f64| if new <= 0.0 && base <= 0.0 { 1.0 } else { new / base };
    let ratios = new.iter().flat_map(|new| base.iter().map(move |base| one(*new, *base)));
    median(ratios.collect())
}

/// The middle value of a set, or the mean of its two middle values.
///
/// # Panics
/// If the set is empty.
#[must_use]
pub fn median(mut set: Vec<f64>) -> f64 {
    assert!(!set.is_empty(), "an empty set has no middle");
    set.sort_unstable_by(f64::total_cmp);
    let middle = set.len() / 2;
    if set.len().is_multiple_of(2) {
        f64::midpoint(set[middle - 1], set[middle])
    } else {
        set[middle]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn p(base: &[f64], new: &[f64]) -> f64 {
        difference(base, new).expect("both hold something").p
    }

    #[test]
    fn p_is_that_of_the_published_tables() {
        // If no figures overlap, 2 of all choices are as extreme: 2 of 20 for three against three
        // figures, 2 of 252 for five against five.
        assert!((p(&[1.0, 2.0, 3.0], &[4.0, 5.0, 6.0]) - 0.1).abs() < 1e-12);
        let (low, high) = ([1.0, 2.0, 3.0, 4.0, 5.0], [6.0, 7.0, 8.0, 9.0, 10.0]);
        assert!((p(&low, &high) - 2.0 / 252.0).abs() < 1e-12);
        assert!((p(&high, &low) - 2.0 / 252.0).abs() < 1e-12);
        assert!((smallest_p(5, 5) - 2.0 / 252.0).abs() < 1e-12);
        // Four against four figures, where one pair is the wrong way round (U = 1): 4 of 70 choices
        // are as extreme.
        assert!((p(&[1.0, 2.0, 3.0, 5.0], &[4.0, 6.0, 7.0, 8.0]) - 4.0 / 70.0).abs() < 1e-12);
    }

    #[test]
    fn equal_figures_do_not_differ() {
        assert!((p(&[7.0; 5], &[7.0; 5]) - 1.0).abs() < 1e-12);
        assert!((p(&[1.0], &[2.0]) - 1.0).abs() < 1e-12);
        assert_eq!(difference(&[], &[1.0]), None);
    }

    #[test]
    fn the_ratio_is_that_of_the_middle_and_one_bad_run_does_not_decide() {
        let found = difference(&[10.0, 10.0, 10.0], &[20.0, 20.0, 9000.0]).expect("figures");
        assert!((found.ratio - 2.0).abs() < 1e-12);
        let found = difference(&[0.0, 0.0], &[0.0, 0.0]).expect("figures");
        assert!((found.ratio - 1.0).abs() < 1e-12);
    }
}
