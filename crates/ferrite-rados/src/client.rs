//! A connection to a cluster, its instance, and the blocklist.

use std::ffi::{CStr, CString};
use std::fmt;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::bounded::bounded;
use crate::error::{ENOENT, Error, Place, Result};
use crate::name::{NAME_BYTES_MAX, checked_name};
use crate::pool::Pool;
use crate::sys::{Cluster, Step};

/// The longest timeout that is accepted: beyond that, something that hangs looks like something that works.
const TIMEOUT_MAX: Duration = Duration::from_secs(3600);
/// The longest answer of a monitor that is copied.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// Attempts of librados to reach a monitor, each of the whole timeout (`MonClient::get_monmap_and_config`).
const CONNECT_ATTEMPTS: u64 = 10;

/// Options of a connection. Ceph counts timeouts in seconds: fractions are rounded up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// The longest that an operation on an object takes (`rados_osd_op_timeout`), 1 s to 1 h.
    pub object_timeout: Duration,
    /// The longest that a call of the monitors takes (`rados_mon_op_timeout`), 1 s to 1 h.
    pub monitor_timeout: Duration,
    /// The longest that [`Client::connect`] takes, 1 s to 1 h.
    pub connect_timeout: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            object_timeout: Duration::from_secs(30),
            monitor_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(30),
        }
    }
}

/// The space of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClusterSpace {
    /// All bytes.
    pub bytes: u64,
    /// Bytes that are free.
    pub free_bytes: u64,
}

/// A connection to a cluster. Clones share it. It is closed when the last clone and the last [`Pool`] are dropped.
#[derive(Clone)]
pub struct Client {
    cluster: Arc<Cluster>,
    place: Place,
    options: Options,
    instance: Instance,
}

impl Client {
    /// Connects as `name`, such as `client.ferrite`, to the cluster that the file `conf` describes. The file also says
    /// where the key is.
    ///
    /// Blocks up to the timeout for connecting.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`] without the file, [`Error::Invalid`] without a key, [`Error::TimedOut`] if no monitor
    /// answers, [`Error::Refused`].
    pub fn connect(conf: &Path, name: &str, options: Options) -> Result<Client> {
        Client::connect_with_key(conf, name, None, options)
    }

    /// The same with the key in the file `keyring`, if one is given.
    ///
    /// # Errors
    ///
    /// As for [`Self::connect`].
    pub fn connect_with_key(conf: &Path, name: &str, keyring: Option<&Path>, options: Options) -> Result<Client> {
        let place = Place::Cluster(conf.to_owned());
        let path = CString::new(conf.as_os_str().as_bytes())
            .map_err(|_| Error::invalid(&place, "the path of the configuration contains a zero byte"))?;
        let name = checked_name(&place, "client", name)?;
        let timeouts = [options.object_timeout, options.monitor_timeout, options.connect_timeout];
        if timeouts
            .iter()
            .any(|timeout| timeout.is_zero() || *timeout > TIMEOUT_MAX)
        {
            return Err(Error::invalid(
                &place,
                "timeouts are longer than zero, and at most one hour",
            ));
        }
        let mut settings = settings(&options);
        if let Some(keyring) = keyring {
            let path = keyring.to_str().filter(|path| !path.contains([',', ';', '\0']));
            let path = path.ok_or_else(|| {
                let why = format!(
                    "{}: Ceph takes no path of a keyring with such characters",
                    keyring.display()
                );
                Error::invalid(&place, why)
            })?;
            settings.push((c"keyring", path.to_owned()));
        }
        let no_key = format!(
            "no key of {} was found; name the file that has it as `keyring`, here or in this configuration",
            name.to_string_lossy()
        );
        let limit = options.connect_timeout;
        let connected = bounded(limit, move || {
            let cluster = Cluster::connect(&name, &path, &settings)?;
            let address = cluster.address().map_err(|returned| (Step::Connect, returned))?;
            Ok((cluster, address))
        });
        let timed_out = || Error::TimedOut {
            place: place.clone(),
            limit,
        };
        let (cluster, address) = connected
            .ok_or_else(timed_out)?
            .map_err(|(step, returned)| match step {
                Step::Configure => Error::invalid(&place, "this version of librados lacks one of the timeouts"),
                // The configuration was read before.
                Step::Connect if returned == -ENOENT => Error::invalid(&place, &*no_key),
                Step::Open | Step::Connect => Error::from_return(place.clone(), returned, limit),
            })?;
        let instance = address
            .parse()
            .map_err(|why| Error::invalid(&place, format!("librados names itself {address}: {why}")))?;
        Ok(Client {
            cluster: Arc::new(cluster),
            place,
            options,
            instance,
        })
    }

