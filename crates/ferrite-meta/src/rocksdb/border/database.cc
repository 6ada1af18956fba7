// The C++ side: a transactional database as functions that Rust can call.
//
// Threads and time are those of rocksdb::Env::Default(). RocksDB's text log goes to a Notice, warnings and worse only.
//
// Everything here is noexcept: only lack of memory throws, and then the process ends, as it does in Rust.

#include "shim.h"

#include <algorithm>
#include <rocksdb/cache.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/listener.h>
#include <rocksdb/options.h>
#include <rocksdb/slice_transform.h>
#include <rocksdb/statistics.h>
#include <rocksdb/table.h>
#include <rocksdb/utilities/checkpoint.h>
#include <rocksdb/utilities/table_properties_collectors.h>
#include <rocksdb/utilities/transaction.h>
#include <rocksdb/utilities/transaction_db.h>
#include <rocksdb/utilities/write_batch_with_index.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

namespace ferrite {
namespace {

using rocksdb::ReadOptions;
using rocksdb::Slice;
using rocksdb::Status;

void ToFailure(const Status& status, Failure* failure) {
  if (status.ok()) return;
  const Kind kind = status.IsNotFound() || status.IsPathNotFound() ? kNotFound
                    : status.IsCorruption()                        ? kCorruption
                    : status.IsNotSupported()                      ? kNotSupported
                    : status.IsInvalidArgument()                   ? kInvalid
                    : status.IsNoSpace()                           ? kNoSpace
                    : status.IsDeadlock()                          ? kDeadlock
                    : status.IsTimedOut() || status.IsBusy() || status.IsTryAgain() ? kTimedOut
                                                                                    : kIo;
  Fail(failure, kind, status.ToString());
}

class Teller final : public rocksdb::Logger {
 public:
  Teller(Notice notice, const void* context)
      : Logger(rocksdb::InfoLogLevel::WARN_LEVEL), notice_(notice), context_(context) {}

  using rocksdb::Logger::Logv;
  void Logv(const char* format, va_list arguments) override {
    char text[1000];
    const int len = std::vsnprintf(text, sizeof text, format, arguments);
    if (len > 0) notice_(context_, false, {text, std::min<size_t>(len, sizeof text - 1)});
  }

 private:
  const Notice notice_;
  const void* const context_;
};

class Listener final : public rocksdb::EventListener {
 public:
  Listener(Notice notice, const void* context) : notice_(notice), context_(context) {}

  void OnBackgroundError(rocksdb::BackgroundErrorReason reason, Status* status) override {
    // A merge without space leaves what it should have merged, and is tried again after a while. RocksDB would stop for
    // ever, as it does not know whether a transaction in two phases needs the log.
    if (reason == rocksdb::BackgroundErrorReason::kCompaction && status->IsNoSpace()) {
      *status = Status::OK();
      return;
    }
    has_failed_ = true;
    const std::string text = status->ToString();
    notice_(context_, true, BytesOf(text));
  }

  // Nobody knows what of a failed log is on the medium, so only an opening may go on. RocksDB would begin a new log.
  void OnErrorRecoveryBegin(rocksdb::BackgroundErrorReason, Status, bool* is_automatic) override {
    *is_automatic = false;
  }

  void OnSubcompactionBegin(const rocksdb::SubcompactionJobInfo&) override { SetMerging(true); }
  void OnSubcompactionCompleted(const rocksdb::SubcompactionJobInfo&) override { SetMerging(false); }

  void OnCompactionCompleted(rocksdb::DB*, const rocksdb::CompactionJobInfo& info) override {
    const bool takes_unmerged = info.base_input_level == 0;
    if (info.status.IsNoSpace()) ++(takes_unmerged ? unmerged_lack_space_ : lack_space_);
    if (!info.status.ok()) return;
    lack_space_ = 0;
    // Writers wait for these alone, so a merge of others, which needed less space, says nothing of them.
    if (takes_unmerged) unmerged_lack_space_ = 0;
  }

  uint64_t LackSpace() const { return lack_space_ + unmerged_lack_space_; }

  // Whether the database takes no more writes.
  bool HasFailed() const { return has_failed_; }

