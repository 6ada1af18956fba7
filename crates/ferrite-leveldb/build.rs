//! Compiles the C++ half (`src/shim.cc`) and links LevelDB, statically, so that the program runs where no LevelDB is
//! installed.

use ferrite_cxx::{Half, Library, Linkage, Needs};

const fn library(name: &'static str, package: &'static str) -> Library {
    Library {
        name,
        package,
        linkage: Linkage::Bundled,
    }
}

const HALF: Half = Half {
    of: "ferrite-leveldb",
    feature: "leveldb",
    archive: "ferrite_leveldb_shim",
    sources: &["src/shim.cc", "src/shim.h"],
    // LevelDB's own makefiles leave type information out, Debian keeps it: this links with either.
    flags: &["-fno-rtti"],
    needs: &[Needs {
        text: "#include <leveldb/env.h>\n",
        what: "the header leveldb/env.h",
        cause: "the compiler does not find it",
        package: "libleveldb-dev",
    }],
    libraries: &[library("leveldb", "libleveldb-dev"), library("snappy", "libsnappy-dev")],
};

fn main() {
    HALF.build();
}
