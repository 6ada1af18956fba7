use ferrite_fs::*; use ferrite_vfs::*; use ferrite_pm::Region;
fn img(e:&Region)->Vec<u8>{let mut v=vec![0;e.len() as usize]; e.read(0,&mut v); v}
#[test] fn smoke(){
 let r=Region::anonymous(32<<20).unwrap();
 mkfs(&r,&MkfsOptions{seed:Some(7),..Default::default()}).unwrap();
 let base=img(&r);
 let e=Engine::mount(Region::from_image(&base).unwrap(),&MountOptions::default()).unwrap();
 let c=Cred::root();
 let d=e.mkdir(&c,1,b"dir",0o755).unwrap();
 for i in 0..500{ let a=e.mknod(&c,d.ino,format!("f{i}").as_bytes(),&NewNode{kind:FileKind::File,mode:0o644,rdev:0}).unwrap();
  let f=e.open(a.ino,OpenMode::read_write()).unwrap(); let data:Vec<u8>=(0..i*37).map(|x|(x%251) as u8).collect(); assert_eq!(f.write_at(0,&data).unwrap(),data.len()); let mut b=vec![0;data.len()+10]; assert_eq!(f.read_at(0,&mut b).unwrap(),data.len()); assert_eq!(&b[..data.len()],&data[..]); }
 for i in (0..500).step_by(2){ e.unlink(d.ino,format!("f{i}").as_bytes()).unwrap(); }
 for i in (1..500).step_by(4){ e.rename(d.ino,format!("f{i}").as_bytes(),1,format!("g{i}").as_bytes(),RenameMode::Replace).unwrap(); }
 let mut n=0; e.readdir(d.ino,0,&mut |_|{n+=1;true}).unwrap(); assert_eq!(n,125);
 let a=e.lookup(1,b"g5").unwrap(); let f=e.open(a.ino,OpenMode::read_write()).unwrap();
 let big=vec![9u8;2<<20]; assert_eq!(f.write_at(100,&big).unwrap(),big.len());
 e.setattr(a.ino,&SetAttr{size:Some(5000),..Default::default()}).unwrap();
 assert_eq!(f.getattr().unwrap().size,5000);
 for k in 0..2000{ f.write_at(k%5000,&[k as u8;3]).unwrap(); }
 drop(f);
 println!("{:?}",e.statfs());
 e.unmount().unwrap();
 println!("{:#?}",e.info());
}
