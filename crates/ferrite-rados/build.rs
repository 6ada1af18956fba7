//! Links librados if the feature `librados` asks for it.
//!
//! The build names the Debian package if the library is missing, before a linker's message could bury it. Debian ships
//! no file for pkg-config.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "librados")]
    librados::link();
}

#[cfg(feature = "librados")]
mod librados {
    use std::path::Path;
    use std::process::{Command, exit};

    const LIBRARY: &str = "librados.so";

    pub(super) fn link() {
        // The compiler is also the linker; it prints the bare name of a file that it does not find.
        let output = Command::new("cc").arg(format!("-print-file-name={LIBRARY}")).output();
        let found = output.is_ok_and(|output| {
            let path = String::from_utf8_lossy(&output.stdout).into_owned();
            path.trim() != LIBRARY && Path::new(path.trim()).exists()
        });
        if !found {
            eprintln!(
                "ferrite-rados: the library {LIBRARY} is missing (cc does not find it). Install the Debian package \
                 librados-dev (scripts/setup-debian.sh test installs it), or build without the cargo feature `librados`."
            );
            exit(1)
        }
        println!("cargo:rustc-link-lib=dylib=rados");
    }
}
