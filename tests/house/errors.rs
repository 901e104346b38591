//! docs/errors.md has the same content as error.rs.

use std::fmt::Write;

use bucketq::error::{CODES, Kind, TABLE};

use crate::files::{none, text};

/// Returns the tables of docs/errors.md, made from error.rs.
fn tables() -> String {
    let mut out =
        String::from("| kind | what to do next | Python | exit code | HTTP |\n|---|---|---|---|---|\n");
    for row in TABLE {
        writeln!(out, "| `{}` | {} | `{}` | {} | {} |", row.name, row.next, row.python, row.exit, row.http)
            .expect("a string takes text");
    }
    out.push_str("\n## Codes\n\n| code | kind | what it means | do this |\n|---|---|---|---|\n");
    for code in CODES {
        let (says, advice, kind) = (code.says().trim(), code.advice(), code.kind().row().name);
        writeln!(out, "| `{}` | `{kind}` | {says} | {advice} |", code.as_str()).expect("a string takes text");
    }
    out
}

/// Returns the text of the page below its heading `## Kinds`.
fn written(page: &str) -> &str {
    page.split_once("## Kinds\n\n").map_or("", |(_, below)| below)
}

#[test]
fn the_page_of_errors_equals_the_tables_of_the_code() {
    let right = tables();
    assert!(
        written(&text("docs/errors.md")) == right,
        "below `## Kinds`, docs/errors.md must read:\n\n{right}"
    );
}

#[test]
fn a_changed_word_in_the_page_of_errors_is_noticed() {
    let page = format!("# Errors\n\n## Kinds\n\n{}", tables());
    assert_eq!(written(&page), tables());
    assert_ne!(written(&page.replacen("fix the call", "try again", 1)), tables());
    assert_ne!(written(&page.replace("## Kinds", "## Sorts")), tables());
}

/// Returns the codes whose advice is not one sentence of a verb and its object.
fn without_advice(advice: impl Iterator<Item = (&'static str, &'static str)>) -> Vec<String> {
    advice
        .filter(|(_, advice)| {
            let is_sentence = advice.starts_with(char::is_uppercase) && advice.ends_with('.');
            !is_sentence || !(3..=32).contains(&advice.split_whitespace().count())
        })
        .map(|(code, advice)| format!("{code}: {advice:?} does not say what to do next in one sentence"))
        .collect()
}

#[test]
fn every_code_has_advice() {
    none(&without_advice(CODES.iter().map(|code| (code.as_str(), code.advice()))));
}

#[test]
fn a_code_without_advice_is_named() {
    let found = without_advice([("one", "Open a new handle."), ("two", ""), ("three", "Retry.")].into_iter());
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].starts_with("two") && found[1].starts_with("three"), "{found:?}");
}

#[test]
fn every_kind_has_its_own_row_in_the_order_of_the_enum() {
    for (index, row) in TABLE.iter().enumerate() {
        assert_eq!(row.kind as usize, index, "{}", row.name);
        assert_eq!(row.kind.row().name, row.name);
    }
    assert_eq!(TABLE.len(), Kind::Closed as usize + 1, "the last kind has the last row");
}

#[test]
fn names_exit_codes_and_classes_are_unique() {
    let unique = |mut all: Vec<String>| {
        all.sort();
        let before = all.len();
        all.dedup();
        before == all.len()
    };
    assert!(unique(TABLE.iter().map(|r| r.name.to_owned()).collect()));
    assert!(unique(TABLE.iter().map(|r| r.python.to_owned()).collect()));
    assert!(unique(TABLE.iter().map(|r| r.exit.to_string()).collect()));
    assert!(unique(CODES.iter().map(|c| c.as_str().to_owned()).collect()));
}
