//! The opcodes of requests, by their numbers and names in the kernel's `linux/fuse.h`.

/// All numbers are below this.
pub(crate) const OPCODES: usize = 64;

macro_rules! opcodes {
    ($($constant:ident = $number:literal, $name:literal;)*) => {
        $(pub(crate) const $constant: u32 = $number;)*

        /// The name of an opcode, in lower case.
        pub(crate) const fn name_of(opcode: u32) -> Option<&'static str> {
            match opcode {
                $($number => Some($name),)*
                _ => None,
            }
        }
    };
}

opcodes! {
    LOOKUP = 1, "lookup";
    FORGET = 2, "forget";
    GETATTR = 3, "getattr";
    SETATTR = 4, "setattr";
    READLINK = 5, "readlink";
    SYMLINK = 6, "symlink";
    MKNOD = 8, "mknod";
    MKDIR = 9, "mkdir";
    UNLINK = 10, "unlink";
    RMDIR = 11, "rmdir";
    RENAME = 12, "rename";
    LINK = 13, "link";
    OPEN = 14, "open";
    READ = 15, "read";
    WRITE = 16, "write";
    STATFS = 17, "statfs";
    RELEASE = 18, "release";
    FSYNC = 20, "fsync";
    SETXATTR = 21, "setxattr";
    GETXATTR = 22, "getxattr";
    LISTXATTR = 23, "listxattr";
    REMOVEXATTR = 24, "removexattr";
    FLUSH = 25, "flush";
    OPENDIR = 27, "opendir";
    READDIR = 28, "readdir";
    RELEASEDIR = 29, "releasedir";
    FSYNCDIR = 30, "fsyncdir";
    GETLK = 31, "getlk";
    SETLK = 32, "setlk";
    SETLKW = 33, "setlkw";
    CREATE = 35, "create";
    INTERRUPT = 36, "interrupt";
    IOCTL = 39, "ioctl";
    BATCH_FORGET = 42, "batch_forget";
    FALLOCATE = 43, "fallocate";
    READDIRPLUS = 44, "readdirplus";
    RENAME2 = 45, "rename2";
    LSEEK = 46, "lseek";
    COPY_FILE_RANGE = 47, "copy_file_range";
    TMPFILE = 51, "tmpfile";
    STATX = 52, "statx";
}
