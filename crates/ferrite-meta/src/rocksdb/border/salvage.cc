// Reading what can be read of a damaged database.
//
// A block that cannot be read ends an iterator. So the iterator is set behind it: at the smallest key from which it can
// go on, which doubling and halving a distance finds. What lies in between has to come from elsewhere: every table is
// read by itself there, and what is in memory only. Such a key's value is asked of the whole database, for it may be a
// newer one, or none; if that meets the block again, the newest value is taken that could be read.
//
// Tables say of a deleted key that it is not there, so a key whose deletion was in the damaged block may come back.
//
// Everything is noexcept in effect: only lack of memory throws, and then the process ends, as it does in Rust.

#include "shim.h"

#include <functional>
#include <map>
#include <rocksdb/db.h>
#include <rocksdb/metadata.h>
#include <rocksdb/sst_file_reader.h>
#include <rocksdb/table_properties.h>
#include <tuple>
#include <vector>

namespace ferrite {
namespace {

using rocksdb::Iterator;
using rocksdb::ReadOptions;
using rocksdb::Slice;
using rocksdb::Status;

// Distances between keys are those of their first bytes, as a number.
constexpr size_t kNumberBytes = 24;
constexpr unsigned kNumberBits = kNumberBytes * 8;

// The number of `key` plus 2^bit, as a key. Empty if it is beyond all of them.
std::string Plus(const std::string& key, unsigned bit) {
  std::string number = key.substr(0, kNumberBytes);
  number.resize(kNumberBytes, '\0');
  size_t at = kNumberBytes - 1 - bit / 8;
  unsigned carry = 1U << (bit % 8);
  for (;; --at) {
    carry += static_cast<unsigned char>(number[at]);
    number[at] = static_cast<char>(carry & 0xff);
    carry >>= 8;
    if (carry == 0) return number;
    if (at == 0) return {};
  }
}

using Each = std::function<bool(const Slice& key, const Slice& value)>;
// What lies between two keys, the second of which may be empty for the end, cannot be read.
using Gap = std::function<bool(const std::string& after, const std::string& before)>;

// Sets an iterator behind what it cannot read: to the first place after `last` from which it can go on. Its key, or
// nothing if there is none.
std::string Resume(Iterator& at, const std::string& last) {
  const auto can = [&](const std::string& key) {
    at.Seek(key);
    return at.status().ok();
  };
  std::string low = last, high;
  unsigned bit = 0;
  for (; bit < kNumberBits; ++bit) {
    const std::string next = Plus(last, bit);
    if (next.empty()) return {};
    if (can(next)) {
      high = next;
      break;
    }
    low = next;
  }
  if (high.empty()) return {};
  while (bit-- > 0) {
    const std::string middle = Plus(low, bit);
    if (middle.empty() || middle >= high) continue;
    (can(middle) ? high : low) = middle;
  }
  return can(high) && at.Valid() ? at.key().ToString() : std::string();
}

// Goes over what an iterator can read from `from` on, up to `to`, if that is not empty. False: somebody wants no more.
bool Walk(Iterator& at, const std::string& from, const std::string& to, const Each& each, const Gap& gap) {
  std::string last = from;
  at.Seek(from);
  while (true) {
    for (; at.Valid() && (to.empty() || at.key().compare(to) < 0); at.Next()) {
      last = at.key().ToString();
      if (!each(at.key(), at.value())) return false;
    }
    if (at.Valid() || at.status().ok()) return true;
    const std::string next = Resume(at, last);
    const bool is_over = next.empty() || (!to.empty() && next >= to);
    if (!gap(last, is_over ? to : next)) return false;
    if (is_over) return true;
  }
}

// Values by key; the smaller rank is the newer one.
using Rank = std::tuple<int, int64_t>;
using Candidates = std::map<std::string, std::pair<Rank, std::string>>;

ReadOptions InOrder() {
  ReadOptions options;
  options.total_order_seek = true;
  options.fill_cache = false;
  return options;
}

// What tables, and memory, hold of a range each by itself.
Candidates CandidatesOf(rocksdb::DB& db, const std::string& after, const std::string& before) {
  Candidates found;
  const auto keep = [&](Rank rank) {
    return [&found, rank](const Slice& key, const Slice& value) {
      auto [at, is_new] = found.try_emplace(key.ToString(), rank, value.ToString());
      if (!is_new && rank < at->second.first) at->second = {rank, value.ToString()};
      return true;
    };
  };
  const Gap pass = [](const std::string&, const std::string&) { return true; };
  std::vector<rocksdb::LiveFileMetaData> tables;
  db.GetLiveFilesMetaData(&tables);
  for (const auto& table : tables) {
    if (table.largestkey < after || (!before.empty() && table.smallestkey > before)) continue;
    rocksdb::SstFileReader reader(db.GetOptions());
    if (!reader.Open(table.db_path + table.name).ok()) continue;
    const std::unique_ptr<Iterator> at(reader.NewIterator(InOrder()));
    Walk(*at, after, before, keep({table.level, -static_cast<int64_t>(table.largest_seqno)}), pass);
  }
  ReadOptions memory = InOrder();
  memory.table_filter = [](const rocksdb::TableProperties&) { return false; };
  const std::unique_ptr<Iterator> at(db.NewIterator(memory));
  Walk(*at, after, before, keep({-1, 0}), pass);
  return found;
}

}  // namespace

void Salvage(rocksdb::DB& db, Sink sink, void* context, uint64_t* gaps) {
  const Each give = [&](const Slice& key, const Slice& value) { return sink(context, BytesOf(key), BytesOf(value)); };
  const Gap mend = [&](const std::string& after, const std::string& before) {
    ++*gaps;
    for (const auto& [key, candidate] : CandidatesOf(db, after, before)) {
      std::string value;
      const Status status = db.Get(InOrder(), key, &value);
      if (status.IsNotFound()) continue;
      if (!give(key, status.ok() ? value : candidate.second)) return false;
    }
    return true;
  };
  const std::unique_ptr<Iterator> at(db.NewIterator(InOrder()));
  Walk(*at, std::string(), std::string(), give, mend);
}

}  // namespace ferrite
