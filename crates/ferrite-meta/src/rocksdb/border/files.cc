// RocksDB's files over FileOps: no call of this file system reaches the machine's own files.
//
// Direct I/O, alignment and preallocation are the Rust side's matter, so RocksDB is told of none. A name is durable
// when it is made or changed, so syncing a directory has nothing to do.
//
// Everything is noexcept in effect: only lack of memory throws, and then the process ends, as it does in Rust.

#include "shim.h"

#include <mutex>
#include <vector>

namespace ferrite {
namespace {

using rocksdb::FileOptions;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

IOStatus ToStatus(const std::string& name, const Failure& failure) {
  if (failure.kind == kNone) return IOStatus::OK();
  const Slice text = TextOf<Slice>(failure);
  switch (failure.kind) {
    case kNotFound: return IOStatus::PathNotFound(name, text);
    case kCorruption: return IOStatus::Corruption(name, text);
    case kNotSupported: return IOStatus::NotSupported(name, text);
    case kInvalid: return IOStatus::InvalidArgument(name, text);
    case kNoSpace: return IOStatus::NoSpace(name, text);
    default: return IOStatus::IOError(name, text);
  }
}

class RandomReader final : public rocksdb::FSRandomAccessFile {
 public:
  RandomReader(const FileOps& ops, std::string name, void* file) : ops_(ops), name_(std::move(name)), file_(file) {}
  ~RandomReader() override { ops_.close_reader(file_); }

  IOStatus Read(uint64_t offset, size_t n, const IOOptions&, Slice* result, char* scratch,
                IODebugContext*) const override {
    Failure failure{};
    *result = Slice(scratch, ops_.read_at(file_, offset, scratch, n, &failure));
    return ToStatus(name_, failure);
  }

 private:
  const FileOps& ops_;
  const std::string name_;
  void* const file_;
};

class InOrderReader final : public rocksdb::FSSequentialFile {
 public:
  InOrderReader(const FileOps& ops, std::string name, void* file) : reader_(ops, std::move(name), file) {}

  IOStatus Read(size_t n, const IOOptions& options, Slice* result, char* scratch, IODebugContext* debug) override {
    IOStatus status = reader_.Read(offset_, n, options, result, scratch, debug);
    offset_ += result->size();
    return status;
  }

  IOStatus Skip(uint64_t n) override {
    offset_ += n;
    return IOStatus::OK();
  }

 private:
  const RandomReader reader_;
  uint64_t offset_ = 0;
};

class Writer final : public rocksdb::FSWritableFile {
 public:
  Writer(const FileOps& ops, std::string name, void* file) : ops_(ops), name_(std::move(name)), file_(file) {}
  ~Writer() override { CloseOnce(); }

  using rocksdb::FSWritableFile::Append;
  IOStatus Append(const Slice& data, const IOOptions&, IODebugContext*) override {
    Failure failure{};
    ops_.append(file_, BytesOf(data), &failure);
    return ToStatus(name_, failure);
  }

  IOStatus Truncate(uint64_t size_bytes, const IOOptions&, IODebugContext*) override {
    Failure failure{};
    ops_.truncate(file_, size_bytes, &failure);
    return ToStatus(name_, failure);
  }

  // A killed process keeps what it appended only after Sync; RocksDB asks for no more than that.
  IOStatus Flush(const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }

  IOStatus Sync(const IOOptions&, IODebugContext*) override {
    Failure failure{};
    ops_.sync(file_, &failure);
    return ToStatus(name_, failure);
  }

  bool IsSyncThreadSafe() const override { return true; }
  uint64_t GetFileSize(const IOOptions&, IODebugContext*) override { return ops_.written_bytes(file_); }
  IOStatus Close(const IOOptions&, IODebugContext*) override { return CloseOnce(); }

 private:
  IOStatus CloseOnce() {
    if (file_ == nullptr) return IOStatus::OK();
    Failure failure{};
    ops_.close_writer(file_, &failure);
    file_ = nullptr;
    return ToStatus(name_, failure);
  }

  const FileOps& ops_;
  const std::string name_;
  void* file_;
};

class Directory final : public rocksdb::FSDirectory {
 public:
  IOStatus Fsync(const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }
};

class Lock final : public rocksdb::FileLock {
 public:
  explicit Lock(void* lock) : lock_(lock) {}
  void* const lock_;
};

class Silent final : public rocksdb::Logger {
 public:
  using rocksdb::Logger::Logv;
  void Logv(const char*, va_list) override {}
};

class Files final : public rocksdb::FileSystem {
 public:
  Files(const FileOps& ops, const void* root) : ops_(ops), root_(root) {}

  const char* Name() const override { return "FerriteFiles"; }

  IOStatus NewSequentialFile(const std::string& name, const FileOptions&,
                             std::unique_ptr<rocksdb::FSSequentialFile>* result, IODebugContext*) override {
    Failure failure{};
    void* const file = ops_.open_reader(root_, BytesOf(name), true, &failure);
    result->reset(file == nullptr ? nullptr : new InOrderReader(ops_, name, file));
    return ToStatus(name, failure);
  }

  IOStatus NewRandomAccessFile(const std::string& name, const FileOptions&,
                               std::unique_ptr<rocksdb::FSRandomAccessFile>* result, IODebugContext*) override {
    Failure failure{};
    void* const file = ops_.open_reader(root_, BytesOf(name), false, &failure);
    result->reset(file == nullptr ? nullptr : new RandomReader(ops_, name, file));
    return ToStatus(name, failure);
  }

