//! The shape of the code itself: the uses between modules, the lengths of files and lines, and the presence of module
//! heads.
//!
//! Protects readers: they can learn the code base layer by layer. A cycle of modules, a use of a higher layer of the
//! engine, a file that has grown too large, a line that no diff shows whole, each fails here and is named.

#[path = "house/functions.rs"]
mod functions;
#[path = "house/uses.rs"]
mod uses;
#[path = "house/words.rs"]
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use functions::functions;
use uses::{Crate, circle, without_tests};
use words::{idioms, odd_names};

/// Lines that a file may have.
const FILE_LINES_MAX: usize = 700;

/// Lines that a function of the product may have.
const FUNCTION_LINES_MAX: usize = 70;

/// The files that may contain `unsafe`; a folder ends with a slash. docs/architecture.md gives the reasons.
const UNSAFE_FILES: &[&str] = &[
    "ferrite-blob/src/device/namespace.rs",
    "ferrite-blob/src/device/reactor.rs",
    "ferrite-blob/src/device/submitted.rs",
    "ferrite-buffers/src/area.rs",
    "ferrite-buffers/src/borrowed.rs",
    "ferrite-c/src/",
    "ferrite-cli/src/memory.rs",
    "ferrite-cxx/src/border.rs",
    "ferrite-transport/src/ofi.rs",
    "ferrite-transport/src/ofi/",
    "ferrite-fuse/src/ring/uring.rs",
    "ferrite-lab/src/bin/ferrite-lab/bench/nvme/raw.rs",
    "ferrite-leveldb/src/",
    "ferrite-map/src/simd.rs",
    "ferrite-pm/src/copies.rs",
    "ferrite-pm/src/cpu.rs",
    "ferrite-pm/src/events.rs",
    "ferrite-pm/src/faults.rs",
    "ferrite-pm/src/fork.rs",
    "ferrite-pm/src/map.rs",
    "ferrite-pm/src/region.rs",
    "ferrite-python/src/buffer.rs",
    "ferrite-rados/src/sys/",
    "ferrite-rnic/src/batch.rs",
    "ferrite-meta/src/rocksdb/border/",
];

/// Pages with idioms left to mend, and the number of findings that each may have. This list only becomes shorter, and
/// so do its numbers.
const IDIOMS_LEFT: &[(&str, usize)] = &[];

/// Columns of a line of prose.
const LINE_COLUMNS_MAX: usize = 120;
/// The same for code: rustfmt does not break some words.
const CODE_COLUMNS_MAX: usize = 130;

/// The layers of the engine, from the lowest to the highest; those of one line do not use each other.
const ENGINE_LAYERS: &[&[&str]] = &[
    &["error", "options", "lock_order", "thread"],
    &["format", "background"],
    &["space", "cache", "health"],
    &["journal"],
    &["pool"],
    &["page"],
    &["retry"],
    &["file"],
    &["tree"],
    &["audit"],
    &["engine"],
];

/// Crates that concern the PM engine as a whole.
const CRATES_OF_THE_ENGINE: &[&str] = &["ferrite-fs", "ferrite-crash", "ferrite-lab"];

/// Crates that only prove or measure the others.
const CRATES_OF_TESTS: &[&str] = &[
    "ferrite-testkit",
    "ferrite-test-clusters",
    "ferrite-crash",
    "ferrite-lab",
    "ferrite-leveldb",
];

/// Other files that may name it; see docs/architecture.md for the reasons. A folder ends with a slash.
const NAME_THE_ENGINE: &[&str] = &[
    "ferrite/src/info.rs",
    "ferrite/src/pool.rs",
    "ferrite-cli/src/copy.rs",
    "ferrite-cli/src/fsck.rs",
    "ferrite-cli/src/mkfs.rs",
    "ferrite-cli/src/resize.rs",
];

