//! docs/decisions: one page for each, each number used once.

use crate::files::{none, texts};

const MAX_LINES: usize = 80;

/// Every break of the rules in these decisions: file name and text.
fn check(decisions: &[(String, String)]) -> Vec<String> {
    let mut findings = Vec::new();
    let mut numbers = Vec::new();
    for (file, text) in decisions {
        let number = file.split('-').next().unwrap_or_default().to_owned();
        if number.len() != 4 || !number.chars().all(|c| c.is_ascii_digit()) {
            findings.push(format!("{file}: a decision is called NNNN-title.md"));
        }
        let heading = format!("# {number}");
        if !text.strip_prefix(&heading).is_some_and(|rest| rest.starts_with([' ', ':', '.'])) {
            findings.push(format!("{file}: its first line is `# {number} Title`"));
        }
        if text.lines().count() >= MAX_LINES {
            findings
                .push(format!("{file}: {} lines, a page has fewer than {MAX_LINES}", text.lines().count()));
        }
        if numbers.contains(&number) {
            findings.push(format!("{file}: number {number} is taken"));
        }
        numbers.push(number);
    }
    findings
}

#[test]
fn every_decision_is_one_numbered_page() {
    let here = "docs/decisions/";
    let all: Vec<(String, String)> =
        texts().into_iter().filter_map(|(p, t)| Some((p.strip_prefix(here)?.to_owned(), t))).collect();
    assert!(!all.is_empty());
    none(&check(&all));
}

#[test]
fn a_decision_that_breaks_a_rule_is_named() {
    let one = |file: &str, text: String| (file.to_owned(), text);
    none(&check(&[one("0001-a.md", "# 0001 A\n".into()), one("0002-b.md", "# 0002 B\n".into())]));
    assert_eq!(
        check(&[one("0001-a.md", "# 0001 A\n".into()), one("0001-b.md", "# 0001 B\n".into())]).len(),
        1
    );
    assert_eq!(check(&[one("0001-a.md", format!("# 0001 A\n{}", "x\n".repeat(MAX_LINES)))]).len(), 1);
    assert_eq!(check(&[one("0001-a.md", "# A\n".into())]).len(), 1);
    assert_eq!(check(&[one("title.md", "# title.md A\n".into())]).len(), 1);
}
