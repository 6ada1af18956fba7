//! Shards in PostgreSQL.
//!
//! Contents: [`PostgresRemote`], over the tables of `sql`, by connections of `session`, which `tls` encrypts; the look
//! of a server that stands by, in `tenancy`; `examination`, for administrators.
//!
//! A commit counts as durable when the server says so without reservation: the session has `synchronous_commit` on, and
//! the guard of each batch refuses a server without `fsync`. With `synchronous_standby_names`, that includes the
//! standby. The outcome is unknown if the server does not answer in time, ends the connection, or answers with a
//! warning: a commit that is cancelled while it waits for a standby is committed on the primary alone, and reported as
//! such a warning. A batch that turns out to be there from an earlier attempt is confirmed by one more commit: what
//! that one's standby has written includes everything before it.
//!
//! A connection string may name several servers; the one that takes changes is used. After a failover its `seq` shows
//! whether it has everything that was acknowledged ([`Error::WentBack`]).

mod examination;
mod session;
mod sql;
mod tenancy;
mod tls;
mod waits;

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrite_checks::condvar::Condvar;
use ferrite_checks::ranked::{Mutex, MutexGuard};
use tokio_postgres::config::{Host, TargetSessionAttrs};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Config, Row};
use tokio_postgres_rustls::MakeRustlsConnect;

pub use examination::{ServerState, VolumeState};

use super::{Applied, Batch, Owner, Page, Remote, ShardStatus, Tally, Tenure, Values};
use crate::error::{Error, Result};
use crate::lock_order;
use session::{Failure, Prepared, Session};
use sql::Statements;
use waits::{Use, Waits};

pub use tenancy::Tenancy;

/// Between attempts to reach a server.
const RETRY_AFTER: Duration = Duration::from_millis(50);
/// One attempt to connect.
const CONNECT: Duration = Duration::from_secs(2);

/// Where a volume's metadata lies.
#[derive(Clone)]
#[non_exhaustive]
pub struct PostgresOptions {
    /// A connection string as libpq has it, `host=a,b dbname=…` or `postgres://…`, without a password; several hosts
    /// are the servers of a replicated database.
    pub connection: String,
    /// The password, if the server asks for one.
    pub password: Option<String>,
    /// A file with the certificates, in PEM, of which the server's has to descend; the system's by default.
    pub ca: Option<PathBuf>,
    /// The name of the volume: the schema that its tables are in. Lowercase letters, digits and underscores, a letter
    /// first, at most 48.
    pub volume: String,
    /// How long one call may take. 5 seconds by default.
    pub timeout: Duration,
    /// Connections for reads, at most. 8 by default.
    pub readers: usize,
}

impl PostgresOptions {
    /// The volume of this name in the database of this connection string.
    pub fn new(connection: &str, volume: &str) -> PostgresOptions {
        PostgresOptions {
            connection: connection.to_owned(),
            password: None,
            ca: None,
            volume: volume.to_owned(),
            timeout: Duration::from_secs(5),
            readers: 8,
        }
    }
}

impl std::fmt::Debug for PostgresOptions {
    /// Without the connection string, which may hold a password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresOptions")
            .field("volume", &self.volume)
            .finish_non_exhaustive()
    }
}

/// A session with its statements.
struct Ready {
    session: Session,
    prepared: Prepared,
}

#[derive(Default)]
struct Readers {
    idle: Vec<Ready>,
    in_use: usize,
}

/// See the head of this module.
pub struct PostgresRemote {
    config: Config,
    tls: MakeRustlsConnect,
    /// The servers, for messages.
    place: String,
    statements: Statements,
    waits: Arc<Waits>,
    readers_max: usize,
    /// The connection of batches.
    committing: Mutex<lock_order::CommitSession, Option<Ready>>,
    readers: Mutex<lock_order::ReadSessions, Readers>,
    returned: Condvar,
}

