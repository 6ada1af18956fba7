// Merges leave space: what they write can wait, and what others write, cannot. RocksDB takes no more changes once a
// flush, the log or the list of tables has met the end of the place; a merge that does has only wasted its time.

#include "shim.h"

namespace ferrite {
namespace {

using rocksdb::DataVerificationInfo;
using rocksdb::FileOptions;
using rocksdb::FileSystem;
using rocksdb::FSWritableFile;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

// RocksDB runs a merge, or a part of one, on one thread from its begin to its end.
thread_local bool is_merging = false;

class Modest final : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  Modest(std::unique_ptr<FSWritableFile> file, FileSystem& files, std::string name, uint64_t leave_bytes)
      : FSWritableFileOwnerWrapper(std::move(file)), files_(files), name_(std::move(name)), leave_bytes_(leave_bytes) {}

  IOStatus Append(const Slice& data, const IOOptions& options, IODebugContext* debug) override {
    const IOStatus space = Space(data.size(), options, debug);
    return space.ok() ? target()->Append(data, options, debug) : space;
  }

  IOStatus Append(const Slice& data, const IOOptions& options, const DataVerificationInfo& sums,
                  IODebugContext* debug) override {
    const IOStatus space = Space(data.size(), options, debug);
    return space.ok() ? target()->Append(data, options, sums, debug) : space;
  }

 private:
  IOStatus Space(uint64_t len_bytes, const IOOptions& options, IODebugContext* debug) const {
    uint64_t free_bytes = 0;
    const IOStatus status = files_.GetFreeSpace(name_, options, &free_bytes, debug);
    if (!status.ok() || free_bytes >= leave_bytes_ + len_bytes) return status;
    return IOStatus::NoSpace(name_, "a merge leaves the last of the space to others");
  }

  FileSystem& files_;
  const std::string name_;
  const uint64_t leave_bytes_;
};

class Files final : public rocksdb::FileSystemWrapper {
 public:
  Files(const std::shared_ptr<FileSystem>& files, uint64_t leave_bytes)
      : FileSystemWrapper(files), leave_bytes_(leave_bytes) {}

  const char* Name() const override { return "FerriteSpace"; }

  IOStatus NewWritableFile(const std::string& name, const FileOptions& options,
                           std::unique_ptr<FSWritableFile>* result, IODebugContext* debug) override {
    const IOStatus status = target()->NewWritableFile(name, options, result, debug);
    if (status.ok() && is_merging) {
      // The directory's space, since the file may have its name only later.
      std::string directory = name.substr(0, name.find_last_of('/'));
      *result = std::make_unique<Modest>(std::move(*result), *target(), std::move(directory), leave_bytes_);
    }
    return status;
  }

 private:
  const uint64_t leave_bytes_;
};

}  // namespace

void SetMerging(bool merging) { is_merging = merging; }

std::shared_ptr<rocksdb::FileSystem> MakeReserving(const std::shared_ptr<FileSystem>& files, uint64_t leave_bytes) {
  return std::make_shared<Files>(files, leave_bytes);
}

}  // namespace ferrite
