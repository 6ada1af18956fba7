//! The statements, for the tables of one volume.
//!
//! A volume is a schema of the database with two tables: `owners` has a row a shard, and `pairs` the keys. Each call of
//! [`Remote`](super::super::Remote) is one statement, hence one transaction and one round trip.
//!
//! A batch goes in as one statement, too: the update of the owner's row is its guard, and what changes pairs looks
//! whether the guard found its row. The row stays locked until the transaction ends, and a transaction that waits for
//! it looks again at what it then finds (READ COMMITTED), so two batches never pass the guard with one number. The
//! guard also asks for the settings without which a commit could be lost.
//!
//! Each statement has one plan, whatever the database knows of the tables' sizes: a plan is kept for as long as the
//! connection, and one that was best for ten pairs reads a million later. So a session has only index scans to choose
//! from ([`PLANS`]), and single keys are looked up in subqueries that `OFFSET 0` keeps whole: of `key = ANY(…)` the
//! planner may make a filter behind a scan of the whole shard.

/// The format of the tables; a program takes a shard only if it knows the shard's.
pub(super) const VERSION: i32 = 1;

/// The statements for one schema.
#[derive(Debug)]
pub(super) struct Statements {
    /// The schema, quoted.
    pub(super) schema: String,
    pub(super) take: String,
    pub(super) owner: String,
    pub(super) renew: String,
    pub(super) apply: String,
    /// A batch that deletes nothing; planning nothing for that saves a tenth of the time.
    pub(super) apply_puts: String,
    pub(super) confirm: String,
    pub(super) get_many: String,
    pub(super) scan: String,
    pub(super) ask: String,
    pub(super) tally: String,
    pub(super) create: String,
    pub(super) remove: String,
}

/// Whether a name can be a volume's: lowercase letters, digits and underscores, a letter first, 48 bytes.
pub(super) fn is_name(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    name.len() <= 48 && name.starts_with(|first: char| first.is_ascii_lowercase()) && name.bytes().all(is_part)
}

/// Settings of a session that leave one plan for each statement; `enable_sort` makes a range come from the index in its
/// order.
pub(super) const PLANS: &str = "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; \
                                SET enable_bitmapscan = off; SET enable_sort = off; SET jit = off";

const SAFE: &str = "current_setting('fsync') = 'on' AND current_setting('full_page_writes') = 'on' \
                    AND current_setting('synchronous_commit') IN ('on', 'remote_apply')";

impl Statements {
    pub(super) fn of(volume: &str) -> Statements {
        let schema = format!("\"{volume}\"");
        Statements {
            take: format!(
                "UPDATE {schema}.owners SET epoch = epoch + 1, owner = $2::text, address = $3::text, \
                 expires = clock_timestamp() + $4::bigint * interval '1 microsecond' \
                 WHERE shard = $1::bigint AND version <= {VERSION} \
                 AND (expires <= clock_timestamp() OR owner = $2::text) AND {SAFE} \
                 RETURNING epoch, seq"
            ),
            owner: format!(
                "SELECT epoch, seq, version, owner, address, \
                 (extract(epoch FROM greatest(expires, timestamptz 'epoch') - clock_timestamp()) * 1000000)::bigint, \
                 current_setting('fsync'), current_setting('full_page_writes'), \
                 current_setting('synchronous_commit'), \
                 current_setting('synchronous_standby_names') <> '' AND NOT EXISTS \
                 (SELECT FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')), \
                 CASE WHEN asked_epoch = epoch THEN asked_to END \
                 FROM {schema}.owners WHERE shard = $1::bigint"
            ),
            renew: format!(
                "UPDATE {schema}.owners SET expires = clock_timestamp() + $3::bigint * interval '1 microsecond' \
                 WHERE shard = $1::bigint AND epoch = $2::bigint RETURNING 1"
            ),
            apply: apply(&schema),
            apply_puts: apply_puts(&schema),
            confirm: format!(
                "UPDATE {schema}.owners SET seq = seq \
                 WHERE shard = $1::bigint AND epoch = $2::bigint AND seq = $3::bigint"
            ),
            get_many: format!(
                "SELECT owners.epoch, owners.seq, found.key, found.value FROM {schema}.owners LEFT JOIN LATERAL \
                 (SELECT pair.key, pair.value FROM unnest($2::bytea[]) AS wanted (key) CROSS JOIN LATERAL \
                 (SELECT key, value FROM {schema}.pairs WHERE shard = $1::bigint AND key = wanted.key OFFSET 0) \
                 AS pair) AS found ON true WHERE owners.shard = $1::bigint"
            ),
            scan: format!(
                "SELECT owners.epoch, owners.seq, page.key, page.value FROM {schema}.owners LEFT JOIN LATERAL \
                 (SELECT key, value FROM {schema}.pairs \
                 WHERE shard = $1::bigint AND key >= $2::bytea AND key < $3::bytea ORDER BY key LIMIT $4::bigint) \
                 AS page ON true WHERE owners.shard = $1::bigint ORDER BY page.key"
            ),
            ask: format!(
                "UPDATE {schema}.owners SET asked_epoch = epoch, asked_to = $3::text \
                 WHERE shard = $1::bigint AND epoch = $2::bigint"
            ),
            tally: tally(&schema),
            create: create(&schema),
            remove: remove(volume, &schema),
            schema,
        }
    }
}