/// The servers that a configuration names.
fn hosts(config: &Config) -> String {
    let hosts = config.get_hosts().iter().map(|host| match host {
        Host::Tcp(name) => name.clone(),
        Host::Unix(path) => path.display().to_string(),
    });
    let hosts: Vec<_> = hosts.collect();
    match hosts.is_empty() {
        true => "no host".into(),
        false => hosts.join(","),
    }
}

impl PostgresRemote {
    /// Names a volume. Connects only when it is used.
    ///
    /// # Errors
    /// [`Error::Invalid`]: the connection string, the name of the volume or the file of certificates cannot be read.
    pub fn new(options: &PostgresOptions) -> Result<PostgresRemote> {
        if !sql::is_name(&options.volume) {
            let text = format!(
                "the volume's name '{}': use lowercase letters, digits and underscores, a letter first, at most 48",
                options.volume
            );
            return Err(Error::Invalid(text));
        }
        let mut config = Config::from_str(&options.connection)
            .map_err(|error| Error::Invalid(format!("the connection string of PostgreSQL: {error}")))?;
        if config.get_password().is_some() {
            let text = "the connection string of PostgreSQL holds a password; keep it in a file of its own".into();
            return Err(Error::Invalid(text));
        }
        if let Some(password) = &options.password {
            config.password(password);
        }
        config
            .target_session_attrs(TargetSessionAttrs::ReadWrite)
            .connect_timeout(CONNECT.min(options.timeout))
            .tcp_user_timeout(options.timeout)
            .keepalives(true)
            .keepalives_idle(options.timeout);
        if config.get_application_name().is_none() {
            config.application_name("ferrite");
        }
        Ok(PostgresRemote {
            place: format!("PostgreSQL at {}, volume {}", hosts(&config), options.volume),
            config,
            tls: tls::connector(options.ca.as_deref())?,
            statements: Statements::of(&options.volume),
            waits: Arc::new(Waits::new(options.timeout)),
            readers_max: options.readers.max(1),
            committing: Mutex::default(),
            readers: Mutex::default(),
            returned: Condvar::new(),
        })
    }

    /// Makes the tables of a volume, with one empty shard. Durable when it returns.
    ///
    /// # Errors
    /// [`Error::Exists`] if the database has a schema of this name; [`Error::Unreachable`]; others of the database.
    pub fn create(&self, shard: u64) -> Result<()> {
        let mut session = self.connect(Use::Tenure).map_err(|failure| self.error(failure))?;
        let Statements { schema, create, .. } = &self.statements;
        let create = format!(
            "BEGIN; {create} INSERT INTO {schema}.owners VALUES ({}, 0, 0, '', '', '-infinity', {}); COMMIT",
            shard as i64,
            sql::VERSION
        );
        session.batch(&create).map_err(|failure| match failure {
            // A schema of this name exists.
            Failure::Refused(text) if text.contains("42P06") => Error::Exists(self.place.clone()),
            failure => self.error(failure),
        })
    }

    /// Removes the tables of a volume, whoever owns it. Durable when it returns; a volume that does not exist is
    /// removed already.
    ///
    /// # Errors
    /// The schema holds something else than a volume; those of the database.
    pub fn remove(&self) -> Result<()> {
        let mut session = self.connect(Use::Tenure).map_err(|failure| self.error(failure))?;
        session.batch(&self.statements.remove).map_err(|failure| match failure {
            Failure::Refused(text) if text.contains("P0001") => Error::Invalid(format!("{}: {text}", self.place)),
            failure => self.error(failure),
        })
    }

    fn connect(&self, what: Use) -> std::result::Result<Session, Failure> {
        Session::connect(&self.config, self.tls.clone(), &self.waits, what)
    }

    fn ready(&self, what: Use) -> std::result::Result<Ready, Failure> {
        let mut session = self.connect(what)?;
        let prepared = session.prepare(&self.statements)?;
        Ok(Ready { session, prepared })
    }

