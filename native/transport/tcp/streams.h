#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>

#include "transport/tcp/stream.h"

namespace bluecomm::tcp {

// The streams of a link, once it has any; frames queued before wait.
class Streams {
 public:
  using Set = std::deque<Stream>;  // streams stay where they are

  Set& all() { return streams_; }
  const Set& all() const { return streams_; }
  bool empty() const { return streams_.empty(); }

  // Queues a frame on stream 0.
  void queue(const Frame& frame, std::span<const std::byte> head = {},
             std::span<const std::byte> tail = {}) {
    OutBuffer& frames = streams_.empty() ? early_ : streams_.front().frames();
    frames.append(frame);
    frames.append(head);
    frames.append(tail);
  }
  bool has_early_frames() const { return !early_.empty(); }

  void open(Set streams) {
    streams_ = std::move(streams);
    streams_.front().frames().append(early_.pending());
    early_ = {};
  }
  void close() {
    streams_.clear();
    early_ = {};
  }

  // Memory of a message goes away: of one that is sent, of one that is received.
  void keep_chunks(std::uint64_t message) {
    for (Stream& stream : streams_) stream.keep_chunk(message);
  }
  void drop_chunks(std::uint64_t message) {
    for (Stream& stream : streams_) stream.drop_chunk(message);
  }

 private:
  Set streams_;
  OutBuffer early_;
};

}  // namespace bluecomm::tcp