fn workspace() -> PathBuf {
    // Tests run in their package's folder. A path from the build would name another checkout if two share a target.
    Path::new("../..").canonicalize().unwrap()
}

fn crates() -> Vec<Crate> {
    let mut folders: Vec<PathBuf> = fs::read_dir(workspace().join("crates"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("src").is_dir())
        .collect();
    folders.sort();
    assert!(folders.len() >= 10, "the crates are where this test looks for them");
    folders.iter().map(|folder| Crate::read(folder)).collect()
}

/// All Rust files of the workspace below `crates`.
fn sources() -> Vec<PathBuf> {
    fn walk(folder: &Path, into: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.file_name().and_then(|name| name.to_str()) {
                Some("target") => {}
                _ if path.is_dir() => walk(&path, into),
                Some(name) if name.ends_with(".rs") => into.push(path),
                _ => {}
            }
        }
    }
    let mut found = Vec::new();
    walk(&workspace().join("crates"), &mut found);
    found.sort();
    assert!(found.len() > 200, "the sources are where this test looks for them");
    found
}

fn complain(what: &str, findings: &[String]) {
    assert!(findings.is_empty(), "{what}:\n  {}", findings.join("\n  "));
}

#[test]
fn no_modules_of_a_crate_know_each_other_in_a_circle() {
    let circles: Vec<String> = crates()
        .iter()
        .filter_map(|krate| circle(&krate.uses).map(|modules| format!("{}: {}", krate.name, modules.join(" -> "))))
        .collect();
    complain("modules that use each other in a circle", &circles);
}

#[test]
fn the_engine_calls_downwards_only() {
    let crates = crates();
    let engine = crates.iter().find(|krate| krate.name == "ferrite-fs").unwrap();
    let layer_of: BTreeMap<&str, usize> = ENGINE_LAYERS
        .iter()
        .enumerate()
        .flat_map(|(layer, names)| names.iter().map(move |&name| (name, layer)))
        .collect();
    let top = |module: &str| module.split("::").next().unwrap_or_default().to_string();
    let mut findings = Vec::new();
    let mut arrows = 0;
    for (from, uses) in &engine.uses {
        for to in uses {
            let (from_top, to_top) = (top(from), top(to));
            // The root only re-exports names of the crate.
            if from_top == to_top || from.is_empty() || to.is_empty() {
                continue;
            }
            arrows += 1;
            match (layer_of.get(&*from_top), layer_of.get(&*to_top)) {
                (Some(from_layer), Some(to_layer)) if from_layer > to_layer => {}
                (Some(_), Some(_)) => findings.push(format!("{from} uses {to}")),
                _ => findings.push(format!("{from_top} or {to_top} has no layer in this test")),
            }
        }
    }
    assert!(
        arrows > 100,
        "{arrows} arrows seen: the test does not read the sources any more"
    );
    complain("arrows that do not run downwards", &findings);
}

/// All other code knows an engine as `FileSystem` and `Volume`, so that a new engine changes nothing there.
#[test]
fn few_files_above_the_engine_name_it() {
    // `ferrite_fsync` is a function for C.
    let names = |text: &str| {
        text.split("ferrite_fs")
            .skip(1)
            .any(|behind| !behind.starts_with(char::is_alphabetic))
    };
    let (mut findings, mut seen) = (Vec::new(), BTreeSet::new());
    for path in sources() {
        let name = path.strip_prefix(workspace().join("crates")).unwrap().to_str().unwrap();
        let (krate, inner) = name.split_once('/').unwrap();
        let text = without_tests(&fs::read_to_string(&path).unwrap());
        if CRATES_OF_THE_ENGINE.contains(&krate) || !inner.starts_with("src/") || !names(&text) {
            continue;
        }
        let is_listed = |listed: &&&str| name == **listed || (listed.ends_with('/') && name.starts_with(**listed));
        match NAME_THE_ENGINE.iter().find(is_listed) {
            Some(listed) => drop(seen.insert(*listed)),
            None => findings.push(format!(
                "{name} names ferrite_fs; use ferrite_vfs::volume, or ferrite::volume"
            )),
        }
    }
    let unused = NAME_THE_ENGINE.iter().filter(|listed| !seen.contains(**listed));
    findings.extend(unused.map(|listed| format!("{listed} does not name ferrite_fs any more: take it off the list")));
    complain("files that name the engine", &findings);
}