    /// The error of a call that changes nothing.
    fn error(&self, failure: Failure) -> Error {
        let at = |text: String| format!("{}: {text}", self.place);
        match failure {
            Failure::NotSent(text) | Failure::RolledBack(text) | Failure::NoAnswer(text) => {
                Error::Unreachable(at(text))
            }
            Failure::Full(text) => Error::NoSpace(at(text)),
            Failure::Refused(text) if text.contains("42P01") || text.contains("3F000") => {
                Error::Missing(at("no such volume".into()))
            }
            Failure::Refused(text) => Error::Io(at(text)),
        }
    }

    /// Runs a call on a connection of its own, and again on another while the server may come back.
    fn read<T>(&self, what: Use, call: impl Fn(&mut Ready) -> std::result::Result<T, Failure>) -> Result<T> {
        let began = Instant::now();
        loop {
            let failure = match self.read_once((began, what), &call) {
                Ok(value) => return Ok(value),
                Err(failure) => failure,
            };
            let is_final = matches!(failure, Failure::Full(_) | Failure::Refused(_));
            if is_final || Instant::now() + RETRY_AFTER >= self.waits.ends_at(began, what) {
                return Err(self.error(failure));
            }
            std::thread::sleep(RETRY_AFTER);
        }
    }

    fn read_once<T>(
        &self,
        (began, what): (Instant, Use),
        call: impl Fn(&mut Ready) -> std::result::Result<T, Failure>,
    ) -> std::result::Result<T, Failure> {
        let found = {
            let mut readers = self.readers.lock();
            while readers.in_use >= self.readers_max {
                let until = self.waits.ends_at(began, what);
                if self.returned.wait_until(&mut readers, until).timed_out() {
                    return Err(Failure::NotSent("all connections are in use".into()));
                }
            }
            readers.in_use += 1;
            readers.idle.pop()
        };
        let used = match found.filter(|ready| !ready.session.is_closed()) {
            Some(ready) => Ok(ready),
            None => self.ready(what),
        };
        let (answer, ready) = match used {
            Ok(mut ready) => {
                ready.session.set_use(what);
                (call(&mut ready), Some(ready))
            }
            Err(failure) => (Err(failure), None),
        };
        let mut readers = self.readers.lock();
        readers.in_use -= 1;
        // A connection that did not answer may answer the next call with the answer of this one.
        let is_good = !matches!(answer, Err(Failure::NoAnswer(_) | Failure::NotSent(_)));
        readers.idle.extend(ready.filter(|_| is_good));
        drop(readers);
        self.returned.notify_one();
        answer
    }

    /// The owner's row, as words.
    fn row(&self, what: Use, shard: u64) -> Result<OwnerRow> {
        let rows = self.read(what, |ready| {
            ready.session.query(&ready.prepared.owner, &[&(shard as i64)])
        })?;
        let row = rows
            .first()
            .ok_or_else(|| Error::Missing(format!("{}: it has no shard {shard}", self.place)))?;
        OwnerRow::of(row).map_err(|error| self.unreadable(&error))
    }

    fn unreadable(&self, error: &tokio_postgres::Error) -> Error {
        Error::Corruption(format!("{}: {error}", self.place))
    }

    /// Why a guarded statement found no row: an error, or nothing if it would find one now.
    fn why_refused(&self, row: &OwnerRow) -> Option<Error> {
        let off = |name: &str, value: &str| {
            let text = format!(
                "{}: it runs with {name} = {value}, so a commit could be lost; set it to on",
                self.place
            );
            Error::Invalid(text)
        };
        if row.version > sql::VERSION {
            let text = format!(
                "{}: its tables have version {}, this program knows {}; use a newer program",
                self.place,
                row.version,
                sql::VERSION
            );
            return Some(Error::Invalid(text));
        }
        match row {
            row if row.fsync != "on" => Some(off("fsync", &row.fsync)),
            row if row.full_page_writes != "on" => Some(off("full_page_writes", &row.full_page_writes)),
            row if !matches!(&*row.synchronous_commit, "on" | "remote_apply") => {
                Some(off("synchronous_commit", &row.synchronous_commit))
            }
            _ => None,
        }
    }

