//! Names in messages.
//!
//! Contents: [`Shown`], for every message that quotes a name of a file system. Names come from media and from servers,
//! so only their printable characters may reach a terminal or a log.

use std::fmt;

/// A name, or any text of users, as messages quote it: between backticks, with unprintable characters escaped.
///
/// ```
/// use ferrite_vfs::Shown;
///
/// assert_eq!(Shown(b"it's a \"file\"").to_string(), "`it's a \"file\"`");
/// assert_eq!(Shown("gr\u{fc}n\x1b[1m\n".as_bytes()).to_string(), "`gr\u{fc}n\\u{1b}[1m\\n`");
/// assert_eq!(Shown(b"\xff").to_string(), "`\\xff`");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shown<'n>(pub &'n [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`")?;
        for chunk in self.0.utf8_chunks() {
            for letter in chunk.valid().chars() {
                match letter {
                    '\'' | '"' => write!(f, "{letter}")?,
                    letter => write!(f, "{}", letter.escape_debug())?,
                }
            }
            write!(f, "{}", chunk.invalid().escape_ascii())?;
        }
        f.write_str("`")
    }
}