    /// The address by which another client puts this connection on the blocklist.
    pub fn instance(&self) -> &Instance {
        &self.instance
    }

    /// The number that the monitors gave to this connection. No other one of the cluster has it.
    pub fn id(&self) -> u64 {
        self.cluster.instance_id()
    }

    /// The options that it was opened with.
    pub fn options(&self) -> Options {
        self.options
    }

    /// A pool, in the default namespace. Blocks up to the timeout for monitors.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`], [`Error::TimedOut`], [`Error::Blocklisted`], [`Error::Refused`].
    pub fn pool(&self, name: &str) -> Result<Pool> {
        self.pool_in(name, "")
    }

    /// A pool, in `namespace`. Blocks up to the timeout for monitors.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`], [`Error::TimedOut`], [`Error::Blocklisted`], [`Error::Refused`].
    pub fn pool_in(&self, name: &str, namespace: &str) -> Result<Pool> {
        let place = Place::Pool(name.to_owned());
        let c_name = checked_name(&place, "pool", name)?;
        let c_namespace = match namespace {
            // "\u{1}" alone means all of them to librados, and lists only.
            _ if namespace.contains('\u{1}') || namespace.len() > NAME_BYTES_MAX => None,
            namespace => CString::new(namespace).ok(),
        };
        let c_namespace = c_namespace.ok_or_else(|| {
            Error::invalid(
                &place,
                format!("a namespace has at most {NAME_BYTES_MAX} bytes, and no control characters"),
            )
        })?;
        let cluster = self.cluster.clone();
        let context = self.on_monitors(&place, move || cluster.pool(&c_name, &c_namespace))?;
        let timeouts = [self.options.object_timeout, self.options.monitor_timeout];
        Ok(Pool::new(context, name, namespace, timeouts))
    }

    /// Fences another connection: after this returned, all operations fail that it sends to objects which this one has
    /// used since, and soon all the rest. The order is that of [RBD's exclusive locks][rbd]: the monitors record it
    /// durably, and then this connection learns that version of the map. An OSD that gets an operation from here learns
    /// it too, before it carries the operation out.
    ///
    /// So read or write an object before trusting that its content is final. The record is dropped after `expires`,
    /// one second to 10 years: longer than any process of the fenced client lives. Blocks up to the timeout for
    /// monitors.
    ///
    /// [rbd]: https://docs.ceph.com/en/pacific/rbd/rbd-exclusive-locks/
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`]: call it again. [`Error::Refused`] if this client may not do that: it needs the capability
    /// `allow command "osd blocklist"` on the monitors.
    pub fn blocklist(&self, other: &Instance, expires: Duration) -> Result<()> {
        let seconds = whole_seconds(expires);
        let seconds = u32::try_from(seconds)
            .ok()
            .filter(|seconds| (1..=315_360_000).contains(seconds));
        let seconds =
            seconds.ok_or_else(|| Error::invalid(&self.place, "a blocklist entry lasts one second to 10 years"))?;
        let address = CString::new(other.0.as_str())
            .map_err(|_| Error::invalid(&self.place, "the address of an instance contains a zero byte"))?;
        let cluster = self.cluster.clone();
        self.on_monitors(&self.place, move || {
            cluster.blocklist(address, seconds)?;
            cluster.wait_for_latest_map()
        })
    }

    /// Learns the newest version of the map. After this returned, an OSD that gets an operation from here knows all
    /// entries of the blocklist that were made before. Blocks up to the timeout for monitors.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`], [`Error::Blocklisted`], [`Error::Refused`].
    pub fn wait_for_latest_map(&self) -> Result<()> {
        let cluster = self.cluster.clone();
        self.on_monitors(&self.place, move || cluster.wait_for_latest_map())
    }

    /// The space of all OSDs, before replication, as the manager counted it some seconds ago. Without a manager all is
    /// zero. Blocks up to the timeout for monitors.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`], [`Error::Blocklisted`], [`Error::Refused`].
    pub fn space(&self) -> Result<ClusterSpace> {
        let cluster = self.cluster.clone();
        let (bytes, free_bytes) = self.on_monitors(&self.place, move || cluster.space())?;
        Ok(ClusterSpace { bytes, free_bytes })
    }

    /// Sends the monitors a command, in the JSON that `ceph` sends; returns what they answer, at most 16 MiB. Blocks up
    /// to the timeout for monitors.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`], [`Error::Blocklisted`], [`Error::NotFound`]; [`Error::Refused`], also if this client may
    /// not send it ([`Error::is_denied`]).
    pub fn monitor_command(&self, command: &str) -> Result<Vec<u8>> {
        let command = CString::new(command)
            .map_err(|_| Error::invalid(&self.place, "a command of the monitors contains no zero byte"))?;
        let cluster = self.cluster.clone();
        self.on_monitors(&self.place, move || cluster.monitor_command(&command, ANSWER_BYTES_MAX))
    }

    fn on_monitors<T: Send + 'static>(
        &self,
        place: &Place,
        call: impl FnOnce() -> std::result::Result<T, i32> + Send + 'static,
    ) -> Result<T> {
        let limit = self.options.monitor_timeout;
        match bounded(limit, call) {
            Some(Ok(value)) => Ok(value),
            Some(Err(returned)) => Err(Error::from_return(place.clone(), returned, limit)),
            None => Err(Error::TimedOut {
                place: place.clone(),
                limit,
            }),
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("instance", &self.instance)
            .finish_non_exhaustive()
    }
}

