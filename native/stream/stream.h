#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/fd.h"
#include "stream/delivery_rate.h"
#include "stream/frame_parser.h"
#include "stream/outbox.h"
#include "stream/stats.h"

namespace bluecomm::stream {

// Bytes that wait for a socket, in order.
class OutBuffer {
 public:
  void append(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  void append(const Frame& frame) { append(bytes_of(frame)); }

  std::span<const std::byte> pending() const {
    return std::span(bytes_).subspan(done_);
  }
  bool empty() const { return done_ == bytes_.size(); }
  void consume(std::size_t nbytes);

  // Bytes that were ever consumed, and ever appended.
  std::uint64_t consumed() const { return consumed_; }
  std::uint64_t appended() const { return consumed_ + bytes_.size() - done_; }

 private:
  std::uint64_t consumed_ = 0;
  std::vector<std::byte> bytes_;
  std::size_t done_ = 0;
};

// What goes before a frame, whose payload is in two parts, so that it is checked.
Frame checksum_of(const Frame& frame, std::span<const std::byte> head,
                  std::span<const std::byte> tail);

// One connection of a link: writes frames and chunks, reads frames into their places.
class Stream {
 public:
  // `checksum`: chunks go with one.
  Stream(UniqueFd fd, std::size_t index, bool checksum);

  int fd() const { return fd_.get(); }
  const std::string& peer() const { return stats_.peer; }
  const StreamStats& stats() const { return stats_; }
  void count_received_chunk() { ++stats_.chunks_received; }

  // Frames to be written between two chunks.
  OutBuffer& frames() { return frames_; }
  const OutBuffer& frames() const { return frames_; }

  // The kernel said so, or the last call did not find out otherwise.
  bool readable = true;
  bool writable = true;
  // Chunks were left to faster streams: see delivery_rate.h.
  bool passed_over = false;
  // The peer has hung up: read until the end, for no event will tell of it again.
  bool hung_up = false;
  // Set by read_some() when nothing more will come: why.
  std::optional<std::string> ended;

  bool has_output() const { return chunk_.has_value() || !frames_.empty(); }

  // Bytes that the peer's kernel has acknowledged; asks the kernel.
  std::uint64_t acknowledged() const;

  const DeliveryRate& delivery_rate() const { return delivery_rate_; }
  // Asks the kernel what it still holds.
  void update_delivery_rate(Clock::time_point now);

  // One system call. Returns the bytes moved. `max_chunk`: 0 to begin no new chunk.
  std::size_t write_some(Outbox& outbox, std::size_t max_chunk);
  std::size_t read_some(FrameSink& sink);

  // The payload of `message` goes away: what a started chunk lacks is copied.
  void keep_chunk(std::uint64_t message);
  void drop_chunk(std::uint64_t message) { parser_.drop(message); }

  void abandon() noexcept { fd_.reset(); }

 private:
  struct OpenChunk {
    Chunk chunk;
    std::array<std::byte, 2 * sizeof(Frame)> heads;  // with a checksum, or without
    std::size_t head_nbytes = 0;
    std::size_t written = 0;      // of heads and payload
    std::vector<std::byte> kept;  // the rest of the payload, if it was copied
    std::size_t nbytes() const { return head_nbytes + chunk.bytes.size(); }
    std::size_t payload_written() const {
      return written - std::min(written, head_nbytes);
    }
  };

  OpenChunk open(const Chunk& chunk) const;
  void account(std::size_t nbytes, std::optional<OpenChunk>& fresh, Outbox& outbox);
  void end(std::string why);

  UniqueFd fd_;
  const bool checksum_;
  StreamStats stats_;
  DeliveryRate delivery_rate_;
  FrameParser parser_;
  OutBuffer frames_;
  std::optional<OpenChunk> chunk_;  // started: it goes before frames_
};

}  // namespace bluecomm::stream
