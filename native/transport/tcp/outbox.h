#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>

#include "transport/channel.h"
#include "transport/tcp/prefix.h"
#include "transport/tcp/wire.h"

namespace bluecomm::tcp {

class Outbox;
class Streams;

// A piece of a payload to be written to a stream.
struct Chunk {
  std::uint64_t message;
  std::size_t offset;
  std::span<const std::byte> bytes;
};

class TcpOutgoing final : public Outgoing {
 public:
  // A message that needs nothing more: `released` bytes are through.
  explicit TcpOutgoing(std::size_t released) : released_(released) {}
  // One that waits in `outbox` for the peer to accept it.
  TcpOutgoing(Outbox& outbox, std::uint64_t message, std::span<const std::byte> payload)
      : outbox_(&outbox), message_(message), payload_(payload) {}
  ~TcpOutgoing() override;

  std::size_t released() const override { return released_; }

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
// from. Chunks are taken by whichever stream has room, messages in the order in which
// the peer granted them room.
class Outbox {
 public:
  Outbox(Streams& streams, std::size_t eager_bytes)
      : streams_(streams), eager_bytes_(eager_bytes) {}
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;
  ~Outbox() { lose(); }

  std::unique_ptr<Outgoing> send(const Header& header,
                                 std::span<const std::byte> payload);
  void post(const Header& header, std::span<const std::byte> payload);

  // The next chunk, of at most `max_nbytes`; it remains the next one until start().
  std::optional<Chunk> next_chunk(std::size_t max_nbytes) const;
  void start(const Chunk& chunk);
  // A started chunk is in the kernel's hands.
  void finish(std::uint64_t message, std::size_t offset, std::size_t nbytes);

  // What the peer says. Returns what is wrong with it, or nothing.
  std::string_view grant(const Frame& frame);
  std::string_view discard(const Frame& frame);
  std::string_view credit(const Frame& frame);

  bool has_chunks() const { return !ready_.empty(); }
  // No message waits for anything.
  bool idle() const { return waiting_.empty(); }
  // The link is gone: forgets all messages.
  void lose();

  const ChannelStats& stats() const { return stats_; }

 private:
  friend class TcpOutgoing;

  void announce(const Header& header, std::span<const std::byte> payload,
                std::span<const std::byte> eager, std::uint8_t flags);
  void cancel(TcpOutgoing& outgoing);
  void forget(TcpOutgoing& outgoing);

  Streams& streams_;
  const std::size_t eager_bytes_;
  std::uint64_t next_message_ = 0;
  std::size_t charged_ = 0;  // bytes of eager messages at the peer
  std::unordered_map<std::uint64_t, TcpOutgoing*> waiting_;
  std::deque<TcpOutgoing*> ready_;  // those of waiting_ with started_ < granted_
  ChannelStats stats_;
};

}  // namespace bluecomm::tcp
