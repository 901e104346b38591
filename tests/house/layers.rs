//! Which folder of crates/bucketq/src may use which. The tables below are the rule; docs/architecture.md explains it.

use std::collections::BTreeMap;

use crate::files::{none, texts};
use crate::rust::{paths, tokens};

/// One layer: a folder, the folders it may use besides itself, and the crates it may use.
struct Layer {
    folder: &'static str,
    uses: &'static [&'static str],
    crates: &'static [&'static str],
}

/// The layers from the ground up.
const LAYERS: &[Layer] = &[
    Layer { folder: "noun", uses: &[], crates: &["bytes", "serde", "serde_json", "thiserror", "uuid"] },
    Layer { folder: "fit", uses: &["noun"], crates: &["serde", "serde_json"] },
    Layer {
        folder: "state",
        uses: &["noun"],
        crates: &["bytes", "rusqlite", "serde", "serde_json", "thiserror", "tracing", "twox_hash", "uuid"],
    },
    Layer {
        folder: "bytes",
        uses: &["noun", "fit"],
        crates: &["async_trait", "bytes", "futures_util", "serde", "sha2", "tokio", "tracing", "twox_hash"],
    },
    Layer {
        folder: "bucket",
        uses: &["noun", "state::pages"],
        crates: &["bytes", "serde", "serde_json", "twox_hash", "uuid", "zstd"],
    },
    Layer { folder: "link", uses: &["noun"], crates: &["bytes", "rmp_serde", "serde"] },
    Layer { folder: "door", uses: &["noun", "bytes::metrics"], crates: &["serde", "tokio", "tracing"] },
    Layer {
        folder: "host",
        uses: &["noun", "bytes", "link", "door"],
        crates: &["bytes", "serde", "tokio", "tracing"],
    },
    Layer {
        folder: "engine",
        uses: &["noun", "state", "bytes", "bucket", "door"],
        crates: &[
            "async_trait",
            "bytes",
            "futures_util",
            "rusqlite",
            "serde",
            "serde_json",
            "sha2",
            "tokio",
            "tracing",
            "twox_hash",
            "uuid",
            "zstd",
        ],
    },
    Layer {
        folder: "operate",
        uses: &["noun", "state", "bytes", "bucket", "engine"],
        crates: &[
            "async_trait",
            "bytes",
            "futures_util",
            "serde",
            "serde_json",
            "tokio",
            "tracing",
            "uuid",
            "zstd",
        ],
    },
    Layer {
        folder: "handle",
        uses: &["noun", "fit", "bytes", "door", "host"],
        crates: &["async_trait", "bytes", "futures_util", "serde", "serde_json", "tokio", "tracing", "uuid"],
    },
];

/// Files at the root of the crate: every folder may use them, and they use the nouns only.
const ROOT: &[&str] = &["fork"];
/// The root file that gives tests and simulation the names they need.
const INTERNALS: &str = "internals";

/// The additional folders that single files may use beyond their layer.
const ALSO: &[(&str, &[&str])] = &[
    ("handle/registry", &["crate::engine::writer", "crate::engine::local::Dir"]),
    ("handle/role", &["crate::engine::writer", "crate::engine::local::Dir"]),
    // An op is checked before it is sent, and a simulation has its own directory.
    (
        "handle/file",
        &[
            "crate::engine::local::Dir",
            "crate::state::db::check",
            "crate::state::db::check_queue_name",
            "crate::state::db::Limits",
        ],
    ),
];