  IOStatus NewWritableFile(const std::string& name, const FileOptions&,
                           std::unique_ptr<rocksdb::FSWritableFile>* result, IODebugContext*) override {
    return Write(name, false, result);
  }

  IOStatus ReopenWritableFile(const std::string& name, const FileOptions&,
                              std::unique_ptr<rocksdb::FSWritableFile>* result, IODebugContext*) override {
    return Write(name, true, result);
  }

  IOStatus NewDirectory(const std::string&, const IOOptions&, std::unique_ptr<rocksdb::FSDirectory>* result,
                        IODebugContext*) override {
    *result = std::make_unique<Directory>();
    return IOStatus::OK();
  }

  // RocksDB takes no other kind than NotFound for "no".
  IOStatus FileExists(const std::string& name, const IOOptions&, IODebugContext*) override {
    Failure failure{};
    const bool exists = ops_.exists(root_, BytesOf(name), &failure);
    if (failure.kind == kNone && !exists) return IOStatus::NotFound(name);
    return ToStatus(name, failure);
  }

  IOStatus GetChildren(const std::string& dir, const IOOptions&, std::vector<std::string>* result,
                       IODebugContext*) override {
    result->clear();
    Failure failure{};
    const Sink add = [](void* names, Bytes name, Bytes) {
      static_cast<std::vector<std::string>*>(names)->emplace_back(name.data, name.len_bytes);
      return true;
    };
    ops_.list(root_, BytesOf(dir), add, result, &failure);
    return ToStatus(dir, failure);
  }

  IOStatus DeleteFile(const std::string& name, const IOOptions&, IODebugContext*) override {
    Failure failure{};
    ops_.remove(root_, BytesOf(name), &failure);
    return ToStatus(name, failure);
  }

  // A directory is what names have in common before a slash: there is nothing to make or to remove.
  IOStatus CreateDir(const std::string&, const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }
  IOStatus CreateDirIfMissing(const std::string&, const IOOptions&, IODebugContext*) override {
    return IOStatus::OK();
  }
  IOStatus DeleteDir(const std::string&, const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }

  IOStatus GetFileSize(const std::string& name, const IOOptions&, uint64_t* size_bytes, IODebugContext*) override {
    Failure failure{};
    *size_bytes = ops_.size_bytes(root_, BytesOf(name), &failure);
    return ToStatus(name, failure);
  }

  // No times are kept; RocksDB asks only for the age of archived logs, of which there are none.
  IOStatus GetFileModificationTime(const std::string& name, const IOOptions&, uint64_t* time_s,
                                   IODebugContext*) override {
    *time_s = 0;
    return IOStatus::NotSupported(name, "times of files are not kept");
  }

  IOStatus RenameFile(const std::string& from, const std::string& to, const IOOptions&, IODebugContext*) override {
    Failure failure{};
    ops_.rename(root_, BytesOf(from), BytesOf(to), &failure);
    return ToStatus(from, failure);
  }

  IOStatus LockFile(const std::string& name, const IOOptions&, rocksdb::FileLock** result, IODebugContext*) override {
    Failure failure{};
    void* const lock = ops_.lock(root_, BytesOf(name), &failure);
    *result = lock == nullptr ? nullptr : new Lock(lock);
    return ToStatus("While lock file: " + name, failure);
  }

  IOStatus UnlockFile(rocksdb::FileLock* lock, const IOOptions&, IODebugContext*) override {
    ops_.unlock(static_cast<Lock*>(lock)->lock_);
    delete lock;
    return IOStatus::OK();
  }

  IOStatus GetTestDirectory(const IOOptions&, std::string*, IODebugContext*) override {
    return IOStatus::NotSupported("no directory for tests");
  }

  // The default one would write on the machine's own file system.
  IOStatus NewLogger(const std::string&, const IOOptions&, std::shared_ptr<rocksdb::Logger>* result,
                     IODebugContext*) override {
    *result = std::make_shared<Silent>();
    return IOStatus::OK();
  }

  IOStatus GetAbsolutePath(const std::string& name, const IOOptions&, std::string* result, IODebugContext*) override {
    *result = name;
    return IOStatus::OK();
  }

  IOStatus GetFreeSpace(const std::string& name, const IOOptions&, uint64_t* free_bytes, IODebugContext*) override {
    Failure failure{};
    *free_bytes = ops_.free_bytes(root_, &failure);
    return ToStatus(name, failure);
  }

  IOStatus IsDirectory(const std::string& name, const IOOptions&, bool* is_directory, IODebugContext*) override {
    Failure failure{};
    ops_.size_bytes(root_, BytesOf(name), &failure);
    *is_directory = failure.kind == kNotFound;
    return *is_directory ? IOStatus::OK() : ToStatus(name, failure);
  }

 private:
  IOStatus Write(const std::string& name, bool keep, std::unique_ptr<rocksdb::FSWritableFile>* result) {
    Failure failure{};
    void* const file = ops_.open_writer(root_, BytesOf(name), keep, &failure);
    result->reset(file == nullptr ? nullptr : new Writer(ops_, name, file));
    return ToStatus(name, failure);
  }

  const FileOps& ops_;
  const void* const root_;
};

}  // namespace

std::shared_ptr<rocksdb::FileSystem> MakeFileSystem(const FileOps& ops, const void* root) {
  return std::make_shared<Files>(ops, root);
}

}  // namespace ferrite
