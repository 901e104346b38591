//! Every dependency is under a licence of `.deny.toml`. cargo-deny knows more but takes long to install.

use std::process::Command;

use serde_json::Value;

use crate::files::{none, root, text};

/// The licences of the list `allow`.
fn allowed(deny: &str) -> Vec<String> {
    let list = deny
        .split("[licenses]")
        .nth(1)
        .and_then(|s| s.split("allow = [").nth(1))
        .and_then(|s| s.split(']').next());
    list.expect(".deny.toml lists licences").split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// True if a licence expression can be met with these licences. `/` is an old way to write OR.
fn is_met(expression: &str, allowed: &[String]) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let mut words: Vec<&str> = spaced.split_whitespace().collect();
    words.reverse();
    let met = any_of(&mut words, allowed);
    words.is_empty() && met
}

fn any_of(words: &mut Vec<&str>, allowed: &[String]) -> bool {
    let mut met = all_of(words, allowed);
    while words.last() == Some(&"OR") {
        words.pop();
        met |= all_of(words, allowed);
    }
    met
}

fn all_of(words: &mut Vec<&str>, allowed: &[String]) -> bool {
    let mut met = one(words, allowed);
    while words.last() == Some(&"AND") {
        words.pop();
        met &= one(words, allowed);
    }
    met
}

fn one(words: &mut Vec<&str>, allowed: &[String]) -> bool {
    match words.pop() {
        Some("(") => {
            let met = any_of(words, allowed);
            words.pop() == Some(")") && met
        }
        // An exception only adds rights, but a person must have checked it: it counts as a separate licence.
        Some(name) if words.last() == Some(&"WITH") => {
            words.pop();
            let exception = words.pop().unwrap_or_default();
            allowed.iter().any(|a| a.split(" WITH ").eq([name, exception]))
        }
        Some(name) => allowed.iter().any(|a| a == name),
        None => false,
    }
}

#[test]
fn every_dependency_has_an_allowed_licence() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--locked"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo metadata is JSON");
    let packages = metadata["packages"].as_array().expect("it lists packages");
    assert!(packages.len() > 50, "the dependencies are there");
    let allowed = allowed(&text(".deny.toml"));
    let bad = |p: &&Value| !p["license"].as_str().is_some_and(|l| is_met(l, &allowed));
    none(
        &packages.iter().filter(bad).map(|p| format!("{}: {}", p["name"], p["license"])).collect::<Vec<_>>(),
    );
}

#[test]
fn a_licence_expression_is_read_as_written() {
    let allowed = ["MIT", "ISC", "C WITH D"].map(str::to_owned);
    for good in [
        "MIT",
        "GPL-3.0 OR MIT",
        "ISC AND (GPL-3.0 OR MIT)",
        "Apache-2.0/MIT",
        "A WITH B OR MIT",
        "A AND B OR MIT",
        "C WITH D",
        "(C WITH D AND ISC)",
    ] {
        assert!(is_met(good, &allowed), "{good}");
    }
    for bad in [
        "GPL-3.0",
        "MIT AND GPL-3.0",
        "(MIT",
        "",
        "MIT WITH B",
        "ISC AND (A OR B)",
        "C",
        "D",
        "C WITH B",
        "C WITH",
    ] {
        assert!(!is_met(bad, &allowed), "{bad}");
    }
}
