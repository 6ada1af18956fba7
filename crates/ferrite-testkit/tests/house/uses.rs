//! The uses between the modules of a crate, read from the sources.
//!
//! Contents: [`Crate`], and [`circle`]. A module is a file. Its uses are the paths that begin with `crate` or `super`,
//! in `use` lines and elsewhere; a name that the crate's root re-exports counts as the module it comes from. A module
//! and those inside it count as one: uses between them do not matter. Tests may use anything.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The modules of a crate, by path (`a::b`; the root is empty), and the uses of each.
pub(crate) struct Crate {
    pub(crate) name: String,
    pub(crate) uses: BTreeMap<String, BTreeSet<String>>,
}

impl Crate {
    /// Reads the crate in `folder`.
    pub(crate) fn read(folder: &Path) -> Crate {
        let mut texts = BTreeMap::new();
        collect(&folder.join("src"), "", &mut texts);
        let root = texts.get("").cloned().unwrap_or_default();
        let offered = offered_by_root(&root, &texts);
        let mut uses = BTreeMap::new();
        for (module, text) in &texts {
            let mut used = BTreeSet::new();
            for path in paths(text, module) {
                let target = resolve(&path, &texts, &offered);
                if !is_within(&target, module) && !is_within(module, &target) {
                    used.insert(target);
                }
            }
            uses.insert(module.clone(), used);
        }
        Crate {
            name: folder.file_name().unwrap().to_string_lossy().into_owned(),
            uses,
        }
    }
}

/// Whether `inner` is `outer` or lies in it.
fn is_within(inner: &str, outer: &str) -> bool {
    outer.is_empty() || inner == outer || inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with("::"))
}

/// The sources below `folder`, without comments and tests.
fn collect(folder: &Path, prefix: &str, into: &mut BTreeMap<String, String>) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_string_lossy().into_owned();
        let below = |name: &str| match prefix {
            "" => name.to_string(),
            prefix => format!("{prefix}::{name}"),
        };
        if path.is_dir() {
            if stem != "tests" {
                collect(&path, &below(&stem), into);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") && stem != "tests" {
            let module = match &*stem {
                "lib" | "main" => String::new(),
                "mod" => prefix.to_string(),
                stem => below(stem),
            };
            let text = without_tests(&fs::read_to_string(&path).unwrap());
            // A crate with a library and a program has two roots, which re-export the same names.
            into.entry(module).or_default().push_str(&text);
        }
    }
}

/// Tests stand at the end of a file, by custom; a whole file of tests is marked at its declaration, and may use
/// anything as well; its parent's attribute excludes it.
pub(crate) fn without_tests(text: &str) -> String {
    let end = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    let lines = text[..end].lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// Names that the root re-exports from a module: name, module.
fn offered_by_root(root: &str, texts: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut offered = BTreeMap::new();
    for statement in root.split("pub use ").skip(1).filter_map(|rest| rest.split(';').next()) {
        for path in expand(statement) {
            if let Some((module, name)) = path.rsplit_once("::")
                && texts.contains_key(module)
            {
                offered.insert(name.to_string(), module.to_string());
            }
        }
    }
    offered
}

/// Paths inside the crate that `text`, the source of `module`, names.
fn paths(text: &str, module: &str) -> Vec<String> {
    let mut found = Vec::new();
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    for start in ["crate::", "super::"] {
        for (at, _) in text.match_indices(start) {
            let before = &text.as_bytes()[..at];
            if before.last().is_some_and(|&byte| is_word(byte) || byte == b':') {
                continue;
            }
            let mut rest = &text[at..];
            let mut base: Vec<&str> = if start == "crate::" {
                Vec::new()
            } else {
                module.split("::").collect()
            };
            rest = rest.strip_prefix("crate::").unwrap_or(rest);
            while let Some(further) = rest.strip_prefix("super::") {
                base.pop();
                rest = further;
            }
            for path in expand(path_at(rest)) {
                let all = base
                    .iter()
                    .copied()
                    .filter(|part| !part.is_empty())
                    .chain(path.split("::"));
                found.push(all.collect::<Vec<_>>().join("::"));
            }
        }
    }
    found
}

/// The path at the beginning of `text`, with its braces if it has any.
fn path_at(text: &str) -> &str {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '{' if depth > 0 || text[..at].ends_with("::") || at == 0 => depth += 1,
            '}' if depth > 0 => {
                depth -= 1;
                if depth == 0 {
                    return &text[..=at];
                }
            }
            _ if depth > 0 || c.is_ascii_alphanumeric() || c == '_' || c == ':' => {}
            _ => return &text[..at],
        }
    }
    text
}

