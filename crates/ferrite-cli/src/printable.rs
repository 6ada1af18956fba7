//! Safe display of names and texts: a name, or a text from a server, must not control a terminal or forge a line.
//!
//! Contents: [`printable`], for a name in a message or on a terminal; [`harmless`], the last filter for all output to a
//! terminal or to standard error ([`crate::output`]), whatever its source.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;

/// A name as it is, if it is plain text, else in quotes that a shell accepts.
pub(crate) fn printable(name: &(impl AsRef<OsStr> + ?Sized)) -> String {
    let name = name.as_ref();
    if let Some(text) = name.to_str()
        && !text.chars().any(|c| c.is_control() || c == '\'')
    {
        return text.to_owned();
    }
    let mut text = String::from("$'");
    let put_byte = |text: &mut String, byte: u8| {
        // Writing to a text does not fail.
        let _ = write!(text, "\\x{byte:02x}");
    };
    for chunk in name.as_bytes().utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\'' | '\\' => text.extend(['\\', c]),
                c if c.is_control() => {
                    let mut bytes = [0; 4];
                    c.encode_utf8(&mut bytes)
                        .bytes()
                        .for_each(|byte| put_byte(&mut text, byte));
                }
                c => text.push(c),
            }
        }
        chunk.invalid().iter().for_each(|&byte| put_byte(&mut text, byte));
    }
    text.push('\'');
    text
}

/// A text of one or more lines without any other character that controls a terminal.
pub(crate) fn harmless(text: &str) -> Cow<'_, str> {
    let controls = |c: char| c.is_control() && c != '\n' && c != '\t';
    if !text.contains(controls) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match controls(c) {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

/// A line of JSON with those control characters escaped that JSON lets pass: they occur in texts alone.
pub(crate) fn harmless_json(line: String) -> String {
    let controls = |c: char| ('\u{7f}'..='\u{9f}').contains(&c);
    if !line.contains(controls) {
        return line;
    }
    let mut shown = String::with_capacity(line.len() + 16);
    for c in line.chars() {
        match controls(c) {
            // Writing to a text does not fail.
            true => drop(write!(shown, "\\u{:04x}", u32::from(c))),
            false => shown.push(c),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_not_control_the_terminal() {
        for (name, shown) in [
            (&b"plain name"[..], "plain name"),
            ("größe".as_bytes(), "größe"),
            (b"a\n\x1b[2J", "$'a\\x0a\\x1b[2J'"),
            (b"\xff'\\", "$'\\xff\\'\\\\'"),
            ("\u{9b}2J".as_bytes(), "$'\\xc2\\x9b2J'"),
        ] {
            assert_eq!(printable(OsStr::from_bytes(name)), shown);
        }
    }

    #[test]
    fn texts_keep_their_lines_and_nothing_else_that_controls() {
        assert!(matches!(harmless("two\n\tlines"), Cow::Borrowed(_)));
        assert_eq!(harmless("a\x1b]0;x\x07\r\u{9b}b"), "a\\u{1b}]0;x\\u{7}\\r\\u{9b}b");
        let line = serde_json::to_string("\u{9b}\x1b\x7f").unwrap();
        let shown = harmless_json(line);
        assert!(shown.is_ascii(), "{shown}");
        assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), "\u{9b}\x1b\x7f");
    }
}
