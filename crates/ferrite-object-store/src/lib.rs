//! Files of a Ferrite file system as an object store: [`FerriteStore`] implements the traits of the crate
//! [`object_store`], with which DataFusion, Delta Lake, Lance and others reach their data.
//!
//! ```
//! use ferrite_object_store::FerriteStore;
//! use object_store::{ObjectStore, ObjectStoreExt, path::Path};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> object_store::Result<()> {
//! let store = FerriteStore::new(ferrite::Fs::memory());
//! let place = Path::from("tables/orders/part-0.parquet");
//! store.put(&place, "content".into()).await?;
//! assert_eq!(store.get_range(&place, 0..4).await?, "cont");
//! # Ok(())
//! # }
//! ```
//!
//! Contents: `store` the [`ObjectStore`](object_store::ObjectStore) of this crate; `files` what it does with files,
//! blocking; `publish` the steps that make an object visible; `upload` and `multipart` uploads in parts; `list`
//! listings; `attributes` of objects; `failure` the errors.
//!
//! An object is a regular file, and its location is the file's path below the root of the store. Names are used as they
//! are. Files that others made are objects, too, unless their names are not UTF-8; directories are common prefixes, and
//! symbolic links are nothing. `a` and `a/b` cannot both be objects.
//!
//! *Invariant:* an object is visible as a whole or not at all, also after a crash: its content is written to a file in
//! [`RESERVED`], which then gets its name by a rename. A reader keeps the version that it opened.
//!
//! *Invariant:* conditional puts (`Create`, `Update`) are exact among all users of a store, whichever process they are
//! in: each change of an object holds a lock of the file system. Programs that change the files in other ways, on a
//! mount for example, do not take part.
//!
//! Any program may call this crate, from any `tokio` runtime or without one. Calls of the file system block, and run on
//! the runtime's threads for blocking work.
#![forbid(unsafe_code)]

mod attributes;
mod failure;
mod files;
mod list;
mod multipart;
mod publish;
mod store;
mod upload;

pub use files::RESERVED;
pub use store::FerriteStore;
