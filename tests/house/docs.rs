//! README, docs and glossary: links work, each word has one meaning, no advertising.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use crate::files::{ending, none, root, text};

const README_LINES: usize = 150;

/// Words that advertise or belittle. Assembled here so that this file does not contain them.
fn unwanted() -> [String; 6] {
    [
        ("sim", "ply"),
        ("blazing", "ly"),
        ("seam", "less"),
        ("effort", "less"),
        ("cutting", "-edge"),
        ("world", "-class"),
    ]
    .map(|(a, b)| format!("{a}{b}"))
}

fn pages() -> Vec<(String, String)> {
    ending(".md")
}

/// The text without fenced code blocks: they have no links and no headings.
fn prose(page: &str) -> Vec<&str> {
    let mut fenced = false;
    page.lines()
        .filter(|line| {
            let fence = line.trim_start().starts_with("```");
            fenced ^= fence;
            !fenced && !fence
        })
        .collect()
}

/// The anchors of a page's headings, as code hosts make them.
fn anchors(page: &str) -> Vec<String> {
    let slug = |heading: &str| -> String {
        let kept = heading
            .to_lowercase()
            .chars()
            .filter(|c| c.is_alphanumeric() || "-_ ".contains(*c))
            .collect::<String>();
        kept.trim().replace(' ', "-")
    };
    prose(page).into_iter().filter(|l| l.starts_with('#')).map(|l| slug(l.trim_start_matches('#'))).collect()
}

/// The targets of the links `[text](target)` of a page.
fn links(page: &str) -> Vec<String> {
    let prose = prose(page).join("\n");
    prose.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0.to_owned())).collect()
}

/// The path of a link's file from the top of the repository.
fn resolve(page: &str, target: &str) -> String {
    let mut path = PathBuf::new();
    for part in Path::new(page).parent().unwrap_or(Path::new("")).join(target).components() {
        match part {
            Component::ParentDir => _ = path.pop(),
            Component::CurDir => {}
            other => path.push(other),
        }
    }
    path.to_string_lossy().replace('\\', "/")
}

fn broken_links(pages: &[(String, String)], exists: impl Fn(&str) -> bool) -> Vec<String> {
    let by_path: BTreeMap<&str, &str> = pages.iter().map(|(p, t)| (p.as_str(), t.as_str())).collect();
    let mut findings = Vec::new();
    for (page, text) in pages {
        for link in links(text).into_iter().filter(|l| !l.contains("://") && !l.starts_with("mailto:")) {
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let file = if file.is_empty() { page.clone() } else { resolve(page, file) };
            if !exists(&file) {
                findings.push(format!("{page}: {link}: there is no {file}"));
            } else if !anchor.is_empty()
                && by_path.get(file.as_str()).is_some_and(|t| !anchors(t).iter().any(|a| a == anchor))
            {
                findings.push(format!("{page}: {link}: {file} has no such heading"));
            }
        }
    }
    findings
}

/// The words of the glossary: the bold text at the start of a line of the list.
fn words(glossary: &str) -> Vec<String> {
    let entry = |line: &str| Some(line.strip_prefix("- **")?.split_once("**")?.0.to_owned());
    prose(glossary)
        .into_iter()
        .filter_map(entry)
        .flat_map(|e| e.split(", ").map(str::to_lowercase).collect::<Vec<_>>())
        .collect()
}

fn twice(words: &[String]) -> Vec<String> {
    let mut seen = BTreeMap::new();
    for word in words {
        *seen.entry(word).or_insert(0) += 1;
    }
    seen.into_iter()
        .filter(|(_, n)| *n > 1)
        .map(|(word, _)| format!("{word} stands more than once"))
        .collect()
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    none(&broken_links(&pages(), |file| root().join(file).exists()));
}

#[test]
fn a_link_that_leads_nowhere_is_named() {
    let page = |text: &str| {
        vec![("docs/a.md".to_owned(), text.to_owned()), ("docs/b.md".to_owned(), "## One: two".to_owned())]
    };
    let broken = |text: &str| broken_links(&page(text), |file| file == "docs/a.md" || file == "docs/b.md");
    none(&broken(
        "[b](b.md) [b](./b.md#one-two) [a](../docs/a.md) [x](https://example.org/x)\n```\n[c](c.md)\n```",
    ));
    assert_eq!(broken("[c](c.md)").len(), 1);
    assert_eq!(broken("[b](b.md#three)").len(), 1);
    assert_eq!(broken("[b](../b.md)").len(), 1);
}

#[test]
fn the_readme_is_short() {
    let lines = text("README.md").lines().count();
    assert!(lines < README_LINES, "README.md has {lines} lines, fewer than {README_LINES} wanted");
}

#[test]
fn each_word_of_the_glossary_stands_once() {
    let words = words(&text("docs/glossary.md"));
    assert!(words.len() > 30, "only {} words found: has the list changed its form?", words.len());
    none(&twice(&words));
}

#[test]
fn a_word_that_stands_twice_is_named() {
    assert_eq!(
        twice(&words("- **ack, nack**: a\n- **lease**: b\n- **Ack**: c")),
        ["ack stands more than once"]
    );
}

#[test]
fn every_promise_is_explained() {
    let page = text("docs/guarantees.md");
    for number in 1..=10 {
        let heading = format!("\n## G{number}: ");
        assert_eq!(page.matches(&heading).count(), 1, "docs/guarantees.md explains G{number} once");
    }
}

#[test]
fn pages_say_what_is_and_sell_nothing() {
    let mut findings = Vec::new();
    for (path, text) in pages() {
        let text = text.to_lowercase();
        findings.extend(unwanted().iter().filter(|w| text.contains(*w)).map(|w| format!("{path}: {w}")));
    }
    none(&findings);
}
