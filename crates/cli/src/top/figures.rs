//! Figures as `epicepoch top` writes them, for people: few digits and a unit.

/// A number for people: three digits and a unit.
pub(super) fn count(value: f64) -> String {
    match value {
        1e6.. => format!("{} M", digits(value / 1e6)),
        1e4.. => format!("{} k", digits(value / 1e3)),
        10.0.. => format!("{value:.0}"),
        _ if value.fract() == 0.0 => format!("{value:.0}"),
        _ => format!("{value:.1}"),
    }
}

fn digits(value: f64) -> String {
    match value.abs() {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// From this number of milliseconds on, whole minutes are said.
const LONG_MS: f64 = 600_000.0;

/// A number of milliseconds for people.
pub(super) fn ms(value: f64) -> String {
    let sign = if value < 0.0 { "-" } else { "" };
    match value.abs() {
        0.0 => "0 ms".to_owned(),
        LONG_MS.. => format!("{sign}{}", lasting(value.abs())),
        1e3.. => format!("{} s", digits(value / 1e3)),
        1.0.. => format!("{} ms", digits(value)),
        _ => format!("{:.0} us", value * 1e3),
    }
}

/// A number of milliseconds for people. Above the last bound of what is measured it is infinite.
pub(super) fn ms_up_to(value: f64, last_bound_ms: f64) -> String {
    if value.is_finite() { ms(value) } else { format!("> {}", ms(last_bound_ms)) }
}

/// A number of milliseconds with its sign, for people.
pub(super) fn signed(value: f64) -> String {
    let sign = if value > 0.0 { "+" } else { "" };
    format!("{sign}{}", ms(value))
}

/// A duration of whole seconds for people, from milliseconds.
pub(super) fn lasting(value_ms: f64) -> String {
    // A negative time would be a clock that goes back; it counts as none.
    let s = (value_ms / 1e3).max(0.0) as u64;
    let (d, h, m) = (s / 86_400, s / 3_600 % 24, s / 60 % 60);
    match (d, h, m) {
        (0, 0, 0) => format!("{s} s"),
        (0, 0, _) => format!("{m} min {} s", s % 60),
        (0, ..) => format!("{h} h {m} min"),
        _ => format!("{d} d {h} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        let counts = [0.0, 0.5, 9_999.0, 12_340.0, 1.5e6].map(count);
        assert_eq!(counts, ["0", "0.5", "9999", "12.3 k", "1.50 M"]);
        let times = [0.0, 0.0123, 1.5, 15.0, 150.0, 2_500.0, -0.5].map(ms);
        assert_eq!(times, ["0 ms", "12 us", "1.50 ms", "15.0 ms", "150 ms", "2.50 s", "-500 us"]);
        assert_eq!([3_600_000.0, -660_500.0].map(ms), ["1 h 0 min", "-11 min 0 s"]);
        assert_eq!(
            (ms_up_to(9.0, 10.0), ms_up_to(f64::INFINITY, 10.0)),
            ("9.00 ms".into(), "> 10.0 ms".into())
        );
        let lasts = [0.0, 59_999.0, 3_600_000.0, 90_000_000.0, -5.0].map(lasting);
        assert_eq!(lasts, ["0 s", "59 s", "1 h 0 min", "1 d 1 h", "0 s"]);
    }
}
