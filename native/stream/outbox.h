#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>

#include "stream/prefix.h"
#include "stream/stats.h"
#include "stream/wire.h"

namespace bluecomm::stream {

class Outbox;
class Streams;

// A part of a payload that is written to one stream.
struct Chunk {
  std::uint64_t message;
  std::size_t offset;
  std::span<const std::byte> bytes;
};

// A message being sent. The owner must not move it. Destroying it early cancels it: its
// payload is no longer read, and the peer's message never completes.
class SentMessage {
 public:
  SentMessage() = default;
  SentMessage(const SentMessage&) = delete;
  SentMessage& operator=(const SentMessage&) = delete;
  ~SentMessage();

  // The part [0, released()) of the payload will not be read again.
  std::size_t released() const { return released_; }

  // The prefix [0, nbytes) of a growing payload may be sent. `nbytes` is a multiple of
  // kAlignment or the length of the payload, and never less than before.
  void grow(std::size_t nbytes);

 private:
  friend class Outbox;

  // The prefix that may be sent now.
  std::size_t sendable() const { return std::min(granted_, final_); }

  Outbox* outbox_ = nullptr;  // null once the message is sent or the link is lost
  std::uint64_t message_ = 0;
  std::span<const std::byte> payload_;
  std::size_t granted_ = 0;  // the peer has granted [0, granted_)
  std::size_t final_ = 0;    // the owner has computed [0, final_)
  bool is_growing_ = false;
  bool is_unsolicited_ = false;
  std::size_t started_ = 0;  // streams have taken [0, started_)
  Prefix written_;
  std::size_t released_ = 0;
};

// See Options for the meaning of these.
struct OutboxSettings {
  std::size_t eager_bytes = 4096;
  std::size_t eager_credit = kEagerCredit;
  std::size_t unsolicited_bytes = 0;
  bool in_order = false;
};

// The messages of a link that are not written completely, and the source of their
// chunks. All messages that the peer has granted room for are in flight together. A
// stream that has room takes the next chunk: alternately one of the oldest message,
// which thereby gets half of the link, and one of the other messages, in round-robin
// order. So a short message is finished after two chunks for each longer one. With
// `in_order`, a single stream always takes a chunk of the oldest message.
class Outbox {
 public:
  Outbox(Streams& streams, const OutboxSettings& settings)
      : streams_(streams), settings_(settings) {}
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;
  ~Outbox() { lose(); }

  // See Link::send.
  void send(SentMessage& message, std::span<const std::byte> head,
            std::span<const std::byte> payload);
  // See Link::set_single_stream.
  void set_single_stream(bool single) { single_stream_ = single; }
  // See Link::send_growing.
  void send_growing(SentMessage& message, std::span<const std::byte> head,
                    std::span<const std::byte> payload);
  // Sends a message whose payload is copied.
  void post(std::span<const std::byte> head, std::span<const std::byte> payload);

  // Returns the next chunk, of at most `max_nbytes`. It stays the next one until
  // start().
  std::optional<Chunk> next_chunk(std::size_t max_nbytes) const;
  void start(const Chunk& chunk);
  // Called when the kernel has taken a started chunk completely.
  void finish(std::uint64_t message, std::size_t offset, std::size_t nbytes);

  // Handle frames from the peer. Return a defect, or nothing.
  std::string_view grant(const Frame& frame);
  std::string_view expect(const Frame& frame);
  std::string_view discard(const Frame& frame);
  std::string_view credit(const Frame& frame);

  // Bytes that may be sent and that no stream has taken yet.
  std::size_t pending() const;
  bool has_chunks() const { return !ready_.empty(); }
  // Whether stream 0 must take the chunks.
  bool has_unsolicited_chunks() const {
    return std::any_of(ready_.begin(), ready_.end(),
                       [](const SentMessage* one) { return one->is_unsolicited_; });
  }
  std::uint64_t chunks_started() const { return chunks_started_; }
  // Whether no message is waiting.
  bool idle() const { return waiting_.empty(); }
  // The link has ended: detaches all messages.
  void lose();

  const MessageStats& stats() const { return stats_; }

 private:
  friend class SentMessage;

  void announce(std::span<const std::byte> head, std::size_t nbytes,
                std::span<const std::byte> eager, std::uint8_t flags);
  // A message that the peer has a buffer for, and the buffer's size.
  struct ExpectedMessage {
    std::uint64_t message;
    std::uint64_t room;
  };

  void wait_for_grant(SentMessage& message, std::span<const std::byte> head,
                      std::span<const std::byte> payload, std::size_t final_nbytes);
  void extend(SentMessage& message, std::size_t granted, std::size_t final_nbytes);
  std::size_t take_expected(std::uint64_t message);
  void drop_expected_before(std::uint64_t message);
  bool has_credit(std::size_t cost) const {
    return charged_ + cost <= settings_.eager_credit;
  }
  std::size_t turn() const {
    const bool in_order = settings_.in_order && single_stream_;
    return others_turn_ && !in_order && ready_.size() > 1 ? 1 : 0;
  }
  void cancel(SentMessage& message);
  void forget(SentMessage& message);

  Streams& streams_;
  const OutboxSettings settings_;
  bool single_stream_ = false;
  std::uint64_t next_message_ = 0;
  std::size_t charged_ = 0;  // bytes for which the peer has not returned credit
  std::unordered_map<std::uint64_t, SentMessage*> waiting_;
  std::deque<ExpectedMessage>
      expected_;  // announced by the peer, not sent yet; in order
  // The messages of waiting_ with started_ < sendable(): first the one that has been
  // here longest, then the others, beginning with the one whose turn is next.
  std::deque<SentMessage*> ready_;
  bool others_turn_ = false;
  std::uint64_t chunks_started_ = 0;
  MessageStats stats_;
};

}  // namespace bluecomm::stream
