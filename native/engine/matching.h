#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/envelope.h"
#include "engine/operation.h"
#include "engine/recent.h"

namespace bluecomm {

// A message that arrived before the call it belongs to.
struct Unmatched {
  int peer;
  Envelope envelope;
  std::unique_ptr<Incoming> message;
};

// Finds the call that a message belongs to, in whatever order calls and messages come:
// by key only, never by order. Messages that nobody wants yet wait here; transports
// bound the memory they take.
class Matching {
 public:
  // Where the call of a key stands on this rank.
  enum class Standing { kFuture, kUnfinished, kPast };

  // Number of the next call of (group, name).
  std::uint32_t next_sequence(std::uint64_t group, std::uint64_t name) const;

  // Registers the next call. True: it must wait, because an earlier call of the same
  // name has not ended.
  bool add(std::shared_ptr<Operation> operation);
  // Forgets a call that has ended; returns the queued call that may start now, if any.
  std::shared_ptr<Operation> remove(const Operation& operation);

  Operation* find(const Key& key) const;
  // The unfinished call of the same name that comes first, if it comes before `key`.
  // Not for unnamed calls, which do not wait for each other.
  Operation* find_earlier(const Key& key) const;
  Standing standing(const Key& key) const;

  void keep(Unmatched message);
  std::vector<Unmatched> take(const Key& key);
  // Calls that `peer` has made and this rank has not, for texts.
  std::vector<Envelope> announced_by(int peer, std::size_t limit) const;

  // Failures that peers reported before the call was made here.
  void keep_abort(const Key& key, Status status);
  std::optional<Status> abort_of(const Key& key) const;

  // Calls that failed here: what still comes for them is no news.
  void remember_failure(const Key& key);
  bool has_failed(const Key& key) const { return failed_.contains(key); }

 private:
  // All calls of one (group, name). `unfinished` in the order of the calls.
  struct Line {
    std::uint32_t next = 0;
    std::vector<std::shared_ptr<Operation>> unfinished;
  };
  static constexpr std::size_t kRemembered = 4096;

  static Key line_key(const Key& key) { return {key.group, key.name, 0, 0}; }

  std::unordered_map<Key, Line, KeyHash> lines_;
  std::unordered_map<Key, std::vector<Unmatched>, KeyHash> unmatched_;
  RecentMap<Key, Status, KeyHash> aborts_{kRemembered};
  RecentMap<Key, bool, KeyHash> failed_{kRemembered};
};

}  // namespace bluecomm