/// `a::{b, c::d}` as `a::b` and `a::c::d`.
fn expand(path: &str) -> Vec<String> {
    let path: String = path.split_whitespace().collect::<Vec<_>>().join(" ");
    let Some((head, inside)) = path.split_once('{') else {
        let name = path.split(" as ").next().unwrap_or_default();
        return vec![
            name.trim()
                .trim_end_matches("::self")
                .trim_end_matches("::")
                .to_string(),
        ];
    };
    let inside = inside.strip_suffix('}').unwrap_or(inside);
    let mut parts = Vec::new();
    let (mut depth, mut from) = (0, 0);
    for (at, c) in inside.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&inside[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&inside[from..]);
    let whole = parts.into_iter().map(str::trim).filter(|part| !part.is_empty());
    whole.flat_map(|part| expand(&format!("{head}{part}"))).collect()
}

/// The module that `path` leads to.
fn resolve(path: &str, texts: &BTreeMap<String, String>, offered: &BTreeMap<String, String>) -> String {
    let parts: Vec<&str> = path.split("::").collect();
    for len in (1..=parts.len()).rev() {
        let module = parts[..len].join("::");
        if texts.contains_key(&module) {
            return module;
        }
    }
    offered.get(parts[0]).cloned().unwrap_or_default()
}

/// The modules of a cycle, if any.
pub(crate) fn circle(uses: &BTreeMap<String, BTreeSet<String>>) -> Option<Vec<String>> {
    fn visit<'u>(
        module: &'u str,
        uses: &'u BTreeMap<String, BTreeSet<String>>,
        done: &mut BTreeSet<&'u str>,
        way: &mut Vec<&'u str>,
    ) -> Option<Vec<String>> {
        if let Some(at) = way.iter().position(|&passed| passed == module) {
            return Some(way[at..].iter().chain([&module]).map(ToString::to_string).collect());
        }
        if !done.contains(module) {
            way.push(module);
            for next in uses.get(module).into_iter().flatten() {
                if let Some(found) = visit(next, uses, done, way) {
                    return Some(found);
                }
            }
            way.pop();
            done.insert(module);
        }
        None
    }
    let mut done = BTreeSet::new();
    uses.keys()
        .find_map(|module| visit(module, uses, &mut done, &mut Vec::new()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_read_as_the_compiler_reads_them() {
        let text = "use crate::a::{self, b::C, d};\nfn f() { super::e::g(); not_crate::x(); }";
        assert_eq!(paths(text, "m::n"), ["a", "a::b::C", "a::d", "m::e::g"]);
    }

    #[test]
    fn a_circle_is_found_and_a_chain_is_none() {
        let graph = |arrows: &[(&str, &str)]| {
            let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
            for (from, to) in arrows {
                uses.entry(from.to_string()).or_default().insert(to.to_string());
            }
            uses
        };
        assert_eq!(circle(&graph(&[("a", "b"), ("b", "c"), ("a", "c")])), None);
        let found = circle(&graph(&[("a", "b"), ("b", "c"), ("c", "b")])).unwrap();
        assert_eq!(found, ["b", "c", "b"]);
    }
}
