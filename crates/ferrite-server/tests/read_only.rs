//! Clients and engines that are opened read-only refuse opens for writing.

use std::sync::Arc;

use crate::common::{connect, connect_read_only, export, make_pool, mount, serve};
use ferrite_fs::{Engine, MountOptions};
use ferrite_pm::{Access, Region};
use ferrite_server::ServerOptions;
use ferrite_testkit::posix;
use ferrite_vfs::memfs::MemFs;

/// Whether the client, or the engine behind the server, is opened for reading alone.
#[test]
fn what_is_opened_read_only_refuses_the_open() {
    let fs = Arc::new(MemFs::new());
    posix::read_only::prepare(&*fs);
    let (_server, address) = serve(fs, vec![export("")], &ServerOptions::default());
    posix::read_only::check(&connect_read_only(&address));

    let path = make_pool(32 << 20, 200);
    let engine = mount(&path);
    posix::read_only::prepare(&engine);
    engine.unmount().unwrap();
    drop(engine);
    let region = Region::open(&path, Access::ReadOnlyPrivate).unwrap();
    let engine = Engine::mount(region, &MountOptions::default().read_only(true)).unwrap();
    let (_server, address) = serve(Arc::new(engine), vec![export("")], &ServerOptions::default());
    posix::read_only::check(&connect(&address));
}
