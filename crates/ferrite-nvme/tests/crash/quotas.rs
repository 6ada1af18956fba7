//! Power loss while quotas are set and removed.

use std::collections::HashSet;
use std::sync::Arc;

use ferrite_blob::device::{Device, Log, Recorder};
use ferrite_meta::MemoryRemote;
use ferrite_nvme::NvmeFs;
use ferrite_testkit::rng::{Rng, pattern};
use ferrite_vfs::{
    Cred, FileSystem, FsError, Ino, OpenFlags, QUOTA_XATTR, Quota, QuotaAttribute, ROOT_INO, SYSTEM, SetAttr,
    UserQuota, Vfs, XattrMode,
};

use super::{
    Backend, DEVICE_BYTES, DEVICES, RecordedRemote, Run, assemble, formatted, image, owned, set_quota, small_bytes_max,
    sound,
};

fn quota(engine: &NvmeFs, ino: Ino) -> Quota {
    Quota::parse(&engine.getxattr(SYSTEM, ino, QUOTA_XATTR).unwrap()).unwrap()
}

/// The owner of some files.
const USER: u32 = 5;

fn owner(uid: u32) -> SetAttr {
    SetAttr {
        uid: Some(uid),
        ..SetAttr::default()
    }
}

/// A tree with a quota, in which others are set and removed while power is lost.
struct QuotaTree {
    outer: Ino,
    between: Ino,
    dir: Ino,
    /// Of the outer one.
    whole: Quota,
}

fn record_quotas(act: impl FnOnce(&NvmeFs, Ino)) -> (Run, QuotaTree) {
    let log = Log::default();
    let batches = Arc::default();
    let meta = owned(RecordedRemote {
        database: MemoryRemote::new(),
        log: log.clone(),
        batches: Arc::clone(&batches),
    });
    let (mut bases, mut devices) = (Vec::new(), Vec::<Box<dyn Device>>::new());
    for number in 0..DEVICES {
        let device = formatted(number as u16, DEVICE_BYTES, false, (false, true));
        bases.push(device.image());
        devices.push(Box::new(Recorder::joining(device, &log)));
    }
    ferrite_nvme::format(&*meta, [7; 16], [9; 16], DEVICES as u16).unwrap();
    let engine = assemble(meta, devices, small_bytes_max(0)).unwrap();
    let mkdir = |parent, name: &[u8]| engine.mkdir(SYSTEM, parent, name, 0o755).unwrap().ino;
    let outer = mkdir(ROOT_INO, b"outer");
    let between = mkdir(outer, b"between");
    let dir = mkdir(between, b"dir");
    let vfs = Vfs::new(Arc::new(engine.clone()), Cred::root());
    let writing = OpenFlags {
        write: true,
        create: true,
        mode: 0o644,
        ..OpenFlags::default()
    };
    for n in 0..70usize {
        let path = format!("/outer/between/dir/{n}");
        let file = vfs.open(path.as_bytes(), &writing).unwrap();
        file.write_at(SYSTEM, 0, &pattern(1, 1 + n * 100)).unwrap();
        if n % 3 == 0 {
            let ino = engine.lookup(SYSTEM, dir, n.to_string().as_bytes()).unwrap().ino;
            engine.setattr(SYSTEM, ino, &owner(USER)).unwrap();
        }
    }
    mkdir(dir, b"sub");
    engine
        .setxattr(SYSTEM, dir, b"user.note", &pattern(2, 5000), XattrMode::Any)
        .unwrap();
    set_quota(&engine, outer, b"").unwrap();
    let whole = quota(&engine, outer);
    log.mark(0);
    act(&engine, dir);
    let run = Run {
        backend: Backend::Database,
        bases,
        log: log.take(),
        batches: batches.lock().clone(),
        trees: Vec::new(),
        ops: Vec::new(),
        tears: false,
        small_bytes_max: small_bytes_max(0),
    };
    let tree = QuotaTree {
        outer,
        between,
        dir,
        whole,
    };
    (run, tree)
}

