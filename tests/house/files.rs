//! The repository as the tests read it, and the rules for every file of it.

use std::fs;
use std::path::{Path, PathBuf};

/// Most code lines of a file: a longer one should be two.
const MAX_CODE_LINES: usize = 400;

/// Built or installed here, or git's own.
const NOT_OURS: [&str; 6] = ["target", ".git", ".venv", ".tools", "__pycache__", "node_modules"];

/// The top of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the repository").to_owned()
}

/// Every text file of the repository: its path from the top with `/`, and its text. In order of paths.
pub fn texts() -> Vec<(String, String)> {
    let mut found = Vec::new();
    walk(&root(), "", &mut found);
    found.sort();
    found
}

fn walk(dir: &Path, prefix: &str, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(dir).expect("a directory of the repository can be read") {
        let entry = entry.expect("its entries too");
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = entry.file_type().expect("an entry has a type");
        if NOT_OURS.contains(&name.as_str()) || kind.is_symlink() {
            continue;
        }
        if kind.is_dir() {
            walk(&entry.path(), &format!("{prefix}{name}/"), found);
        } else if let Ok(text) = String::from_utf8(fs::read(entry.path()).expect("a file can be read")) {
            found.push((format!("{prefix}{name}"), text));
        }
    }
}

/// The text files whose path ends like this.
pub fn ending(end: &str) -> Vec<(String, String)> {
    texts().into_iter().filter(|(path, _)| path.ends_with(end)).collect()
}

/// One file of the repository.
pub fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Fail with the findings, one a line.
pub fn none(findings: &[String]) {
    assert!(findings.is_empty(), "\n{}\n", findings.join("\n"));
}

/// Lines that are neither blank nor only a comment.
fn code_lines(text: &str) -> usize {
    let only_comment = |line: &str| ["//", "#", "--"].iter().any(|mark| line.starts_with(mark));
    let attribute = |line: &str| line.starts_with("#[") || line.starts_with("#![");
    text.lines().map(str::trim).filter(|l| !l.is_empty() && (attribute(l) || !only_comment(l))).count()
}

fn too_long(files: &[(String, String)]) -> Vec<String> {
    files
        .iter()
        .filter(|(path, _)| {
            [".rs", ".sql", ".py", "Makefile", ".ci/run"].iter().any(|end| path.ends_with(end))
        })
        .map(|(path, text)| (path, code_lines(text)))
        .filter(|(_, lines)| *lines > MAX_CODE_LINES)
        .map(|(path, lines)| {
            format!("{path}: {lines} code lines, at most {MAX_CODE_LINES}: it holds two things")
        })
        .collect()
}

/// Paths of a developer's machine. Assembled here so that this file does not contain them.
fn machine_paths() -> [String; 4] {
    ["work", "root", "home", "Users"].map(|dir| format!("/{dir}/"))
}

fn on_a_machine(files: &[(String, String)]) -> Vec<String> {
    let mut findings = Vec::new();
    for (path, text) in files {
        for (number, line) in text.lines().enumerate() {
            for bad in machine_paths() {
                // A longer path or an address may contain the same letters: only a path that begins like this counts.
                let begins = line.match_indices(&bad).any(|(at, _)| {
                    !line[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || "/._-}>".contains(c))
                });
                if begins {
                    findings.push(format!("{path}:{}: {bad} is a path of one machine", number + 1));
                }
            }
        }
    }
    findings
}

#[test]
fn no_source_file_is_over_its_length() {
    none(&too_long(&texts()));
}

#[test]
fn a_source_file_over_its_length_is_named() {
    let line = "let x = 1;\n\n// why\n/// what\n";
    let at = |n: usize| vec![("crates/a.rs".to_owned(), line.repeat(n))];
    assert_eq!(too_long(&at(MAX_CODE_LINES)), Vec::<String>::new());
    assert_eq!(too_long(&at(MAX_CODE_LINES + 1)).len(), 1);
}

#[test]
fn no_file_holds_a_path_of_one_machine() {
    none(&on_a_machine(&texts()));
}

#[test]
fn a_path_of_one_machine_is_named() {
    for bad in machine_paths() {
        let with = |line: String| on_a_machine(&[("a.md".to_owned(), line)]).len();
        assert_eq!(with(format!("see {bad}main/x")), 1);
        assert_eq!(with(format!("`{bad}x`")), 1);
        assert_eq!(with(format!("https://example.org{bad}x")), 0);
    }
}
