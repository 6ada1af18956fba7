//! The lengths of the functions in a source file.
//!
//! Contents: [`functions`]. It relies on rustfmt: a function ends at the first closing brace that stands as far
//! to the right as its `fn`. Functions inside an inline test module do not count.

/// A function: its name, the line it starts at, and its length in lines.
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) line: usize,
    pub(crate) lines: usize,
}

/// The functions with a body in `text`, which rustfmt has formatted.
pub(crate) fn functions(text: &str) -> Vec<Function> {
    let end = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    let lines: Vec<&str> = text[..end].lines().collect();
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let Some(name) = name_of(line) else {
            continue;
        };
        let brace = format!("{}}}", &line[..indent(line)]);
        let last = lines[start..].iter().position(|line| line.starts_with(&brace));
        // A declaration has no body, and a body of one line ends where it starts.
        let head_end = lines[start..].iter().find(|line| line.ends_with(['{', '}', ';']));
        if !head_end.is_some_and(|line| line.ends_with('{')) {
            continue;
        }
        if let Some(last) = last {
            found.push(Function {
                name: name.to_string(),
                line: start + 1,
                lines: last + 1,
            });
        }
    }
    found
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// The name behind `fn`, if the line begins a function.
fn name_of(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("fn ")?;
    let is_head = before
        .split_whitespace()
        .all(|word| ["pub", "const", "unsafe", "async", "extern", "\"C\""].contains(&word) || word.starts_with("pub("));
    let name = after.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
    (is_head && !name.is_empty()).then_some(name)
}
