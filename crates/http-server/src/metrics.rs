//! The metric model of the gateway and of the Envoy service, and its Prometheus text format.
//!
//! A scrape reads the counters into families. OTLP and statsd export the same families.

use std::fmt::{Display, Write as _};

/// All samples of one metric name.
#[derive(Clone, Debug)]
pub struct MetricFamily {
    /// Its name.
    pub name: &'static str,
    /// Its type.
    pub kind: MetricKind,
    /// One sentence for `# HELP` and OTLP.
    pub help: &'static str,
    /// Its values.
    pub samples: Vec<(MetricLabels, MetricValue)>,
}

/// Label names with their values.
pub type MetricLabels = Vec<(&'static str, String)>;

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A value that only increases.
    Counter,
    /// A value that increases and decreases.
    Gauge,
    /// Counts of values per bucket.
    Histogram,
}

/// The value of a sample.
#[derive(Clone, Debug)]
pub enum MetricValue {
    /// An integer.
    Integer(u64),
    /// A floating-point number.
    Float(f64),
    /// The upper bounds of all buckets but the last, the count of each bucket, and the sum; in microseconds.
    Histogram {
        /// The upper bounds of the buckets.
        bounds: Vec<u64>,
        /// The number of values in each bucket.
        counts: Vec<u64>,
        /// The sum of all values.
        sum: u64,
    },
}

/// Encodes families in the Prometheus text format.
pub fn prometheus_text<'a>(families: impl IntoIterator<Item = &'a MetricFamily>) -> String {
    let mut out = String::new();
    families.into_iter().for_each(|family| family.write(&mut out));
    out
}

impl MetricFamily {
    /// A counter without samples.
    pub fn counter(name: &'static str, help: &'static str) -> Self {
        Self { name, kind: MetricKind::Counter, help, samples: Vec::new() }
    }

    /// A gauge without samples.
    pub fn gauge(name: &'static str, help: &'static str) -> Self {
        Self { name, kind: MetricKind::Gauge, help, samples: Vec::new() }
    }

    /// A histogram without samples.
    pub fn histogram(name: &'static str, help: &'static str) -> Self {
        Self { name, kind: MetricKind::Histogram, help, samples: Vec::new() }
    }

    /// Adds a sample and returns the family.
    #[must_use]
    pub fn with_sample(mut self, labels: &[(&'static str, &str)], value: impl Into<MetricValue>) -> Self {
        self.add(labels, value);
        self
    }

    /// Adds a sample.
    pub fn add(&mut self, labels: &[(&'static str, &str)], value: impl Into<MetricValue>) {
        let labels = labels.iter().map(|(name, text)| (*name, (*text).to_owned())).collect();
        self.samples.push((labels, value.into()));
    }

    fn write(&self, out: &mut String) {
        let (name, help) = (self.name, self.help.replace('\\', "\\\\").replace('\n', "\\n"));
        let kind = match self.kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        };
        // Writing to a `String` does not fail.
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in &self.samples {
            match value {
                MetricValue::Integer(value) => write_sample(out, name, labels, None, value),
                MetricValue::Float(value) => write_sample(out, name, labels, None, value),
                MetricValue::Histogram { bounds, counts, sum } => {
                    let bounds = bounds.iter().map(|bound| format_seconds(*bound)).chain(["+Inf".to_owned()]);
                    let mut total = 0;
                    for (bound, count) in bounds.zip(counts) {
                        total += count;
                        write_sample(out, &format!("{name}_bucket"), labels, Some(&bound), &total);
                    }
                    write_sample(out, &format!("{name}_sum"), labels, None, &format_seconds(*sum));
                    write_sample(out, &format!("{name}_count"), labels, None, &total);
                }
            }
        }
    }
}

impl From<u64> for MetricValue {
    fn from(value: u64) -> Self {
        Self::Integer(value)
    }
}

impl From<f64> for MetricValue {
    fn from(value: f64) -> Self {
        Self::Float(value)
    }
}

/// Writes one sample; `bound` is the upper bound of a histogram bucket.
fn write_sample(
    out: &mut String,
    name: &str,
    labels: &[(&str, String)],
    bound: Option<&str>,
    value: &dyn Display,
) {
    out.push_str(name);
    let labels = labels.iter().map(|(label, text)| (*label, text.as_str()));
    let mut separator = '{';
    for (label, text) in labels.chain(bound.map(|bound| ("le", bound))) {
        let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let _ = write!(out, "{separator}{label}=\"{text}\"");
        separator = ',';
    }
    let end = if separator == '{' { "" } else { "}" };
    let _ = writeln!(out, "{end} {value}");
}

/// Formats microseconds as seconds.
fn format_seconds(micros: u64) -> String {
    let text = format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn microseconds_are_written_as_seconds() {
        for (micros, expected) in [(0, "0"), (100, "0.0001"), (1_000_000, "1"), (1_500_000, "1.5")] {
            assert_eq!(format_seconds(micros), expected);
        }
    }

    #[test]
    fn label_values_and_help_texts_are_escaped() {
        let family = MetricFamily::counter("a", "x\n\\").with_sample(&[("rule", "x\"}\n\\")], 1_u64);
        let expected = "# HELP a x\\n\\\\\n# TYPE a counter\na{rule=\"x\\\"}\\n\\\\\"} 1\n";
        assert_eq!(prometheus_text([&family]), expected);
    }

    #[test]
    fn buckets_are_cumulative() {
        let value =
            MetricValue::Histogram { bounds: vec![100, 1_000_000], counts: vec![2, 1, 1], sum: 3_000_000 };
        let text =
            prometheus_text([&MetricFamily::histogram("a", "Time.").with_sample(&[("b", "c")], value)]);
        let expected = [
            "a_bucket{b=\"c\",le=\"0.0001\"} 2",
            "a_bucket{b=\"c\",le=\"1\"} 3",
            "a_bucket{b=\"c\",le=\"+Inf\"} 4",
            "a_sum{b=\"c\"} 3",
            "a_count{b=\"c\"} 4",
        ];
        assert_eq!(text.lines().skip(2).collect::<Vec<_>>(), expected);
    }
}