/// One connection of a client, by its address: `127.0.0.1:0/2224595127`. No two connections have the same.
///
/// Parsing accepts nothing that would fence more than one connection: Ceph takes a number of zero for all of a host.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Instance(String);

impl fmt::Display for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Instance {
    type Err = &'static str;

    fn from_str(text: &str) -> std::result::Result<Instance, &'static str> {
        // Newer protocols are named in front of the address.
        let bare = ["v1:", "v2:", "any:"]
            .iter()
            .find_map(|kind| text.strip_prefix(kind))
            .unwrap_or(text);
        let (address, number) = bare.split_once('/').ok_or("it has the form ADDRESS:PORT/NUMBER")?;
        address
            .parse::<SocketAddr>()
            .map_err(|_| "its address is not one of IP")?;
        let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
        match number.parse::<u32>() {
            Ok(0) | Err(_) => Err("the number behind the slash is 1 to 4294967295"),
            Ok(_) if !is_number => Err("the number behind the slash has digits only"),
            Ok(_) => Ok(Instance(text.to_owned())),
        }
    }
}

/// The values of librados' options.
///
/// A client learns of an OSD's new address only from a map, and asks for one only at a tick that finds an operation
/// which waits for long: by default, every 5 s and after 10 s (`Objecter::tick`). An operation with a shorter timeout
/// would never be found, and its successors would fail for ever after all OSDs had restarted.
fn settings(options: &Options) -> Vec<(&'static CStr, String)> {
    let object_seconds = whole_seconds(options.object_timeout);
    let connect_seconds = whole_seconds(options.connect_timeout).div_ceil(CONNECT_ATTEMPTS);
    let part = |of: f64, most: f64| format!("{:.3}", (object_seconds as f64 / of).min(most));
    vec![
        (c"rados_osd_op_timeout", object_seconds.to_string()),
        (
            c"rados_mon_op_timeout",
            whole_seconds(options.monitor_timeout).to_string(),
        ),
        (c"client_mount_timeout", connect_seconds.to_string()),
        (c"objecter_timeout", part(4.0, 5.0)),
        (c"objecter_tick_interval", part(8.0, 2.0)),
        // Nobody asks it anything. Clients of one name on one machine have the same socket, and one that finds it waits
        // ten seconds for its holder, which may be the very owner that hangs.
        (c"admin_socket", String::new()),
    ]
}

/// Rounded up.
fn whole_seconds(time: Duration) -> u64 {
    time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_is_one_connection() {
        for good in ["127.0.0.1:0/2224595127", "v2:10.0.0.1:3300/1", "[fd00::1]:0/4294967295"] {
            assert_eq!(good.parse::<Instance>().unwrap().to_string(), good);
        }
        for bad in [
            "",
            "10.0.0.1",
            "10.0.0.1:0",
            "10.0.0.1:0/",
            "10.0.0.1:0/0",
            "10.0.0.1:0/+5",
            "10.0.0.1:0/4294967296",
            "10.0.0.0/8",
            "host:0/1",
            "10.0.0.1:0/1 x",
        ] {
            assert!(bad.parse::<Instance>().is_err(), "{bad}");
        }
    }

    #[test]
    fn seconds_are_rounded_up() {
        let rounded = [0, 1, 999, 1000, 1001].map(|ms| whole_seconds(Duration::from_millis(ms)));
        assert_eq!(rounded, [0, 1, 1, 1, 2]);
    }
}
