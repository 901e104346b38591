//! Numbers formatted for people; the other two models format them the same way.

/// Formats a number with three significant digits, whole from 100 on, with a comma at each thousand; halves round up.
pub(super) fn amount(value: f64) -> String {
    if value.is_infinite() {
        return "any number".to_owned();
    }
    let digits = if value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else if value >= 1.0 {
        2
    } else if value >= 0.1 {
        3
    } else {
        4
    };
    let ten = 10_f64.powi(digits);
    // Slightly more than a half, so that a half that lost its last bit still rounds up.
    let scaled = (value * ten + 0.5 + 1e-9).floor();
    if digits == 0 {
        return thousands(&format!("{scaled:.0}"));
    }
    let text = format!("{:.*}", digits as usize, scaled / ten);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn thousands(digits: &str) -> String {
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a share as a percentage.
pub(super) fn percent(share: f64) -> String {
    format!("{}%", amount(100.0 * share))
}

/// Formats a time in a suitable unit.
pub(super) fn time(ms: f64) -> String {
    if ms < 1000.0 {
        format!("{} ms", amount(ms))
    } else if ms < 120_000.0 {
        format!("{} s", amount(ms / 1000.0))
    } else if ms < 7_200_000.0 {
        format!("{} min", amount(ms / 60_000.0))
    } else {
        format!("{} h", amount(ms / 3_600_000.0))
    }
}
