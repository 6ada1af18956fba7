//! Socket calls that safe Rust does not offer: many datagrams per call, and the options of RoCE.
//!
//! Contents: all `unsafe` of this crate. [`ReceiveBatch`] and [`SendBatch`] own the memory that the kernel reads and
//! writes; pointers to it exist during a call only.
//!
//! Invariants: the kernel never gets a pointer that outlives its call, nor a length beyond the memory behind it.
//! Lengths that it reports are clipped to the buffer before use.
#![allow(unsafe_code)]

use std::io;
use std::mem::{MaybeUninit, size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use ferrite_roce::wire::icrc::Flow;

/// Most datagrams per call.
pub(crate) const BATCH: usize = 32;
/// For a call that is expected to find or send few: the structures that describe a datagram to the kernel are cleared
/// for each call, and for a whole batch that takes longer than a call that finds nothing. A single datagram has a call
/// of its own, which takes some tenths of a microsecond less: it does not look for a second one, and most polls find
/// none at all.
const FEW: usize = 2;
/// Buffer for a datagram: a path MTU of 4096, all headers, and some more, to detect datagrams that are too long.
const BUF_BYTES: usize = 4096 + 256;
/// Words of buffer for a datagram's control data: the larger kind of `pktinfo`, with its head.
const CONTROL_WORDS: usize = 8;

/// `UDP_NO_CHECK6_RX` of linux/udp.h.
const UDP_NO_CHECK6_RX: libc::c_int = 102;

/// Datagrams that arrived.
#[derive(Debug)]
pub(crate) struct ReceiveBatch {
    buf: Vec<u8>,
    /// Of each datagram: its sender, its destination if known, its length.
    got: Vec<(SocketAddr, Option<IpAddr>, usize)>,
    /// Number of datagrams that the last call found.
    found: usize,
}

impl ReceiveBatch {
    pub(crate) fn new() -> ReceiveBatch {
        ReceiveBatch {
            buf: vec![0; BATCH * BUF_BYTES],
            got: Vec::with_capacity(BATCH),
            found: 0,
        }
    }

    /// Receives waiting datagrams without blocking; returns how many. More may be waiting. The previous ones are
    /// dropped. Those that were too long or of an unknown family come as empty.
    pub(crate) fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        match self.found {
            0 => self.receive_up_to::<1>(socket),
            found if found < FEW => self.receive_up_to::<FEW>(socket),
            _ => self.receive_up_to::<BATCH>(socket),
        }
    }

    fn receive_up_to<const N: usize>(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        self.got.clear();
        self.found = 0;
        // SAFETY: all fields of these are integers and pointers, for which zeros are values.
        let mut headers: [libc::mmsghdr; N] = unsafe { zeroed() };
        // SAFETY: as above.
        let mut iovecs: [libc::iovec; N] = unsafe { zeroed() };
        let mut names = [const { MaybeUninit::<libc::sockaddr_storage>::zeroed() }; N];
        let mut controls = [[0_u64; CONTROL_WORDS]; N];
        for (index, buf) in self.buf.chunks_exact_mut(BUF_BYTES).enumerate().take(N) {
            iovecs[index].iov_base = buf.as_mut_ptr().cast();
            iovecs[index].iov_len = BUF_BYTES;
            let header = &mut headers[index].msg_hdr;
            header.msg_iov = &raw mut iovecs[index];
            header.msg_iovlen = 1;
            header.msg_name = names[index].as_mut_ptr().cast();
            header.msg_namelen = size_of::<libc::sockaddr_storage>() as u32;
            header.msg_control = controls[index].as_mut_ptr().cast();
            header.msg_controllen = size_of_val(&controls[index]) as _;
        }
        let (descriptor, first) = (socket.as_raw_fd(), headers.as_mut_ptr());
        let count = match N {
            1 => {
                // SAFETY: the header, and what it points to, live until the end of this function, with the lengths it
                // gives.
                let len = unsafe { libc::recvmsg(descriptor, &raw mut (*first).msg_hdr, libc::MSG_DONTWAIT) };
                headers[0].msg_len = len.max(0) as u32;
                if len < 0 { -1 } else { 1 }
            }
            // SAFETY: as above.
            _ => unsafe { libc::recvmmsg(descriptor, first, N as u32, libc::MSG_DONTWAIT, ptr::null_mut()) },
        };
        if count < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(0),
                _ => Err(error),
            };
        }
        self.found = count as usize;
        for (index, header) in headers.iter().take(count as usize).enumerate() {
            let is_cut = header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
            let source = address_of(&names[index]);
            let local = local_of(&header.msg_hdr);
            let (source, len) = match source {
                Some(source) if !is_cut => (source, (header.msg_len as usize).min(BUF_BYTES)),
                // Not a packet: it keeps its place, empty, and is counted as malformed.
                source => (source.unwrap_or(NOWHERE), 0),
            };
            self.got.push((source, local, len));
        }
        Ok(self.got.len())
    }

    /// One of the received datagrams: its sender, its destination if known, its bytes.
    pub(crate) fn get(&self, index: usize) -> (SocketAddr, Option<IpAddr>, &[u8]) {
        let (source, local, len) = self.got[index];
        (source, local, &self.buf[index * BUF_BYTES..][..len])
    }
}

