// The C++ side: a leveldb::Env whose files are Ferrite's, and a database as functions that Rust can call.
//
// Threads and time are those of leveldb::Env::Default(). All file accesses go through FileOps to env.rs, never to the
// machine's own files. LevelDB's text log (LOG) is not kept.
//
// Everything here is noexcept: only lack of memory throws, and then the process ends, as it does in Rust.

#include "shim.h"

#include <leveldb/cache.h>
#include <leveldb/db.h>
#include <leveldb/env.h>
#include <leveldb/iterator.h>
#include <leveldb/options.h>
#include <leveldb/slice.h>
#include <leveldb/status.h>
#include <leveldb/write_batch.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace ferrite {
namespace {

using leveldb::Slice;
using leveldb::Status;

Slice SliceOf(Bytes bytes) { return {bytes.data, bytes.len_bytes}; }

Status ToStatus(const std::string& name, const Failure& failure) {
  const Slice text = TextOf<Slice>(failure);
  switch (failure.kind) {
    case kNone: return Status::OK();
    case kNotFound: return Status::NotFound(name, text);
    case kCorruption: return Status::Corruption(name, text);
    case kNotSupported: return Status::NotSupported(name, text);
    case kInvalid: return Status::InvalidArgument(name, text);
    default: return Status::IOError(name, text);
  }
}

void ToFailure(const Status& status, Failure* failure) {
  if (status.ok()) return;
  const Kind kind = status.IsNotFound()            ? kNotFound
                    : status.IsCorruption()        ? kCorruption
                    : status.IsNotSupportedError() ? kNotSupported
                    : status.IsInvalidArgument()   ? kInvalid
                                                   : kIo;
  Fail(failure, kind, status.ToString());
}

// A file that is read. The offset of sequential reads is kept here; one thread at a time does those.
class Reader final : public leveldb::RandomAccessFile {
 public:
  Reader(const FileOps& ops, std::string name, void* file) : ops_(ops), name_(std::move(name)), file_(file) {}
  ~Reader() override { ops_.close_reader(file_); }

  Status Read(uint64_t offset, size_t n, Slice* result, char* scratch) const noexcept override {
    Failure failure{};
    const size_t count = ops_.read_at(file_, offset, scratch, n, &failure);
    *result = Slice(scratch, count);
    return ToStatus(name_, failure);
  }

 private:
  const FileOps& ops_;
  const std::string name_;
  void* const file_;
};

class SequentialReader final : public leveldb::SequentialFile {
 public:
  explicit SequentialReader(std::unique_ptr<Reader> reader) : reader_(std::move(reader)) {}

  Status Read(size_t n, Slice* result, char* scratch) noexcept override {
    const Status status = reader_->Read(offset_, n, result, scratch);
    offset_ += result->size();
    return status;
  }

  Status Skip(uint64_t n) noexcept override {
    offset_ += n;
    return Status::OK();
  }

 private:
  const std::unique_ptr<Reader> reader_;
  uint64_t offset_ = 0;
};

class Writer final : public leveldb::WritableFile {
 public:
  Writer(const FileOps& ops, std::string name, void* file) : ops_(ops), name_(std::move(name)), file_(file) {}
  ~Writer() override { Close(); }

  Status Append(const Slice& data) noexcept override {
    Failure failure{};
    if (file_ != nullptr) ops_.append(file_, BytesOf(data), &failure);
    return Result(failure);
  }

  Status Flush() noexcept override {
    Failure failure{};
    if (file_ != nullptr) ops_.flush(file_, &failure);
    return Result(failure);
  }

  Status Sync() noexcept override {
    Failure failure{};
    if (file_ != nullptr) ops_.sync(file_, &failure);
    return Result(failure);
  }

  Status Close() noexcept override {
    Failure failure{};
    if (file_ == nullptr) return Status::OK();
    ops_.close_writer(file_, &failure);
    file_ = nullptr;
    return ToStatus(name_, failure);
  }

 private:
  Status Result(const Failure& failure) const {
    return file_ == nullptr ? Status::IOError(name_, "the file is closed") : ToStatus(name_, failure);
  }