    /// One attempt to apply a batch; `with` has no list of deletes if there are none, and some values. Returns whether
    /// the guard let it through.
    fn apply_once(
        &self,
        committing: &mut MutexGuard<'_, Option<Ready>>,
        with: &[&(dyn ToSql + Sync)],
    ) -> std::result::Result<bool, Failure> {
        if committing.as_ref().is_some_and(|ready| ready.session.is_closed()) {
            **committing = None;
        }
        let ready = match &mut **committing {
            Some(ready) => ready,
            empty => empty.insert(self.ready(Use::Answer).map_err(|failure| match failure {
                Failure::NoAnswer(text) => Failure::NotSent(text),
                other => other,
            })?),
        };
        let Prepared { apply, apply_puts, .. } = &ready.prepared;
        let guards = match with.len() {
            5 => ready.session.commit_count(apply_puts, with),
            _ => ready.session.commit(apply, with).map(|rows| {
                let count = rows.first().and_then(|row| row.try_get::<_, i64>(0).ok());
                u64::from(count == Some(1))
            }),
        };
        if matches!(guards, Err(Failure::NoAnswer(_) | Failure::NotSent(_))) {
            **committing = None;
        }
        Ok(guards? > 0)
    }

    /// Whether what was committed before is durable on every machine on which commits have to be.
    fn confirm(&self, committing: &mut MutexGuard<'_, Option<Ready>>, tenure: &Tenure, seq: u64) -> Result<()> {
        let Some(ready) = &mut **committing else {
            return Err(Error::Unknown(format!("{}: the connection ended", self.place)));
        };
        let with: [&(dyn ToSql + Sync); 3] = [&(tenure.shard as i64), &(tenure.epoch as i64), &(seq as i64)];
        match ready.session.commit(&ready.prepared.confirm, &with) {
            Ok(_) => Ok(()),
            Err(failure) => {
                **committing = None;
                Err(self.unknown(tenure.shard, failure))
            }
        }
    }

    /// An unknown outcome, with what could be the reason.
    fn unknown(&self, shard: u64, failure: Failure) -> Error {
        let text = match failure {
            Failure::NotSent(text)
            | Failure::RolledBack(text)
            | Failure::NoAnswer(text)
            | Failure::Full(text)
            | Failure::Refused(text) => text,
        };
        let lacks_standby = self.row(Use::Answer, shard).is_ok_and(|row| row.lacks_standby);
        let hint = match lacks_standby {
            true => {
                "; no synchronous standby is attached (or this role may not see it): start one, or change \
                 synchronous_standby_names"
            }
            false => "",
        };
        Error::Unknown(format!("{}: {text}{hint}", self.place))
    }
}

/// The row of an owner, with the settings that matter.
struct OwnerRow {
    epoch: u64,
    seq: u64,
    version: i32,
    owner: String,
    address: String,
    /// Until its time ends; zero if it has ended.
    left: Duration,
    /// Since its time has ended; zero if it has not.
    free: Duration,
    asked_to: Option<String>,
    fsync: String,
    full_page_writes: String,
    synchronous_commit: String,
    lacks_standby: bool,
}

impl OwnerRow {
    fn of(row: &Row) -> std::result::Result<OwnerRow, tokio_postgres::Error> {
        let left_us: i64 = row.try_get(5)?;
        Ok(OwnerRow {
            epoch: row.try_get::<_, i64>(0)? as u64,
            seq: row.try_get::<_, i64>(1)? as u64,
            version: row.try_get(2)?,
            owner: row.try_get(3)?,
            address: row.try_get(4)?,
            left: Duration::from_micros(left_us.max(0).unsigned_abs()),
            free: Duration::from_micros(left_us.min(0).unsigned_abs()),
            asked_to: row.try_get(10)?,
            fsync: row.try_get(6)?,
            full_page_writes: row.try_get(7)?,
            synchronous_commit: row.try_get(8)?,
            lacks_standby: row.try_get(9)?,
        })
    }
}