/// Crates that only these files use, whatever their layer.
const HOMES: &[(&str, &[&str])] = &[
    ("getrandom", &["noun/env"]),
    ("hmac", &["host/proof"]),
    ("rustix", &["noun/env", "host"]),
    ("tokio", &["noun/env", "bytes", "door", "host", "engine", "operate", "handle"]),
    ("jiff", &["noun/cron", "noun/schedule"]),
    ("sha2", &["noun/content", "bytes", "host", "engine"]),
    ("tracing", &["fork", "state", "bytes", "door", "host", "engine", "operate", "handle"]),
    ("aws_config", &["bytes/store/s3"]),
    ("aws_sdk_s3", &["bytes/store/s3"]),
    ("aws_smithy_runtime_api", &["bytes/store/s3"]),
    ("aws_smithy_types", &["bytes/store/s3"]),
    ("aws_types", &["bytes/store/s3"]),
    ("http_body_util", &["bytes/store/s3"]),
    ("httpdate", &["bytes/store/s3"]),
    ("parquet", &["bucket/archive"]),
    ("rusqlite", &["state", "engine/writer"]),
];

/// Items that single files must not use though their layer may.
const NEVER: &[(&str, &str)] = &[
    ("state/pages", "crate::state::db"),
    ("state/pages", "crate::noun::env"),
    ("state/db", "crate::state::pages"),
    ("state/db", "crate::noun::env"),
    ("state/pages/store", "rusqlite"),
    ("state/pages/delta", "rusqlite"),
    ("state/pages/checksum", "rusqlite"),
];

/// The one home of unsafe code.
const UNSAFE: &str = "state/pages/vfs";

/// Always allowed, without a rule.
const PLAIN: [&str; 4] = ["std", "core", "alloc", "Self"];

/// True if `file` is `name.rs`, lies in `name/`, or is exactly `name`.
fn is_in(file: &str, name: &str) -> bool {
    file == name || file.strip_prefix(name).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

fn is_rust(file: &str) -> bool {
    file.rsplit_once('.').is_some_and(|(_, ext)| ext == "rs")
}

fn layer_of(folder: &str) -> Option<&'static Layer> {
    LAYERS.iter().find(|l| l.folder == folder)
}

/// The folder a file lies in, or the name of a file at the root.
fn folder_of(file: &str) -> &str {
    file.split('/').next().unwrap_or(file).trim_end_matches(".rs")
}

/// The re-exports of the crate root: each name with its path, without `crate`.
fn reexports(files: &[(String, String)]) -> BTreeMap<String, Vec<String>> {
    let root = files.iter().find(|(file, _)| file == "lib.rs").map_or("", |(_, text)| text);
    paths(&tokens(root))
        .into_iter()
        .filter(|p| p[0] == "crate" && p.len() > 2)
        .map(|p| if p[p.len() - 1] == "self" { p[1..p.len() - 1].to_vec() } else { p[1..].to_vec() })
        .map(|p| (p[p.len() - 1].clone(), p))
        .collect()
}

/// A path as if written from the crate's root: resolves `super` and `self` for the module of `file`.
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

/// The names that `use` imports as the first part of shorter paths: `keys` for `use crate::bucket::keys`.
fn imported(file: &str, all: &[Vec<String>]) -> BTreeMap<String, Vec<String>> {
    let whole = |p: &Vec<String>| {
        if p.last().is_some_and(|l| l == "self") { p[..p.len() - 1].to_vec() } else { p.clone() }
    };
    all.iter()
        .map(|p| whole(&from_root(file, p)))
        .filter(|p| p[0] == "crate" && p.len() > 1)
        .filter_map(|p| Some((p.last()?.clone(), p)))
        .collect()
}

