#pragma once

#include <sys/eventfd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/fd.h"
#include "common/mutex.h"
#include "transport/channel.h"
#include "transport/inproc/options.h"

// The state that the ranks of one process share: the messages in flight, one queue of
// events per rank, and the state of each link. One mutex guards all of it. Payloads
// are copied under the mutex, too, so that a sender that has cancelled a message knows
// that its memory is no longer read.

namespace bluecomm::inproc {

using Clock = std::chrono::steady_clock;

// A message in flight. Guarded by Hub::mutex, except the constant members.
struct InprocMessage {
  InprocMessage(int from, int to, const Header& sent,
                std::span<const std::byte> payload)
      : from(from), to(to), header(sent), payload(payload) {
    header.nbytes = final_nbytes = payload.size();
  }

  bool delivered() const { return finished || (arrived && released == header.nbytes); }

  const int from;
  const int to;
  Header header;
  bool eager = false;
  std::vector<std::byte> copy;         // of an eager payload
  std::span<const std::byte> payload;  // the copy, or the sender's memory
  std::size_t final_nbytes;            // the prefix that may be copied
  std::size_t released = 0;
  bool arrived = false;
  bool finished = false;  // cancelled or discarded
};

struct InprocEvent {
  enum class Type { kMessage, kLost, kGoodbye };

  Type type;
  int from;
  Clock::time_point visible_at;
  std::shared_ptr<InprocMessage> message;  // of kMessage
  Status status;                           // of kLost
};

// Events on their way to one rank.
struct EventQueue {
  std::deque<InprocEvent> events;
  UniqueFd doorbell;
  bool rung = false;  // something has changed since the owner's last poll
  bool open = false;
};

enum class LinkState { kUnused, kUsed, kCut };

// Thread-safe where a function does not require the mutex.
class Hub {
 public:
  Hub(int size, const InprocOptions& options)
      : options(options),
        random_(options.seed),
        queues_(static_cast<std::size_t>(size)),
        links_(queues_.size() * queues_.size(), LinkState::kUnused),
        last_visible_(links_.size()),
        beats_(links_.size()) {}

  int size() const REQUIRES(mutex) { return static_cast<int>(queues_.size()); }
  EventQueue& queue(int rank) REQUIRES(mutex) {
    return queues_[static_cast<std::size_t>(rank)];
  }
  LinkState& link(int a, int b) REQUIRES(mutex) {
    return links_[pair(std::min(a, b), std::max(a, b))];
  }

  // The number of beats of `from` to `to`; see Channel::beat().
  std::uint64_t& beats(int from, int to) REQUIRES(mutex) {
    return beats_[pair(from, to)];
  }

  // Wakes `rank`.
  void ring(int rank) REQUIRES(mutex) {
    EventQueue& target = queue(rank);
    if (!target.open || target.rung) return;
    target.rung = true;
    eventfd_write(target.doorbell.get(), 1);
  }

  void push(int to, InprocEvent event) REQUIRES(mutex) {
    if (!queue(to).open) return;
    Clock::time_point& last = last_visible_[pair(event.from, to)];
    if (options.max_delay.count() > 0) {
      std::uniform_int_distribution<std::int64_t> delay(0, options.max_delay.count());
      last = std::max(last, Clock::now() + std::chrono::microseconds(delay(random_)));
    }
    event.visible_at = last;
    queue(to).events.push_back(std::move(event));
    ring(to);
  }

  // Cuts the link, and notifies `other` if the link was in use; `text` says what `rank`
  // did.
  void break_link(int rank, int other, const std::string& text) REQUIRES(mutex) {
    LinkState& state = link(rank, other);
    const bool was_used = state == LinkState::kUsed;
    state = LinkState::kCut;
    if (!was_used) return;
    Status status{Code::kPeerLost, text, rank};
    push(other, {InprocEvent::Type::kLost, rank, {}, nullptr, std::move(status)});
  }

  const InprocOptions options;
  Mutex mutex;

 private:
  std::size_t pair(int a, int b) const REQUIRES(mutex) {
    return static_cast<std::size_t>(a) * queues_.size() + static_cast<std::size_t>(b);
  }

  std::mt19937_64 random_ GUARDED_BY(mutex);
  std::vector<EventQueue> queues_ GUARDED_BY(mutex);               // by rank
  std::vector<LinkState> links_ GUARDED_BY(mutex);                 // by unordered pair
  std::vector<Clock::time_point> last_visible_ GUARDED_BY(mutex);  // by (from, to)
  std::vector<std::uint64_t> beats_ GUARDED_BY(mutex);             // likewise
};

}  // namespace bluecomm::inproc
