#pragma once

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

// A piece of a payload to be written to a stream.
struct Chunk {
  std::uint64_t message;
  std::size_t offset;
  std::span<const std::byte> bytes;
};

// A message on its way out; its owner keeps it where it is. Destroying it before the
// end cancels it: its memory is read no more, and the peer's message never completes.
class SentMessage {
 public:
  SentMessage() = default;
  SentMessage(const SentMessage&) = delete;
  SentMessage& operator=(const SentMessage&) = delete;
  ~SentMessage();

  // The prefix [0, released()) of the payload will not be read again.
  std::size_t released() const { return released_; }

 private:
  friend class Outbox;

  Outbox* outbox_ = nullptr;  // null once it is over, or the link is lost
  std::uint64_t message_ = 0;
  std::span<const std::byte> payload_;
  std::size_t granted_ = 0;  // the peer has room for [0, granted_)
  std::size_t started_ = 0;  // [0, started_) has been handed to streams
  Prefix written_;
  std::size_t released_ = 0;
};

// Messages of a link that have not been written in full, and where their chunks come
// from. All that the peer has granted room for are in flight together, and whichever
// stream has room takes the next chunk: by turns one of the oldest message, which so
// has half of the link and is never held up, and one of the others, in a round; so a
// short message is through after two chunks for each longer one.
class Outbox {
 public:
  Outbox(Streams& streams, std::size_t eager_bytes)
      : streams_(streams), eager_bytes_(eager_bytes) {}
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;
  ~Outbox() { lose(); }

  // `message` is new.
  void send(SentMessage& message, std::span<const std::byte> head,
            std::span<const std::byte> payload);
  // A message whose payload is copied.
  void post(std::span<const std::byte> head, std::span<const std::byte> payload);

  // The next chunk, of at most `max_nbytes`; it remains the next one until start().
  std::optional<Chunk> next_chunk(std::size_t max_nbytes) const;
  void start(const Chunk& chunk);
  // A started chunk is in the kernel's hands.
  void finish(std::uint64_t message, std::size_t offset, std::size_t nbytes);

  // What the peer says. Returns what is wrong with it, or nothing.
  std::string_view grant(const Frame& frame);
  std::string_view expect(const Frame& frame);
  std::string_view discard(const Frame& frame);
  std::string_view credit(const Frame& frame);

  // Bytes of chunks that are to be sent, and that no stream has taken.
  std::size_t pending() const;
  bool has_chunks() const { return !ready_.empty(); }
  std::uint64_t chunks_started() const { return chunks_started_; }
  // No message waits for anything.
  bool idle() const { return waiting_.empty(); }
  // The link is gone: forgets all messages.
  void lose();

  const MessageStats& stats() const { return stats_; }

 private:
  friend class SentMessage;

  void announce(std::span<const std::byte> head, std::size_t nbytes,
                std::span<const std::byte> eager, std::uint8_t flags);
  struct ExpectedMessage {
    std::uint64_t message;
    std::uint64_t room;
  };

  void extend(SentMessage& message, std::size_t granted);
  std::size_t take_expected(std::uint64_t message);
  void drop_expected_before(std::uint64_t message);
  std::size_t turn() const { return others_turn_ && ready_.size() > 1 ? 1 : 0; }
  void cancel(SentMessage& message);
  void forget(SentMessage& message);

  Streams& streams_;
  const std::size_t eager_bytes_;
  std::uint64_t next_message_ = 0;
  std::size_t charged_ = 0;  // bytes of eager messages at the peer
  std::unordered_map<std::uint64_t, SentMessage*> waiting_;
  std::deque<ExpectedMessage> expected_;  // by the peer, and not sent yet; in order
  // Those of waiting_ with started_ < granted_: first the oldest by grant, then the
  // others from the one whose turn is next.
  std::deque<SentMessage*> ready_;
  bool others_turn_ = false;
  std::uint64_t chunks_started_ = 0;
  MessageStats stats_;
};

}  // namespace bluecomm::stream