/// The part of a batch without which nothing of it happens.
fn guard(schema: &str) -> String {
    format!(
        "guard AS (UPDATE {schema}.owners SET seq = $3::bigint \
         WHERE shard = $1::bigint AND epoch = $2::bigint AND seq = $3::bigint - 1 AND {SAFE} RETURNING 1)"
    )
}

/// Applies a batch: the guard, the deletions, and the values. One row: how many guards there were.
fn apply(schema: &str) -> String {
    format!(
        "WITH {guard}, deleted AS (DELETE FROM {schema}.pairs WHERE ctid = ANY(ARRAY(SELECT place.ctid \
         FROM unnest($6::bytea[]) AS old (key) CROSS JOIN LATERAL (SELECT ctid FROM {schema}.pairs \
         WHERE shard = $1::bigint AND key = old.key OFFSET 0) AS place)) AND EXISTS (SELECT FROM guard)), \
         stored AS (INSERT INTO {schema}.pairs (shard, key, value) \
         SELECT $1::bigint, key, value FROM unnest($4::bytea[], $5::bytea[]) AS new (key, value) \
         WHERE EXISTS (SELECT FROM guard) \
         ON CONFLICT (shard, key) DO UPDATE SET value = excluded.value) \
         SELECT count(*) FROM guard",
        guard = guard(schema)
    )
}

/// Applies a batch that deletes nothing. It affects as many rows as there are values, or none without the guard.
fn apply_puts(schema: &str) -> String {
    format!(
        "WITH {guard} INSERT INTO {schema}.pairs (shard, key, value) \
         SELECT $1::bigint, key, value FROM guard, unnest($4::bytea[], $5::bytea[]) AS new (key, value) \
         ON CONFLICT (shard, key) DO UPDATE SET value = excluded.value",
        guard = guard(schema)
    )
}

/// Counts pairs where they are; `next` shows where the next part begins.
fn tally(schema: &str) -> String {
    format!(
        "SELECT owners.epoch, owners.seq, page.keys, page.bytes, next.key FROM {schema}.owners \
                 CROSS JOIN LATERAL (SELECT count(*) AS keys, coalesce(sum(octet_length(value)), 0)::bigint AS bytes \
                 FROM (SELECT value FROM {schema}.pairs \
                 WHERE shard = $1::bigint AND key >= $2::bytea AND key < $3::bytea ORDER BY key LIMIT $4::bigint) \
                 AS part) AS page \
                 LEFT JOIN LATERAL (SELECT key FROM {schema}.pairs \
                 WHERE shard = $1::bigint AND key >= $2::bytea AND key < $3::bytea \
                 ORDER BY key OFFSET $4::bigint LIMIT 1) AS next ON true WHERE owners.shard = $1::bigint"
    )
}

/// Makes the tables.
fn create(schema: &str) -> String {
    format!(
        "CREATE SCHEMA {schema}; \
                 CREATE TABLE {schema}.owners (shard bigint PRIMARY KEY, epoch bigint NOT NULL, seq bigint NOT NULL, \
                 owner text NOT NULL, address text NOT NULL, expires timestamptz NOT NULL, version int NOT NULL, \
                 asked_epoch bigint, asked_to text) \
                 WITH (fillfactor = 50); \
                 CREATE TABLE {schema}.pairs (shard bigint, key bytea, value bytea NOT NULL, PRIMARY KEY (shard, key));"
    )
}

/// Removes them. A schema that somebody else has filled stays, whatever its tables are called.
fn remove(volume: &str, schema: &str) -> String {
    format!(
        "BEGIN; DO $$ BEGIN \
                 IF EXISTS (SELECT FROM pg_namespace WHERE nspname = '{volume}') AND 6 <> \
                 (SELECT count(*) FROM information_schema.columns WHERE table_schema = '{volume}' \
                 AND (table_name::text, column_name::text) IN (('owners', 'epoch'), ('owners', 'seq'), \
                 ('owners', 'version'), ('pairs', 'shard'), ('pairs', 'key'), ('pairs', 'value'))) \
                 THEN RAISE EXCEPTION 'the schema holds something else than a volume'; END IF; END $$; \
                 DROP TABLE IF EXISTS {schema}.owners, {schema}.pairs; DROP SCHEMA IF EXISTS {schema}; COMMIT"
    )
}

#[cfg(test)]
mod tests {
    use super::is_name;

    #[test]
    fn names_of_volumes_are_plain() {
        assert!(is_name("a") && is_name("home_2") && is_name(&"v".repeat(48)));
        for name in ["", "2a", "_a", "A", "a-b", "a.b", "a\"b", "a b", "ä", &"v".repeat(49)] {
            assert!(!is_name(name), "{name}");
        }
    }
}
