//! For build scripts: compiles a crate's C++ half and links the libraries it needs, statically, so that the program
//! runs without installed copies.
//!
//! Invariant: a missing dependency is named with its Debian package, before a compiler's message could bury it. Only
//! build scripts may call this: it writes cargo's directives to standard output, and ends the process.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio, exit};

/// The headers of all borders.
const HEADERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/include");

/// Text that the preprocessor must accept.
#[derive(Debug, Clone, Copy)]
pub struct Needs {
    /// C++.
    pub text: &'static str,
    /// The thing that is missing otherwise.
    pub what: &'static str,
    /// The cause, as far as known.
    pub cause: &'static str,
    /// The Debian package that provides it.
    pub package: &'static str,
}

/// A library to link.
#[derive(Debug, Clone, Copy)]
pub struct Library {
    /// Without `lib` and `.a`.
    pub name: &'static str,
    /// The Debian package that provides it.
    pub package: &'static str,
    /// How programs get it.
    pub linkage: Linkage,
}

/// How programs get a library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Linkage {
    /// As a part of the crate's own archive. Not for large ones.
    Bundled,
    /// As a part of the program, which so runs where the library is not installed.
    Static,
    /// From the system that runs the program. For libraries whose archives no shared library can have.
    Shared,
}

/// A crate's C++ half.
#[derive(Debug, Clone, Copy)]
pub struct Half {
    /// The crate, for messages.
    pub of: &'static str,
    /// The cargo feature to disable, if something is missing.
    pub feature: &'static str,
    /// Name of the archive.
    pub archive: &'static str,
    /// Sources (`.cc`) and headers.
    pub sources: &'static [&'static str],
    /// Flags for the compiler beside the usual ones.
    pub flags: &'static [&'static str],
    /// Requirements that are checked before anything is compiled.
    pub needs: &'static [Needs],
    /// In the order in which they depend on each other.
    pub libraries: &'static [Library],
}

impl Half {
    /// Compiles it, with this crate's headers, and emits the directives that link it. Ends the process with a message
    /// if something is missing.
    pub fn build(&self) {
        for source in self.sources {
            println!("cargo:rerun-if-changed={source}");
        }
        println!("cargo:rerun-if-changed={HEADERS}/ferrite/border.h");
        let mut build = cc::Build::new();
        build
            .cpp(true)
            .std("c++17")
            .include(HEADERS)
            .files(self.sources.iter().filter(|source| source.ends_with(".cc")))
            .warnings(true);
        for flag in self.flags {
            build.flag(flag);
        }
        let compiler = match build.try_get_compiler() {
            Ok(compiler) if runs(compiler.to_command().arg("--version")) => compiler,
            Ok(compiler) => {
                let cause = format!("{} does not run", compiler.path().display());
                self.missing("a C++ compiler", "g++", &cause)
            }
            Err(error) => self.missing("a C++ compiler", "g++", &error.to_string()),
        };
        for needs in self.needs {
            let mut preprocess = compiler.to_command();
            preprocess.args(["-x", "c++", "-E", "-"]);
            if !accepts(preprocess, needs.text) {
                self.missing(needs.what, needs.package, needs.cause);
            }
        }
        if let Err(error) = build.try_compile(self.archive) {
            self.fail(&format!("the C++ half did not compile: {error}"));
        }
        for library in self.libraries {
            self.link(&compiler, library);
        }
        // Behind them, since they need it.
        println!("cargo:rustc-link-lib=stdc++");
    }

    fn link(&self, compiler: &cc::Tool, library: &Library) {
        let file = format!("lib{}.a", library.name);
        // A compiler that does not find it repeats the bare name.
        let found = compiler.to_command().arg(format!("-print-file-name={file}")).output();
        let path = found
            .ok()
            .map(|output| PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
        let dir = path
            .filter(|path| path.is_absolute())
            .and_then(|path| Some(path.parent()?.to_path_buf()));
        let Some(dir) = dir else {
            self.missing(
                &format!("the library {}", library.name),
                library.package,
                &format!("the compiler finds no {file}"),
            );
        };
        println!("cargo:rustc-link-search=native={}", dir.display());
        let kind = match library.linkage {
            Linkage::Bundled => "static",
            Linkage::Static => "static:-bundle",
            Linkage::Shared => "dylib",
        };
        println!("cargo:rustc-link-lib={kind}={}", library.name);
    }

    fn missing(&self, what: &str, package: &str, cause: &str) -> ! {
        self.fail(&format!(
            "{what} is missing ({cause}). Install the Debian package {package} (scripts/setup-debian.sh build installs \
             all), or build without the cargo feature `{}`",
            self.feature
        ))
    }

    fn fail(&self, message: &str) -> ! {
        eprintln!("{}: {message}.", self.of);
        exit(1)
    }
}

fn runs(command: &mut Command) -> bool {
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// Whether a compiler accepts this text.
fn accepts(mut command: Command, text: &str) -> bool {
    let child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut child) = child else { return false };
    // Dropped at once, so that the compiler sees the end.
    let written = child
        .stdin
        .take()
        .is_some_and(|mut input| input.write_all(text.as_bytes()).is_ok());
    child.wait().is_ok_and(|status| status.success()) && written
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Protects the check for headers: a header that a compiler rejects, or cannot be asked about, counts as missing.
    #[test]
    fn what_is_accepted_is_told_from_what_is_not() {
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        };
        assert!(accepts(shell("grep -q rocksdb"), "#include <rocksdb/db.h>\n"));
        assert!(!accepts(shell("grep -q leveldb"), "#include <rocksdb/db.h>\n"));
        assert!(!accepts(Command::new("/nonexistent/compiler"), "x"));
        assert!(runs(&mut shell("true")) && !runs(&mut shell("false")));
    }
}
