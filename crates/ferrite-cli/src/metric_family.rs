//! Families of Prometheus' metrics: [`Family`], for the modules that report something.

use ferrite_vfs::latency::SHORTEST_LOG2;
use prometheus::proto::{self, MetricFamily, MetricType};

/// A family of metrics, which joins the others when this is dropped.
pub(crate) struct Family<'f> {
    families: &'f mut Vec<MetricFamily>,
    family: MetricFamily,
    kind: MetricType,
}

impl<'f> Family<'f> {
    pub(crate) fn new(families: &'f mut Vec<MetricFamily>, name: &str, kind: MetricType, help: &str) -> Family<'f> {
        let mut family = MetricFamily::default();
        family.set_name(name.to_owned());
        family.set_help(help.to_owned());
        family.set_field_type(kind);
        Family { families, family, kind }
    }

    /// A value of a counter or a gauge.
    pub(crate) fn value(&mut self, labels: &[(&str, &str)], value: f64) {
        let kind = self.kind;
        let metric = self.metric(labels);
        if kind == MetricType::COUNTER {
            let mut counter = proto::Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        } else {
            let mut gauge = proto::Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        }
    }

    /// A histogram, with the count up to each bound. The library adds the bucket without a bound.
    fn histogram(&mut self, labels: &[(&str, &str)], buckets: &[(f64, u64)], sum: f64, count: u64) {
        let mut histogram = proto::Histogram::default();
        histogram.set_sample_sum(sum);
        histogram.set_sample_count(count);
        let bucket = |&(bound, below): &(f64, u64)| {
            let mut bucket = proto::Bucket::default();
            bucket.set_upper_bound(bound);
            bucket.set_cumulative_count(below);
            bucket
        };
        histogram.set_bucket(buckets.iter().map(bucket).collect());
        self.metric(labels).set_histogram(histogram);
    }

    /// A histogram of times, counted as [`ferrite_vfs::latency`] does.
    pub(crate) fn latency(&mut self, labels: &[(&str, &str)], classes: &[u64], busy_ns: u64) {
        let mut below = 0;
        let buckets: Vec<(f64, u64)> = (SHORTEST_LOG2..)
            .zip(classes)
            .map(|(log2, count)| {
                below += count;
                ((1u64 << log2) as f64 / 1e9, below)
            })
            .collect();
        // The last class has no bound.
        let (_, bounded) = buckets.split_last().unwrap_or((&(0.0, 0), &[]));
        self.histogram(labels, bounded, busy_ns as f64 / 1e9, below);
    }

    fn metric(&mut self, labels: &[(&str, &str)]) -> &mut proto::Metric {
        let pair = |&(name, value): &(&str, &str)| {
            let mut pair = proto::LabelPair::default();
            pair.set_name(name.to_owned());
            pair.set_value(value.to_owned());
            pair
        };
        let metrics = self.family.mut_metric();
        metrics.push(proto::Metric::from_label(labels.iter().map(pair).collect()));
        metrics.last_mut().expect("it was pushed")
    }
}

impl Drop for Family<'_> {
    fn drop(&mut self) {
        self.families.push(std::mem::take(&mut self.family));
    }
}
