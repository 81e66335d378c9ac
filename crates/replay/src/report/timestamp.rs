//! Formats timestamps and durations.

use std::fmt;
use tidegate_core::{Micros, Utc};

/// Formats a time as `2015-05-17 10:05:03`, in UTC.
pub fn format_timestamp(time: Micros) -> String {
    let Utc { year, month, day, hour, minute, second, .. } = time.into();
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

/// Displays a duration in its two largest units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HumanDuration(pub Micros);

const UNITS: [(&str, u64); 6] = [
    ("d", 86_400_000_000),
    ("h", 3_600_000_000),
    ("min", 60_000_000),
    ("s", 1_000_000),
    ("ms", 1_000),
    ("us", 1),
];

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0.get();
        let Some(first) = UNITS.iter().position(|(_, unit)| micros >= *unit) else {
            return f.write_str("0s");
        };
        let (name, unit) = UNITS[first];
        write!(f, "{} {name}", micros / unit)?;
        match UNITS.get(first + 1) {
            Some((next, part)) if micros % unit / part > 0 && first < 4 => {
                write!(f, " {} {next}", micros % unit / part)
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_timestamps_and_durations() {
        assert_eq!(format_timestamp(Micros::from_secs(1_431_857_103)), "2015-05-17 10:05:03");
        assert_eq!(format_timestamp(Micros::from_secs(951_827_696)), "2000-02-29 12:34:56");
        assert_eq!(format_timestamp(Micros::ZERO), "1970-01-01 00:00:00");
        for (micros, text) in [
            (0, "0s"),
            (7, "7 us"),
            (1_500, "1 ms"),
            (2_250_000, "2 s 250 ms"),
            (60_000_000, "1 min"),
            (5_430_000_000, "1 h 30 min"),
            (90_000_000_000, "1 d 1 h"),
        ] {
            assert_eq!(HumanDuration(Micros::new(micros)).to_string(), text);
        }
    }
}
