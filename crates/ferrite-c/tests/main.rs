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

/// Each function has a page, which is what the header says, and a formatter finds nothing wrong.
#[test]
fn each_function_has_a_manual_page() {
    let dir = tempfile::tempdir().unwrap();
    ran(Command::new(format!("{CRATE}/../../scripts/c-manual.py"))
        .arg("0.0")
        .arg(dir.path()));
    let header = header();
    let words = header.split(|c: char| !c.is_ascii_alphanumeric() && !"_(".contains(c));
    let functions: Vec<&str> = words
        .filter_map(|word| word.strip_prefix("ferrite_")?.split_once('('))
        .map(|(name, _)| name)
        .collect();
    assert!(functions.len() > 40, "{functions:?}");
    let formats = Command::new("groff").arg("--version").output().is_ok();
    for page in functions
        .iter()
        .map(|name| format!("ferrite_{name}"))
        .chain(["libferrite".into()])
    {
        let path = dir.path().join(format!("{page}.3"));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{page}: {error}"));
        assert!(text.contains(&format!(".SH NAME\n{page} \\- ")), "{page}");
        if formats {
            let said = ran(Command::new("groff").args(["-man", "-ww", "-Tutf8"]).arg(&path));
            assert!(
                said.stderr.is_empty(),
                "{page}: {}",
                String::from_utf8_lossy(&said.stderr)
            );
            let shown = String::from_utf8_lossy(&said.stdout);
            assert!(!shown.contains('`') && !shown.contains("**"), "{page}: {shown}");
        }
    }
    if !formats {
        eprintln!("SKIPPED: groff, which would format the pages, is not installed");
    }
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

/// Those that the library's features need.
fn further_libraries() -> Vec<String> {
    let named = std::env::var("FERRITE_C_LIBS").unwrap_or_default();
    named.split_whitespace().map(str::to_owned).collect()
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
        .args(further_libraries())
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

/// A server with one export, and its address.
fn serve() -> (Server, String) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp://{}/", listener.local_addr().unwrap());
    let export = ExportOptions::new("").root_squash(false);
    let engine = Arc::new(MemFs::new());
    let server = Server::start(vec![listener], vec![(engine, vec![export])], &ServerOptions::default()).unwrap();
    (server, address)
}

#[test]
fn every_function_and_its_errors_on_a_server() {
    let (_server, address) = serve();
    for compiler in compilers().into_iter().take(1) {
        let dir = scratch();
        let walk = compile(compiler, &PathBuf::from(format!("{CRATE}/tests/walk.c")), dir.path());
        ran(Command::new(walk).arg("open").arg(&address));
    }
}

/// A pool on two files in a folder, as its address; `None` without the program that makes one, or with a library that
/// knows none.
fn devices(dir: &Path) -> Option<String> {
    let program = std::env::var_os("FERRITE_BIN").filter(|_| !further_libraries().is_empty());
    let Some(program) = program else {
        eprintln!(
            "SKIPPED: pools on devices need FERRITE_BIN, FERRITE_C_LIBRARY and FERRITE_C_LIBS, as `make test` has"
        );
        return None;
    };
    ran(Command::new(program).current_dir(dir).args([
        "mkfs",
        "nvme:pool.toml",
        "--meta",
        "meta",
        "--data",
        "a.data",
        "--data",
        "b.data",
        "--size",
        "64M",
    ]));
    Some(format!("nvme:{}", dir.join("pool.toml").display()))
}

#[test]
fn every_function_and_its_errors_on_devices() {
    let dir = scratch();
    let Some(address) = devices(dir.path()) else { return };
    let walk = compile(
        compilers()[0],
        &PathBuf::from(format!("{CRATE}/tests/walk.c")),
        dir.path(),
    );
    ran(Command::new(walk).arg("open").arg(address));
}

/// fio's engine, built for the fio of this machine. `None` if that cannot be.
fn fio_engine(into: &Path) -> Option<PathBuf> {
    let script = format!("{CRATE}/../../scripts/fio-engine.sh");
    let said = Command::new(script).arg(library()).arg(into).output().unwrap();
    let errors = String::from_utf8_lossy(&said.stderr);
    if said.status.code() == Some(77) {
        eprintln!("SKIPPED: no engine of fio: {errors}");
        return None;
    }
    assert!(said.status.success() && errors.is_empty(), "{errors}");
    Some(into.join("libferrite-fio.so"))
}

/// fio reads what it wrote, alone and with transfers under way together, in two threads of one pool and on a server.
#[test]
fn fio_measures_pools_and_servers() {
    let dir = scratch();
    let Some(engine) = fio_engine(dir.path()) else { return };
    let pool = dir.path().join("pool");
    let hello = PathBuf::from(format!("{CRATE}/examples/hello.c"));
    ran(Command::new(compile(compilers()[0], &hello, dir.path())).arg(&pool));
    let (_server, address) = serve();
    let on_devices = devices(dir.path());
    let volumes = [Some(pool.to_str().unwrap()), Some(&address), on_devices.as_deref()];
    for volume in volumes.into_iter().flatten() {
        let job = |of: &[&str]| {
            let said = Command::new("fio")
                .arg(format!("--ioengine=external:{}", engine.display()))
                .arg(format!("--volume={volume}"))
                .args(["--size=1m", "--bs=4k", "--output-format=terse"])
                .args(of)
                .current_dir(dir.path())
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&said.stdout).into_owned();
            assert!(
                said.status.success(),
                "{volume} {of:?}: {text}{}",
                String::from_utf8_lossy(&said.stderr)
            );
            // KiB read and written, of each job.
            let fields = text.lines().map(|line| line.split(';').collect::<Vec<_>>());
            let jobs = fields.filter(|fields| fields.len() > 50);
            jobs.map(|fields| [5, 46].map(|at: usize| fields[at].parse().unwrap()))
                .collect::<Vec<[u64; 2]>>()
        };
        for depth in ["--iodepth=1", "--iodepth=16"] {
            let verified = job(&["--name=a", "--rw=randwrite", "--verify=crc32c", depth]);
            assert_eq!(verified, [[1024, 1024]], "{volume} {depth}");
            let two = job(&["--name=b", "--rw=read", "--numjobs=2", depth]);
            assert_eq!(two, [[1024, 0]; 2], "{volume} {depth}");
        }
        job(&["--name=c", "--rw=randtrim"]);
    }
    for (of, message) in [("--volume=/none", "/none: cannot open"), ("--rw=read", "volume= names")] {
        let said = Command::new("fio")
            .arg(format!("--ioengine=external:{}", engine.display()))
            .args(["--name=x", "--size=1m", of])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&said.stdout) + String::from_utf8_lossy(&said.stderr);
        assert!(!said.status.success() && text.contains(message), "{text}");
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