 private:
  std::atomic<bool> has_failed_{false};
  std::atomic<uint64_t> lack_space_{0};
  std::atomic<uint64_t> unmerged_lack_space_{0};
  const Notice notice_;
  const void* const context_;
};

// Members are destroyed in reverse order: the database before what it uses.
struct Database {
  std::unique_ptr<rocksdb::Env> env;
  std::shared_ptr<Listener> listener;
  std::shared_ptr<rocksdb::Statistics> statistics;
  rocksdb::WriteOptions write;
  rocksdb::TransactionOptions transaction;
  size_t prefix_len_bytes = 0;
  std::unique_ptr<rocksdb::DB> db;
  // The same; null if it was opened to be read.
  rocksdb::TransactionDB* transactions = nullptr;
};

// Whether all keys of [from, to) have the first `len_bytes` bytes in common, so that the filters know about them.
bool HavePrefix(const Slice& from, const Slice& to, size_t len_bytes) {
  if (len_bytes == 0 || from.size() < len_bytes) return false;
  std::string after(from.data(), len_bytes);
  while (!after.empty() && static_cast<unsigned char>(after.back()) == 0xff) after.pop_back();
  if (after.empty()) return false;
  ++after.back();
  return to.compare(after) <= 0;
}

// Pairs of [from, to) go to `sink` in order, until it returns false. `open` makes an iterator with these options.
template <typename Open>
void Scan(const Database& database, Bytes from, Bytes to, Sink sink, void* context, Failure* failure, Open open) {
  const Slice first = SliceOf(from), end = SliceOf(to);
  ReadOptions options;
  options.iterate_upper_bound = &end;
  options.prefix_same_as_start = HavePrefix(first, end, database.prefix_len_bytes);
  options.total_order_seek = !options.prefix_same_as_start;
  const std::unique_ptr<rocksdb::Iterator> at(open(options));
  for (at->Seek(first); at->Valid() && at->key().compare(end) < 0; at->Next()) {
    if (!sink(context, BytesOf(at->key()), BytesOf(at->value()))) break;
  }
  ToFailure(at->status(), failure);
}

// As rocksdb::TransactionDB::Open, but without commits in two phases, which are never used: for their sake recovery
// keeps every log that it has replayed until a write buffer is flushed, so each opening would leave one behind.
Status OpenTransactions(const rocksdb::Options& options, const rocksdb::TransactionDBOptions& transactions,
                        const std::string& path, rocksdb::TransactionDB** opened) {
  rocksdb::DBOptions database = options;
  std::vector<rocksdb::ColumnFamilyDescriptor> families{{rocksdb::kDefaultColumnFamilyName, options}};
  std::vector<size_t> compacted;
  rocksdb::TransactionDB::PrepareWrap(&database, &families, &compacted);
  database.allow_2pc = false;
  // Flushed write buffers would stay in memory, as many as may be unflushed, for transactions that look whether
  // something has changed since a snapshot. There are none: what a transaction relies on it locks.
  families.front().options.max_write_buffer_size_to_maintain = 0;
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* db = nullptr;
  Status status = rocksdb::DB::Open(database, path, families, &handles, &db);
  if (!status.ok()) return status;
  status = rocksdb::TransactionDB::WrapDB(db, transactions, compacted, handles, opened);
  // The database has its own handle of the default family.
  for (rocksdb::ColumnFamilyHandle* handle : handles) delete handle;
  return status;
}

// Calls `act`, which may sync the log or begin a new one, unless the database has failed: RocksDB 7.8 ends the process
// if either is done to a log of which a write has failed. A write that fails between the check and `act` still does so:
// that is a crash, from which the next opening recovers.
template <typename Act>
Status UnlessFailed(const Database& database, Act act) {
  if (database.listener->HasFailed()) return Status::IOError("an earlier write has failed");
  return act();
}

Status SyncLog(const Database& database) {
  return UnlessFailed(database, [&] { return database.db->FlushWAL(true); });
}

void GiveValue(const Status& status, const Slice& value, Sink sink, void* context, Failure* failure) {
  if (status.ok()) sink(context, BytesOf(value), Bytes{nullptr, 0});
  ToFailure(status, failure);
}

}  // namespace

extern "C" {

// Null after a failure. Without `ops`, the path is one of the machine's. `ops`, `root` and `context` must live until
// the database is closed.
Database* ferrite_rocksdb_open(const FileOps* ops, const void* root, Bytes path, const OpenOptions* wanted,
                               Notice notice, const void* context, Failure* failure) noexcept {
  auto database = std::make_unique<Database>();
  database->write.sync = wanted->sync;
  database->statistics = rocksdb::CreateDBStatistics();
  database->statistics->set_stats_level(rocksdb::StatsLevel::kExceptHistogramOrTimers);
  database->prefix_len_bytes = wanted->prefix_len_bytes;
  database->transaction.deadlock_detect = true;
  database->transaction.deadlock_detect_depth = 1000;
  database->transaction.lock_timeout = static_cast<int64_t>(wanted->lock_timeout_ms);

  rocksdb::Options options;
  const auto files = ops != nullptr ? MakeFileSystem(*ops, root) : rocksdb::FileSystem::Default();
  database->env = rocksdb::NewCompositeEnv(MakeReserving(files, wanted->merges_leave_bytes));
  database->listener = std::make_shared<Listener>(notice, context);
  options.env = database->env.get();
  options.create_if_missing = wanted->create_if_missing;
  options.paranoid_checks = true;
  options.write_buffer_size = wanted->write_buffer_bytes;
  // So a merge needs space for a few write buffers at a time, and not for all that is stored.
  // A file takes at least a cluster of a blob store: smaller ones would have merges need several times their space.
  options.target_file_size_base = std::max<uint64_t>(wanted->write_buffer_bytes, 1 << 20);
  options.max_bytes_for_level_base = 4 * wanted->write_buffer_bytes;
  options.max_bytes_for_level_multiplier = 4;
  options.max_compaction_bytes = 8 * wanted->write_buffer_bytes;
  options.level0_slowdown_writes_trigger = 8;
  options.level0_stop_writes_trigger = static_cast<int>(wanted->unmerged_tables_max);
  // Tables with many deletions are merged soon, for the space, and so that scans need not step over them.
  options.table_properties_collector_factories.push_back(rocksdb::NewCompactOnDeletionCollectorFactory(512, 128, 0.2));
  // Each flush and merge adds to the manifest; RocksDB's own bound, 1 GiB, is more than a small device has.
  options.max_manifest_file_size = 1 << 20;
  options.max_background_jobs = static_cast<int>(wanted->background_jobs);
  options.compression = rocksdb::kLZ4Compression;
  options.info_log = std::make_shared<Teller>(notice, context);
  options.listeners.push_back(database->listener);
  options.statistics = database->statistics;
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  // One commit's log record is on the medium when the commit returns: written at once, and synced by the leader of the
  // write group for all who are in it. A log that ends in the middle of a record was cut off by a crash.
  options.manual_wal_flush = false;
  options.two_write_queues = false;
  // Who waits for a group's sync sleeps, and the leader inserts for all: commits are small, and those who spin, or are
  // woken to insert a few keys, take the cores from those who work.
  options.enable_write_thread_adaptive_yield = false;
  options.allow_concurrent_memtable_write = false;
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  if (wanted->prefix_len_bytes != 0) {
    options.prefix_extractor.reset(rocksdb::NewFixedPrefixTransform(wanted->prefix_len_bytes));
  }
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = rocksdb::NewLRUCache(wanted->block_cache_bytes);
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  table.whole_key_filtering = true;
  // Filters and indexes are in the cache, so that its size bounds the memory.
  table.cache_index_and_filter_blocks = true;
  table.pin_l0_filter_and_index_blocks_in_cache = true;
  table.format_version = 5;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));

