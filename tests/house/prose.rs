//! Plain English: patterns that make sentences hard to read are found in pages, comments, docstrings and help texts.

use crate::files::{none, texts};
use crate::rust;

/// The files and folders that are checked. Add a folder here once its prose is plain.
const CHECKED: &[&str] = &[
    "CHANGELOG.md",
    "Makefile",
    "README.md",
    "benches/",
    "crates/",
    "docs/",
    "fit-calculator/src/",
    "python/",
    "tests/",
];

/// Folders inside of those that are not plain yet: none today.
const NOT_YET: &[&str] = &[];

/// The folders whose strings are help texts and messages.
const MESSAGES: [&str; 3] = ["python/bucketq/", "crates/bucketq/src/", "crates/bucketq-python/src/"];

/// Fewest words of a string that is checked: others are names and parts of SQL.
const MESSAGE_WORDS: usize = 4;

/// Words after which "who" has nobody to refer to.
const BEFORE_WHO: [&str; 9] = ["that", "than", "by", "of", "to", "for", "from", "with", "unless"];

/// Words that no sentence begins with, except a question.
const SUBJECTS: [&str; 5] = ["Who", "Whoever", "What", "Whatever", "Of"];

/// Phrases with the words to use instead.
const PHRASES: &[(&str, &str)] = &[
    ("answers", "returns, replies"),
    ("is answered", "gets a reply"),
    ("are answered", "get a reply"),
    ("is told", "learns, is reported"),
    ("are told", "learn, are reported"),
    ("was told", "learned"),
    ("were told", "learned"),
    ("unless told otherwise", "by default"),
    ("so many", "up to this number of"),
    ("for ever", "permanently"),
    ("goes on", "continues"),
    ("go on", "continue"),
    ("whoever", "the caller, the process"),
];

/// One line of prose, with its number.
type Line = (usize, String);

/// A paragraph, a list item, a heading or a cell of a table: the number of its first line, and its text.
type Paragraph = (usize, String);

/// Returns the lines of a page that are not code.
fn of_page(page: &str) -> Vec<Line> {
    page.lines()
        .enumerate()
        .map(|(i, line)| (i + 1, line.trim().trim_start_matches('>').to_owned()))
        .collect()
}

/// Returns the comments of a makefile, with the help texts behind its targets.
fn of_makefile(source: &str) -> Vec<Line> {
    let comment = |line: &str| Some(line.split_once("## ").or_else(|| line.split_once("# "))?.1.to_owned());
    source.lines().enumerate().map(|(i, line)| (i + 1, comment(line).unwrap_or_default())).collect()
}

/// Returns the text between the tags of a page of HTML.
fn of_html(source: &str) -> Vec<Line> {
    let mut is_tag = false;
    let mut text = |line: &str| -> String {
        line.chars()
            .filter(|c| {
                is_tag |= *c == '<';
                let is_text = !is_tag;
                is_tag &= *c != '>';
                is_text
            })
            .collect()
    };
    source.lines().enumerate().map(|(i, line)| (i + 1, text(line).trim().to_owned())).collect()
}

/// Returns the comments and docstrings of a Python file, and with `all` every other string.
fn of_python(source: &str, all: bool) -> Vec<Line> {
    let chars: Vec<char> = source.chars().collect();
    let (mut found, mut line, mut i) = (Vec::new(), 1, 0);
    while i < chars.len() {
        let rest = &chars[i..];
        if rest[0] == '#' {
            let text: String = rest.iter().take_while(|c| **c != '\n').collect();
            i += text.chars().count();
            found.push((line, text.trim_start_matches('#').trim().to_owned()));
        } else if matches!(rest[0], '"' | '\'') {
            let quote = rest[0];
            let long = rest.len() > 2 && rest[1] == quote && rest[2] == quote;
            let marks = if long { 3 } else { 1 };
            let mut end = marks;
            while end < rest.len() && !rest[end..].starts_with(&vec![quote; marks]) {
                end += if rest[end] == '\\' { 2 } else { 1 };
            }
            let text: String = rest[marks..end.min(rest.len())].iter().collect();
            if long || all && text.split_whitespace().count() >= MESSAGE_WORDS {
                // A blank line keeps a string apart from the one before it.
                found.push((line, String::new()));
                found.extend(text.lines().enumerate().map(|(n, l)| (line + n, l.trim().to_owned())));
                found.push((line + text.matches('\n').count(), String::new()));
            }
            line += text.matches('\n').count();
            i += end + marks;
        } else {
            line += usize::from(rest[0] == '\n');
            i += 1;
        }
    }
    found
}