/// Power is lost while a quota is set or removed: what encloses it still counts all, and the work can be done again.
#[test]
#[cfg_attr(feature = "seeded-bugs", ignore = "seeded bugs are the whole process's")]
fn quotas_that_are_set_while_power_is_lost() {
    let (run, tree) = record_quotas(|engine, dir| {
        set_quota(engine, dir, b"limit_inodes=100").unwrap();
        engine.removexattr(SYSTEM, dir, QUOTA_XATTR).unwrap();
    });
    let mut rng = Rng::new(1);
    let (mut images, mut roots) = (0, HashSet::new());
    for cut in 0..=run.log.len() {
        let Some((image, _)) = image(&run, cut, false, &mut rng) else {
            continue;
        };
        let what = format!("cut {cut}");
        let engine = image.open().unwrap();
        sound(&engine, &what);
        let used = |ino| {
            let quota = quota(&engine, ino);
            (quota.used_bytes, quota.used_inodes)
        };
        let all = (tree.whole.used_bytes, tree.whole.used_inodes);
        assert_eq!(used(tree.outer), all, "{what}");
        roots.insert(quota(&engine, tree.dir).root);
        if cut % 2 == 1 {
            // Another one comes in between, and finds the work half done.
            set_quota(&engine, tree.between, b"").unwrap();
        }
        set_quota(&engine, tree.dir, b"limit_inodes=100").unwrap();
        sound(&engine, &what);
        assert_eq!((used(tree.outer), used(tree.dir)), (all, (all.0, all.1 - 2)), "{what}");
        if cut % 2 == 1 {
            assert_eq!(used(tree.between), (all.0, all.1 - 1), "{what}");
        }
        engine.close().unwrap();
        drop(engine);
        let engine = image.open().unwrap();
        sound(&engine, &what);
        assert_eq!(quota(&engine, tree.outer), tree.whole, "{what}");
        images += 1;
    }
    assert!(images > 8, "{images} images");
    assert_eq!(roots.len(), 2);
}

/// Power is lost while users get quotas, own more, and lose them: the quotas are those of before or after, and count
/// what is there, which the check compares.
#[test]
#[cfg_attr(feature = "seeded-bugs", ignore = "seeded bugs are the whole process's")]
fn quotas_of_users_that_are_set_while_power_is_lost() {
    let name = |uid| QuotaAttribute::User(uid).name();
    let (run, tree) = record_quotas(|engine, dir| {
        let set = |uid, limits: &[u8]| engine.setxattr(SYSTEM, ROOT_INO, &name(uid), limits, XattrMode::Any);
        set(USER, b"limit_inodes=30").unwrap();
        let second = engine.lookup(SYSTEM, dir, b"1").unwrap().ino;
        engine.setattr(SYSTEM, second, &owner(USER)).unwrap();
        set(USER + 1, b"limit_bytes=100000").unwrap();
        engine.setattr(SYSTEM, second, &owner(USER + 1)).unwrap();
        engine.removexattr(SYSTEM, ROOT_INO, &name(USER)).unwrap();
    });
    let mut rng = Rng::new(1);
    let mut states = HashSet::new();
    for cut in 0..=run.log.len() {
        let Some((image, _)) = image(&run, cut, false, &mut rng) else {
            continue;
        };
        let what = format!("cut {cut}");
        let engine = image.open().unwrap();
        sound(&engine, &what);
        let found = |engine: &NvmeFs, uid| match engine.getxattr(SYSTEM, ROOT_INO, &name(uid)) {
            Ok(text) => UserQuota::parse(&text).map(|quota| quota.used_inodes),
            Err(FsError::NoAttribute) => None,
            Err(error) => panic!("{what}: {error}"),
        };
        let used = [USER, USER + 1].map(|uid| found(&engine, uid));
        states.insert(used);
        assert_eq!(quota(&engine, tree.outer), tree.whole, "{what}");
        engine.close().unwrap();
        drop(engine);
        let engine = image.open().unwrap();
        sound(&engine, &what);
        assert_eq!([USER, USER + 1].map(|uid| found(&engine, uid)), used, "{what}, closed");
    }
    let all = [
        [None, None],
        [Some(24), None],
        [Some(25), None],
        [Some(25), Some(0)],
        [Some(24), Some(1)],
        [None, Some(1)],
    ];
    assert_eq!(states, HashSet::from(all));
}