  rocksdb::TransactionDBOptions transactions;
  transactions.transaction_lock_timeout = static_cast<int64_t>(wanted->lock_timeout_ms);
  transactions.default_lock_timeout = static_cast<int64_t>(wanted->lock_timeout_ms);
  Status status;
  if (wanted->salvage != 0) {
    // Whatever can be read counts.
    options.paranoid_checks = false;
    options.wal_recovery_mode = rocksdb::WALRecoveryMode::kSkipAnyCorruptedRecords;
  }
  if (wanted->salvage > 1) status = rocksdb::RepairDB(SliceOf(path).ToString(), options);
  if (!status.ok()) {
    ToFailure(status, failure);
    return nullptr;
  }
  if (wanted->read_only) {
    // The log goes to memory, however long it is; no file is made, changed or locked.
    rocksdb::DB* db = nullptr;
    status = rocksdb::DB::OpenForReadOnly(options, SliceOf(path).ToString(), &db);
    database->db.reset(db);
  } else {
    status = OpenTransactions(options, transactions, SliceOf(path).ToString(), &database->transactions);
    database->db.reset(database->transactions);
  }
  ToFailure(status, failure);
  // RocksDB has no code of its own for a lock that somebody else holds.
  const std::string text = status.ToString();
  if (failure->kind == kIo && text.find("lock") != std::string::npos && text.find("LOCK") != std::string::npos) {
    failure->kind = kInUse;
  }
  return status.ok() ? database.release() : nullptr;
}