/// Returns the paragraphs of these lines, without code.
fn paragraphs(lines: &[Line]) -> Vec<Paragraph> {
    let mut found: Vec<Paragraph> = Vec::new();
    let (mut fenced, mut last, mut open) = (false, 0, false);
    for (number, line) in lines {
        if line.starts_with("```") {
            fenced = !fenced;
        }
        let is_code = fenced || line.starts_with("```") || line.starts_with(">>>") || line.starts_with("...");
        if is_code || line.is_empty() {
            open = false;
        } else if line.starts_with('|') {
            found.extend(without_code(line).split('|').map(|cell| (*number, cell.trim().to_owned())));
            open = false;
        } else {
            let text = line.trim_start_matches(['#', '-', '*', ' ']);
            let is_item = line.starts_with(['#', '-', '*']) || line.starts_with(|c: char| c.is_ascii_digit());
            if open && !is_item && number.saturating_sub(last) <= 1 {
                let paragraph = found.last_mut().expect("an open paragraph is the last");
                paragraph.1 = format!("{} {text}", paragraph.1);
            } else {
                found.push((*number, text.to_owned()));
            }
            open = !line.starts_with('#');
        }
        last = *number;
    }
    found.into_iter().map(|(number, text)| (number, without_code(&text))).collect()
}

/// Returns the text with a sign in the place of what stands between backticks.
fn without_code(text: &str) -> String {
    let parts: Vec<&str> = text.split('`').collect();
    parts.iter().enumerate().map(|(i, part)| if i % 2 == 0 { *part } else { "§" }).collect()
}

/// Returns the sentences of a paragraph, and what follows a colon or a semicolon.
fn sentences(text: &str) -> Vec<&str> {
    let ends = text.char_indices().filter(|(_, c)| ".:;!?".contains(*c)).map(|(at, _)| at + 1);
    let mut from = 0;
    let mut found = Vec::new();
    for end in ends {
        let rest = text[end..].trim_start_matches(['*', '"', ')', '_']);
        if rest.is_empty() || rest.starts_with(' ') {
            found.push(text[from..end].trim());
            from = end;
        }
    }
    found.push(text[from..].trim());
    found
}

/// Returns the findings in one paragraph.
fn stilted(text: &str) -> Vec<String> {
    let mut findings = Vec::new();
    for sentence in sentences(text) {
        let first = sentence.trim_start_matches(|c: char| !c.is_alphanumeric() && c != '§');
        let first = first.split(|c: char| !c.is_alphanumeric()).next().unwrap_or("");
        if SUBJECTS.contains(&first) && !sentence.ends_with('?') {
            findings.push(format!("begins with {first}: name who acts"));
        }
    }
    let plain: String = text.chars().filter(|c| !"*_\"'".contains(*c)).collect();
    // Punctuation stays, as a word: a phrase does not reach over it.
    let apart: String = plain
        .chars()
        .flat_map(|c| {
            let is_part = c.is_alphanumeric() || c.is_whitespace() || "§-".contains(c);
            if is_part { vec![c] } else { vec![' ', c, ' '] }
        })
        .collect();
    let words: Vec<String> = apart.split_whitespace().map(str::to_lowercase).collect();
    let spaced = format!(" {} ", words.join(" "));
    let headless = words.windows(2).find(|pair| pair[1] == "who" && BEFORE_WHO.contains(&pair[0].as_str()));
    findings.extend(headless.map(|pair| format!("says \"{} who\": name who acts", pair[0])));
    findings.extend(
        PHRASES
            .iter()
            .filter(|(phrase, _)| spaced.contains(&format!(" {phrase} ")))
            .map(|(phrase, instead)| format!("says {phrase:?}: {instead}")),
    );
    findings
}

