//! Compiles the C half of the feature `fabric` (`csrc/shim.c`) and links libfabric.

fn main() {
    println!("cargo:rerun-if-changed=csrc/shim.c");
    #[cfg(feature = "fabric")]
    fabric();
}

#[cfg(feature = "fabric")]
fn fabric() {
    let mut build = cc::Build::new();
    build.file("csrc/shim.c").std("c11").define("_GNU_SOURCE", None);
    if let Err(error) = build.warnings(true).try_compile("ferrite_fabric_shim") {
        eprintln!(
            "ferrite-fabric: libfabric 1.17 or later cannot be used: {error}. Install the Debian packages gcc and \
             libfabric-dev (scripts/setup-debian.sh build installs both), or build without the cargo feature `fabric`."
        );
        std::process::exit(1);
    }
    println!("cargo:rustc-link-lib=fabric");
}
