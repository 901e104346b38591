//! Every type of the engine has a unique name, so that a name identifies its type everywhere.

use std::collections::BTreeMap;

use crate::files::{none, texts};
use crate::rust::{Token, tokens};

/// The keywords before the name of a type.
const DEFINES: [&str; 5] = ["struct", "enum", "union", "trait", "type"];

/// The names of the types that these tokens define, without the associated types of traits and impls.
fn defined(tokens: &[Token]) -> Vec<&str> {
    let mut found = Vec::new();
    // For each open brace: whether it is the body of a trait or an impl.
    let mut open = Vec::new();
    let mut is_next = false;
    for (i, token) in tokens.iter().enumerate() {
        let before = i.checked_sub(1).map_or(";", |i| tokens[i].as_str());
        match token.as_str() {
            "{" => open.push(std::mem::take(&mut is_next)),
            "}" => drop(open.pop()),
            // Elsewhere it is the type of an argument or of a return value.
            "impl" => is_next |= matches!(before, "{" | "}" | ";" | "]" | "unsafe"),
            word if DEFINES.contains(&word) => {
                let name = tokens.get(i + 1).filter(|t| t.starts_with(char::is_uppercase));
                let associated = word == "type" && open.last() == Some(&true);
                found.extend(name.filter(|_| !associated).map(String::as_str));
                is_next |= word == "trait";
            }
            _ => {}
        }
    }
    found
}

/// Each name of several types, with the files that define them.
fn shared(files: &[(String, String)]) -> Vec<String> {
    let mut homes: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (file, text) in files {
        for name in defined(&tokens(text)) {
            homes.entry(name.to_owned()).or_default().push(file);
        }
    }
    homes.retain(|_, files| files.len() > 1);
    homes.iter().map(|(name, files)| format!("{name} is defined in {}", files.join(" and in "))).collect()
}

#[test]
fn every_engine_type_has_a_name_of_its_own() {
    let mut files = texts();
    files
        .retain(|(path, _)| path.starts_with("crates/bucketq/src/") && path.rsplit('.').next() == Some("rs"));
    none(&shared(&files));
}

#[test]
fn a_name_used_twice_is_found_and_associated_types_are_not_counted() {
    let one = "pub(super) struct Page<'a>(&'a str); enum Kind { Page } impl Future for Page<'_> { type Output = u8; }";
    let two = "type Kind = u8; trait Clock { type Output; fn f(x: impl Fn()) { struct Inner {} } } unsafe impl X for Y {}";
    assert_eq!(defined(&tokens(one)), ["Page", "Kind"]);
    assert_eq!(defined(&tokens(two)), ["Kind", "Clock", "Inner"]);
    let files = [("one.rs".to_owned(), one.to_owned()), ("two.rs".to_owned(), two.to_owned())];
    assert_eq!(shared(&files), ["Kind is defined in one.rs and in two.rs"]);
}
