//! The maps of the code name files and functions that exist: docs/architecture.md, lib.rs and tests/README.md.

use std::path::Path;

use crate::files::{none, root, text, texts};

/// The engine, and the folder in it that the maps describe file by file.
const ENGINE: [&str; 2] = ["crates/bucketq/src", "crates/bucketq/src/engine/writer"];

/// Each map with the folders from which its paths may begin.
const MAPS: [(&str, &[&str]); 4] = [
    ("docs/architecture.md", &["", ENGINE[0], ENGINE[1], "python/bucketq"]),
    ("crates/bucketq/src/lib.rs", &["", ENGINE[0], ENGINE[1]]),
    ("crates/bucketq/src/engine/mod.rs", &[ENGINE[0], ENGINE[1]]),
    ("tests/README.md", &["", "tests", ENGINE[0], "python/bucketq"]),
];

/// The endings of files that a map names without a folder.
const ENDS: [&str; 4] = ["rs", "py", "pyi", "md"];

/// The folders whose modules have a row in tests/README.md.
const MAPPED: [&str; 2] = ["crates/bucketq/src/", "python/bucketq/"];

/// Files that hold no code of their own, or that no test imports.
const UNMAPPED: [&str; 5] = ["lib.rs", "internals.rs", "mod.rs", "__init__.py", "__main__.py"];

/// Test files without a row: helpers of the house, and kept seeds of the simulation.
const WITHOUT_ROW: [&str; 2] = ["house/rust.rs", "sim/seeds.rs"];

/// The table of docs/architecture.md with a function in each row.
const PATH_OF_AN_ENQUEUE: &str = "\n## The path of an enqueue\n";

fn ending(word: &str) -> &str {
    word.rsplit_once('.').map_or("", |(_, end)| end)
}

fn is_path(word: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    let is_file = ENDS.contains(&ending(word)) || word.trim_end_matches('/').contains('/');
    word.chars().all(plain) && is_file && !word.starts_with('/')
}

/// Returns the paths between backticks that exist neither from one of these folders nor beside the path before.
fn gone(page: &str, homes: &[&str], is_there: impl Fn(&str) -> bool) -> Vec<String> {
    let mut beside = String::new();
    let mut gone = Vec::new();
    for word in page.split('`').skip(1).step_by(2).filter(|word| is_path(word)) {
        let from = |home: &str| if home.is_empty() { word.to_owned() } else { format!("{home}/{word}") };
        let places = std::iter::once(beside.as_str()).chain(homes.iter().copied());
        match places.map(from).find(|path| is_there(path)) {
            Some(path) => {
                let folder = Path::new(&path).parent().map(|folder| folder.to_string_lossy().into_owned());
                beside = folder.unwrap_or_default();
            }
            None => gone.push(word.to_owned()),
        }
    }
    gone
}

/// Returns the rows of the path of an enqueue whose file does not define the function.
fn wrong(page: &str, file: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let below = page.split_once(PATH_OF_AN_ENQUEUE).map_or("", |(_, below)| below);
    let rows = below.lines().skip_while(|line| !line.starts_with("|---")).skip(1);
    rows.take_while(|line| line.starts_with('|'))
        .filter_map(|row| {
            let mut quoted = row.split('`').skip(1).step_by(2);
            let (Some(path), Some(name)) = (quoted.next(), quoted.next()) else {
                return Some(format!("{row}: no file and function"));
            };
            let function = name.rsplit([':', '.']).next().unwrap_or(name);
            let defines = |text: String| {
                ["fn", "def"].iter().any(|word| text.contains(&format!("{word} {function}(")))
                    || text.contains(&format!("fn {function}<"))
            };
            (!file(path).is_some_and(defines)).then(|| format!("{path} has no {name}"))
        })
        .collect()
}

