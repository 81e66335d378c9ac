//! Metrics of one name, whatever they are written as.

use crate::prometheus::{header, help, line, seconds};

/// Metrics of one name.
#[derive(Clone, Debug)]
pub(crate) struct Family {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// What it is, in a sentence.
    pub(crate) help: &'static str,
    pub(crate) samples: Vec<(Vec<(&'static str, String)>, Number)>,
}

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It only grows.
    Counter,
    Gauge,
    /// Times, counted in ranges.
    Histogram,
}

/// A value.
#[derive(Clone, Debug)]
pub(crate) enum Number {
    Whole(u64),
    Float(f64),
    /// The ends of all ranges but the last, the count of each, and all together, in microseconds.
    Times {
        ends: Vec<u64>,
        counts: Vec<u64>,
        took: u64,
    },
}

impl Family {
    pub(crate) fn new(name: &'static str, kind: Kind, help: &'static str) -> Self {
        Self { name, kind, help, samples: Vec::new() }
    }

    /// With one more value.
    #[must_use]
    pub(crate) fn with(mut self, labels: &[(&'static str, &str)], number: Number) -> Self {
        self.add(labels, number);
        self
    }

    pub(crate) fn add(&mut self, labels: &[(&'static str, &str)], number: Number) {
        let labels = labels.iter().map(|(name, text)| (*name, (*text).to_owned())).collect();
        self.samples.push((labels, number));
    }

    /// As text for Prometheus.
    pub(crate) fn write(&self, out: &mut String) {
        let kind = match self.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        help(out, self.name, self.help);
        header(out, self.name, kind);
        for (labels, number) in &self.samples {
            let labels: Vec<_> = labels.iter().map(|(name, text)| (*name, text.as_str())).collect();
            match number {
                Number::Whole(number) => line(out, self.name, &labels, number),
                Number::Float(number) => line(out, self.name, &labels, number),
                Number::Times { ends, counts, took } => self.write_times(out, &labels, ends, counts, *took),
            }
        }
    }

    fn write_times(
        &self,
        out: &mut String,
        labels: &[(&str, &str)],
        ends: &[u64],
        counts: &[u64],
        took: u64,
    ) {
        let bucket = format!("{}_bucket", self.name);
        let ends = ends.iter().map(|end| seconds(*end)).chain(["+Inf".to_owned()]);
        let mut sum = 0;
        for (end, count) in ends.zip(counts) {
            sum += count;
            let labels: Vec<_> = labels.iter().copied().chain([("le", end.as_str())]).collect();
            line(out, &bucket, &labels, &sum);
        }
        line(out, &format!("{}_sum", self.name), labels, &seconds(took));
        line(out, &format!("{}_count", self.name), labels, &sum);
    }
}