#[test]
fn files_are_short_and_say_what_lives_there() {
    let mut findings = Vec::new();
    for path in sources() {
        let text = fs::read_to_string(&path).unwrap();
        let lines = text.lines().count();
        if lines > FILE_LINES_MAX {
            findings.push(format!("{}: {lines} lines, at most {FILE_LINES_MAX}", path.display()));
        }
        if !text.starts_with("//!") {
            findings.push(format!(
                "{}: does not begin with a comment on what lives there",
                path.display()
            ));
        }
    }
    complain("files", &findings);
}

/// Tables are wide: a row of Markdown is one line. So are unbreakable links, and a few lines of code that rustfmt
/// treats as one word.
#[test]
fn no_line_is_wider_than_a_screen() {
    let mut findings = Vec::new();
    let mut look = |path: &Path, is_text: bool| {
        let text = fs::read_to_string(path).unwrap();
        let mut in_block = false;
        for (number, line) in text.lines().enumerate() {
            let comment = line.trim_start();
            in_block ^= is_text && comment.starts_with("```");
            let is_row = comment.trim_start_matches(['/', '!', ' ']).starts_with('|');
            let is_prose = is_text || comment.starts_with("//");
            let width = line.chars().count();
            let most = if is_prose { LINE_COLUMNS_MAX } else { CODE_COLUMNS_MAX };
            if width > most && !is_row && !in_block {
                findings.push(format!("{}:{}: {width} columns", path.display(), number + 1));
            }
        }
    };
    sources().iter().for_each(|path| look(path, false));
    documents().iter().for_each(|path| look(path, true));
    complain("lines that are too wide", &findings);
}

/// An example that a terminal of 80 columns wraps cannot be pasted.
#[test]
fn examples_in_helps_fit_a_terminal() {
    let examples = |path: &PathBuf| -> Vec<String> {
        let text = fs::read_to_string(path).unwrap();
        let lines = text
            .lines()
            .filter(|line| line.starts_with("  ") && !line.starts_with("   "));
        lines
            .map(|line| line.split("\")]").next().unwrap_or_default().to_owned())
            .collect()
    };
    let programs = sources()
        .into_iter()
        .filter(|path| path.components().any(|part| part.as_os_str() == "ferrite-cli"));
    let lines: Vec<String> = programs.flat_map(|path| examples(&path)).collect();
    assert!(lines.iter().filter(|line| line.starts_with("  ferrite ")).count() > 20);
    let wide: Vec<String> = lines.into_iter().filter(|line| line.chars().count() > 80).collect();
    complain("wrap on a terminal of 80 columns", &wide);
}

/// Source files named in documents must exist: `crates/x/src/y.rs`, or the end of such a path.
#[test]
fn documents_name_files_that_exist() {
    let known: BTreeSet<String> = sources()
        .iter()
        .map(|path| path.strip_prefix(workspace()).unwrap().to_string_lossy().into_owned())
        .collect();
    let exists = |name: &str| {
        known
            .iter()
            .any(|path| path == name || path.ends_with(&format!("/{name}")))
            || workspace().join(name).exists()
    };
    let mut findings = Vec::new();
    let mut names = 0;
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        for name in text.split('`').skip(1).step_by(2) {
            let is_file =
                name.ends_with(".rs") && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c));
            // A word in capitals stands for any.
            if !is_file || name.contains("NAME") {
                continue;
            }
            names += 1;
            if !exists(name) {
                findings.push(format!("{}: {name}", document.display()));
            }
        }
    }
    assert!(names > 30, "only {names} names of files seen in the documents");
    complain("files that documents name and that are not there", &findings);
}

