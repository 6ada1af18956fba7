//! Compiles the C++ half (`src/shim.cc`) and links LevelDB, statically, so that the program runs where no LevelDB is
//! installed.
//!
//! What is missing on the machine is named with its Debian package, before a compiler's message could bury it.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio, exit};

const SOURCES: [&str; 2] = ["src/shim.cc", "src/shim.h"];

fn main() {
    for source in SOURCES {
        println!("cargo:rerun-if-changed={source}");
    }
    let mut build = cc::Build::new();
    // LevelDB's own makefiles leave type information out, Debian keeps it: this links with either.
    build
        .cpp(true)
        .std("c++17")
        .file(SOURCES[0])
        .flag("-fno-rtti")
        .warnings(true);
    let compiler = match build.try_get_compiler() {
        Ok(compiler) if runs(compiler.to_command().arg("--version")) => compiler,
        Ok(compiler) => missing(
            "a C++ compiler",
            "g++",
            &format!("{} does not run", compiler.path().display()),
        ),
        Err(error) => missing("a C++ compiler", "g++", &error.to_string()),
    };
    let mut preprocess = compiler.to_command();
    preprocess.args(["-x", "c++", "-E", "-"]);
    if !accepts(preprocess, "#include <leveldb/env.h>\n") {
        missing(
            "the header leveldb/env.h",
            "libleveldb-dev",
            "the compiler does not find it",
        );
    }
    if let Err(error) = build.try_compile("ferrite_leveldb_shim") {
        fail(&format!("the C++ half did not compile: {error}"));
    }
    for (library, package) in [("leveldb", "libleveldb-dev"), ("snappy", "libsnappy-dev")] {
        let file = format!("lib{library}.a");
        // A compiler that finds nothing repeats the bare name.
        let found = compiler.to_command().arg(format!("-print-file-name={file}")).output();
        let path = found
            .ok()
            .map(|output| PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
        let Some(dir) = path
            .filter(|path| path.is_absolute())
            .and_then(|path| Some(path.parent()?.to_path_buf()))
        else {
            missing(
                &format!("the library {library}"),
                package,
                &format!("the compiler finds no {file}"),
            );
        };
        println!("cargo:rustc-link-search=native={}", dir.display());
        println!("cargo:rustc-link-lib=static={library}");
    }
    // Behind them, since they need it.
    println!("cargo:rustc-link-lib=stdc++");
}

fn runs(command: &mut Command) -> bool {
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// Whether a compiler takes this text.
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

fn missing(what: &str, package: &str, cause: &str) -> ! {
    fail(&format!(
        "{what} is missing ({cause}). Install the Debian package {package} (scripts/setup-debian.sh build installs \
         all), or build \
         without the cargo feature `leveldb`"
    ))
}

fn fail(message: &str) -> ! {
    eprintln!("ferrite-leveldb: {message}.");
    exit(1)
}
