//! Compiles the C half of the feature `fabric` (`csrc/shim.c`), which loads libfabric when it is used.
//!
//! The build names each missing dependency with its Debian package, before a compiler's message could bury it.

fn main() {
    println!("cargo:rerun-if-changed=csrc/shim.c");
    #[cfg(feature = "fabric")]
    fabric::build();
}

#[cfg(feature = "fabric")]
mod fabric {
    use std::path::PathBuf;
    use std::process::{Command, Stdio, exit};

    const SOURCE: &str = "csrc/shim.c";
    /// Compiles where the headers are present and of the version that the shim needs.
    const PROBE: &str = "#include <rdma/fabric.h>\n#if FI_VERSION_LT(FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION), \
        FI_VERSION(1, 17))\n#error too old\n#endif\n";

    pub(super) fn build() {
        let mut build = cc::Build::new();
        build.file(SOURCE).std("c11").define("_GNU_SOURCE", None).warnings(true);
        let compiler = match build.try_get_compiler() {
            Ok(compiler) if runs(compiler.to_command().arg("--version")) => compiler,
            Ok(compiler) => missing(
                "a C compiler",
                "gcc",
                &format!("{} does not run", compiler.path().display()),
            ),
            Err(error) => missing("a C compiler", "gcc", &error.to_string()),
        };
        let probe = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default()).join("probe.c");
        if let Err(error) = std::fs::write(&probe, PROBE) {
            fail(&format!("{} cannot be written: {error}", probe.display()));
        }
        if !runs(compiler.to_command().arg("-E").arg(&probe)) {
            let cause = "the compiler finds none of version 1.17 or later";
            missing("the header rdma/fabric.h", "libfabric-dev", cause);
        }
        if let Err(error) = build.try_compile("ferrite_fabric_shim") {
            fail(&format!("the C half did not compile: {error}"));
        }
    }

    fn runs(command: &mut Command) -> bool {
        let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    }

    fn missing(what: &str, package: &str, cause: &str) -> ! {
        fail(&format!(
            "{what} is missing ({cause}). Install the Debian package {package} (scripts/setup-debian.sh build installs \
             all), or build without the cargo feature `fabric` (--no-default-features)"
        ))
    }

    fn fail(message: &str) -> ! {
        eprintln!("ferrite-transport: {message}.");
        exit(1)
    }
}