/// Returns the lines of prose of a file, by its kind.
fn prose(path: &str, text: &str) -> Vec<Line> {
    match path.rsplit_once('.').map(|(_, end)| end) {
        Some("md") => of_page(text),
        Some("rs" | "js") => rust::comments(text),
        Some("html") => of_html(text),
        None if path == "Makefile" => of_makefile(text),
        Some("py" | "pyi") => of_python(text, has_messages(path)),
        _ => Vec::new(),
    }
}

fn has_messages(path: &str) -> bool {
    MESSAGES.iter().any(|folder| path.starts_with(folder))
}

/// Returns the messages of a Rust file, each as a paragraph.
fn messages(path: &str, text: &str) -> Vec<Paragraph> {
    let is_message = |text: &str| text.split_whitespace().count() >= MESSAGE_WORDS;
    let is_rust = path.rsplit_once('.').is_some_and(|(_, end)| end == "rs");
    let found = if has_messages(path) && is_rust { rust::strings(text) } else { Vec::new() };
    found.into_iter().filter(|(_, text)| is_message(text)).map(|(n, text)| (n, without_code(&text))).collect()
}

fn findings(path: &str, text: &str) -> Vec<String> {
    let found = paragraphs(&prose(path, text)).into_iter().chain(messages(path, text));
    found
        .flat_map(|(line, text)| {
            let shown: String = text.chars().take(90).collect();
            stilted(&text).into_iter().map(move |what| format!("{path}:{line}: {what}: {shown}"))
        })
        .collect()
}

#[test]
fn checked_folders_are_in_plain_english() {
    let is_checked = |path: &str| {
        CHECKED.iter().any(|one| path.starts_with(one)) && !NOT_YET.iter().any(|one| path.starts_with(one))
    };
    let files = texts().into_iter().filter(|(path, _)| is_checked(path));
    none(&files.flat_map(|(path, text)| findings(&path, &text)).collect::<Vec<_>>());
}

#[test]
fn stilted_sentences_are_named() {
    let bad = [
        "Who asks gets it.",
        "It waits. What is kept leaves later.",
        "Two kinds: Of these, one goes.",
        "**Whoever misses an object reads HEAD again.**",
        "The writer answers the callers.",
        "A caller is told so.",
        "It keeps so many jobs",
        "They stay for ever.",
        "The work goes on.",
        "grace is long, so that who has read HEAD finds the objects",
    ];
    for text in bad {
        assert!(!stilted(text).is_empty(), "{text}");
    }
    let good = [
        "Who may write? Only the owner.",
        "Whose job it is does not matter",
        "The reply says what happened.",
        "It is so; many know.",
        "Forever",
        "The reply names the process that has the lock and who waits.",
        "Often it goes. On Monday it returns.",
    ];
    for text in good {
        assert_eq!(stilted(text), Vec::<String>::new(), "{text}");
    }
}

#[test]
fn code_and_questions_are_left_alone_and_lines_are_joined() {
    let at = |path: &str, text: &str| findings(path, text).len();
    assert_eq!(at("a.md", "```\nWhat is kept.\n```\n`is told`\n\n## What is it?\n"), 0);
    assert_eq!(at("a.md", "This is\nWhat they call a queue.\n"), 0);
    assert_eq!(at("a.md", "| one | What is kept |\n- Who waits\n"), 2);
    assert_eq!(at("a.rs", "/// A caller is\n/// told so.\nlet x = \"is told\";\n"), 1);
    assert_eq!(at("a.py", "x = 'is told so'\n# It goes on.\n\"\"\"It waits\n\n>>> 'is told'\n\"\"\"\n"), 1);
    assert_eq!(at("python/bucketq/cli/a.py", "help='What is told so'\n"), 2);
    assert_eq!(at("crates/bucketq/src/a.rs", "bad(\"it goes \\\n    on so\")\n"), 1);
    assert_eq!(at("crates/bucketq/src/a.rs", "f(\"goes on\")\n"), 0);
    assert_eq!(at("Makefile", "a: b  ## It goes on\n\techo goes on\n"), 1);
    assert_eq!(at("a.html", "<p title=\"is told\">It goes on<br\n>."), 1);
}
