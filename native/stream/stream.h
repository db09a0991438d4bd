#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/uninitialized_bytes.h"
#include "stream/delivery_rate.h"
#include "stream/frame_parser.h"
#include "stream/lead.h"
#include "stream/outbox.h"
#include "stream/stats.h"
#include "stream/stream_socket.h"

namespace bluecomm::stream {

// Bytes waiting to be written to a socket, in order.
class OutBuffer {
 public:
  void append(std::span<const std::byte> bytes) {
    if (!bytes.empty())
      std::memcpy(extend(bytes.size()).data(), bytes.data(), bytes.size());
  }
  void append(const Frame& frame) { append(bytes_of(frame)); }
  // Appends `nbytes` bytes, which the caller writes.
  std::span<std::byte> extend(std::size_t nbytes) {
    bytes_.resize(bytes_.size() + nbytes);
    return std::span(bytes_).last(nbytes);
  }

  std::span<const std::byte> pending() const {
    return std::span(bytes_).subspan(done_);
  }
  bool empty() const { return done_ == bytes_.size(); }
  void consume(std::size_t nbytes);

  // The numbers of bytes consumed and appended so far.
  std::uint64_t consumed() const { return consumed_; }
  std::uint64_t appended() const { return consumed_ + bytes_.size() - done_; }

 private:
  std::uint64_t consumed_ = 0;
  UninitializedBytes bytes_;
  std::size_t done_ = 0;
};

// Returns the kChecksum frame for `frame`, whose payload is given in two parts.
Frame checksum_of(const Frame& frame, std::span<const std::byte> head,
                  std::span<const std::byte> tail);

// One connection of a link: writes frames and chunks, and reads frames into their
// destinations. With a cipher, frames and chunks are sealed in the order in which they
// are sent, into memory of the stream, so a payload is released once it is sealed.
class Stream {
 public:
  // `checksum` says whether to send a checksum with each frame.
  Stream(StreamSocket socket, std::size_t index, bool checksum);

  int fd() const { return socket_.fd.get(); }
  const std::string& peer() const { return stats_.peer; }
  const StreamStats& stats() const { return stats_; }
  void count_received_chunk() { ++stats_.chunks_received; }

  // Queues a frame, whose payload is given in two parts, to be written between chunks.
  void queue(const Frame& frame, std::span<const std::byte> head = {},
             std::span<const std::byte> tail = {});
  // Queues frames that lie in memory one after the other, with their payloads.
  void queue_all(std::span<const std::byte> frames);

  // Frames to write between two chunks. With a cipher, all sealed bytes.
  OutBuffer& frames() { return frames_; }
  const OutBuffer& frames() const { return frames_; }

  // Set by events of the kernel, and cleared by a call that would block.
  bool readable = true;
  bool writable = true;
  // This stream left a chunk to faster ones: see delivery_rate.h.
  bool passed_over = false;
  // The peer has hung up. No event will report that again, so read until the end.
  bool hung_up = false;
  // Set by read_some() when nothing more will arrive: the reason.
  std::optional<std::string> ended;

  bool has_output() const { return chunk_.has_value() || !frames_.empty(); }

  // The bytes that the peer's kernel has acknowledged. Asks the kernel.
  std::uint64_t acknowledged() const;

  // Asks the kernel.
  PathState path() const;

  const DeliveryRate& delivery_rate() const { return delivery_rate_; }
  // Updates delivery_rate() by asking the kernel.
  void update_delivery_rate(Clock::time_point now);

  // Make one system call each, and return the bytes moved. `max_chunk` is 0 to start no
  // new chunk.
  std::size_t write_some(Outbox& outbox, std::size_t max_chunk);
  std::size_t read_some(FrameSink& sink);

  // The payload of `message` is about to be freed. keep_chunk() copies the rest of a
  // chunk that was partly sent; drop_chunk() drops the rest of a chunk that is being
  // received.
  void keep_chunk(std::uint64_t message);
  void drop_chunk(std::uint64_t message) { parser_.drop(message); }

  void abandon() noexcept { socket_.fd.reset(); }

 private:
  struct OpenChunk {
    Chunk chunk;
    std::array<std::byte, 2 * sizeof(Frame)> heads;  // kChecksum if any, and kChunk
    std::size_t head_nbytes = 0;
    std::size_t written = 0;      // bytes of heads and payload
    std::vector<std::byte> kept;  // the rest of the payload, once it was copied
    std::size_t nbytes() const { return head_nbytes + chunk.bytes.size(); }
    std::size_t payload_written() const {
      return written - std::min(written, head_nbytes);
    }
  };

  std::size_t write_sealed(Outbox& outbox, std::size_t max_chunk);
  void seal(const Frame& frame, std::span<const std::byte> head,
            std::span<const std::byte> tail);
  std::size_t fail_to_send();
  OpenChunk open(const Chunk& chunk) const;
  void account(std::size_t nbytes, std::optional<OpenChunk>& fresh, Outbox& outbox);
  void end(std::string why);

  StreamSocket socket_;
  const bool checksum_;
  StreamStats stats_;
  DeliveryRate delivery_rate_;
  FrameParser parser_;
  OutBuffer frames_;
  std::optional<OpenChunk> chunk_;  // partly written; goes before frames_
};

}  // namespace bluecomm::stream
