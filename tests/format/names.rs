//! The names of objects, as docs/format.md has them.

use std::collections::BTreeSet;

use bucketq::Result;
use bucketq::internals::keys;
use bucketq::store::StoreUrl;

use crate::fixture;
use crate::layout::page;

/// The patterns of the page, such as `<name>.seg-<file8>-<from>-<to>-<rand>`: the first cells in the rows of its table
/// of keys.
fn patterns() -> Vec<String> {
    let page = page();
    let section = page.split_once("\n## Keys\n").expect("a section on keys").1;
    let section = section.split("\n## ").next().unwrap_or_default();
    let first = |line: &str| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned());
    section.lines().filter_map(first).collect()
}

/// Whether `key` matches `pattern`, with these lengths of hexadecimal parts.
fn fits(pattern: &str, name: &str, key: &str) -> bool {
    let (mut pattern, mut key) = (pattern, key);
    while !pattern.is_empty() {
        let Some(rest) = pattern.strip_prefix('<') else {
            let (fixed, after) = pattern.split_at(pattern.find('<').unwrap_or(pattern.len()));
            let Some(left) = key.strip_prefix(fixed) else { return false };
            (pattern, key) = (after, left);
            continue;
        };
        let (part, after) = rest.split_once('>').expect("a part ends");
        let len = match part {
            "name" => name.len(),
            "file8" => 8,
            "seq" | "from" | "to" | "group" | "ms" | "rand" => 16,
            other => panic!("what is <{other}>?"),
        };
        let Some((value, left)) = key.split_at_checked(len) else { return false };
        let hex = value.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        if (part == "name" && value != name) || (part != "name" && !hex) {
            return false;
        }
        (pattern, key) = (after, left);
    }
    key.is_empty()
}

#[test]
fn keys_are_what_the_page_says() {
    let patterns = patterns();
    let of = |start: &str| {
        let found: Vec<&String> = patterns.iter().filter(|p| p.starts_with(start)).collect();
        assert_eq!(found.len(), 1, "{start} in {patterns:?}");
        found[0].clone()
    };
    let id = [0xab; 16];
    for name in ["jobs", "a", "A-b_9"] {
        assert_eq!(of("<name>.head").replace("<name>", name), keys::head(name));
        for seq in [0, 1, u64::MAX] {
            assert!(fits(&of("<name>.base-"), name, &keys::base(name, &id, seq, &[1; 8])));
            assert!(fits(&of("<name>.seg-"), name, &keys::segment(name, &id, 0, seq, &[0xff; 8])));
        }
        assert!(fits(&of("<name>.stage-"), name, &keys::stage(name, &id, &[2; 8], i64::MAX, &[1; 8])));
    }
    let base = keys::base("jobs", &id, 0x12ab, &[0x0f; 8]);
    assert_eq!(base, "jobs.base-abababab-00000000000012ab-0f0f0f0f0f0f0f0f");
    assert!(!fits(&of("<name>.base-"), "jobs", &base.to_uppercase()));
    assert!(!fits(&of("<name>.base-"), "jobs", &format!("{base}0")));
    assert!(!fits(&of("<name>.seg-"), "jobs", &base));
}

#[tokio::test]
async fn everything_an_engine_writes_has_a_key_of_the_page() -> Result<()> {
    let store = fixture::used(150).await?;
    let keys: Vec<String> = store.list("").await?.into_iter().map(|l| l.key).collect();
    let mut kinds = BTreeSet::new();
    for key in &keys {
        let of: Vec<String> = patterns().into_iter().filter(|p| fits(p, "jobs", key)).collect();
        assert_eq!(of.len(), 1, "{key}: {of:?}");
        kinds.extend(of);
    }
    assert_eq!(kinds.len(), 3, "HEAD, a base and segments: {kinds:?}");
    Ok(())
}

/// Some servers store objects as files: `a` and `a/b` cannot both exist (P12).
#[test]
fn no_key_is_a_path_prefix_of_another() -> Result<()> {
    let mut all = vec![];
    for name in ["jobs", "jobs-2", "head", "base-0", "j"] {
        StoreUrl::check_name(name)?;
        all.push(keys::head(name));
        for n in 0..4_u64 {
            all.push(keys::base(name, &[n as u8; 16], n, &[n as u8; 8]));
            all.push(keys::segment(name, &[n as u8; 16], n, n + 1, &[n as u8; 8]));
            all.push(keys::stage(name, &[n as u8; 16], &[n as u8; 8], n as i64, &[n as u8; 8]));
        }
    }
    let unique: BTreeSet<&String> = all.iter().collect();
    assert_eq!(unique.len(), all.len());
    for a in &all {
        assert!(!a.contains('/'), "{a}");
        for b in all.iter().filter(|b| *b != a) {
            assert!(!b.starts_with(a.as_str()), "{a} begins {b}");
        }
    }
    Ok(())
}

#[test]
fn the_longest_name_still_makes_a_file_name() {
    let longest = (1..=255).rev().map(|n| "n".repeat(n)).find(|n| StoreUrl::check_name(n).is_ok());
    let longest = longest.expect("some name is right");
    assert!(page().contains(&format!("at most {} of them", longest.len())), "{} letters", longest.len());
    let key = keys::segment(&longest, &[0; 16], 0, u64::MAX, &[0; 8]);
    assert!(key.len() <= 255, "{} bytes", key.len());
    for wrong in ["", "a.b", "a/b", "a b", "ä"] {
        assert!(StoreUrl::check_name(wrong).is_err(), "{wrong}");
    }
}