/// The address of a sender that has none.
const NOWHERE: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));

fn address_of(name: &MaybeUninit<libc::sockaddr_storage>) -> Option<SocketAddr> {
    // SAFETY: it was zeroed, and any bytes are a value of it.
    let storage = unsafe { name.assume_init_ref() };
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the storage is large enough and aligned for all kinds of addresses, and any bytes are a value.
            let name = unsafe { &*ptr::from_ref(storage).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(name.sin_addr.s_addr));
            Some(SocketAddr::new(ip.into(), u16::from_be(name.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let name = unsafe { &*ptr::from_ref(storage).cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(name.sin6_addr.s6_addr);
            let port = u16::from_be(name.sin6_port);
            Some(SocketAddrV6::new(ip, port, 0, name.sin6_scope_id).into())
        }
        _ => None,
    }
}

/// The address that a datagram was sent to, if the kernel reports it.
fn local_of(header: &libc::msghdr) -> Option<IpAddr> {
    // SAFETY: the kernel has filled `msg_controllen` bytes behind `msg_control`, which are still valid.
    let mut control = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !control.is_null() {
        // SAFETY: the macro that returned it guarantees a whole header within the control bytes.
        let head = unsafe { &*control };
        // SAFETY: as above; its data follow it.
        let data = unsafe { libc::CMSG_DATA(control) };
        match (head.cmsg_level, head.cmsg_type) {
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                // SAFETY: the kernel puts a whole `in_pktinfo` behind this kind of header. It may not be aligned.
                let info = unsafe { data.cast::<libc::in_pktinfo>().read_unaligned() };
                return Some(Ipv4Addr::from(u32::from_be(info.ipi_addr.s_addr)).into());
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                // SAFETY: as above.
                let info = unsafe { data.cast::<libc::in6_pktinfo>().read_unaligned() };
                return Some(Ipv6Addr::from(info.ipi6_addr.s6_addr).into());
            }
            _ => {}
        }
        // SAFETY: both belong to one message, whose control bytes are still valid.
        control = unsafe { libc::CMSG_NXTHDR(header, control) };
    }
    None
}

/// Datagrams to be sent.
#[derive(Debug)]
pub(crate) struct SendBatch {
    datagrams: Vec<Vec<u8>>,
    flows: Vec<Flow>,
    /// How many of them have left.
    sent: usize,
}

impl SendBatch {
    pub(crate) fn new() -> SendBatch {
        SendBatch {
            datagrams: (0..BATCH).map(|_| Vec::with_capacity(BUF_BYTES)).collect(),
            flows: Vec::with_capacity(BATCH),
            sent: 0,
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.flows.len() == BATCH
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// Takes a datagram in exchange for a buffer for the next one. There must be space.
    pub(crate) fn push(&mut self, flow: Flow, datagram: &mut Vec<u8>) {
        std::mem::swap(&mut self.datagrams[self.flows.len()], datagram);
        self.flows.push(flow);
    }

    /// Sends as many as the socket accepts; returns how many left. The others stay queued. With `names_source`, each
    /// leaves from the address in its flow, though the socket has none. With `is_connected` the socket knows the
    /// destination.
    ///
    /// # Errors
    /// The error of the next datagram, which is dropped.
    pub(crate) fn send(&mut self, socket: BorrowedFd<'_>, names_source: bool, is_connected: bool) -> io::Result<usize> {
        match self.flows.len() - self.sent {
            0 => {
                self.clear();
                Ok(0)
            }
            1 => self.send_up_to::<1>(socket, names_source, is_connected),
            2..=FEW => self.send_up_to::<FEW>(socket, names_source, is_connected),
            _ => self.send_up_to::<BATCH>(socket, names_source, is_connected),
        }
    }

    fn send_up_to<const N: usize>(
        &mut self,
        socket: BorrowedFd<'_>,
        names_source: bool,
        is_connected: bool,
    ) -> io::Result<usize> {
        // SAFETY: all fields of these are integers and pointers, for which zeros are values.
        let mut headers: [libc::mmsghdr; N] = unsafe { zeroed() };
        // SAFETY: as above.
        let mut bytes: [libc::iovec; N] = unsafe { zeroed() };
        let mut names = [const { MaybeUninit::<libc::sockaddr_storage>::zeroed() }; N];
        let mut controls = [[0_u64; CONTROL_WORDS]; N];
        let count = (self.flows.len() - self.sent).min(N);
        for index in 0..count {
            let flow = &self.flows[self.sent + index];
            let datagram = &self.datagrams[self.sent + index];
            // The kernel does not write to the bytes it sends.
            bytes[index].iov_base = datagram.as_ptr().cast_mut().cast();
            bytes[index].iov_len = datagram.len();
            let header = &mut headers[index].msg_hdr;
            header.msg_iov = &raw mut bytes[index];
            header.msg_iovlen = 1;
            if !is_connected {
                header.msg_namelen = put_address(&mut names[index], &flow.destination);
                header.msg_name = names[index].as_mut_ptr().cast();
            }
            if names_source {
                header.msg_control = controls[index].as_mut_ptr().cast();
                header.msg_controllen = size_of_val(&controls[index]) as _;
                header.msg_controllen = put_source(header, flow.source.ip()) as _;
            }
        }
        let (descriptor, first) = (socket.as_raw_fd(), headers.as_mut_ptr());
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let sent = match count {
            // SAFETY: the header, and what it points to, live until the end of this function, with the lengths it
            // gives.
            1 => match unsafe { libc::sendmsg(descriptor, &raw const (*first).msg_hdr, flags) } {
                ..0 => -1,
                _ => 1,
            },
            // SAFETY: as above, for `count` headers.
            _ => unsafe { libc::sendmmsg(descriptor, first, count as u32, flags) },
        };
        if sent < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(0),
                _ => {
                    self.advance(1);
                    Err(error)
                }
            };
        }
        self.advance(sent as usize);
        Ok(sent as usize)
    }

    fn advance(&mut self, count: usize) {
        self.sent += count;
        if self.sent >= self.flows.len() {
            self.clear();
        }
    }

    fn clear(&mut self) {
        self.flows.clear();
        self.sent = 0;
    }
}

fn put_address(name: &mut MaybeUninit<libc::sockaddr_storage>, address: &SocketAddr) -> u32 {
    match address {
        SocketAddr::V4(address) => {
            // SAFETY: the storage is zeroed, large enough and aligned for all kinds of addresses.
            let name = unsafe { &mut *name.as_mut_ptr().cast::<libc::sockaddr_in>() };
            name.sin_family = libc::AF_INET as u16;
            name.sin_port = address.port().to_be();
            name.sin_addr.s_addr = u32::from(*address.ip()).to_be();
            size_of::<libc::sockaddr_in>() as u32
        }
        SocketAddr::V6(address) => {
            // SAFETY: as above.
            let name = unsafe { &mut *name.as_mut_ptr().cast::<libc::sockaddr_in6>() };
            name.sin6_family = libc::AF_INET6 as u16;
            name.sin6_port = address.port().to_be();
            name.sin6_addr.s6_addr = address.ip().octets();
            name.sin6_scope_id = address.scope_id();
            size_of::<libc::sockaddr_in6>() as u32
        }
    }
}

/// Puts the source address of a message into its control bytes; returns how many of them are used.
fn put_source(header: &libc::msghdr, source: IpAddr) -> usize {
    // SAFETY: `msg_control` has space for a header and the larger kind of data, aligned as words.
    let control = unsafe { libc::CMSG_FIRSTHDR(header) };
    if control.is_null() {
        return 0;
    }
    // SAFETY: as above.
    let (head, data) = unsafe { (&mut *control, libc::CMSG_DATA(control)) };
    match source {
        IpAddr::V4(source) => {
            let info = libc::in_pktinfo {
                ipi_ifindex: 0,
                ipi_spec_dst: libc::in_addr {
                    s_addr: u32::from(source).to_be(),
                },
                ipi_addr: libc::in_addr { s_addr: 0 },
            };
            (head.cmsg_level, head.cmsg_type) = (libc::IPPROTO_IP, libc::IP_PKTINFO);
            // SAFETY: there is space for it behind the header.
            unsafe { data.cast::<libc::in_pktinfo>().write_unaligned(info) };
            finish_control(head, size_of::<libc::in_pktinfo>())
        }
        IpAddr::V6(source) => {
            let info = libc::in6_pktinfo {
                ipi6_addr: libc::in6_addr {
                    s6_addr: source.octets(),
                },
                ipi6_ifindex: 0,
            };
            (head.cmsg_level, head.cmsg_type) = (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO);
            // SAFETY: there is space for it behind the header.
            unsafe { data.cast::<libc::in6_pktinfo>().write_unaligned(info) };
            finish_control(head, size_of::<libc::in6_pktinfo>())
        }
    }
}

fn finish_control(head: &mut libc::cmsghdr, data_bytes: usize) -> usize {
    // SAFETY: these only compute lengths.
    let (len, space) = unsafe { (libc::CMSG_LEN(data_bytes as u32), libc::CMSG_SPACE(data_bytes as u32)) };
    head.cmsg_len = len as _;
    space as usize
}

/// Sets an option that is a number.
fn set(socket: BorrowedFd<'_>, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
    // SAFETY: the value is a local variable of the given length.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as u32,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Sets up a socket for RoCE: no fragments, so that the identification of IPv4 is 0; and it accepts the datagrams of
/// adapters, whose UDP checksum on IPv6 is 0.
pub(crate) fn as_roce(socket: BorrowedFd<'_>, is_ipv4: bool, tells_local: bool) -> io::Result<()> {
    if is_ipv4 {
        set(socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)?;
        if tells_local {
            set(socket, libc::IPPROTO_IP, libc::IP_PKTINFO, 1)?;
        }
    } else {
        set(
            socket,
            libc::IPPROTO_IPV6,
            libc::IPV6_MTU_DISCOVER,
            libc::IPV6_PMTUDISC_DO,
        )?;
        set(socket, libc::IPPROTO_UDP, UDP_NO_CHECK6_RX, 1)?;
        if tells_local {
            set(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)?;
        }
    }
    Ok(())
}

/// Distributes datagrams over the sockets of a group: each gets those whose destination queue pair, modulo `count`, is
/// its index. Set on one socket, it holds for all.
pub(crate) fn divide_by_queue_pair(socket: BorrowedFd<'_>, count: u32) -> io::Result<()> {
    const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
    const MODULO: u16 = (libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_A) as u16;
    let step = |code, k| libc::sock_filter { code, jt: 0, jf: 0, k };
    // The program sees the UDP payload. The base header has the queue pair in bytes 5 to 7.
    let mut steps = [
        step(LOAD_WORD, 4),
        step(AND, 0xff_ffff),
        step(MODULO, count),
        step(RETURN, 0),
    ];
    let program = libc::sock_fprog {
        len: steps.len() as u16,
        filter: steps.as_mut_ptr(),
    };
    // SAFETY: the program and its steps live during the call, and the lengths are theirs.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as u32,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Largest packet that the path to the socket's peer takes, IP header included.
pub(crate) fn path_bytes(socket: BorrowedFd<'_>, is_ipv4: bool) -> io::Result<u32> {
    let (level, name) = if is_ipv4 {
        (libc::IPPROTO_IP, libc::IP_MTU)
    } else {
        (libc::IPPROTO_IPV6, libc::IPV6_MTU)
    };
    let mut value: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as u32;
    // SAFETY: both are local variables, and the length is that of the value.
    let result = unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut len) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(value.max(0) as u32)
}