/// Links from one document to another, or to a heading of it, lead somewhere.
#[test]
fn links_between_documents_lead_somewhere() {
    let mut findings = Vec::new();
    let mut links = 0;
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") || link.contains(' ') {
                continue;
            }
            links += 1;
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => document.clone(),
                file => document.parent().unwrap().join(file),
            };
            let Ok(content) = fs::read(&target) else {
                if !target.is_dir() {
                    findings.push(format!("{}: {link}", document.display()));
                }
                continue;
            };
            let content = String::from_utf8_lossy(&content);
            if !heading.is_empty() && !headings(&content).contains(heading) {
                findings.push(format!("{}: {link}: no such heading", document.display()));
            }
        }
    }
    assert!(links > 20, "only {links} links seen");
    complain("links that lead nowhere", &findings);
}

/// Each library and each program declares its use of `unsafe`: none, or the modules that may have it.
#[test]
fn crates_say_where_unsafe_may_be() {
    let mut findings = Vec::new();
    let mut roots = 0;
    for root in sources() {
        let (Some(name), Some(folder)) = (root.file_name(), root.parent()) else {
            continue;
        };
        if !folder.ends_with("src") || (name != "lib.rs" && name != "main.rs") {
            continue;
        }
        roots += 1;
        let text = fs::read_to_string(&root).unwrap();
        let says = |what: &str| text.lines().any(|line| line == what);
        // A border to another language consists of nothing else.
        let is_border = folder.ends_with("ferrite-leveldb/src");
        if !(says("#![forbid(unsafe_code)]") || says("#![deny(unsafe_code)]") || is_border) {
            findings.push(root.display().to_string());
        }
    }
    assert!(roots > 10, "only {roots} crates seen");
    complain("crates that neither forbid nor deny `unsafe`", &findings);
}

/// A reader keeps a function of one screen in mind.
#[test]
fn functions_fit_on_a_screen() {
    let mut findings = Vec::new();
    let mut seen = 0;
    for path in sources() {
        let file = path.strip_prefix(workspace().join("crates")).unwrap().to_str().unwrap();
        let (krate, inner) = file.split_once('/').unwrap();
        let is_product = !CRATES_OF_TESTS.contains(&krate) && inner.starts_with("src/") && !inner.contains("tests");
        if !is_product {
            continue;
        }
        for function in functions(&fs::read_to_string(&path).unwrap()) {
            seen += 1;
            if function.lines > FUNCTION_LINES_MAX {
                let (name, line, lines) = (function.name, function.line, function.lines);
                findings.push(format!(
                    "{file}:{line}: {name} has {lines} lines, at most {FUNCTION_LINES_MAX}"
                ));
            }
        }
    }
    assert!(
        seen > 5000,
        "only {seen} functions seen: the test does not read the sources any more"
    );
    complain("functions", &findings);
}

/// Readers should not have to learn a dialect: CONTRIBUTING.md has the rules for words.
#[test]
fn pages_are_in_plain_english() {
    let mut findings = Vec::new();
    for document in documents().into_iter().chain([workspace().join("CONTRIBUTING.md")]) {
        let name = document.file_name().unwrap().to_str().unwrap();
        let text = fs::read_to_string(&document).unwrap();
        let found: Vec<String> = paragraphs(&text)
            .iter()
            .flat_map(|paragraph| idioms(paragraph))
            .collect();
        let allowed = IDIOMS_LEFT
            .iter()
            .find(|(page, _)| *page == name)
            .map_or(0, |&(_, count)| count);
        match found.len() {
            count if count > allowed => findings.extend(found.iter().map(|what| format!("{name}: {what}"))),
            count if count < allowed => findings.push(format!("{name}: {count} are left: lower its number")),
            _ => {}
        }
    }
    complain("words", &findings);
}