// Ends its threads. No transaction may be left.
void ferrite_rocksdb_close(Database* database, Failure* failure) noexcept {
  // What RocksDB could not finish is in the log, so that only the log must be on the medium.
  const Status synced = database->transactions != nullptr ? SyncLog(*database) : Status::OK();
  const Status closed = database->db->Close();
  ToFailure(synced.ok() ? closed : synced, failure);
  delete database;
}

// The value goes to `sink`, once.
void ferrite_rocksdb_get(const Database* database, Bytes key, Sink sink, void* context, Failure* failure) noexcept {
  rocksdb::PinnableSlice value;
  const Status status =
      database->db->Get(ReadOptions(), database->db->DefaultColumnFamily(), SliceOf(key), &value);
  GiveValue(status, value, sink, context, failure);
}

void ferrite_rocksdb_scan(const Database* database, Bytes from, Bytes to, Sink sink, void* context,
                          Failure* failure) noexcept {
  Scan(*database, from, to, sink, context, failure,
       [&](const ReadOptions& options) { return database->db->NewIterator(options); });
}

// All pairs that can be read, in any order; returns the number of ranges of which something could not.
uint64_t ferrite_rocksdb_salvage(const Database* database, Sink sink, void* context) noexcept {
  uint64_t gaps = 0;
  Salvage(*database->db, sink, context, &gaps);
  return gaps;
}

void ferrite_rocksdb_sync(const Database* database, Failure* failure) noexcept {
  ToFailure(SyncLog(*database), failure);
}

// Makes tables of what is in memory only.
void ferrite_rocksdb_flush(const Database* database, Failure* failure) noexcept {
  rocksdb::FlushOptions options;
  // Else it waits until one more table would not hold writes up: for good, if merges lack space.
  options.allow_write_stall = true;
  ToFailure(UnlessFailed(*database, [&] { return database->db->Flush(options); }), failure);
}

void ferrite_rocksdb_compact(const Database* database, Failure* failure) noexcept {
  rocksdb::CompactRangeOptions options;
  // It flushes first, and would wait as above.
  options.allow_write_stall = true;
  const auto compact = [&] { return database->db->CompactRange(options, nullptr, nullptr); };
  ToFailure(UnlessFailed(*database, compact), failure);
}

void ferrite_rocksdb_checkpoint(const Database* database, Bytes path, Failure* failure) noexcept {
  rocksdb::Checkpoint* made = nullptr;
  Status status = rocksdb::Checkpoint::Create(database->db.get(), &made);
  const std::unique_ptr<rocksdb::Checkpoint> checkpoint(made);
  const auto make = [&] { return checkpoint->CreateCheckpoint(SliceOf(path).ToString()); };
  if (status.ok()) status = UnlessFailed(*database, make);
  ToFailure(status, failure);
}

