// The interface of the two sides: ffi.rs has the same, in the same order. border.h has what other borders share.
#pragma once

#include <ferrite/border.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/file_system.h>
#include <rocksdb/slice.h>
#include <rocksdb/status.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace ferrite {

// What RocksDB has to say of itself: a line of its log, or (`fatal`) why it takes no more writes. Any thread.
using Notice = void (*)(const void* context, bool fatal, Bytes text);

// Files, as functions of the Rust side. `root` is what was passed to open. A returned pointer is null after a failure.
struct FileOps {
  void* (*open_reader)(const void* root, Bytes path, bool in_order, Failure* failure);
  size_t (*read_at)(const void* reader, uint64_t offset, char* into, size_t len_bytes, Failure* failure);
  void (*close_reader)(void* reader);
  void* (*open_writer)(const void* root, Bytes path, bool keep, Failure* failure);
  void (*append)(const void* writer, Bytes data, Failure* failure);
  void (*sync)(const void* writer, Failure* failure);
  void (*truncate)(const void* writer, uint64_t len_bytes, Failure* failure);
  uint64_t (*written_bytes)(const void* writer);
  void (*close_writer)(void* writer, Failure* failure);
  bool (*exists)(const void* root, Bytes path, Failure* failure);
  uint64_t (*size_bytes)(const void* root, Bytes path, Failure* failure);
  uint64_t (*free_bytes)(const void* root, Failure* failure);
  void (*list)(const void* root, Bytes path, Sink sink, void* context, Failure* failure);
  void (*remove)(const void* root, Bytes path, Failure* failure);
  void (*rename)(const void* root, Bytes from, Bytes to, Failure* failure);
  void* (*lock)(const void* root, Bytes path, Failure* failure);
  void (*unlock)(void* lock);
};

struct OpenOptions {
  uint64_t block_cache_bytes;
  uint64_t write_buffer_bytes;
  uint64_t lock_timeout_ms;
  uint64_t merges_leave_bytes;
  uint32_t background_jobs;
  uint32_t unmerged_tables_max;
  uint32_t prefix_len_bytes;  // 0 is none
  bool create_if_missing;
  bool sync;
  bool read_only;
  uint32_t salvage;  // 0: no; 1: read what can be read; 2: and make a manifest of the tables first
};

struct Statistics {
  uint64_t keys_estimated;
  uint64_t table_bytes;
  uint64_t memory_table_bytes;
  uint64_t block_cache_bytes;
  uint64_t block_cache_hits;
  uint64_t block_cache_misses;
  uint64_t log_bytes;
  uint64_t log_syncs;
  uint64_t merges;
  uint64_t unmerged_tables;
  uint64_t stall_us;
};

inline rocksdb::Slice SliceOf(Bytes bytes) { return {bytes.data, bytes.len_bytes}; }

// RocksDB's files, over `ops`.
std::shared_ptr<rocksdb::FileSystem> MakeFileSystem(const FileOps& ops, const void* root);

// `files`, of which merges leave so much free: they get NoSpace.
std::shared_ptr<rocksdb::FileSystem> MakeReserving(const std::shared_ptr<rocksdb::FileSystem>& files,
                                               uint64_t leave_bytes);

// Passes all pairs that can be read of a database to `sink`, in any order, some maybe twice; counts the ranges of keys of
// which something could not.
void Salvage(rocksdb::DB& db, Sink sink, void* context, uint64_t* gaps);

// Whether what this thread writes from now on is a merge's.
void SetMerging(bool merging);

}  // namespace ferrite