/// The same of comments. Help texts are comments in the source, and users read them.
#[test]
fn comments_are_in_plain_english() {
    let mut findings = Vec::new();
    for path in sources() {
        let text = fs::read_to_string(&path).unwrap();
        // Every line of code ends a comment.
        let comments: Vec<&str> = text
            .lines()
            .map(|line| match line.trim_start().strip_prefix("//") {
                Some(comment) => comment.trim_start_matches(['/', '!']).trim_start(),
                None => "",
            })
            .collect();
        let found = paragraphs(&comments.join("\n"))
            .into_iter()
            .flat_map(|paragraph| idioms(&paragraph));
        findings.extend(found.map(|what| format!("{}: {what}", path.display())));
    }
    complain("words", &findings);
}

/// A reader who knows file systems need not learn a dialect first.
#[test]
fn names_are_those_of_the_field() {
    assert_eq!(
        odd_names("let x = OldEraCount + the_frost(era); // Operand"),
        ["OldEraCount", "the_frost", "era"]
    );
    let mut findings = Vec::new();
    for path in sources() {
        let shown = path.strip_prefix(workspace()).unwrap().to_str().unwrap();
        if shown.contains("ferrite-testkit/tests/house") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let code = text.lines().map(|line| line.split("//").next().unwrap_or_default());
        let odd: BTreeSet<&str> = code.chain([shown]).flat_map(odd_names).collect();
        findings.extend(odd.iter().map(|name| format!("{shown}: {name}")));
    }
    complain("names", &findings);
}

/// The paragraphs of a page, with each table row as one, without blocks of code.
fn paragraphs(text: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    let mut in_block = false;
    for line in text.lines() {
        let line = line.trim();
        in_block ^= line.starts_with("```");
        let is_first = ["|", "#", "* ", "- "].iter().any(|mark| line.starts_with(mark))
            || line
                .split_once(". ")
                .is_some_and(|(number, _)| number.parse::<u32>().is_ok());
        if line.is_empty() || in_block || is_first {
            found.push(String::new());
        }
        // Headings are links, and may be phrased as questions.
        if !in_block && !line.starts_with('#') {
            let last = found.last_mut().unwrap();
            last.push_str(line.trim_start_matches(['|', ' ']));
            last.push(' ');
        }
    }
    found
}

/// `unsafe` occurs only where the list says, so that a reviewer of memory safety knows which files to read.
#[test]
fn unsafe_code_is_in_the_listed_files() {
    let mut findings = Vec::new();
    let mut unused: BTreeSet<&str> = UNSAFE_FILES.iter().copied().collect();
    for path in sources() {
        let file = path.strip_prefix(workspace().join("crates")).unwrap().to_str().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let is_unsafe = |line: &&str| {
            let code = line.split("//").next().unwrap_or_default();
            ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"]
                .iter()
                .any(|word| code.contains(word))
        };
        if !file.contains("/src/") || !text.lines().any(|line| is_unsafe(&line)) {
            continue;
        }
        let is_listed = |listed: &&&str| file == **listed || (listed.ends_with('/') && file.starts_with(**listed));
        match UNSAFE_FILES.iter().find(is_listed) {
            Some(listed) => drop(unused.remove(listed)),
            None => findings.push(format!("{file} contains unsafe code and is not listed")),
        }
    }
    findings.extend(
        unused
            .iter()
            .map(|file| format!("{file} contains none: take it off the list")),
    );
    complain("unsafe code", &findings);
}

