#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/recent.h"
#include "engine/envelope.h"
#include "engine/operation.h"

namespace bluecomm {

// A message that arrived before its call was made on this rank.
struct Unmatched {
  int peer;
  Envelope envelope;
  std::unique_ptr<Incoming> message;
  std::uint64_t order = 0;  // grows from message to message; set by Matching
};

// Finds the call that a message belongs to, by its key, so that calls and messages may
// come in any order. Messages whose call has not been made yet are kept here;
// transports bound their memory. Not thread-safe; the dispatcher calls it under the
// progress lock.
class Matching {
 public:
  // Whether this rank has not made, has not finished, or has finished the call of a
  // key.
  enum class Standing { kFuture, kUnfinished, kPast };

  // Returns the number of the next call of (group, name).
  std::uint32_t next_sequence(std::uint64_t group, std::uint64_t name) const;

  // Returns a number above those of all calls so far.
  std::uint32_t unused_sequence() const;
  // Continues all counts at `sequence`, and drops the messages of earlier calls.
  void restart(std::uint32_t sequence);

  // Registers the next call. Returns whether it must wait because an earlier call of
  // the same name has not finished.
  bool add(std::shared_ptr<Operation> operation);
  // Forgets all calls of a group, which have finished. Returns the messages of calls
  // that this rank has not made.
  std::vector<Unmatched> remove_group(std::uint64_t group);
  // Gives the next call of a name the number of `key`, above those of all its calls.
  void continue_at(const Key& key);
  // Counts the next call, which this rank does not make, and drops its messages.
  void skip(const Key& key);
  // Removes a finished call. Returns the queued call that may start now, if any.
  std::shared_ptr<Operation> remove(const Operation& operation);

  Operation* find(const Key& key) const;
  // Returns whether a call of this kind, group and name has not finished.
  bool is_in_flight(Kind kind, std::uint64_t group, std::uint64_t name) const;
  // Returns the first unfinished call of the same name if it precedes `key`, or null.
  // Unnamed calls do not wait for each other, so for them it returns null.
  Operation* find_earlier(const Key& key) const;
  Standing standing(const Key& key) const;

  void keep(Unmatched message);
  std::vector<Unmatched> take(const Key& key);
  // Returns the first call that `peer` has made and this rank has not, for error texts.
  std::optional<Envelope> announced_by(int peer) const;

  // Keep and return failures that peers reported before the call was made on this rank.
  // The messages of a failed call are dropped.
  void keep_abort(const Key& key, Status status);
  std::optional<Status> abort_of(const Key& key) const;

  // Remember calls that failed on this rank, whose late messages are ignored.
  void remember_failure(const Key& key);
  bool has_failed(const Key& key) const { return failed_.contains(key); }

 private:
  // All calls of one (group, name); `unfinished` is in the order of the calls.
  struct Line {
    std::uint32_t next = 0;
    std::vector<std::shared_ptr<Operation>> unfinished;
  };
  static constexpr std::size_t kRemembered = 4096;

  static Key line_key(const Key& key) { return {key.group, key.name, 0, 0}; }

  std::unordered_map<Key, Line, KeyHash> lines_;
  std::uint32_t first_ = 0;  // the number of the first call of a name
  std::unordered_map<Key, std::vector<Unmatched>, KeyHash> unmatched_;
  std::uint64_t kept_ = 0;  // number of messages that keep() has taken
  RecentMap<Key, Status, KeyHash> aborts_{kRemembered};
  RecentMap<Key, bool, KeyHash> failed_{kRemembered};
};

}  // namespace bluecomm