  const FileOps& ops_;
  const std::string name_;
  void* file_;
};

class Lock final : public leveldb::FileLock {
 public:
  explicit Lock(void* lock) : lock_(lock) {}
  void* const lock_;
};

// Background work of one database that was scheduled and is not done. Work that schedules more does so before it is
// done itself, so if nothing is pending, nothing will follow.
struct Pending {
  std::mutex mutex;
  std::condition_variable none;
  uint64_t count = 0;
};

struct Task {
  void (*function)(void*);
  void* argument;
  std::shared_ptr<Pending> pending;
};

void RunTask(void* boxed) noexcept {
  const std::unique_ptr<Task> task(static_cast<Task*>(boxed));
  task->function(task->argument);
  // The database and its Env may be gone from here on; the counter is shared.
  const std::lock_guard<std::mutex> guard(task->pending->mutex);
  if (--task->pending->count == 0) task->pending->none.notify_all();
}

class FerriteEnv final : public leveldb::EnvWrapper {
 public:
  FerriteEnv(const FileOps& ops, const void* root) : EnvWrapper(leveldb::Env::Default()), ops_(ops), root_(root) {}

  Status NewSequentialFile(const std::string& name, leveldb::SequentialFile** result) noexcept override {
    *result = nullptr;
    std::unique_ptr<Reader> reader;
    const Status status = Open(name, &reader);
    if (status.ok()) *result = new SequentialReader(std::move(reader));
    return status;
  }

  Status NewRandomAccessFile(const std::string& name, leveldb::RandomAccessFile** result) noexcept override {
    std::unique_ptr<Reader> reader;
    const Status status = Open(name, &reader);
    *result = reader.release();
    return status;
  }

  Status NewWritableFile(const std::string& name, leveldb::WritableFile** result) noexcept override {
    return Create(name, false, result);
  }

  Status NewAppendableFile(const std::string& name, leveldb::WritableFile** result) noexcept override {
    return Create(name, true, result);
  }

  bool FileExists(const std::string& name) noexcept override {
    Failure failure{};
    ops_.size_bytes(root_, BytesOf(name), &failure);
    return failure.kind == kNone;
  }

  Status GetChildren(const std::string& dir, std::vector<std::string>* result) noexcept override {
    result->clear();
    Failure failure{};
    const Sink add = [](void* names, Bytes name, Bytes) {
      static_cast<std::vector<std::string>*>(names)->emplace_back(name.data, name.len_bytes);
      return true;
    };
    ops_.list(root_, BytesOf(dir), add, result, &failure);
    return ToStatus(dir, failure);
  }

  Status RemoveFile(const std::string& name) noexcept override { return Change(name, ops_.remove_file); }
  Status CreateDir(const std::string& name) noexcept override { return Change(name, ops_.make_dir); }
  Status RemoveDir(const std::string& name) noexcept override { return Change(name, ops_.remove_dir); }

  Status GetFileSize(const std::string& name, uint64_t* size_bytes) noexcept override {
    Failure failure{};
    *size_bytes = ops_.size_bytes(root_, BytesOf(name), &failure);
    return ToStatus(name, failure);
  }

  Status RenameFile(const std::string& from, const std::string& to) noexcept override {
    Failure failure{};
    ops_.rename(root_, BytesOf(from), BytesOf(to), &failure);
    return ToStatus(from, failure);
  }

  Status LockFile(const std::string& name, leveldb::FileLock** result) noexcept override {
    Failure failure{};
    void* const lock = ops_.lock(root_, BytesOf(name), &failure);
    *result = lock == nullptr ? nullptr : new Lock(lock);
    return ToStatus(name, failure);
  }

  Status UnlockFile(leveldb::FileLock* lock) noexcept override {
    ops_.unlock(static_cast<Lock*>(lock)->lock_);
    delete lock;
    return Status::OK();
  }

  // The default one would create it on the machine's own file system.
  Status NewLogger(const std::string& name, leveldb::Logger** result) noexcept override {
    *result = nullptr;
    return Status::NotSupported(name, "no text log is kept");
  }

  void Schedule(void (*function)(void*), void* argument) noexcept override {
    {
      const std::lock_guard<std::mutex> guard(pending_->mutex);
      ++pending_->count;
    }
    target()->Schedule(RunTask, new Task{function, argument, pending_});
  }

  void AwaitNoWork() {
    std::unique_lock<std::mutex> guard(pending_->mutex);
    pending_->none.wait(guard, [this] { return pending_->count == 0; });
  }

