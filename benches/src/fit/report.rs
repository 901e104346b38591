//! The results: a table for people, JSON for the last line, a plot for docs/fit.md.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::stats::{number, tidy};

/// The compared figures of one workload.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Jobs per second.
    pub capacity: f64,
    /// Share of a busy worker's time that is not work.
    pub overhead: f64,
    /// PUTs per job of the stream.
    pub puts_per_job: f64,
    /// Time until a worker has the job, in the stream; reported, not judged.
    pub dispatch_ms: f64,
}

/// The figures of one workload.
#[derive(Clone, Debug)]
pub struct Row {
    /// Name for people.
    pub name: String,
    /// Measured time of a small PUT.
    pub latency_ms: f64,
    /// Measured on the server.
    pub measured: Figures,
    /// Predicted by the engine's model.
    pub predicted: Figures,
    /// Predicted by the plain model, given the batch that the engine's model predicts.
    pub plain: Figures,
    /// Calls that failed.
    pub errors: u64,
}

/// The judged figures, with their units.
const JUDGED: [&str; 3] = ["capacity", "overhead", "PUTs per job"];
const COLOURS: [&str; 3] = ["#1d5c96", "#b3540f", "#0b6450"];

impl Figures {
    fn judged(&self) -> [f64; 3] {
        [self.capacity, self.overhead, self.puts_per_job]
    }

    fn json(&self) -> Value {
        json!({
            "capacity": number(self.capacity, 2), "overhead": number(self.overhead, 4),
            "puts_per_job": number(self.puts_per_job, 3), "dispatch_ms": number(self.dispatch_ms, 1),
        })
    }

    fn cells(&self) -> [String; 4] {
        [
            format!("{:.1}", self.capacity),
            format!("{:.1} %", 100.0 * self.overhead),
            format!("{:.2}", self.puts_per_job),
            format!("{:.0} ms", self.dispatch_ms),
        ]
    }
}

impl Row {
    /// Returns measured over predicted, of the judged figures.
    fn ratios(&self) -> [f64; 3] {
        let (have, want) = (self.measured.judged(), self.predicted.judged());
        [have[0] / want[0], have[1] / want[1], have[2] / want[2]]
    }

    /// Returns the largest difference from the prediction.
    pub fn worst_pct(&self) -> f64 {
        self.ratios().iter().map(|r| (r - 1.0).abs() * 100.0).fold(0.0, f64::max)
    }

    /// Returns a line for the table in docs/fit.md.
    pub fn line(&self) -> String {
        let (have, want) = (self.measured.cells(), self.predicted.cells());
        let both: Vec<String> =
            have.iter().zip(want).map(|(have, want)| format!("{have} / {want}")).collect();
        format!(
            "| {} | {:.1} | {} | {:.0} % |",
            self.name,
            self.latency_ms,
            both.join(" | "),
            self.worst_pct()
        )
    }
}

/// The head of the table in docs/fit.md.
pub const HEAD: &str = "| workload | PUT, ms | capacity, jobs/s | overhead | PUTs per job | dispatch delay | worst |\n\
    |---|---|---|---|---|---|---|";

/// Returns the last line: the worst error, with details.
pub fn json(rows: &[Row]) -> Value {
    let worst = rows.iter().map(Row::worst_pct).fold(0.0, f64::max);
    let all: serde_json::Map<String, Value> = rows
        .iter()
        .map(|row| {
            let told = json!({
                "latency_ms": number(row.latency_ms, 2), "measured": row.measured.json(),
                "predicted": row.predicted.json(), "plain": row.plain.json(),
                "worst_error_pct": number(row.worst_pct(), 1), "errors": row.errors,
            });
            (row.name.clone(), told)
        })
        .collect();
    json!({ "worst_error_pct": tidy(worst, 1), "errors": rows.iter().map(|r| r.errors).sum::<u64>(), "workloads": all })
}

const WIDTH: f64 = 760.0;
const LEFT: f64 = 232.0;
const TOP: f64 = 34.0;
const STEP: f64 = 30.0;
/// The range of the ratios that the plot shows.
const SPAN: (f64, f64) = (0.6, 1.4);

/// Plots measured over predicted as dots, with the band in which they should be.
pub fn svg(rows: &[Row]) -> String {
    let bottom = TOP + STEP * rows.len() as f64;
    let x = |ratio: f64| {
        let share = (ratio.clamp(SPAN.0, SPAN.1) - SPAN.0) / (SPAN.1 - SPAN.0);
        LEFT + share * (WIDTH - LEFT - 30.0)
    };
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"system-ui, sans-serif\" \
         font-size=\"13\" role=\"img\" aria-label=\"Measured over predicted, by workload\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <rect x=\"{low:.1}\" y=\"{TOP}\" width=\"{band:.1}\" height=\"{tall}\" fill=\"#dcefe8\"/>\n",
        height = bottom + 66.0,
        low = x(0.8),
        band = x(1.2) - x(0.8),
        tall = bottom - TOP,
    );
    for tenths in [6, 8, 10, 12, 14] {
        let at = x(f64::from(tenths) / 10.0);
        let (width, ratio) = (if tenths == 10 { 1.5 } else { 0.5 }, f64::from(tenths) / 10.0);
        let _ = writeln!(
            out,
            "<path d=\"M{at:.1} {TOP}V{bottom}\" stroke=\"#888\" stroke-width=\"{width}\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#444\">{ratio:.1}</text>",
            bottom + 18.0
        );
    }
    for (index, row) in rows.iter().enumerate() {
        let y = TOP + STEP * (index as f64 + 0.5);
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#1d2329\">{}</text>",
            LEFT - 12.0,
            y + 4.5,
            row.name
        );
        for (which, ratio) in row.ratios().into_iter().enumerate() {
            let shown = mark(which, x(ratio), y + (which as f64 - 1.0) * 7.0);
            let _ = writeln!(out, "{shown}<title>{}: {ratio:.2}</title></path>", JUDGED[which]);
        }
    }
    for (which, name) in JUDGED.into_iter().enumerate() {
        let at = LEFT + 10.0 + 150.0 * which as f64;
        let _ = writeln!(
            out,
            "{}</path><text x=\"{:.1}\" y=\"{:.1}\" fill=\"#1d2329\">{name}</text>",
            mark(which, at, bottom + 46.0),
            at + 12.0,
            bottom + 50.5
        );
    }
    let _ = writeln!(
        out,
        "<text x=\"{LEFT}\" y=\"20\" fill=\"#444\">measured over predicted; in the band it is within 20 %</text>\n</svg>"
    );
    out
}

/// Draws a disc, a square or a triangle, so that they differ by more than colour.
fn mark(which: usize, x: f64, y: f64) -> String {
    let colour = COLOURS[which];
    let path = match which {
        0 => format!("M{:.1} {y:.1}a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0z", x - 4.5),
        1 => format!("M{:.1} {:.1}h8v8h-8z", x - 4.0, y - 4.0),
        _ => format!("M{x:.1} {:.1}l5 9h-10z", y - 5.0),
    };
    format!("<path d=\"{path}\" fill=\"{colour}\">")
}
