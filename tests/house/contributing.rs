//! docs/contributing.md names files and tests that exist, and a new op needs few files.

use crate::files::{ending, none, root, text};

/// Most files that an op may need, outside tests and docs, without an event and a command.
const MOST_FILES: usize = 15;

/// The rows of a table below this heading: their cells.
fn rows(page: &str, heading: &str) -> Vec<Vec<String>> {
    let below = page.split_once(&format!("\n{heading}\n")).map_or("", |(_, below)| below);
    let section = below.split_once("\n#").map_or(below, |(section, _)| section);
    let cells = |line: &str| line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect();
    section.lines().filter(|line| line.starts_with("| ")).skip(1).map(cells).collect()
}

/// The words in backticks.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

fn is_path(word: &str) -> bool {
    let homes = ["crates/", "python/", "tests/", "docs/", "benches/", ".ci/"];
    homes.iter().any(|home| word.starts_with(home)) && !word.contains(' ')
}

/// A test is a sentence.
fn is_test(word: &str) -> bool {
    word.matches('_').count() >= 3 && word.chars().all(|c| c.is_ascii_lowercase() || c == '_')
}

fn missing(page: &str, is_there: impl Fn(&str) -> bool, is_a_test: impl Fn(&str) -> bool) -> Vec<String> {
    let gone = |word: &&str| (is_path(word) && !is_there(word)) || (is_test(word) && !is_a_test(word));
    let lines = page.lines().filter(|line| line.starts_with("| "));
    lines.flat_map(quoted).filter(gone).map(|word| format!("docs/contributing.md: {word} is gone")).collect()
}

/// How many files these rows name outside tests and docs: the first alternative, without what few ops have.
fn needed(rows: &[Vec<String>]) -> usize {
    let is_rare =
        |row: &[String]| row[1].contains("if the op has a new one") || row[1].contains("if there is one");
    let is_code = |word: &&str| is_path(word) && !word.starts_with("tests/") && !word.starts_with("docs/");
    let first = |row: &[String]| quoted(row[0].split(" or ").next().unwrap_or("")).filter(is_code).count();
    rows.iter().filter(|row| !is_rare(row)).map(|row| first(row)).sum()
}

#[test]
fn contributing_names_files_and_tests_that_exist() {
    let tests: String = [".rs", ".py"].iter().flat_map(|end| ending(end)).map(|(_, text)| text).collect();
    let is_a_test = |name: &str| ["fn", "def"].iter().any(|word| tests.contains(&format!("{word} {name}(")));
    none(&missing(&text("docs/contributing.md"), |path| root().join(path).exists(), is_a_test));
}

#[test]
fn an_op_needs_few_files() {
    let page = text("docs/contributing.md");
    let needed = needed(&rows(&page, "### An op"));
    assert!((10..=MOST_FILES).contains(&needed), "an op needs {needed} files, at most {MOST_FILES} wanted");
    assert!(
        page.contains(&format!("these are {needed} files")),
        "docs/contributing.md counts others than {needed}"
    );
}

#[test]
fn a_file_that_is_gone_and_a_file_too_many_are_named() {
    let page = "\n### An op\n\n| file | what |\n|---|---|\n| `tests/a.rs` | a | `a_test_that_is_here` |\n\
        | `crates/b.rs` or `crates/c.rs` | b |\n| `python/d.py`, `python/e.py` | d |\n\
        | `python/f.py` | the event, if the op has a new one |\n\n### A store\n| `crates/g.rs` | g |\n";
    assert_eq!(needed(&rows(page, "### An op")), 3);
    assert_eq!(missing(page, |_| true, |_| true), Vec::<String>::new());
    assert_eq!(missing(page, |path| path != "crates/c.rs", |_| true).len(), 1);
    assert_eq!(missing(page, |_| true, |_| false).len(), 1);
}
