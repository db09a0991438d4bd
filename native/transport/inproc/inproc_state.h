#pragma once

#include <sys/eventfd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/fd.h"
#include "transport/inproc/inproc_transport.h"

// All state that two ranks share lies in InprocHub::State under one mutex, messages
// included. Payloads are copied under it as well, so that a sender that cancels knows
// that its memory is read no more.

namespace bluecomm {
namespace inproc {

using Clock = std::chrono::steady_clock;

struct Message {
  Message(int from, int to, const Header& sent, std::span<const std::byte> payload)
      : from(from), to(to), header(sent), payload(payload) {
    header.nbytes = payload.size();
  }

  bool done() const { return over || (arrived && released == header.nbytes); }

  const int from;
  const int to;
  Header header;
  bool eager = false;
  std::vector<std::byte> copy;         // of an eager payload
  std::span<const std::byte> payload;  // the copy, or the sender's memory
  std::size_t released = 0;
  bool arrived = false;
  bool over = false;  // cancelled or discarded
};

struct Event {
  enum class Type { kMessage, kLost, kGoodbye };

  Type type;
  int from;
  Clock::time_point visible_at;
  std::shared_ptr<Message> message;
  Status status;
};

struct Mailbox {
  std::deque<Event> events;
  UniqueFd bell;
  bool rung = false;  // something changed since the owner's last poll
  bool open = false;
};

enum class Link { kUnused, kUsed, kCut };

}  // namespace inproc

struct InprocHub::State {
  using Clock = inproc::Clock;
  using Event = inproc::Event;
  using Link = inproc::Link;
  using Mailbox = inproc::Mailbox;

  State(int size, const InprocOptions& options)
      : options(options),
        random(options.seed),
        mailboxes(static_cast<std::size_t>(size)),
        links(mailboxes.size() * mailboxes.size(), Link::kUnused),
        last_visible(links.size()) {}

  std::size_t size() const { return mailboxes.size(); }
  Mailbox& mailbox(int rank) { return mailboxes[static_cast<std::size_t>(rank)]; }
  std::size_t pair(int a, int b) const {
    return static_cast<std::size_t>(a) * size() + static_cast<std::size_t>(b);
  }
  Link& link(int a, int b) { return links[pair(std::min(a, b), std::max(a, b))]; }

  void ring(int rank) {
    Mailbox& box = mailbox(rank);
    if (!box.open || box.rung) return;
    box.rung = true;
    eventfd_write(box.bell.get(), 1);
  }

  void push(int to, Event event) {
    if (!mailbox(to).open) return;
    Clock::time_point& last = last_visible[pair(event.from, to)];
    if (options.max_delay.count() > 0) {
      std::uniform_int_distribution<std::int64_t> delay(0, options.max_delay.count());
      last = std::max(last, Clock::now() + std::chrono::microseconds(delay(random)));
    }
    event.visible_at = last;
    mailbox(to).events.push_back(std::move(event));
    ring(to);
  }

  // `text` is what `rank` did, for the other side.
  void break_link(int rank, int other, const std::string& text) {
    Link& state = link(rank, other);
    const bool tell = state == Link::kUsed;
    state = Link::kCut;
    if (!tell) return;
    Status status{Code::kPeerLost, text, rank};
    push(other, {Event::Type::kLost, rank, {}, nullptr, std::move(status)});
  }

  const InprocOptions options;
  std::mutex mutex;  // guards all below and every Message
  std::mt19937_64 random;
  std::vector<Mailbox> mailboxes;
  std::vector<Link> links;                      // by unordered pair
  std::vector<Clock::time_point> last_visible;  // by (from, to)
};

}  // namespace bluecomm