fn micros(ttl: Duration) -> i64 {
    i64::try_from(ttl.as_micros()).unwrap_or(i64::MAX)
}

impl Remote for PostgresRemote {
    fn is_useful_for(&self, left: Duration) {
        self.waits.are_useful_for(left);
    }

    fn end_calls(&self) {
        self.waits.abandon();
    }

    fn take(&self, shard: u64, owner: &Owner, ttl: Duration) -> Result<Tenure> {
        let (number, micros) = (shard as i64, micros(ttl));
        let rows = self.read(Use::Tenure, |ready| {
            let with: [&(dyn ToSql + Sync); 4] = [&number, &owner.name, &owner.address, &micros];
            ready.session.commit(&ready.prepared.take, &with)
        })?;
        let Some(row) = rows.first() else {
            let row = self.row(Use::Tenure, shard)?;
            return Err(self.why_refused(&row).unwrap_or(Error::Owned {
                owner: row.owner,
                address: row.address,
                left: row.left,
            }));
        };
        let word = |index| row.try_get::<_, i64>(index).map_err(|error| self.unreadable(&error));
        Ok(Tenure {
            shard,
            epoch: word(0)? as u64,
            seq: word(1)? as u64,
        })
    }

    fn renew(&self, tenure: &Tenure, ttl: Duration) -> Result<()> {
        let (shard, epoch, micros) = (tenure.shard as i64, tenure.epoch as i64, micros(ttl));
        let found = self.read(Use::Tenure, |ready| {
            let with: [&(dyn ToSql + Sync); 3] = [&shard, &epoch, &micros];
            ready.session.commit(&ready.prepared.renew, &with)
        })?;
        match found.is_empty() {
            true => Err(Error::Lost {
                epoch: self.row(Use::Tenure, tenure.shard)?.epoch,
            }),
            false => Ok(()),
        }
    }

    fn apply(&self, tenure: &Tenure, seq: u64, batch: &Batch) -> Result<Applied> {
        let (shard, epoch, number) = (tenure.shard as i64, tenure.epoch as i64, seq as i64);
        let deletes: Vec<&[u8]> = batch.deletes.iter().map(Vec::as_slice).collect();
        let keys: Vec<&[u8]> = batch.puts.iter().map(|(key, _)| key.as_slice()).collect();
        let values: Vec<&[u8]> = batch.puts.iter().map(|(_, value)| value.as_slice()).collect();
        let all: [&(dyn ToSql + Sync); 6] = [&shard, &epoch, &number, &keys, &values, &deletes];
        let has_only_puts = deletes.is_empty() && !keys.is_empty();
        let with = if has_only_puts { &all[..5] } else { &all[..] };
        let mut committing = self.committing.lock();
        match self.apply_once(&mut committing, with) {
            Ok(true) => return Ok(Applied::Now),
            Ok(false) => {}
            Err(failure @ Failure::NoAnswer(_)) => return Err(self.unknown(tenure.shard, failure)),
            Err(failure) => return Err(self.error(failure)),
        }
        let row = self.row(Use::Answer, tenure.shard)?;
        match row.seq {
            _ if row.epoch != tenure.epoch => Err(Error::Lost { epoch: row.epoch }),
            has if has == seq => self.confirm(&mut committing, tenure, seq).map(|()| Applied::Before),
            has if has + 1 == seq => Err(self
                .why_refused(&row)
                .unwrap_or_else(|| Error::Unreachable(format!("{}: the batch was not applied", self.place)))),
            has => Err(Error::WentBack { has, wanted: seq - 1 }),
        }
    }