 private:
  Status Open(const std::string& name, std::unique_ptr<Reader>* result) {
    Failure failure{};
    void* const file = ops_.open_reader(root_, BytesOf(name), &failure);
    if (file != nullptr) *result = std::make_unique<Reader>(ops_, name, file);
    return ToStatus(name, failure);
  }

  Status Create(const std::string& name, bool keep, leveldb::WritableFile** result) {
    Failure failure{};
    void* const file = ops_.open_writer(root_, BytesOf(name), keep, &failure);
    *result = file == nullptr ? nullptr : new Writer(ops_, name, file);
    return ToStatus(name, failure);
  }

  Status Change(const std::string& name, void (*change)(const void*, Bytes, Failure*)) {
    Failure failure{};
    change(root_, BytesOf(name), &failure);
    return ToStatus(name, failure);
  }

  const FileOps& ops_;
  const void* const root_;
  const std::shared_ptr<Pending> pending_ = std::make_shared<Pending>();
};

// Members are destroyed in reverse order: the database before what it uses.
struct Database {
  std::unique_ptr<FerriteEnv> env;
  std::unique_ptr<leveldb::Cache> cache;
  leveldb::WriteOptions write;
  std::unique_ptr<leveldb::DB> db;
};

}  // namespace

extern "C" {

// Null after a failure. `ops` and `root` must live until the database is closed.
Database* ferrite_leveldb_open(const FileOps* ops, const void* root, Bytes path, const OpenOptions* wanted,
                               Failure* failure) noexcept {
  auto database = std::make_unique<Database>();
  database->env = std::make_unique<FerriteEnv>(*ops, root);
  database->cache.reset(leveldb::NewLRUCache(wanted->block_cache_bytes));
  database->write.sync = wanted->sync;
  leveldb::Options options;
  options.create_if_missing = true;
  options.env = database->env.get();
  options.block_cache = database->cache.get();
  options.write_buffer_size = wanted->write_buffer_bytes;
  options.max_file_size = wanted->max_file_size_bytes;
  options.compression = wanted->compress ? leveldb::kSnappyCompression : leveldb::kNoCompression;
  leveldb::DB* db = nullptr;
  const Status status = leveldb::DB::Open(options, SliceOf(path).ToString(), &db);
  database->db.reset(db);
  ToFailure(status, failure);
  return status.ok() ? database.release() : nullptr;
}

void ferrite_leveldb_close(Database* database) noexcept { delete database; }

void ferrite_leveldb_put(Database* database, Bytes key, Bytes value, Failure* failure) noexcept {
  ToFailure(database->db->Put(database->write, SliceOf(key), SliceOf(value)), failure);
}

void ferrite_leveldb_delete(Database* database, Bytes key, Failure* failure) noexcept {
  ToFailure(database->db->Delete(database->write, SliceOf(key)), failure);
}

// The value goes to `sink`, once.
void ferrite_leveldb_get(Database* database, Bytes key, Sink sink, void* context, Failure* failure) noexcept {
  std::string value;
  const Status status = database->db->Get(leveldb::ReadOptions(), SliceOf(key), &value);
  if (status.ok()) sink(context, BytesOf(value), Bytes{nullptr, 0});
  ToFailure(status, failure);
}

// Pairs from the first key at or after `from` go to `sink` in order, until it returns false or there are no more.
void ferrite_leveldb_scan(Database* database, Bytes from, Sink sink, void* context, Failure* failure) noexcept {
  const std::unique_ptr<leveldb::Iterator> at(database->db->NewIterator(leveldb::ReadOptions()));
  for (at->Seek(SliceOf(from)); at->Valid(); at->Next()) {
    if (!sink(context, BytesOf(at->key()), BytesOf(at->value()))) break;
  }
  ToFailure(at->status(), failure);
}

// Compacts everything. A failed compaction is not reported; the next write fails instead, so this makes an empty one.
void ferrite_leveldb_compact(Database* database, Failure* failure) noexcept {
  database->db->CompactRange(nullptr, nullptr);
  leveldb::WriteBatch nothing;
  ToFailure(database->db->Write(leveldb::WriteOptions(), &nothing), failure);
}

// Returns when no background work is running or scheduled.
void ferrite_leveldb_settle(Database* database) noexcept { database->env->AwaitNoWork(); }

}  // extern "C"

}  // namespace ferrite
