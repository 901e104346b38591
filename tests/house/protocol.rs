//! docs/protocol.md has a row for every cited rule, and its rows name existing code, variants and tests.

use std::collections::BTreeSet;

use crate::files::{none, text, texts};

/// Folders whose files may cite a rule.
const CITING: [&str; 3] = ["crates/", "docs/", "tests/"];

/// The kinds of files that may cite a rule.
const KINDS: [&str; 4] = [".rs", ".md", ".py", ".txt"];

/// Returns the numbers of the rules that a text cites: `P` and one or two digits, as a separate word.
fn cited(text: &str) -> BTreeSet<u32> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter_map(|word| word.strip_prefix('P'))
        .filter(|digits| (1..=2).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit()))
        .filter_map(|digits| digits.parse().ok())
        .collect()
}

/// Returns the rows of the page: the number of the rule, and the cells after it.
fn rows(page: &str) -> Vec<(u32, Vec<&str>)> {
    page.lines()
        .filter_map(|line| {
            let number = line.strip_prefix("| P")?.split_once(' ')?.0.parse().ok()?;
            Some((number, line.split('|').skip(2).map(str::trim).filter(|cell| !cell.is_empty()).collect()))
        })
        .collect()
}

/// Returns the texts between backticks.
fn quoted(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// Returns the findings for one row. `file` returns the text of a file of the repository, if it exists.
fn wrong(number: u32, cells: &[&str], file: &impl Fn(&str) -> Option<String>) -> Vec<String> {
    let [_, _, code, variants, proof] = cells else {
        return vec![format!("P{number} has {} cells, not 5", cells.len())];
    };
    let mut findings = Vec::new();
    for (folder, cell) in [("crates/bucketq/src/", code), ("tests/", proof)] {
        let named = quoted(cell);
        if named.is_empty() {
            findings.push(format!("P{number} names no file of {folder}"));
        }
        for one in named {
            let Some((path, name)) = one.split_once("::") else {
                findings.push(format!("P{number}: `{one}` names a file and nothing in it"));
                continue;
            };
            let defined = |text: &str| {
                ["fn", "struct", "enum"].iter().any(|kind| {
                    [" ", "(", "<"].iter().any(|end| text.contains(&format!("{kind} {name}{end}")))
                })
            };
            match file(&format!("{folder}{path}")) {
                None => findings.push(format!("P{number}: there is no {folder}{path}")),
                Some(text) if !defined(&text) => {
                    findings.push(format!("P{number}: {folder}{path} has no {name}"));
                }
                Some(_) => {}
            }
        }
    }
    let known = ["tests/mutants/broken.rs", "crates/bucketq-sim/src/variants.rs", "tests/link/world.rs"];
    let known = known.map(file).into_iter();
    let known: String = known.flatten().collect();
    if quoted(variants).is_empty() {
        findings.push(format!("P{number} has no broken variant"));
    }
    findings.extend(
        quoted(variants)
            .into_iter()
            .filter(|variant| !known.contains(&format!("\n    {variant},")))
            .map(|variant| format!("P{number}: there is no variant {variant}")),
    );
    findings
}

#[test]
fn every_rule_that_is_cited_has_one_row() {
    let page = text("docs/protocol.md");
    let numbers: Vec<u32> = rows(&page).into_iter().map(|(number, _)| number).collect();
    assert_eq!(
        numbers,
        (1..=35).chain(38..=40).collect::<Vec<_>>(),
        "docs/protocol.md has one row for each rule, in order"
    );
    let mut findings = Vec::new();
    for (path, text) in texts() {
        let may_cite = CITING.iter().any(|folder| path.starts_with(folder));
        if may_cite && KINDS.iter().any(|end| path.ends_with(end)) && path != "tests/house/protocol.rs" {
            let unknown = cited(&text).into_iter().filter(|number| !numbers.contains(number));
            findings.extend(unknown.map(|number| format!("{path} cites P{number}, which has no row")));
        }
    }
    none(&findings);
}

#[test]
fn every_row_names_code_variants_and_a_test_that_exist() {
    let page = text("docs/protocol.md");
    let files = texts();
    let file = |path: &str| Some(files.iter().find(|(p, _)| p == path)?.1.clone());
    none(&rows(&page).iter().flat_map(|(number, cells)| wrong(*number, cells, &file)).collect::<Vec<_>>());
}

#[test]
fn a_citation_without_a_row_and_a_row_that_leads_nowhere_are_named() {
    let found: Vec<u32> = cited("(P3, P14) and P99; not XP5, P100, p7, P2x or `P_1`").into_iter().collect();
    assert_eq!(found, [3, 14, 99]);

    let file = |path: &str| match path {
        "crates/bucketq/src/a.rs" => Some("fn one() {}".to_owned()),
        "tests/mutants/broken.rs" => Some("\n    /// P1\n    Bad,\n".to_owned()),
        "tests/t.rs" => Some("fn two() {}".to_owned()),
        _ => None,
    };
    let page = |row: &str| -> Vec<String> {
        rows(row).iter().flat_map(|(number, cells)| wrong(*number, cells, &file)).collect()
    };
    assert_eq!(page("| P1 | a | b | `a.rs::one` | `Bad` | `t.rs::two` |"), Vec::<String>::new());
    assert_eq!(page("| P1 | a | b | `a.rs::gone` | `Bad` | `t.rs::two` |").len(), 1);
    assert_eq!(page("| P1 | a | b | `z.rs::one` | `Good` | `t.rs` |").len(), 3);
    assert_eq!(page("| P1 | a | b | `a.rs::one` | none | `t.rs::two` |"), ["P1 has no broken variant"]);
    assert_eq!(page("| P1 | a | b | `a.rs::one` |"), ["P1 has 3 cells, not 5"]);
}
