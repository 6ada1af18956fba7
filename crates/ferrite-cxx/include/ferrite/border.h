// What both sides of a border between Rust and C++ declare: src/border.rs has the same, in the same order. Plain data;
// nothing throws across.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace ferrite {

// Kinds of failure. In a Failure, 0 is none. A library uses those that it knows.
enum Kind : int32_t {
  kNone = 0,
  kNotFound = 1,
  kCorruption = 2,
  kNotSupported = 3,
  kInvalid = 4,
  kIo = 5,
  kNoSpace = 6,
  kTimedOut = 7,
  kDeadlock = 8,
  kInUse = 9,
};

// Why something failed. The caller provides it, with kind 0; `text` has no terminating zero.
struct Failure {
  int32_t kind;
  uint32_t len_bytes;
  char text[504];
};

// Borrowed for the length of a call.
struct Bytes {
  const char* data;
  size_t len_bytes;
};

// Receives data piece by piece; returns false for no more. A key, or the only piece, is in `first`.
using Sink = bool (*)(void* context, Bytes first, Bytes second);

// Of a string, or a library's slice.
template <class Slice>
inline Bytes BytesOf(const Slice& slice) {
  return {slice.data(), slice.size()};
}

// The text of a failure of the Rust side, as a library's slice.
template <class Slice>
inline Slice TextOf(const Failure& failure) {
  return Slice(failure.text, std::min<size_t>(failure.len_bytes, sizeof failure.text));
}

// Text beyond the field's length is cut off.
inline void Fail(Failure* failure, Kind kind, const std::string& text) {
  failure->kind = kind;
  failure->len_bytes = static_cast<uint32_t>(std::min(text.size(), sizeof failure->text));
  std::memcpy(failure->text, text.data(), failure->len_bytes);
}

}  // namespace ferrite
