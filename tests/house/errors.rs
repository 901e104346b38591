//! docs/errors.md says what error.rs says.

use std::fmt::Write;

use bucketq::error::{CODES, Kind, TABLE};

use crate::files::text;

/// The tables of docs/errors.md as error.rs has them.
fn tables() -> String {
    let mut out =
        String::from("| kind | what to do next | Python | exit code | HTTP |\n|---|---|---|---|---|\n");
    for row in TABLE {
        writeln!(out, "| `{}` | {} | `{}` | {} | {} |", row.name, row.next, row.python, row.exit, row.http)
            .expect("a string takes text");
    }
    out.push_str("\n## Codes\n\n| code | kind | what it means |\n|---|---|---|\n");
    for code in CODES {
        let (says, kind) = (code.says().trim(), code.kind().row().name);
        writeln!(out, "| `{}` | `{kind}` | {says} |", code.as_str()).expect("a string takes text");
    }
    out
}

/// What stands in the page below its heading `## Kinds`.
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