/// Every break of the rules in these files, named from `src/`.
fn check(files: &[(String, String)], crates: &[String]) -> Vec<String> {
    let exported = reexports(files);
    let mut findings = Vec::new();
    let skipped = |file: &str| file == "lib.rs" || is_in(file, INTERNALS);
    for (file, text) in files.iter().filter(|(file, _)| is_rust(file) && !skipped(file)) {
        let folder = folder_of(file);
        let layer = layer_of(folder);
        if layer.is_none() && !ROOT.contains(&folder) {
            findings.push(format!("{file}: in no layer; give it one in tests/house/layers.rs"));
            continue;
        }
        let words = tokens(text);
        let imports = imported(file, &paths(&words));
        if words.iter().any(|t| t == "unsafe") && !is_in(file, UNSAFE) {
            findings.push(format!("{file}: unsafe code lives in {UNSAFE}.rs only"));
        }
        for path in paths(&words) {
            let mut path = from_root(file, &path);
            if path.len() > 1
                && let Some(whole) = imports.get(&path[0])
            {
                path.splice(0..1, whole.iter().cloned());
            }
            if path[0] == "crate"
                && let Some(whole) = path.get(1).and_then(|name| exported.get(name))
            {
                path.splice(1..2, whole.iter().cloned());
            }
            let written = path.join("::");
            let within = |rule: &str| written == rule || written.starts_with(&format!("{rule}::"));
            let also = ALSO.iter().any(|(f, all)| is_in(file, f) && all.iter().any(|a| within(a)));
            let never = NEVER.iter().any(|(f, a)| is_in(file, f) && within(a));
            let (uses, layers_crates) = layer.map_or((&["noun"][..], &[][..]), |l| (l.uses, l.crates));
            let allowed = match path[0].as_str() {
                "crate" if path.len() > 1 => {
                    path[1] == folder
                        || ROOT.contains(&path[1].as_str())
                        || layer_of(&path[1]).is_none()
                        || uses.iter().any(|used| within(&format!("crate::{used}")))
                }
                name if !PLAIN.contains(&name) && crates.iter().any(|c| c == name) => {
                    match HOMES.iter().find(|(krate, _)| *krate == name) {
                        Some((_, homes)) => homes.iter().any(|home| is_in(file, home)),
                        None => layers_crates.contains(&name),
                    }
                }
                _ => true,
            };
            if never || !(allowed || also) {
                findings.push(format!("{file}: {folder} must not use {written}"));
            }
        }
    }
    findings.dedup();
    findings
}

/// The crates that the engine depends on, spelt as in its code.
fn crates() -> Vec<String> {
    let manifest = crate::files::text("crates/bucketq/Cargo.toml");
    let sections = manifest.split("\n[").filter_map(|s| s.split_once("dependencies]\n"));
    sections
        .filter(|(name, _)| !name.contains("dev-"))
        .flat_map(|(_, lines)| lines.lines())
        .filter_map(|line| line.split(['.', ' ']).next())
        .filter(|name| !name.is_empty() && !name.starts_with('#'))
        .map(|name| name.replace('-', "_"))
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
    let map = page.split("## The modules").nth(1).and_then(|p| p.split("\n\n").nth(2)).expect("it has a map");
    let column = map.lines().skip(2).filter_map(|row| row.split('|').nth(2));
    let mut shown: Vec<String> =
        column.flat_map(|c| c.split('`').skip(1).step_by(2)).map(str::to_owned).collect();
    shown.sort();
    let mut there: Vec<String> = engine().iter().filter_map(|(file, _)| shown_as(file)).collect();
    there.sort();
    there.dedup();
    assert_eq!(shown, there);
}

/// The name of this file in the map: its module within the folder, or the folder where the map shows it as one.
fn shown_as(file: &str) -> Option<String> {
    let mut parts = file.trim_end_matches(".rs").split('/');
    let (folder, module) = (parts.next()?, parts.next());
    match (folder, module) {
        ("lib", _) => None,
        ("fit" | "door" | "operate", _) | (_, None) => Some(folder.to_owned()),
        (_, Some("mod")) => None,
        (_, Some(module)) => Some(module.to_owned()),
    }
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
            assert!(known.iter().any(|k| k == name), "{}: {name} is no dependency", layer.folder);
        }
    }
    for (name, _) in HOMES {
        assert!(known.iter().any(|k| k == name), "{name} is no dependency");
    }
}

