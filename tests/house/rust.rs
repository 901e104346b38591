//! The part of Rust's grammar that shows which module uses which: tokens, and the paths made of them.

/// One token: an identifier, `::`, or any other single character. Comments and literals are removed.
pub type Token = String;

/// The tokens of a source file, without comments, strings, characters, lifetimes and numbers.
pub fn tokens(source: &str) -> Vec<Token> {
    let chars: Vec<char> = source.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let mut found = Vec::new();
    let mut i = 0;
    while i < chars.len() {
        let c = chars[i];
        if c == '/' && at(i + 1) == '/' {
            i = (i..chars.len()).find(|&j| chars[j] == '\n').unwrap_or(chars.len());
        } else if c == '/' && at(i + 1) == '*' {
            i = after_block_comment(&chars, i);
        } else if c == '"' {
            i = after_string(&chars, i);
        } else if c == '\'' {
            // 'x' and '\n' are characters, 'x without a closing quote is a lifetime.
            i = match (at(i + 1), at(i + 2)) {
                ('\\', _) => (i + 3..chars.len()).find(|&j| chars[j] == '\'').unwrap_or(chars.len()) + 1,
                (_, '\'') => i + 3,
                _ => (i + 1..chars.len()).find(|&j| !is_word(chars[j])).unwrap_or(chars.len()),
            };
        } else if is_word(c) {
            let end = (i..chars.len()).find(|&j| !is_word(chars[j])).unwrap_or(chars.len());
            let word: String = chars[i..end].iter().collect();
            let hashes = (end..chars.len()).take_while(|&j| chars[j] == '#').count();
            i = end;
            if matches!(word.as_str(), "r" | "br" | "cr") && at(end + hashes) == '"' {
                i = after_raw_string(&chars, end + hashes, hashes);
            } else {
                // b"x" and c"x" are literals too; a number is no identifier.
                let literal = matches!(word.as_str(), "b" | "c") && matches!(at(end), '"' | '\'');
                if !literal && !c.is_ascii_digit() {
                    found.push(word);
                }
            }
        } else if c == ':' && at(i + 1) == ':' {
            found.push("::".to_owned());
            i += 2;
        } else {
            if !c.is_whitespace() {
                found.push(c.to_string());
            }
            i += 1;
        }
    }
    found
}

/// Returns the comments of a source file line by line: the number of the line, and its text without the slashes.
pub fn comments(source: &str) -> Vec<(usize, String)> {
    texts(source, true)
}

/// Returns the strings of a source file without raw ones: the number of the line, and the text as the compiler reads it.
pub fn strings(source: &str) -> Vec<(usize, String)> {
    texts(source, false)
}

fn texts(source: &str, wants_comments: bool) -> Vec<(usize, String)> {
    let chars: Vec<char> = source.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let (mut found, mut line, mut i) = (Vec::new(), 1, 0);
    while i < chars.len() {
        let next = match (chars[i], at(i + 1)) {
            ('/', '/') => {
                let end = (i..chars.len()).find(|&j| chars[j] == '\n').unwrap_or(chars.len());
                let text: String = chars[i..end].iter().collect();
                if wants_comments {
                    found.push((line, text.trim_start_matches(['/', '!']).trim().to_owned()));
                }
                end
            }
            ('/', '*') => after_block_comment(&chars, i),
            ('"', _) => {
                let end = after_string(&chars, i);
                if !wants_comments {
                    let text: String = chars[i + 1..(end - 1).min(chars.len())].iter().collect();
                    found.push((line, joined(&text)));
                }
                end
            }
            ('r', '"' | '#') if i == 0 || !is_word(chars[i - 1]) || matches!(chars[i - 1], 'b' | 'c') => {
                let hashes = (i + 1..chars.len()).take_while(|&j| chars[j] == '#').count();
                let is_raw = at(i + 1 + hashes) == '"';
                if is_raw { after_raw_string(&chars, i + 1 + hashes, hashes) } else { i + 1 }
            }
            ('\'', '\\') => (i + 3..chars.len()).find(|&j| chars[j] == '\'').unwrap_or(chars.len()) + 1,
            ('\'', _) if at(i + 2) == '\'' => i + 3,
            _ => i + 1,
        };
        line += chars[i..next.min(chars.len())].iter().filter(|c| **c == '\n').count();
        i = next;
    }
    found
}

