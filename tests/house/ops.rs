//! No silent default for a new op, outcome, query or answer: each match over one of them names every variant.

use crate::files::{ending, none};
use crate::rust::{Token, tokens};

/// The enums that grow.
const GROWING: [&str; 5] = ["Op", "Outcome", "Query", "Answer", "Work"];
/// Those that go in. A test for one variant of them, `matches!` or `let`, is "no" for every new one.
const INPUT: [&str; 3] = ["Op", "Query", "Work"];
/// The folders of production code.
const FOLDERS: [&str; 3] = ["crates/bucketq/src/", "crates/bucketq-python/src/", "crates/bucketq-sim/src/"];
/// Where a test for one variant is allowed: the tables, and the writer, for which claims, fences and the tasks of
/// archiving are special whatever else there is.
const TESTS_ONE: [&str; 5] = [
    "crates/bucketq/src/noun/facts.rs",
    "crates/bucketq/src/state/db/savepoint.rs",
    "crates/bucketq/src/engine/",
    "crates/bucketq/src/door/",
    "crates/bucketq-sim/src/ops.rs",
];

/// Whether these tokens name a variant of one of the enums. `own` is the enum that `Self` stands for.
fn names(tokens: &[Token], enums: &[&str], own: bool) -> bool {
    tokens.windows(3).any(|w| {
        let is_growing = enums.contains(&w[0].as_str()) || (own && w[0] == "Self");
        is_growing && w[1] == "::" && w[2].starts_with(char::is_uppercase)
    })
}

/// Returns the index after the bracket that closes the one at `open`.
fn after(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0;
    for (i, token) in tokens.iter().enumerate().skip(open) {
        match token.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return i + 1;
        }
    }
    tokens.len()
}

/// Returns the first index from `i` on, outside brackets, at which `end` is true.
fn until(tokens: &[Token], mut i: usize, end: impl Fn(usize) -> bool) -> usize {
    while i < tokens.len() && !end(i) {
        i = if matches!(tokens[i].as_str(), "(" | "[" | "{") { after(tokens, i) } else { i + 1 };
    }
    i
}

/// The patterns of a match whose arms are these tokens.
fn patterns(arms: &[Token]) -> Vec<&[Token]> {
    let is = |i: usize, token: &str| arms.get(i).is_some_and(|t| t == token);
    let (mut found, mut i) = (vec![], 0);
    while i < arms.len() {
        let arrow = until(arms, i, |j| is(j, "=") && is(j + 1, ">"));
        found.push(&arms[i..arrow]);
        let body = arrow + 2;
        i = if is(body, "{") { after(arms, body) } else { until(arms, body, |j| is(j, ",")) };
        i += usize::from(is(i, ","));
    }
    found
}

/// Whether the pattern fits everything: `_` or a name.
fn fits_all(pattern: &[Token]) -> bool {
    matches!(pattern, [one] if one.starts_with(|c: char| c == '_' || c.is_lowercase()))
}

fn silent(path: &str, text: &str) -> Vec<String> {
    let tokens = tokens(text);
    let own = tokens.windows(3).any(|w| w[0] == "impl" && GROWING.contains(&w[1].as_str()) && w[2] == "{");
    let tests_one = TESTS_ONE.iter().any(|place| path.starts_with(place));
    let mut findings = vec![];
    let mut report = |what: &str, part: &[Token]| {
        findings.push(format!("{path}: {what} in `{}`", part[..part.len().min(12)].concat()));
    };
    for (i, token) in tokens.iter().enumerate() {
        match token.as_str() {
            "match" => {
                let open = until(&tokens, i + 1, |j| tokens[j] == "{");
                let end = after(&tokens, open).max(open + 2);
                let Some(arms) = tokens.get(open + 1..end - 1) else { continue };
                let patterns = patterns(arms);
                let about = patterns.iter().any(|p| names(p, &GROWING, own));
                if about && patterns.iter().any(|p| fits_all(p)) {
                    report("a pattern that fits every new variant", &tokens[i..open]);
                }
            }
            "matches" | "let" if !tests_one => {
                let end = match tokens.get(i + 1).map(String::as_str) {
                    Some("!") => after(&tokens, i + 2),
                    _ => until(&tokens, i, |j| tokens[j] == "="),
                };
                if names(&tokens[i..end], &INPUT, own) {
                    report("a test for one variant, \"no\" for every new one,", &tokens[i..end]);
                }
            }
            name if GROWING.contains(&name) => {
                let group = tokens.get(i + 2).is_some_and(|t| t == "{" || t == "*");
                if group && tokens[i + 1] == "::" {
                    report("an import of variants, which hides them from this test,", &tokens[i..]);
                }
            }
            _ => {}
        }
    }
    findings
}

#[test]
fn no_match_has_a_silent_default_for_a_new_op() {
    let is_ours = |path: &str| FOLDERS.iter().any(|folder| path.starts_with(folder));
    let ours = ending(".rs").into_iter().filter(|(path, _)| is_ours(path));
    none(&ours.flat_map(|(path, text)| silent(&path, &text)).collect::<Vec<_>>());
}

#[test]
fn a_silent_default_is_named() {
    let found = |code: &str| silent("a.rs", code).len();
    assert_eq!(found("match op { Op::Ack { .. } | Op::Nack { .. } => f(|x| { x }), _ => 0 }"), 1);
    assert_eq!(found("match f(op) { Some(Op::Ack { held, .. }) => { g() } other => h(other) }"), 1);
    assert_eq!(found("impl Work { fn f(&self) { match self { Self::Op(op) => 1, _ => 0 } } }"), 1);
    assert_eq!(found("match x { A => match op { Outcome::Acked => 1, _ => 2 }, B => 3 }"), 1);
    assert_eq!(found("let a = matches!(op, Op::Ack { .. });"), 1);
    assert_eq!(found("if let Query::Stats = query { 1 }"), 1);
    assert_eq!(found("use bucketq::Op::{Ack, Nack};"), 1);
    assert_eq!(found("match op { Op::Ack { .. } => 1, Op::Nack { .. } if x => 2, Op::Nack { .. } => 3 }"), 0);
    assert_eq!(found("match kind { Kind::Full => Op::Ack { held }, _ => Op::Release { held } }"), 0);
    assert_eq!(found("let Ok(Answer::Stats(stats)) = answer else { panic!() };"), 0);
    assert_eq!(found("let op = Op::Ack { held, result: None };"), 0);
}
