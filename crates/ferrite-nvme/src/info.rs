//! Lines of reports for people.

use ferrite_vfs::volume::InfoLine;

/// A line on a subject.
pub(crate) fn line(name: &str, value: String) -> InfoLine {
    InfoLine {
        name: name.to_owned(),
        value,
    }
}
