//! Idioms that are not English, sentences without an actor, and names that only this code base ever used.
//!
//! Contents: [`idioms`], for prose of documents and comments. Code in backticks does not count. A sentence that
//! asks may open with a question word. [`odd_names`], for identifiers.

/// Phrases for which the field has a plain word.
const PHRASES: &[&str] = &[
    "as ever",
    "as often as wanted",
    "by itself",
    "daily business",
    "goes on",
    "he",
    "him",
    "his",
    "in the very moment",
    "is none",
    "let go",
    "lets go",
    "of ours",
    "of others",
    "one behind the other",
    "that which",
    "told",
];

/// Words that open a question, or a sentence whose subject is not visible.
const OPENINGS: &[&str] = &["Who", "Whoever", "What", "That which"];

/// The findings in a paragraph, whose lines are joined by spaces.
pub(crate) fn idioms(paragraph: &str) -> Vec<String> {
    let prose: String = paragraph.split('`').step_by(2).collect::<Vec<_>>().join("`");
    let mut found: Vec<String> = PHRASES
        .iter()
        .filter(|phrase| has_words(&prose, phrase))
        .map(|phrase| format!("\"{phrase}\""))
        .collect();
    for sentence in sentences(&prose) {
        let opening = OPENINGS.iter().find(|word| {
            let rest = sentence.strip_prefix(**word);
            rest.is_some_and(|rest| rest.starts_with(' '))
        });
        if let (Some(word), false) = (opening, sentence.trim_end().ends_with('?')) {
            let head: String = sentence.chars().take(40).collect();
            found.push(format!("a sentence opens with {word}: {head}"));
        }
    }
    found
}

/// Whether the words of `phrase` stand in `text` as words.
fn has_words(text: &str, phrase: &str) -> bool {
    let is_part = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    text.match_indices(phrase)
        .any(|(at, _)| !is_part(text[..at].chars().next_back()) && !is_part(text[at + phrase.len()..].chars().next()))
}

/// The sentences of a paragraph, each with its punctuation mark.
fn sentences(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut start = 0;
    for (at, mark) in text.match_indices(['.', '?', '!']) {
        let end = at + mark.len();
        if text[end..].starts_with(' ') {
            found.push(text[start..end].trim_start_matches(['*', '-', ' ', '>', '"']));
            start = end;
        }
    }
    found.push(text[start..].trim_start_matches(['*', '-', ' ', '>', '"']));
    found
}

/// Words that names of this code base once had, each for something that the field has a word for.
const ODD_WORDS: &[&str] = &[
    "era",
    "freezer",
    "frost",
    "greet",
    "heritage",
    "incident",
    "incidents",
    "leftovers",
    "newborn",
    "newcomer",
    "outbox",
    "parked",
    "patience",
    "planted",
    "stranger",
    "strangers",
    "tidy",
    "vouch",
    "vouched",
];

/// The identifiers in a line of code, or a path, that have such a word.
pub(crate) fn odd_names(code: &str) -> Vec<&str> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let names = code.split(|c| !is_part(c)).filter(|name| !name.is_empty());
    names
        .filter(|name| parts(name).iter().any(|part| ODD_WORDS.contains(&part.as_str())))
        .collect()
}

/// The words of an identifier, in lower case.
fn parts(name: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut was_lower = false;
    for c in name.chars() {
        if c == '_' || c.is_uppercase() && was_lower {
            parts.push(String::new());
        }
        if c != '_' {
            parts.last_mut().unwrap().extend(c.to_lowercase());
        }
        was_lower = c.is_lowercase() || c.is_numeric();
    }
    parts
}
