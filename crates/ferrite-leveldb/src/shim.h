// The interface of the two sides: ffi.rs has the same, in the same order. Plain data; nothing throws across.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ferrite {

// Kinds of failure, those of leveldb::Status. In a Failure, 0 is none.
enum Kind : int32_t { kNone = 0, kNotFound = 1, kCorruption = 2, kNotSupported = 3, kInvalid = 4, kIo = 5 };

// Why something failed. The caller provides it, with kind 0; `text` has no terminating zero.
struct Failure {
  int32_t kind;
  uint32_t len_bytes;
  char text[248];
};

// Borrowed for the length of a call.
struct Bytes {
  const char* data;
  size_t len_bytes;
};

// Receives data piece by piece; returns false for no more. A key, or the only piece, is in `first`.
using Sink = bool (*)(void* context, Bytes first, Bytes second);

// The file system, as functions of the Rust side. `root` is what was passed to Open. A returned pointer is null after a
// failure.
struct FileOps {
  void* (*open_reader)(const void* root, Bytes path, Failure* failure);
  size_t (*read_at)(const void* reader, uint64_t offset, char* into, size_t len_bytes, Failure* failure);
  void (*close_reader)(void* reader);
  void* (*open_writer)(const void* root, Bytes path, bool keep, Failure* failure);
  void (*append)(void* writer, Bytes data, Failure* failure);
  void (*flush)(void* writer, Failure* failure);
  void (*sync)(void* writer, Failure* failure);
  void (*close_writer)(void* writer, Failure* failure);
  uint64_t (*size_bytes)(const void* root, Bytes path, Failure* failure);
  void (*list)(const void* root, Bytes path, Sink sink, void* context, Failure* failure);
  void (*make_dir)(const void* root, Bytes path, Failure* failure);
  void (*remove_dir)(const void* root, Bytes path, Failure* failure);
  void (*remove_file)(const void* root, Bytes path, Failure* failure);
  void (*rename)(const void* root, Bytes from, Bytes to, Failure* failure);
  void* (*lock)(const void* root, Bytes path, Failure* failure);
  void (*unlock)(void* lock);
};

struct OpenOptions {
  uint64_t max_file_size_bytes;
  uint64_t write_buffer_bytes;
  uint64_t block_cache_bytes;
  bool compress;
  bool sync;
};

}  // namespace ferrite
