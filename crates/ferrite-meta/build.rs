//! Compiles the C++ half (`src/rocksdb/border/*.cc`) and links RocksDB with its compression libraries: to programs
//! statically, so that they always run the version they were compiled against; to shared libraries dynamically. Without
//! the feature `rocksdb` there is nothing to build.

#[cfg(feature = "rocksdb")]
mod rocksdb {
    use ferrite_cxx::{Half, Library, Linkage, Needs};

    const HEADER: &str = "the header rocksdb/utilities/transaction_db.h";
    const PACKAGE: &str = "librocksdb-dev";

    const fn library(name: &'static str, package: &'static str) -> Library {
        Library {
            name,
            package,
            // Debian's archives have no position-independent code, which shared libraries need.
            linkage: match cfg!(feature = "in-shared-library") {
                true => Linkage::Shared,
                false => Linkage::Static,
            },
        }
    }

    pub(super) const HALF: Half = Half {
        of: "ferrite-meta",
        feature: "rocksdb",
        archive: "ferrite_meta_rocksdb",
        sources: &[
            "src/rocksdb/border/database.cc",
            "src/rocksdb/border/files.cc",
            "src/rocksdb/border/space.cc",
            "src/rocksdb/border/salvage.cc",
            "src/rocksdb/border/shim.h",
        ],
        flags: &[],
        needs: &[
            Needs {
                text: "#include <rocksdb/utilities/transaction_db.h>\n",
                what: HEADER,
                cause: "the compiler does not find it",
                package: PACKAGE,
            },
            Needs {
                text: "#include <rocksdb/version.h>\n#if ROCKSDB_MAJOR < 7\n#error too old\n#endif\n",
                what: HEADER,
                cause: "it is older than RocksDB 7",
                package: PACKAGE,
            },
        ],
        libraries: &[
            library("rocksdb", PACKAGE),
            library("snappy", "libsnappy-dev"),
            library("zstd", "libzstd-dev"),
            library("lz4", "liblz4-dev"),
            library("bz2", "libbz2-dev"),
            library("z", "zlib1g-dev"),
        ],
    };
}

fn main() {
    #[cfg(feature = "rocksdb")]
    rocksdb::HALF.build();
}
