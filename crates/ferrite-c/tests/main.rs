//! libferrite as programs in C use it: its header, its examples, and a walk through all functions and their errors, on
//! a pool in memory and on a server.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use ferrite_server::{ExportOptions, Server, ServerOptions};
use ferrite_vfs::memfs::MemFs;

const CRATE: &str = env!("CARGO_MANIFEST_DIR");
/// Libraries of the system that a static libferrite needs.
const SYSTEM: &[&str] = &["-lpthread", "-ldl", "-lm", "-lrt"];

/// The header, as the source says.
fn header() -> String {
    let config = cbindgen::Config::from_file(format!("{CRATE}/cbindgen.toml")).unwrap();
    let made = cbindgen::generate_with_config(CRATE, config).unwrap();
    let mut text = Vec::new();
    made.write(&mut text);
    String::from_utf8(text).unwrap()
}

#[test]
fn the_header_is_that_of_the_source() {
    let path = format!("{CRATE}/include/ferrite.h");
    let made = header();
    if std::env::var_os("FERRITE_UPDATE").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == made, "run `FERRITE_UPDATE=1 cargo test -p ferrite-c header`");
}

fn compilers() -> Vec<&'static str> {
    let works = |name: &&str| {
        Command::new(name)
            .arg("--version")
            .output()
            .is_ok_and(|said| said.status.success())
    };
    let found: Vec<_> = ["gcc", "clang"].into_iter().filter(works).collect();
    if found.len() < 2 {
        eprintln!("SKIPPED: of gcc and clang, only {found:?} can be run");
    }
    found
}

/// The static library. The one that cargo makes for this program has the features that other crates of the same build
/// ask for, and then needs their libraries of C++; so it is built alone, by the Makefile or here.
fn library() -> PathBuf {
    if let Some(path) = std::env::var_os("FERRITE_C_LIBRARY") {
        return path.into();
    }
    ran(Command::new(env!("CARGO"))
        .args(["build", "--quiet", "-p", "ferrite-c"])
        .current_dir(CRATE));
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
    deps.parent().unwrap().join("libferrite_c.a")
}

/// Compiles a program; returns its path.
fn compile(compiler: &str, source: &Path, into: &Path) -> PathBuf {
    let program = into.join(format!("{}-{compiler}", source.file_stem().unwrap().display()));
    let made = Command::new(compiler)
        .args([
            "-std=c11",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-pedantic",
            "-g",
            "-D_GNU_SOURCE",
        ])
        .arg(format!("-I{CRATE}/include"))
        .arg(source)
        .arg(library())
        .args(SYSTEM)
        .arg("-o")
        .arg(&program)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    program
}

fn ran(command: &mut Command) -> Output {
    let said = command.output().unwrap();
    assert!(
        said.status.success(),
        "{command:?}: {:?}\n{}{}",
        said.status,
        String::from_utf8_lossy(&said.stdout),
        String::from_utf8_lossy(&said.stderr)
    );
    said
}

fn scratch() -> tempfile::TempDir {
    tempfile::Builder::new()
        .prefix("ferrite-c-")
        .tempdir_in("/dev/shm")
        .unwrap()
}

#[test]
fn examples_do_what_they_say() {
    for compiler in compilers() {
        let dir = scratch();
        let pool = dir.path().join("pool");
        let example = |name: &str| {
            compile(
                compiler,
                &PathBuf::from(format!("{CRATE}/examples/{name}.c")),
                dir.path(),
            )
        };
        let hello = ran(Command::new(example("hello")).arg(&pool));
        assert_eq!(
            String::from_utf8_lossy(&hello.stdout),
            "each write is atomic and durable\n"
        );
        let threads = ran(Command::new(example("threads")).arg(&pool));
        assert_eq!(String::from_utf8_lossy(&threads.stdout), "8000 lines, each once\n");
        let queue = ran(Command::new(example("queue")).arg(&pool));
        assert_eq!(String::from_utf8_lossy(&queue.stdout), "1000 blocks are durable\n");
    }
}

/// README's program is the example.
#[test]
fn readme_has_the_example() {
    let readme = std::fs::read_to_string(format!("{CRATE}/../../README.md")).unwrap();
    let hello = std::fs::read_to_string(format!("{CRATE}/examples/hello.c")).unwrap();
    let body = hello.split_once("int main").unwrap().1;
    assert!(
        readme.contains(body.trim_end()),
        "README's program in C differs from examples/hello.c"
    );
}

#[test]
fn every_function_and_its_errors_on_a_pool() {
    for compiler in compilers() {
        let dir = scratch();
        let walk = compile(compiler, &PathBuf::from(format!("{CRATE}/tests/walk.c")), dir.path());
        ran(Command::new(walk).arg("create").arg(dir.path().join("pool")));
    }
}

#[test]
fn every_function_and_its_errors_on_a_server() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let export = ExportOptions::new("").root_squash(false);
    let engine = Arc::new(MemFs::new());
    let _server = Server::start(vec![listener], vec![(engine, vec![export])], &ServerOptions::default()).unwrap();
    for compiler in compilers().into_iter().take(1) {
        let dir = scratch();
        let walk = compile(compiler, &PathBuf::from(format!("{CRATE}/tests/walk.c")), dir.path());
        ran(Command::new(walk).arg("open").arg(format!("tcp://{address}/")));
    }
}

/// The shared library has its name, and its functions a version, so that later libraries can keep old programs
/// running.
#[test]
fn the_shared_library_has_a_soname_and_versions() {
    let dir = scratch();
    let script = format!("{CRATE}/../../scripts/c-library.sh");
    ran(Command::new(script).arg(library()).arg(dir.path()));
    let readelf = |option: &str| {
        let said = ran(Command::new("readelf")
            .args(["-W", option])
            .arg(dir.path().join("libferrite.so")));
        String::from_utf8_lossy(&said.stdout).into_owned()
    };
    assert!(readelf("-d").contains("SONAME") && readelf("-d").contains("[libferrite.so.0]"));
    let names = readelf("--dyn-syms");
    let functions: Vec<_> = names.lines().filter(|line| line.contains(" ferrite_")).collect();
    assert!(
        functions.len() > 40 && functions.iter().all(|line| line.contains("@@FERRITE_0.1")),
        "{functions:?}"
    );
    let own = names
        .lines()
        .filter(|line| line.contains(" GLOBAL ") && !line.contains(" UND "));
    let strange: Vec<_> = own
        .filter(|line| !line.contains("ferrite_") && !line.contains("FERRITE_0.1"))
        .collect();
    assert!(strange.is_empty(), "{strange:?}");
}