/// Returns the modules without a row in the map of the tests, and the Rust tests that it does not name.
fn unmapped(map: &str, files: &[(String, String)]) -> Vec<String> {
    let rows = map.lines().filter(|line| line.starts_with("| `"));
    let first = |row: &str| row.split('|').nth(1).map_or(String::new(), str::to_owned);
    let modules: Vec<String> = rows
        .flat_map(|row| first(row).split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>())
        .collect();
    let has_row = |module: &str| {
        let stem = |row: &str| row.strip_suffix(".rs").unwrap_or(row).to_owned();
        modules.iter().any(|row| module == row || module.starts_with(&format!("{}/", stem(row))))
    };
    let mut findings = Vec::new();
    for (path, text) in files {
        let name = path.rsplit('/').next().unwrap_or(path);
        let module = MAPPED.iter().find_map(|home| path.strip_prefix(home));
        if let Some(module) = module.filter(|_| [".rs", ".py"].iter().any(|end| path.ends_with(end)))
            && !UNMAPPED.contains(&name)
            && !has_row(module)
        {
            findings.push(format!("tests/README.md has no row for {path}"));
        }
        if let Some(test) = path.strip_prefix("tests/").filter(|test| ending(test) == "rs")
            && (text.contains("#[test]") || text.contains("#[tokio::test"))
            && !(test.starts_with("src/") || test.starts_with("mutants/") || name == "main.rs")
            && !WITHOUT_ROW.contains(&test)
            && !map.contains(&format!("`{test}`"))
        {
            findings.push(format!("tests/README.md does not name {test}"));
        }
    }
    findings
}

#[test]
fn every_module_and_every_test_is_on_the_map_of_the_tests() {
    none(&unmapped(&text("tests/README.md"), &texts()));
}

#[test]
fn every_path_on_the_maps_exists() {
    for (map, homes) in MAPS {
        let gone = gone(&text(map), homes, |path| root().join(path).exists());
        none(&gone.into_iter().map(|path| format!("{map}: there is no {path}")).collect::<Vec<_>>());
    }
}

#[test]
fn every_row_of_the_path_of_an_enqueue_names_a_function() {
    let page = text("docs/architecture.md");
    assert!(page.contains(PATH_OF_AN_ENQUEUE), "the heading has changed");
    none(&wrong(&page, |path| std::fs::read_to_string(root().join(path)).ok()));
}

#[test]
fn a_path_that_is_gone_and_a_function_that_is_gone_are_named() {
    let there = |path: &str| ["crates/a/b.rs", "crates/a/c.rs", "crates/d"].contains(&path);
    let page = "`a/b.rs`, `c.rs` beside it, `d/`, `x::y`, `If-Match`; `a/gone.rs`, `d.rs` and `d`";
    assert_eq!(gone(page, &["crates"], there), ["a/gone.rs", "d.rs"]);

    let file = |path: &str| (path == "a.py").then(|| "def send(job):".to_owned());
    let page = format!(
        "{PATH_OF_AN_ENQUEUE}\n| f | g |\n|---|---|\n| `a.py` | `Queue.send` |\n| `a.py` | `Queue::gone` |\n| `b.rs` | `send` |\n"
    );
    assert_eq!(wrong(&page, file), ["a.py has no Queue::gone", "b.rs has no send"]);
}

#[test]
fn a_module_without_a_row_and_a_test_that_is_not_named_are_found() {
    let map = "| module | tests |\n| `a`, `b.rs` | `t/a.rs` |\n";
    let file = |path: &str| (path.to_owned(), "#[test]".to_owned());
    let engine = ["a/x.rs", "b.rs", "b/y.rs", "c/mod.rs"].map(|path| file(&format!("{}{path}", MAPPED[0])));
    none(&unmapped(map, &[&engine[..], &[file("tests/t/a.rs"), file("tests/t/main.rs")]].concat()));
    let found =
        unmapped(map, &[file("crates/bucketq/src/d.rs"), file("python/bucketq/e.py"), file("tests/t/c.rs")]);
    assert_eq!(found.len(), 3, "{found:?}");
}
