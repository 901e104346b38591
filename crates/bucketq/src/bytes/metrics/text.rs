//! Metrics as text for Prometheus, version 0.0.4 of its format. Formats numbers and reads nothing else.

use std::fmt::{Display, Write};

use super::{Cost, Histogram, Histograms, Metrics};
use crate::noun::query::Stats;

/// Returns all measurements of a queue file, as one process sees them.
pub fn text(stats: &Stats, metrics: &Metrics, histograms: &Histograms, cost: &Cost) -> String {
    let mut page = MetricsText(String::new());
    of_queues(&mut page, stats);
    of_times(&mut page, histograms);
    of_requests(&mut page, metrics);
    page.single(
        "bucketq_host_processes",
        "gauge",
        "Other processes of this host that share this writer.",
        metrics.processes,
    );
    of_money(&mut page, cost);
    page.0
}

fn of_queues(page: &mut MetricsText, stats: &Stats) {
    page.family("bucketq_jobs", "gauge", "Jobs of a queue in a state.");
    for queue in &stats.queues {
        for (state, n) in &queue.counts {
            page.line("bucketq_jobs", &[("queue", &queue.name), ("state", state.as_str())], n);
        }
    }
    page.family("bucketq_expired_jobs", "gauge", "Leased jobs whose lease has run out.");
    for queue in &stats.queues {
        page.line("bucketq_expired_jobs", &[("queue", &queue.name)], queue.expired);
    }
    page.family("bucketq_oldest_ready_seconds", "gauge", "How long the next job to be claimed has waited.");
    for queue in &stats.queues {
        let seconds = queue.oldest_ready_ms.unwrap_or(0) as f64 / 1_000.0;
        page.line("bucketq_oldest_ready_seconds", &[("queue", &queue.name)], seconds);
    }
    page.single("bucketq_commit_seq", "gauge", "Number of the newest known commit.", stats.commit_seq);
    page.single("bucketq_pages", "gauge", "Pages of the database, 4,096 bytes each.", stats.pages);
    page.single("bucketq_free_pages", "gauge", "Empty pages of the database.", stats.free_pages);
}

fn of_times(page: &mut MetricsText, h: &Histograms) {
    let seconds = [
        ("bucketq_wait_seconds", "From when a job could run until it was claimed.", &h.wait_ms),
        ("bucketq_run_seconds", "From a job's claim to its ack.", &h.run_ms),
        ("bucketq_commit_seconds", "From the first op of a commit to the reply of the store.", &h.commit_ms),
    ];
    for (name, help, histogram) in seconds {
        page.histogram(name, help, histogram, 1_000.0);
    }
    page.histogram("bucketq_commit_ops", "Ops in a commit.", &h.commit_ops, 1.0);
}

fn of_requests(page: &mut MetricsText, m: &Metrics) {
    let counters = [
        ("bucketq_commits_total", "Commits stored.", m.commits),
        ("bucketq_ops_total", "Ops in those commits.", m.ops),
        ("bucketq_delta_bytes_total", "Bytes of their deltas.", m.delta_bytes),
        ("bucketq_resends_total", "Commits sent again unchanged.", m.resends),
        ("bucketq_unknown_total", "Commits whose outcome could not be known.", m.unknown),
        ("bucketq_caught_up_total", "Commits of other writers, applied here.", m.caught_up),
        ("bucketq_local_commits_total", "Commits to the local log.", m.local_commits),
        ("bucketq_handed_back_total", "Claims handed back because their caller had gone.", m.handed_back),
        (
            "bucketq_wait_looks_total",
            "Jobs looked up for callers who wait until they are finished.",
            m.wait_looks,
        ),
        ("bucketq_archived_jobs_total", "Jobs that this process archived.", m.archived_jobs),
        ("bucketq_events_missed_total", "Events that listeners were too slow for.", m.events_missed),
        ("bucketq_events_failed_total", "Events on which a listener raised an error.", m.events_failed),
    ];
    for (name, help, value) in counters {
        page.single(name, "counter", help, value);
    }
    page.family(
        "bucketq_conflicts_total",
        "counter",
        "Commits lost to another writer, by the reply of the store.",
    );
    for (cause, n) in [("race", m.conflicts - m.conflicts_unanswered), ("unanswered", m.conflicts_unanswered)]
    {
        page.line("bucketq_conflicts_total", &[("cause", cause)], n);
    }
    page.family("bucketq_store_requests_total", "counter", "Requests to the store.");
    let requests =
        [("put", m.puts), ("upload", m.uploads), ("get", m.gets), ("list", m.lists), ("delete", m.deletes)];
    for (kind, n) in requests {
        page.line("bucketq_store_requests_total", &[("kind", kind)], n);
    }
    page.single(
        "bucketq_gets_unchanged_total",
        "counter",
        "Gets to which the store replied \"unchanged\".",
        m.gets_unchanged,
    );
    page.family("bucketq_store_bytes_total", "counter", "Bytes sent to and received from the store.");
    for (kind, n) in [("put", m.put_bytes), ("upload", m.upload_bytes), ("get", m.get_bytes)] {
        page.line("bucketq_store_bytes_total", &[("kind", kind)], n);
    }
}

fn of_money(page: &mut MetricsText, cost: &Cost) {
    let families = [
        (
            "bucketq_cost_dollars_total",
            "counter",
            "Requests so far at the prices of the fit model.",
            cost.total,
        ),
        (
            "bucketq_cost_dollars_per_hour",
            "gauge",
            "Requests at the pace so far and storage at the prices of the fit model.",
            cost.per_hour,
        ),
    ];
    for (name, kind, help, dollars) in families {
        page.family(name, kind, help);
        page.line(name, &[], dollars);
    }
}

/// The lines so far.
struct MetricsText(String);

impl MetricsText {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn line(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let labels: Vec<String> = labels.iter().map(|(k, v)| format!("{k}=\"{}\"", escaped(v))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }

    fn single(&mut self, name: &str, kind: &str, help: &str, value: u64) {
        self.family(name, kind, help);
        self.line(name, &[], value);
    }

    fn histogram(&mut self, name: &str, help: &str, h: &Histogram, per: f64) {
        self.family(name, "histogram", help);
        let (bucket, mut below) = (format!("{name}_bucket"), 0);
        for (bound, n) in h.bounds.iter().zip(&h.counts) {
            below += n;
            self.line(&bucket, &[("le", &(*bound as f64 / per).to_string())], below);
        }
        self.line(&bucket, &[("le", "+Inf")], h.count);
        self.line(&format!("{name}_sum"), &[], h.sum as f64 / per);
        self.line(&format!("{name}_count"), &[], h.count);
    }
}

/// Escapes a label's value.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
