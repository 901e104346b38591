//! Each field of the options is a setting, so that Python, the environment and the settings file can set it.

use bucketq::settings::SETTINGS;

use crate::files::{none, text};

/// Fields that are no setting, and why.
const NO_SETTING: [(&str, &str); 4] = [
    ("host", "a function of the program"),
    ("s3", "its fields are settings"),
    ("credentials", "its fields are settings"),
    ("broken", "only the simulation breaks rules"),
];

/// The public fields of this struct.
fn fields(source: &str, name: &str) -> Vec<String> {
    let body = source.split_once(&format!("pub struct {name} {{")).map_or("", |(_, rest)| rest);
    let body = body.split_once("\n}").map_or("", |(body, _)| body);
    let field = |line: &str| Some(line.trim().strip_prefix("pub ")?.split_once(':')?.0.to_owned());
    body.lines().filter_map(field).collect()
}

/// The fields without a setting.
fn unnamed(source: &str, settings: &[&str]) -> Vec<String> {
    ["Options", "S3Options", "Credentials"]
        .iter()
        .flat_map(|name| fields(source, name))
        .filter(|field| !settings.contains(&field.as_str()))
        .filter(|field| !NO_SETTING.iter().any(|(name, _)| name == field))
        .map(|field| format!("{field} has no row in settings.rs: only Rust could set it"))
        .collect()
}

#[test]
fn every_option_is_a_setting() {
    let source = text("crates/bucketq/src/noun/config.rs");
    assert!(fields(&source, "Options").len() > 20, "has config.rs changed its form?");
    none(&unnamed(&source, &SETTINGS.iter().map(|setting| setting.name).collect::<Vec<_>>()));
}

#[test]
fn an_option_without_a_setting_is_named() {
    let source =
        "pub struct Options {\n    /// One.\n    pub one: u8,\n    pub host: Host,\n    pub two: u8,\n}\n";
    assert_eq!(unnamed(source, &["one", "two"]), Vec::<String>::new());
    assert_eq!(unnamed(source, &["one"]).len(), 1);
}
