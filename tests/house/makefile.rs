//! Every recipe of the Makefile has a help text, and CI and the docs name only existing recipes.

use crate::files::{ending, none, text};

/// The targets for users, with their help text, if they have one.
fn targets(makefile: &str) -> Vec<(&str, Option<&str>)> {
    makefile
        .lines()
        .filter(|l| l.starts_with(|c: char| c.is_ascii_lowercase()))
        .filter_map(|l| Some((l.split_once(':')?, l.split_once("## ").map(|(_, help)| help))))
        .filter(|((name, rest), _)| !rest.starts_with('=') && !name.contains(' '))
        .map(|((name, _), help)| (name, help))
        .collect()
}

fn without_help(makefile: &str) -> Vec<String> {
    targets(makefile)
        .into_iter()
        .filter(|(_, help)| help.is_none_or(|h| h.trim().is_empty()))
        .map(|(name, _)| format!("make {name} has no help"))
        .collect()
}

/// Names after `make` that are no target. Only text in backticks or at the start of a line counts: sentences use
/// "make".
/// "make".
fn unknown(makefile: &str, path: &str, page: &str) -> Vec<String> {
    let known: Vec<&str> = targets(makefile).into_iter().map(|(name, _)| name).collect();
    let quoted = page.split('`').skip(1).step_by(2);
    let lines = page.lines().map(str::trim_start);
    let named = quoted
        .chain(lines)
        .filter_map(|t| t.strip_prefix("make ")?.split_whitespace().find(|w| !w.contains('=')));
    named
        .map(|name| name.trim_end_matches(|c: char| !c.is_ascii_alphanumeric()))
        .filter(|name| !known.contains(name))
        .map(|name| format!("{path}: there is no make {name}"))
        .collect()
}

#[test]
fn every_recipe_says_what_it_is_for() {
    let makefile = text("Makefile");
    assert!(targets(&makefile).len() > 8, "{:?}", targets(&makefile));
    none(&without_help(&makefile));
}

#[test]
fn a_recipe_without_help_is_named() {
    assert_eq!(without_help("X := 1\ntest: a  ## Run\n\tmake\nclean:\n\trm\n"), ["make clean has no help"]);
}

#[test]
fn ci_runs_the_recipes_that_people_run() {
    let ci = text(".ci/run");
    for recipe in ["lint", "test", "test-servers", "sim", "crash"] {
        assert!(ci.contains(&format!("step {recipe} make {recipe}\n")), "CI runs make {recipe}");
    }
    assert!(ci.contains("step mutants make mutants ARGS="), "CI runs a sample of the broken variants");
}

#[test]
fn pages_name_only_recipes_that_exist() {
    let makefile = text("Makefile");
    let pages = ending(".md");
    none(&pages.into_iter().flat_map(|(path, page)| unknown(&makefile, &path, &page)).collect::<Vec<_>>());
}

#[test]
fn a_recipe_that_does_not_exist_is_named() {
    let makefile = "test:  ## Run\n";
    none(&unknown(makefile, "a.md", "We make sure: `make test`.\n```\nmake test\nmake SEEDS=1 test\n```\n"));
    assert_eq!(unknown(makefile, "a.md", "run `make all`").len(), 1);
}