/// The findings for one file with this text.
fn finds(file: &str, text: &str) -> Vec<String> {
    let text_of_root = "mod bytes; pub use crate::bytes::store::{self, Store, Version};";
    check(&[("lib.rs".to_owned(), text_of_root.to_owned()), (file.to_owned(), text.to_owned())], &crates())
}

#[test]
fn a_call_past_the_layers_is_named() {
    let breaks = [
        ("noun/job.rs", "use crate::bytes::store::Store;"),
        ("noun/job.rs", "use crate::Store;"),
        ("noun/job.rs", "fn f() { tokio::spawn(async {}) }"),
        ("state/db/op/claim.rs", "use crate::{noun::error::Result, bytes::store};"),
        ("state/db/op/claim.rs", "use crate::bytes::store::{self};"),
        ("state/db/op/claim.rs", "use crate::bytes::store as s;"),
        ("state/db/op/claim.rs", "use crate::noun::env::Env;"),
        ("state/db/mod.rs", "use crate::state::pages::PageFile;"),
        ("state/db/mod.rs", "use super::pages::PageFile;"),
        ("state/pages/store.rs", "use tokio::sync::Mutex;"),
        ("state/pages/store.rs", "use rusqlite::ffi;"),
        ("bytes/store/mod.rs", "use rusqlite::Connection;"),
        ("bytes/store/file.rs", "use aws_sdk_s3::Client;"),
        ("bytes/store/file.rs", "use crate::noun::op::Op; use crate::state::db::Db;"),
        ("bucket/head.rs", "use crate::bytes::store::Store;"),
        ("bucket/head.rs", "fn f() { tokio::spawn(async {}) }"),
        ("bucket/base.rs", "use crate::state::db::Db;"),
        ("bucket/head.rs", "fn f() { unsafe { g() } }"),
        ("engine/commit.rs", "use aws_config::load;"),
        ("engine/commit.rs", "use crate::handle::file::QueueFile;"),
        ("engine/settle.rs", "use rusqlite::Connection;"),
        ("door/mod.rs", "use crate::engine::commit::CommitAttempt;"),
        ("door/mod.rs", "use crate::engine::writer::Writer;"),
        ("handle/file.rs", "use crate::state::db::Db;"),
        ("handle/file.rs", "use crate::state; fn f() { state::db::check::all() }"),
        ("handle/queue.rs", "fn f() -> crate::state::db::Db { todo!() }"),
        ("handle/queue.rs", "use crate::engine::writer::Writer;"),
        ("fork.rs", "use crate::bytes::store::Store;"),
        ("janitor.rs", ""),
        ("cleaning/janitor.rs", ""),
    ];
    for (file, text) in breaks {
        assert_eq!(finds(file, text).len(), 1, "{file}: {text}: {:?}", finds(file, text));
    }
}

#[test]
fn a_call_within_the_layers_is_fine() {
    let fine = [
        ("noun/env.rs", "use tokio::time::Instant; fn f() { getrandom::fill(b) }"),
        ("state/pages/vfs.rs", "use rusqlite::ffi; fn f() { unsafe { g() } }"),
        ("state/db/op/claim.rs", "use super::names; use crate::noun::op::{Claim, Op}; // tokio::spawn"),
        ("bytes/store/s3.rs", "use aws_sdk_s3::Client; use super::Version;"),
        ("bytes/store/s3/client.rs", "use aws_config::load; use super::super::Version;"),
        ("bucket/base.rs", "use crate::state::pages::Image;"),
        ("engine/commit.rs", "use crate::{state::db::Db, state::pages::PageFile, Store, bucket::wire};"),
        (
            "handle/file.rs",
            "use crate::Store; use crate::state::db::check; use crate::door; fn f() { door::send() }",
        ),
        (
            "engine/writer/run.rs",
            "use crate::door::Mail; fn f(c: &rusqlite::Connection) { let s = \"unsafe\"; }",
        ),
        ("internals.rs", "pub use crate::state::db;"),
    ];
    for (file, text) in fine {
        none(&finds(file, text));
    }
}