/// Cargo finds no test of a crate whose programs are listed, so a file that is not listed would never run.
#[test]
fn no_file_of_tests_is_forgotten() {
    let mut findings = Vec::new();
    for main in sources().into_iter().filter(|path| path.ends_with("tests/main.rs")) {
        let folder = main.parent().unwrap();
        let modules = fs::read_to_string(&main).unwrap();
        let programs = fs::read_to_string(folder.with_file_name("Cargo.toml")).unwrap();
        assert!(
            programs.contains("autotests = false") && programs.contains("path = \"tests/main.rs\""),
            "{main:?}"
        );
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap();
            let is_listed = modules.contains(&format!("\nmod {name};\n"))
                || programs.contains(&format!("[[test]]\nname = \"{name}\"\n"));
            if path.extension().is_some_and(|end| end == "rs") && name != "main" && !is_listed {
                findings.push(path.display().to_string());
            }
        }
    }
    complain("tests that nothing runs", &findings);
}

/// Crates whose texts only developers read.
const OF_DEVELOPERS: &[&str] = &[
    "ferrite-crash",
    "ferrite-lab",
    "ferrite-measure",
    "ferrite-test-clusters",
    "ferrite-testkit",
];
/// Macros whose texts only developers read.
const FOR_DEVELOPERS: &[&str] = &[
    "assert",
    "panic!",
    "unreachable!",
    "debug!",
    "trace!",
    ".expect(",
    "println!",
];

/// The places in a source file that use Rust's debug format, in texts for users.
fn debug_forms(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut statement = String::new();
    let mut in_debug = false;
    for line in text.lines() {
        in_debug |= line.starts_with("impl") && line.contains("Debug for");
        in_debug &= line != "}";
        if line.trim_start().starts_with("//") {
            continue;
        }
        statement.push_str(line.trim());
        let is_told = ["warn!(", "error!("].iter().any(|level| statement.contains(level));
        let has_field = line.trim_start().starts_with('?') || line.contains("(?") || line.contains(", ?");
        let is_form = line.contains(":?}") || line.contains(":#?}") || is_told && has_field;
        let is_exempt = in_debug || FOR_DEVELOPERS.iter().any(|word| statement.contains(word));
        if is_form && !is_exempt {
            found.push(line.trim().to_owned());
        }
        if line.ends_with([';', '{', '}']) {
            statement.clear();
        }
    }
    found
}

/// Messages are for people: no quoted strings with Rust's escapes, no names of types and fields.
#[test]
fn messages_have_no_debug_forms() {
    let mut findings = Vec::new();
    let mut looked_at = 0;
    for path in sources() {
        let name = path.strip_prefix(workspace().join("crates")).unwrap().to_str().unwrap();
        let (krate, inner) = name.split_once('/').unwrap();
        let is_test = inner.contains("/tests") || inner.contains("/testing") || inner.contains("/bench/");
        if OF_DEVELOPERS.contains(&krate) || !inner.starts_with("src/") || is_test || inner == "src/adversarial.rs" {
            continue;
        }
        looked_at += 1;
        let text = without_tests(&fs::read_to_string(&path).unwrap());
        findings.extend(debug_forms(&text).into_iter().map(|line| format!("{name}: {line}")));
    }
    assert!(looked_at > 200, "only {looked_at} files seen");
    complain("debug forms in texts that users read", &findings);
    let seeded = [
        "fn f() {\n    format!(\"{name:?}\");\n}",
        "fn f() {\n    tracing::warn!(\n        ?place,\n        \"gone\"\n    );\n}",
        "fn f() {\n    tracing::error!(ino, ?place, \"gone\");\n}",
    ];
    for text in seeded {
        assert_eq!(debug_forms(text).len(), 1, "{text}");
    }
    assert!(debug_forms("fn f() {\n    assert!(x, \"{name:?}\");\n}").is_empty());
}

/// The anchors of headings.
fn headings(text: &str) -> BTreeSet<String> {
    text.lines()
        .filter_map(|line| line.strip_prefix('#'))
        .map(|line| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let kept = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
        .collect()
}

fn documents() -> Vec<PathBuf> {
    let mut found = vec![workspace().join("README.md")];
    for entry in fs::read_dir(workspace().join("docs")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
    found
}
