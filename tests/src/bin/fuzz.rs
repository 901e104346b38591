//! `fuzz`: gives arbitrary bytes to every decoder, and text to every parser. `make fuzz` runs it.
//!
//! A plain loop with a mutator over a kept corpus. An input with a new result text joins the corpus of the run, so that
//! mutations continue from it; `--keep` writes it to `tests/fuzz/corpus`. No input may panic or use more memory than
//! the target's bound; the last line is JSON. `--only NAME` gives all inputs to one target. Seed and number identify an input: the same seed, the same inputs.

use std::alloc::System;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;

use bucketq::Env;
use bucketq_tests::fuzz::{Dice, TARGETS, Target, mutated};
use cap::Cap;
use serde_json::json;

#[global_allocator]
static MEMORY: Cap<System> = Cap::new(System, usize::MAX);

/// If more than this is allocated at once, the program ends with an error of the allocator.
const CEILING: usize = 1 << 30;
/// Largest corpus of a target in a run, and most inputs that `--keep` adds to the kept ones.
const KEPT: usize = 400;
const KEPT_ON_DISK: usize = 20;

static DONE: AtomicU64 = AtomicU64::new(0);

struct Found {
    target: &'static str,
    inputs: u64,
    accepted: u64,
    answers: usize,
    /// Most memory that one input took, all its allocations together.
    most: usize,
    wrong: Vec<String>,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |name: &str| {
        let at = args.iter().position(|a| a == name);
        at.and_then(|at| args.get(at + 1)?.parse::<u64>().ok())
    };
    let seed = number("--seed").unwrap_or_else(|| u64::from_le_bytes(Env::default().bytes()) >> 16);
    let inputs = number("--inputs").unwrap_or(10_000_000);
    let keep = args.iter().any(|a| a == "--keep");
    if MEMORY.set_limit(CEILING).is_err() {
        println!("there is no memory to begin with");
        return ExitCode::FAILURE;
    }
    println!("seed {seed}, {inputs} inputs");
    let only = args.iter().position(|a| a == "--only").and_then(|at| args.get(at + 1));
    let targets: Vec<&Target> = TARGETS.iter().filter(|t| only.is_none_or(|only| only == t.name)).collect();
    if targets.is_empty() {
        println!("there is no such target");
        return ExitCode::FAILURE;
    }
    let each = inputs.div_ceil(targets.len() as u64);
    let mut all = vec![];
    for target in targets {
        let found = run(target, seed, each, keep);
        println!(
            "{:8} {:9} inputs, {:7} accepted, {:3} answers, at most {:8} bytes of memory",
            found.target, found.inputs, found.accepted, found.answers, found.most
        );
        for wrong in &found.wrong {
            println!("  {wrong}");
        }
        all.push(found);
    }
    let wrong: usize = all.iter().map(|f| f.wrong.len()).sum();
    if wrong > 0 {
        println!("run it again: make fuzz SEED={seed}");
    }
    let told = json!({
        "inputs": DONE.load(Relaxed), "failures": wrong, "seed": seed,
        "accepted": all.iter().map(|f| f.accepted).sum::<u64>(),
        "most_memory": all.iter().map(|f| (f.target, f.most)).collect::<std::collections::BTreeMap<_, _>>(),
    });
    println!("{told}");
    if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn corpus_dir(target: &Target) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target.name)
}

/// The kept inputs, in the order of names, and those that the engine itself writes.
fn corpus(target: &Target) -> Vec<Vec<u8>> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(corpus_dir(target))
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    paths.sort();
    let mut kept = (target.seeds)();
    kept.extend(paths.into_iter().filter_map(|path| std::fs::read(path).ok()));
    kept
}

/// Runs in its own thread: a panic ends one input, and is reported with its number.
fn run(target: &'static Target, seed: u64, inputs: u64, keep: bool) -> Found {
    let (tx, rx) = mpsc::channel();
    let mut kept = corpus(target);
    let mut heard: Vec<String> = kept.iter().map(|input| (target.run)(input)).collect();
    heard.sort();
    heard.dedup();
    let mut found = Found { target: target.name, inputs, accepted: 0, answers: 0, most: 0, wrong: vec![] };
    let mut number = 0;
    // Panics are reported below, in one line each.
    std::panic::set_hook(Box::new(|_| {}));
    while number < inputs && found.wrong.len() < 5 {
        let mut dice = Dice::new(seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let mut input = mutated(&kept, &mut dice);
        (target.mend)(&mut input, &mut dice);
        let before = MEMORY.total_allocated();
        let answer = std::panic::catch_unwind(|| (target.run)(&input));
        let took = MEMORY.total_allocated() - before;
        match answer {
            Err(panic) => {
                let why = panic.downcast_ref::<String>().map_or("a panic", String::as_str);
                let why = panic.downcast_ref::<&str>().copied().unwrap_or(why).to_owned();
                found.wrong.push(format!("input {number} of {}: {why}: {}", target.name, hex(&input)));
                let _ = tx.send(input);
            }
            Ok(answer) => {
                found.accepted += u64::from(answer == "accepted");
                if took > (target.bound)(input.len()) {
                    let bytes = input.len();
                    found.wrong.push(format!(
                        "input {number} of {}: {bytes} bytes took {took}: {}",
                        target.name,
                        hex(&input)
                    ));
                }
                found.most = found.most.max(took);
                if let Err(at) = heard.binary_search(&answer) {
                    heard.insert(at, answer);
                    if kept.len() < KEPT && input.len() <= 8 * 1024 {
                        let _ = tx.send(input.clone());
                        kept.push(input);
                    }
                }
            }
        }
        number += 1;
        DONE.fetch_add(1, Relaxed);
    }
    let _ = std::panic::take_hook();
    drop(tx);
    if keep {
        let dir = corpus_dir(target);
        std::fs::create_dir_all(&dir).expect("the corpus can be written");
        for input in rx.iter().take(KEPT_ON_DISK) {
            let name = hex(&bucketq::internals::wire::hash(&input)[..8]);
            std::fs::write(dir.join(format!("{name}.bin")), input).expect("the corpus can be written");
        }
    }
    (found.inputs, found.answers) = (number, heard.len());
    found
}

/// Hex digits, at most one line.
fn hex(input: &[u8]) -> String {
    let mut digits = String::new();
    for byte in input.iter().take(200) {
        let _ = write!(digits, "{byte:02x}");
    }
    digits
}