    fn get_many(&self, tenure: &Tenure, keys: &[&[u8]]) -> Result<Values> {
        let shard = tenure.shard as i64;
        let keys_list: Vec<&[u8]> = keys.to_vec();
        let rows = self.read(Use::Answer, |ready| {
            ready.session.query(&ready.prepared.get_many, &[&shard, &keys_list])
        })?;
        let (pairs, seq) = self.pairs_of(tenure, &rows)?;
        let mut found: std::collections::HashMap<Vec<u8>, Vec<u8>> = pairs.into_iter().collect();
        Ok(Values {
            values: keys.iter().map(|&key| found.remove(key)).collect(),
            seq,
        })
    }

    fn scan(&self, tenure: &Tenure, from: &[u8], to: &[u8], limit: usize) -> Result<Page> {
        let shard = tenure.shard as i64;
        // One more shows where the next page begins.
        let rows_max = i64::try_from(limit.max(1)).unwrap_or(i64::MAX - 1) + 1;
        let rows = self.read(Use::Answer, |ready| {
            ready
                .session
                .query(&ready.prepared.scan, &[&shard, &from, &to, &rows_max])
        })?;
        let (mut pairs, seq) = self.pairs_of(tenure, &rows)?;
        let next = match pairs.len() > limit.max(1) {
            true => pairs.pop().map(|(key, _)| key),
            false => None,
        };
        Ok(Page { pairs, next, seq })
    }

    fn status(&self, shard: u64) -> Result<ShardStatus> {
        let row = self.row(Use::Answer, shard)?;
        let owner = Owner {
            name: row.owner,
            address: row.address,
        };
        Ok(ShardStatus {
            owner: (!owner.name.is_empty()).then_some(owner),
            epoch: row.epoch,
            seq: row.seq,
            lease_left: row.left,
        })
    }

    fn tally(&self, tenure: &Tenure, from: &[u8], to: &[u8], limit: usize) -> Result<Tally> {
        let (shard, limit) = (tenure.shard as i64, i64::try_from(limit.max(1)).unwrap_or(i64::MAX));
        let rows = self.read(Use::Answer, |ready| {
            ready
                .session
                .query(&ready.prepared.tally, &[&shard, &from, &to, &limit])
        })?;
        let (row, seq) = self.first_of(tenure, &rows)?;
        let word = |index| row.try_get::<_, i64>(index).map_err(|error| self.unreadable(&error));
        Ok(Tally {
            keys: word(2)? as u64,
            value_bytes: word(3)? as u64,
            next: row.try_get(4).map_err(|error| self.unreadable(&error))?,
            seq,
        })
    }
}

impl PostgresRemote {
    /// The first row of a read, and the batch that it has.
    fn first_of<'r>(&self, tenure: &Tenure, rows: &'r [Row]) -> Result<(&'r Row, u64)> {
        let Some(first) = rows.first() else {
            return Err(Error::Missing(format!(
                "{}: it has no shard {}",
                self.place, tenure.shard
            )));
        };
        let word = |index| first.try_get::<_, i64>(index).map_err(|error| self.unreadable(&error));
        let (epoch, seq) = (word(0)? as u64, word(1)? as u64);
        if epoch != tenure.epoch {
            return Err(Error::Lost { epoch });
        }
        Ok((first, seq))
    }

    /// The pairs in rows of a read, and the batch that they have.
    fn pairs_of(&self, tenure: &Tenure, rows: &[Row]) -> Result<(Vec<super::Pair>, u64)> {
        let (_, seq) = self.first_of(tenure, rows)?;
        let mut pairs = Vec::with_capacity(rows.len());
        for row in rows {
            let pair = row
                .try_get::<_, Option<Vec<u8>>>(2)
                .and_then(|key| Ok((key, row.try_get::<_, Option<Vec<u8>>>(3)?)));
            if let (Some(key), Some(value)) = pair.map_err(|error| self.unreadable(&error))? {
                pairs.push((key, value));
            }
        }
        Ok((pairs, seq))
    }
}
