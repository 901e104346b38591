//! Who may call whom in crates/bucketq/src. The tables below are the rule; docs/architecture.md explains it.

use std::collections::BTreeMap;

use crate::files::{none, texts};
use crate::rust::{paths, tokens};

/// One floor of the house: its modules, the layers they may name besides their own, and the crates they may use.
struct Layer {
    name: &'static str,
    modules: &'static [&'static str],
    uses: &'static [&'static str],
    crates: &'static [&'static str],
}

/// The house from the ground up.
const LAYERS: &[Layer] = &[
    Layer {
        name: "nouns",
        modules: &[
            "job", "lease", "life", "event", "op", "query", "policy", "schedule", "cron", "content", "error",
            "env", "config", "settings", "broken", "fit",
        ],
        uses: &[],
        crates: &["bytes", "serde", "serde_json", "thiserror", "uuid"],
    },
    Layer {
        name: "state",
        modules: &["pages", "db"],
        uses: &["nouns"],
        crates: &["bytes", "rusqlite", "serde", "serde_json", "thiserror", "tracing", "twox_hash", "uuid"],
    },
    Layer {
        name: "bytes",
        modules: &["store", "metrics", "cache"],
        uses: &["nouns"],
        crates: &[
            "async_trait",
            "bytes",
            "futures_util",
            "serde",
            "sha2",
            "thiserror",
            "tokio",
            "tracing",
            "twox_hash",
        ],
    },
    Layer {
        name: "join",
        modules: &[
            "wire", "keys", "record", "head", "segment", "base", "commit", "settle", "catchup", "upload",
            "gc", "time", "operate", "local", "writer", "archive",
        ],
        uses: &["nouns", "state", "bytes"],
        crates: &[
            "async_trait",
            "bytes",
            "futures_util",
            "serde",
            "serde_json",
            "sha2",
            "thiserror",
            "tokio",
            "tracing",
            "twox_hash",
            "uuid",
            "zstd",
        ],
    },
    Layer {
        name: "doors",
        modules: &[
            "door", "registry", "sync", "file", "claim", "queue", "keeper", "finished", "manage", "workload",
        ],
        uses: &["nouns"],
        crates: &["async_trait", "bytes", "futures_util", "serde", "serde_json", "tokio", "tracing", "uuid"],
    },
];

/// What single files may use beyond their layer.
const ALSO: &[(&str, &[&str])] = &[
    ("env.rs", &["getrandom", "tokio"]),
    ("content.rs", &["sha2"]),
    ("cron.rs", &["jiff"]),
    ("schedule.rs", &["jiff"]),
    ("store/s3", &["aws_config", "aws_sdk_s3", "aws_smithy_runtime_api", "aws_smithy_types", "httpdate"]),
    ("writer", &["rusqlite"]),
    ("archive", &["parquet"]),
    // The writer takes the mail that the doors put in; of the doors, only the registry knows who reads it.
    ("writer", &["crate::door"]),
    (
        "registry",
        &["crate::writer", "crate::store::Store", "crate::store::StoreUrl", "crate::store::open_separately"],
    ),
    // Who opens a queue file may bring a store of his own, and an op is checked before it is sent.
    (
        "file",
        &["crate::store::Store", "crate::db::check", "crate::db::check_queue_name", "crate::db::Limits"],
    ),
    ("door", &["crate::metrics"]),
    ("file", &["crate::metrics"]),
    // A simulation brings a directory of its own.
    ("file", &["crate::local::Dir"]),
    ("registry", &["crate::local::Dir"]),
];

/// What single files must not use though their layer may.
const NEVER: &[(&str, &str)] = &[
    ("pages", "crate::db"),
    ("pages", "crate::env"),
    ("db", "crate::pages"),
    ("db", "crate::env"),
    ("pages/store", "rusqlite"),
    ("pages/delta", "rusqlite"),
    ("pages/checksum", "rusqlite"),
];

/// The one home of unsafe code.
const UNSAFE: &str = "pages/vfs";

/// Always allowed, and not worth a word.
const PLAIN: [&str; 4] = ["std", "core", "alloc", "Self"];

/// True if `file` is `name.rs`, lies in `name/`, or is exactly `name`.
fn is_in(file: &str, name: &str) -> bool {
    file == name || file.strip_prefix(name).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

fn is_rust(file: &str) -> bool {
    file.rsplit_once('.').is_some_and(|(_, ext)| ext == "rs")
}

fn layer_of(module: &str) -> Option<&'static Layer> {
    LAYERS.iter().find(|l| l.modules.contains(&module))
}