void ferrite_rocksdb_statistics(const Database* database, Statistics* statistics) noexcept {
  const auto property = [&](const std::string& name) {
    uint64_t value = 0;
    return database->db->GetIntProperty(name, &value) ? value : 0;
  };
  using Properties = rocksdb::DB::Properties;
  statistics->keys_estimated = property(Properties::kEstimateNumKeys);
  statistics->table_bytes = property(Properties::kTotalSstFilesSize);
  statistics->memory_table_bytes = property(Properties::kSizeAllMemTables);
  statistics->block_cache_bytes = property(Properties::kBlockCacheUsage);
  statistics->block_cache_hits = database->statistics->getTickerCount(rocksdb::BLOCK_CACHE_HIT);
  statistics->block_cache_misses = database->statistics->getTickerCount(rocksdb::BLOCK_CACHE_MISS);
  statistics->log_bytes = database->statistics->getTickerCount(rocksdb::WAL_FILE_BYTES);
  statistics->log_syncs = database->statistics->getTickerCount(rocksdb::WAL_FILE_SYNCED);
  statistics->merges = property(Properties::kCompactionPending) + property(Properties::kNumRunningCompactions);
  std::string tables;
  database->db->GetProperty(Properties::kNumFilesAtLevelPrefix + "0", &tables);
  statistics->unmerged_tables = std::strtoull(tables.c_str(), nullptr, 10);
  statistics->stall_us = database->statistics->getTickerCount(rocksdb::STALL_MICROS);
}

uint64_t ferrite_rocksdb_merges_lack_space(const Database* database) noexcept { return database->listener->LackSpace(); }

// Null if the database was opened to be read.
rocksdb::Transaction* ferrite_rocksdb_begin(const Database* database) noexcept {
  if (database->transactions == nullptr) return nullptr;
  return database->transactions->BeginTransaction(database->write, database->transaction);
}

// Lets go of its locks. What was not committed is gone.
void ferrite_rocksdb_end(rocksdb::Transaction* transaction) noexcept { delete transaction; }

void ferrite_rocksdb_txn_get(rocksdb::Transaction* transaction, Bytes key, Sink sink, void* context,
                             Failure* failure) noexcept {
  std::string value;
  const Status status = transaction->Get(ReadOptions(), SliceOf(key), &value);
  GiveValue(status, value, sink, context, failure);
}

void ferrite_rocksdb_txn_get_for_update(rocksdb::Transaction* transaction, Bytes key, bool exclusive, Sink sink,
                                        void* context, Failure* failure) noexcept {
  std::string value;
  const Status status = transaction->GetForUpdate(ReadOptions(), SliceOf(key), &value, exclusive);
  GiveValue(status, value, sink, context, failure);
}

void ferrite_rocksdb_txn_put(rocksdb::Transaction* transaction, Bytes key, Bytes value, Failure* failure) noexcept {
  ToFailure(transaction->Put(SliceOf(key), SliceOf(value)), failure);
}

void ferrite_rocksdb_txn_delete(rocksdb::Transaction* transaction, Bytes key, Failure* failure) noexcept {
  ToFailure(transaction->Delete(SliceOf(key)), failure);
}

void ferrite_rocksdb_txn_scan(const Database* database, rocksdb::Transaction* transaction, Bytes from, Bytes to,
                              Sink sink, void* context, Failure* failure) noexcept {
  Scan(*database, from, to, sink, context, failure,
       [&](const ReadOptions& options) { return transaction->GetIterator(options); });
}

void ferrite_rocksdb_txn_savepoint(rocksdb::Transaction* transaction) noexcept { transaction->SetSavePoint(); }

void ferrite_rocksdb_txn_rollback_to_savepoint(rocksdb::Transaction* transaction, Failure* failure) noexcept {
  ToFailure(transaction->RollbackToSavePoint(), failure);
}

// What changes nothing needs no log record, and no sync.
void ferrite_rocksdb_txn_commit(rocksdb::Transaction* transaction, Failure* failure) noexcept {
  const bool is_empty = transaction->GetWriteBatch()->GetWriteBatch()->Count() == 0;
  ToFailure(is_empty ? transaction->Rollback() : transaction->Commit(), failure);
}

}  // extern "C"

}  // namespace ferrite
