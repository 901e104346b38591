//! The patches of `make mutants` fit the engine, and each variant has its hook and its test.

use std::process::Command;

use crate::files::{ending, none, root, text, texts};

/// The folder of the patches and of the files that they need.
const MUTANTS: &str = "tests/mutants/";

/// The enum of the variants.
const RULES: &str = "tests/mutants/broken.rs";

/// The tests of variants, one for each; others are in modules `mutants`.
const SIMULATED: &str = "tests/sim/mutants.rs";

/// Returns the names in the table of the variants.
fn names(rules: &str) -> Vec<&str> {
    rules
        .lines()
        .filter_map(|line| line.strip_prefix("    ")?.strip_suffix(','))
        .filter(|name| name.starts_with(|c: char| c.is_ascii_uppercase()))
        .filter(|name| name.bytes().all(|b| b.is_ascii_alphanumeric()))
        .collect()
}

/// Returns the variants without a hook or a test among these files.
fn idle(rules: &str, files: &[(String, String)]) -> Vec<String> {
    let mut findings = Vec::new();
    for name in names(rules) {
        let is_named = |text: &str| {
            let ends = |rest: &str| !rest.starts_with(|c: char| c.is_ascii_alphanumeric());
            let whole = format!("Broken::{name}");
            text.match_indices(&whole).any(|(at, _)| ends(&text[at + whole.len()..]))
        };
        let hooked =
            files.iter().any(|(path, text)| path.starts_with(MUTANTS) && path != RULES && is_named(text));
        if !hooked {
            findings.push(format!("{name} has no hook in {MUTANTS}"));
        }
        let tested = files.iter().any(|(path, text)| {
            (path == SIMULATED && text.contains(&format!("\n        {name}: [")))
                || text.contains(&format!("\n    async fn {name}()"))
                || text.contains(&format!("\n    fn {name}()"))
        });
        if !tested {
            findings.push(format!("{name} has no test in {SIMULATED} or another module `mutants`"));
        }
    }
    findings
}

#[test]
fn every_patch_applies() {
    let patches = ending(".patch").into_iter().map(|(path, _)| path);
    let patches: Vec<String> = patches.filter(|path| path.starts_with(MUTANTS)).collect();
    assert!(patches.len() > 10, "{patches:?}");
    let told = Command::new("git").args(["apply", "--check"]).args(&patches).current_dir(root()).output();
    let told = told.expect("git runs");
    let advice = "run `.ci/mutants apply --merge`, edit target/mutants/src, run `.ci/mutants save`";
    assert!(told.status.success(), "{}{advice}", String::from_utf8_lossy(&told.stderr));
}

#[test]
fn every_variant_has_a_hook_and_a_test() {
    let rules = text(RULES);
    assert!(names(&rules).len() > 50, "{:?}", names(&rules));
    none(&idle(&rules, &texts()));
}

#[test]
fn a_variant_without_a_hook_or_a_test_is_named() {
    let file = |path: &str, text: &str| (path.to_owned(), text.to_owned());
    let rules = "rules! {\n    /// P1\n    Bad,\n    BadToo,\n}\n";
    let hook = file("tests/mutants/a.rs.patch", "+    if broken::is(&o, Broken::BadToo) {");
    let test = file(SIMULATED, "variants! {\n        Bad: [],\n");
    assert_eq!(
        idle(rules, &[hook.clone(), test]),
        [
            "Bad has no hook in tests/mutants/",
            "BadToo has no test in tests/sim/mutants.rs or another module `mutants`"
        ]
    );
    let both = file("tests/mutants/b.rs", "is(o, Broken::Bad)");
    let tests = file("tests/t/a.rs", "mod mutants {\n    fn Bad() {\n    async fn BadToo() -> R {\n");
    none(&idle(rules, &[hook, both, tests]));
}