/// The module a file is part of: `db` for both `db.rs` and `db/claim.rs`.
fn module_of(file: &str) -> &str {
    file.split('/').next().unwrap_or(file).trim_end_matches(".rs")
}

/// What the crate root re-exports: name to module.
fn reexports(files: &[(String, String)]) -> BTreeMap<String, String> {
    let root = files.iter().find(|(file, _)| file == "lib.rs").map_or("", |(_, text)| text);
    paths(&tokens(root))
        .into_iter()
        .map(|p| if p[0] == "crate" { p[1..].to_vec() } else { p })
        .filter(|p| p.len() > 1)
        .map(|p| (p[p.len() - 1].clone(), p[0].clone()))
        .collect()
}

/// A path as if written from the crate's root: `super` and `self` are resolved for the module that `file` is.
fn from_root(file: &str, path: &[String]) -> Vec<String> {
    let stem = file.trim_end_matches(".rs").trim_end_matches("/mod");
    let mut here: Vec<String> = stem.split('/').map(str::to_owned).collect();
    let mut rest = path;
    if path[0] == "self" {
        rest = &path[1..];
    } else if path[0] == "super" {
        while rest.first().is_some_and(|s| s == "super") {
            here.pop();
            rest = &rest[1..];
        }
    } else {
        return path.to_vec();
    }
    ["crate".to_owned()].into_iter().chain(here).chain(rest.iter().cloned()).collect()
}

/// The name under which `use crate::db` or `use crate::db::{self}` brings a whole module in.
fn module_import(path: &[String]) -> Option<&String> {
    let whole = path.len() == 2 || (path.len() == 3 && path[2] == "self");
    (path[0] == "crate" && whole && layer_of(&path[1]).is_some()).then(|| &path[1])
}

fn imported(file: &str, all: &[Vec<String>]) -> Vec<String> {
    all.iter().filter_map(|p| module_import(&from_root(file, p)).cloned()).collect()
}

/// Every break of the rules in these files, named from `src/`.
fn check(files: &[(String, String)], crates: &[String]) -> Vec<String> {
    let exported = reexports(files);
    let mut findings = Vec::new();
    for (file, text) in files.iter().filter(|(file, _)| is_rust(file) && file != "lib.rs") {
        let Some(layer) = layer_of(module_of(file)) else {
            findings.push(format!("{file}: in no layer; give it one in tests/house/layers.rs"));
            continue;
        };
        let words = tokens(text);
        let modules = imported(file, &paths(&words));
        if words.iter().any(|t| t == "unsafe") && !is_in(file, UNSAFE) {
            findings.push(format!("{file}: unsafe code lives in {UNSAFE}.rs only"));
        }
        for path in paths(&words) {
            let mut path = from_root(file, &path);
            if module_import(&path).is_some() {
                // What is taken out of the module counts.
                continue;
            }
            if path.len() > 1 && modules.contains(&path[0]) {
                path.insert(0, "crate".to_owned());
            }
            if path[0] == "crate"
                && let Some(module) = path.get(1).and_then(|name| exported.get(name))
            {
                path.insert(1, module.clone());
            }
            let written = path.join("::");
            let within = |rule: &str| written == rule || written.starts_with(&format!("{rule}::"));
            let also = ALSO.iter().any(|(f, all)| is_in(file, f) && all.iter().any(|a| within(a)));
            let never = NEVER.iter().any(|(f, a)| is_in(file, f) && within(a));
            let allowed = match path[0].as_str() {
                "crate" if path.len() > 1 => layer_of(&path[1])
                    .is_none_or(|other| other.name == layer.name || layer.uses.contains(&other.name)),
                name if !PLAIN.contains(&name) && crates.iter().any(|c| c == name) => {
                    layer.crates.contains(&name)
                }
                _ => true,
            };
            if never || !(allowed || also) {
                findings.push(format!("{file}: {} must not use {written}", layer.name));
            }
        }
    }
    findings.dedup();
    findings
}

/// The crates that the engine depends on, as its code writes them.
fn crates() -> Vec<String> {
    let manifest = crate::files::text("crates/bucketq/Cargo.toml");
    let dependencies = manifest.split("[dependencies]").nth(1).expect("the engine has dependencies");
    let names = dependencies.lines().take_while(|l| !l.starts_with('['));
    names
        .filter_map(|l| l.split(['.', ' ']).next())
        .filter(|n| !n.is_empty())
        .map(|n| n.replace('-', "_"))
        .collect()
}

fn engine() -> Vec<(String, String)> {
    let source = "crates/bucketq/src/";
    texts()
        .into_iter()
        .filter_map(|(path, text)| Some((path.strip_prefix(source)?.to_owned(), text)))
        .collect()
}

