// The interface of the two sides: ffi.rs has the same, in the same order. border.h has what other borders share.
#pragma once

#include <ferrite/border.h>

#include <cstddef>
#include <cstdint>

namespace ferrite {

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
