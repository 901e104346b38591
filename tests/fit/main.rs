//! The fit model against fit-calculator/cases.json, which was computed independently.

mod engine;
mod workload;

use std::path::Path;

use bucketq::error::Kind;
use bucketq::fit::{Inputs, Judge, RULES, Verdict, evaluate};
use serde_json::{Value, json};

fn table() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fit-calculator/cases.json");
    serde_json::from_str(&std::fs::read_to_string(path).expect("cases.json is there"))
        .expect("and it is JSON")
}

fn rows<'a>(table: &'a Value, name: &str) -> &'a Vec<Value> {
    table[name].as_array().expect("a list")
}

fn inputs(given: &Value) -> Inputs {
    serde_json::from_value(given.clone()).expect("inputs of the model")
}

/// The differences of `got` from `want`: numbers to nine digits, all else exactly. null means an infinite number.
fn differences(want: &Value, got: &Value, path: &str, found: &mut Vec<String>) {
    if let (Value::Object(want), Value::Object(got)) = (want, got) {
        let mut keys: Vec<_> = want.keys().chain(got.keys()).collect();
        keys.sort();
        keys.dedup();
        let absent = json!("absent");
        for key in keys {
            let (want, got) = (want.get(key).unwrap_or(&absent), got.get(key).unwrap_or(&absent));
            differences(want, got, &format!("{path}.{key}"), found);
        }
        return;
    }
    let same = match (want.as_f64(), got.as_f64()) {
        (Some(want), Some(got)) => (want - got).abs() <= 1e-9 * want.abs().max(1e-12),
        _ => want == got,
    };
    if !same {
        found.push(format!("{path}: {got}, not {want}"));
    }
}

#[test]
fn there_are_sixty_cases_and_the_inputs_are_those_of_the_table() {
    let table = table();
    assert!(rows(&table, "cases").len() >= 60);
    let ours: Vec<Value> = RULES
        .iter()
        .map(|r| json!({"key": r.name, "default": r.default, "min": r.least, "max": r.most, "whole": r.whole, "above": r.above}))
        .collect();
    let theirs: Vec<Value> = rows(&table, "inputs")
        .iter()
        .map(|row| {
            let number = |key: &str| row[key].as_f64().expect("a number");
            let mark = |key: &str| row[key] == json!(true);
            json!({"key": row["key"], "default": number("default"), "min": number("min"), "max": number("max"), "whole": mark("whole"), "above": mark("above")})
        })
        .collect();
    assert_eq!(ours, theirs);
    assert_eq!(Inputs::from_values(&Inputs::default().values()), Some(Inputs::default()));
    assert_eq!(Inputs::from_values(&[1.0]), None);
    assert_eq!(Inputs::default().values(), RULES.iter().map(|r| r.default).collect::<Vec<_>>());
}

#[test]
fn the_model_says_what_was_worked_out() {
    let table = table();
    let mut found = Vec::new();
    for case in rows(&table, "cases") {
        let fit = evaluate(&inputs(&case["inputs"])).expect("inputs that make sense");
        let got = serde_json::to_value(fit).expect("an answer as JSON");
        differences(&case["expected"], &got, case["name"].as_str().expect("a name"), &mut found);
    }
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

#[test]
fn a_ninth_digit_is_noticed() {
    let count = |want: Value, got: Value| {
        let mut found = Vec::new();
        differences(&want, &got, "", &mut found);
        found.len()
    };
    assert_eq!(count(json!({"a": 1.0}), json!({"a": 1.0 + 5e-10})), 0);
    assert_eq!(count(json!({"a": 1.0}), json!({"a": 1.0 + 2e-9})), 1);
    assert_eq!(count(json!({"a": null}), json!({"a": f64::INFINITY})), 0);
    assert_eq!(count(json!({"a": 1}), json!({})), 1);
    assert_eq!(count(json!({}), json!({"a": 1})), 1);
}

#[test]
fn nonsense_is_refused_and_named() {
    let table = table();
    for case in rows(&table, "refused") {
        let error = evaluate(&inputs(&case["inputs"])).expect_err("nonsense");
        assert_eq!(error.kind(), Kind::Invalid);
        let text = format!(
            "{}: {}",
            case["field"].as_str().expect("a field"),
            case["message"].as_str().expect("a message")
        );
        assert!(error.to_string().contains(&text), "{error}: not {text}");
    }
    for arrival in [f64::NAN, f64::INFINITY] {
        assert!(evaluate(&Inputs { arrival, ..Inputs::default() }).is_err());
    }
}

#[test]
fn the_published_example_is_a_tradeoff_by_its_dispatch_budget_alone() {
    let plain = evaluate(&Inputs::default()).expect("the defaults make sense").plain;
    assert_eq!((plain.judged.verdict, plain.judged.decided_by), (Verdict::Tradeoff, Some(Judge::Dispatch)));
    assert_eq!(
        (plain.judged.classes.load, plain.judged.classes.overhead, plain.judged.classes.dispatch),
        (0, 0, 1)
    );
    let figures = format!(
        "{:.0} ms, {:.1} jobs/s, {:.1} %, {:.2}, {:.2} PUTs/job",
        plain.queue_ms,
        plain.capacity,
        100.0 * plain.overhead,
        plain.load,
        plain.puts_per_job
    );
    assert_eq!(figures, "27 ms, 37.0 jobs/s, 2.6 %, 0.14, 0.30 PUTs/job");
}