#[test]
fn every_module_keeps_to_its_layer() {
    none(&check(&engine(), &crates()));
}

#[test]
fn the_map_of_the_architecture_shows_every_module_and_no_other() {
    let page = crate::files::text("docs/architecture.md");
    let map = page.split("## The modules").nth(1).and_then(|p| p.split("\n\n").nth(1)).expect("it has a map");
    let column = map.lines().skip(2).filter_map(|row| row.split('|').nth(2));
    let mut shown: Vec<String> =
        column.flat_map(|c| c.split('`').skip(1).step_by(2)).map(str::to_owned).collect();
    shown.sort();
    let mut there: Vec<String> = engine().iter().map(|(file, _)| module_of(file).to_owned()).collect();
    there.retain(|m| m != "lib" && m != "broken");
    there.sort();
    there.dedup();
    assert_eq!(shown, there);
}

#[test]
fn the_crate_root_holds_no_logic() {
    let root = engine().into_iter().find(|(file, _)| file == "lib.rs").expect("the engine has a root").1;
    assert!(!tokens(&root).iter().any(|t| t == "fn" || t == "impl"), "lib.rs is a map");
}

#[test]
fn every_layer_names_known_crates() {
    let known = crates();
    for layer in LAYERS {
        for name in layer.crates {
            assert!(known.iter().any(|k| k == name), "{}: {name} is no dependency", layer.name);
        }
    }
}

/// What the rules say about one file with this text.
fn finds(file: &str, text: &str) -> Vec<String> {
    let root = ("lib.rs".to_owned(), "pub mod store; pub use store::{Store, Version};".to_owned());
    check(&[root, (file.to_owned(), text.to_owned())], &crates())
}

#[test]
fn a_call_past_the_layers_is_named() {
    let breaks = [
        ("job.rs", "use crate::store::Store;"),
        ("job.rs", "fn f() { tokio::spawn(async {}) }"),
        ("db/claim.rs", "use crate::{error::Result, store}; fn f() { store::open() }"),
        ("db/claim.rs", "use crate::store::{self}; fn f() { store::open() }"),
        ("db/claim.rs", "use crate::store as s;"),
        ("db/claim.rs", "use crate::env::Env;"),
        ("db/mod.rs", "use crate::pages::PageFile;"),
        ("db/mod.rs", "use super::pages::PageFile;"),
        ("pages/store.rs", "use tokio::sync::Mutex;"),
        ("pages/store.rs", "use rusqlite::ffi;"),
        ("store/mod.rs", "use rusqlite::Connection;"),
        ("store/file.rs", "use aws_sdk_s3::Client;"),
        ("store/file.rs", "use crate::op::Op; use crate::db::Db;"),
        ("commit.rs", "use aws_config::load;"),
        ("commit.rs", "use crate::file::QueueFile;"),
        ("settle.rs", "use rusqlite::Connection;"),
        ("door.rs", "use crate::commit::Attempt;"),
        ("door.rs", "use crate::writer::Writer;"),
        ("file.rs", "use crate::{db, store::Store}; fn f() { db::check(); db::open() }"),
        ("queue.rs", "fn f() -> crate::db::Db { todo!() }"),
        ("queue.rs", "use crate::Version;"),
        ("file.rs", "use crate::store::s3::S3;"),
        ("head.rs", "fn f() { unsafe { g() } }"),
        ("janitor.rs", ""),
    ];
    for (file, text) in breaks {
        assert_eq!(finds(file, text).len(), 1, "{file}: {text}: {:?}", finds(file, text));
    }
}

#[test]
fn a_call_within_the_layers_is_fine() {
    let fine = [
        ("env.rs", "use tokio::time::Instant; fn f() { getrandom::fill(b) }"),
        ("pages/vfs.rs", "use rusqlite::ffi; fn f() { unsafe { g() } }"),
        ("db/claim.rs", "use super::names; use crate::op::{Claim, Op}; // tokio::spawn"),
        ("store/s3.rs", "use aws_sdk_s3::Client; use super::Version;"),
        ("store/s3/client.rs", "use aws_config::load; use super::super::Version;"),
        ("commit.rs", "use crate::{db::Db, pages::PageFile, store::Store, wire};"),
        ("file.rs", "use crate::{Store, db}; use crate::door; fn f() { db::check(); door::send() }"),
        ("writer/run.rs", "use crate::door::Mail; fn f(c: &rusqlite::Connection) { let s = \"unsafe\"; }"),
    ];
    for (file, text) in fine {
        none(&finds(file, text));
    }
}