/// Returns the text of a string, whose lines a backslash joins.
fn joined(literal: &str) -> String {
    let mut lines = literal.split("\\\n");
    let first = lines.next().unwrap_or("").to_owned();
    lines.fold(first, |text, line| text + line.trim_start())
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn after_block_comment(chars: &[char], start: usize) -> usize {
    let mut depth = 0;
    let mut i = start;
    while i + 1 < chars.len() {
        match (chars[i], chars[i + 1]) {
            ('/', '*') => (depth, i) = (depth + 1, i + 2),
            ('*', '/') => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
        if depth == 0 {
            return i;
        }
    }
    chars.len()
}

fn after_string(chars: &[char], start: usize) -> usize {
    let mut i = start + 1;
    while i < chars.len() && chars[i] != '"' {
        i += if chars[i] == '\\' { 2 } else { 1 };
    }
    i + 1
}

fn after_raw_string(chars: &[char], quote: usize, hashes: usize) -> usize {
    let closes = |j: usize| chars[j] == '"' && (1..=hashes).all(|k| chars.get(j + k) == Some(&'#'));
    (quote + 1..chars.len()).find(|&j| closes(j)).map_or(chars.len(), |j| j + hashes + 1)
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Every path in these tokens, with groups expanded: `use a::{b, c::d}` gives `a::b` and `a::c::d`. `a as b` gives
/// `a::as`. A lone identifier counts only after `use`.
pub fn paths(tokens: &[Token]) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut i = 0;
    while i < tokens.len() {
        let begins = is_name(&tokens[i]) && (i == 0 || !matches!(tokens[i - 1].as_str(), "::" | "." | "as"));
        if begins && tokens[i] == "use" {
            i = tree(tokens, i + 1, &[], &mut found);
        } else if begins && tokens.get(i + 1).is_some_and(|t| t == "::") {
            let mut path = vec![tokens[i].clone()];
            i += 1;
            while tokens.get(i).is_some_and(|t| t == "::") && tokens.get(i + 1).is_some_and(|t| is_name(t)) {
                path.push(tokens[i + 1].clone());
                i += 2;
            }
            found.push(path);
        } else {
            i += 1;
        }
    }
    found
}

/// Reads one use tree from `i`; returns the index after it.
fn tree(tokens: &[Token], mut i: usize, prefix: &[String], found: &mut Vec<Vec<String>>) -> usize {
    let mut path = prefix.to_vec();
    while let Some(token) = tokens.get(i) {
        i += 1;
        match token.as_str() {
            "::" => {}
            "{" => {
                while tokens.get(i).is_some_and(|t| t != "}") {
                    i = tree(tokens, i, &path, found);
                    if tokens.get(i).is_some_and(|t| t == ",") {
                        i += 1;
                    }
                }
                return i + 1;
            }
            "as" => {
                path.push("as".to_owned());
                i += 1;
            }
            "*" => path.push("*".to_owned()),
            name if is_name(name) => path.push(name.to_owned()),
            _ => {
                i -= 1;
                break;
            }
        }
    }
    if path.len() > prefix.len() {
        found.push(path);
    }
    i
}

#[test]
fn tokens_leave_out_comments_literals_and_lifetimes() {
    let source = r##"
        //! tokio::one
        /* tokio::two /* tokio::three */ */
        fn f<'a>(x: &'a str) -> char { let _ = "tokio::four \" tokio::five"; let _ = r#"tokio::"six"#; b"x"; 'x' }
        unsafe {}
    "##;
    let words = tokens(source);
    assert!(!words.iter().any(|t| t == "tokio" || t == "a"), "{words:?}");
    assert!(words.ends_with(&["unsafe".to_owned(), "{".to_owned(), "}".to_owned()]), "{words:?}");
}

#[test]
fn paths_spell_out_groups_and_find_uses_in_the_text() {
    let found =
        paths(&tokens("use a::{self, b, c::{d as e, f}, g::*}; use tokio; fn x() { h::i::<T>(j.k::<U>()) }"));
    let found: Vec<String> = found.iter().map(|p| p.join("::")).collect();
    assert_eq!(found, ["a::self", "a::b", "a::c::d::as", "a::c::f", "a::g::*", "tokio", "h::i"]);
}

#[test]
fn comments_are_found_beside_strings_and_characters() {
    let source =
        "//! One.\nlet a = \"// no\"; // Two.\nlet b = r#\"// \"no\"\"#;\nlet c = '\"'; /// Three.\n";
    let found = comments(source);
    let expected = [(1, "One."), (2, "Two."), (4, "Three.")];
    assert_eq!(found, expected.map(|(line, text)| (line, text.to_owned())));
}

#[test]
fn strings_are_found_beside_comments_and_joined() {
    let source = "// \"no\"\nlet a = \"one \\\n    two\";\nlet b = r#\"no\"#; f(\"three\\\"\"); '\"'";
    let found = strings(source);
    assert_eq!(found, [(2, "one two".to_owned()), (4, "three\\\"".to_owned())]);
}
