#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/status.h"
#include "p2p/message.h"
#include "p2p/point_request.h"
#include "transport/channel.h"

namespace bluecomm {

using PointRequestPtr = std::shared_ptr<PointRequest>;

// The values of a send that no receive has taken yet.
struct SentPoint {
  int peer = 0;
  PointMessage message;
  std::unique_ptr<Incoming> incoming;  // null if this rank is the sender; of a kUnsent
                                       // the reason
  PointRequestPtr own;                 // then this is the send
  std::optional<Status> failure;       // the sender has given up the send
};

// Pairs sends with receives: per group, tag and source in the order of the calls. Holds
// the receives that wait for a message, and the messages that wait for a receive; the
// transports bound the payloads of the latter, and PointCredit their number. Not
// thread-safe.
class PointMatching {
 public:
  // Takes a message. Returns the first waiting receive that it belongs to; if there is
  // none, keeps the message.
  PointRequestPtr match(SentPoint& sent);
  // Takes a receive. Returns the first message that it may take; if there is none,
  // keeps the receive.
  std::optional<SentPoint> match(const PointRequestPtr& receive);

  // Removes a receive that waits. Returns whether there was one.
  bool remove(const PointRequest& receive);
  // Removes the message of a send of this rank to itself that waits. Returns whether
  // there was one.
  bool remove_own(const PointRequest& send);
  // Marks the waiting message of a send of this rank to itself that has failed; the
  // receive that takes it fails, too. Returns whether there was one.
  bool mark_own_failed(const PointRequest& send, const Status& failure);
  // Marks the waiting message of a send that `peer` has given up; the receive that
  // takes it fails. Returns whether there was one.
  bool mark_failed(int peer, RequestId send, const Status& failure);

  // Removes and returns the messages of the group that wait.
  std::vector<SentPoint> take_messages(std::uint64_t group);

  std::vector<PointRequestPtr> waiting_receives() const;
  // Returns up to `limit` tags of other messages of the group that wait, from any of
  // `sources`.
  std::vector<std::int64_t> waiting_tags(const PointCall& receive,
                                         std::size_t limit) const;
  void clear() { lines_.clear(); }

 private:
  using TagKey = std::pair<std::uint64_t, std::int64_t>;  // group, tag
  struct TagKeyHash {
    std::size_t operator()(const TagKey& key) const noexcept {
      return std::hash<std::uint64_t>()(
          key.first ^ static_cast<std::uint64_t>(key.second) * 0x9E3779B97F4A7C15U);
    }
  };
  // A receive and a message in the same line have different sources.
  struct Line {
    std::deque<PointRequestPtr> receives;
    std::deque<SentPoint> messages;
    bool empty() const { return receives.empty() && messages.empty(); }
  };
  template <typename Queue, typename Predicate>
  static auto take(Queue& queue, Predicate&& matches)
      -> std::optional<typename Queue::value_type>;

  std::unordered_map<TagKey, Line, TagKeyHash> lines_;
};

}  // namespace bluecomm
