//! Idioms that are not English, and sentences without an actor.
//!
//! Contents: [`idioms`], for prose of documents and comments. Code in backticks does not count. A sentence that
//! asks may open with a question word.

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
