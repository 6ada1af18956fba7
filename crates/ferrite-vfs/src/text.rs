//! Values of attributes that are words, `name=value`.

/// The number behind `name=` in a text of such words, with spaces or commas between them.
pub(crate) fn number(text: &str, name: &str) -> Option<u64> {
    let mut words = text.split([' ', ',']).filter_map(|word| word.split_once('='));
    words.rfind(|(found, _)| *found == name)?.1.parse().ok()
}
