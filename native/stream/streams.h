#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "stream/stream.h"

namespace bluecomm::stream {

// The streams of a link, once it has any; frames queued before wait.
class Streams {
 public:
  using Set = std::deque<Stream>;  // streams stay where they are

  // `checksum`: what is queued goes with one.
  explicit Streams(bool checksum) : checksum_(checksum) {}

  Set& all() { return streams_; }
  const Set& all() const { return streams_; }
  bool empty() const { return streams_.empty(); }
  std::size_t size() const { return streams_.size(); }

  // Queues a frame on stream 0.
  void queue(const Frame& frame, std::span<const std::byte> head = {},
             std::span<const std::byte> tail = {}) {
    OutBuffer& frames = streams_.empty() ? early_ : streams_.front().frames();
    if (checksum_) frames.append(checksum_of(frame, head, tail));
    frames.append(frame);
    frames.append(head);
    frames.append(tail);
  }
  bool has_early_frames() const { return !early_.empty(); }
  // Bytes of frames on stream 0: ever queued, and taken by the kernel. Also after
  // close().
  std::uint64_t queued() const { return queued_before_ + frames().appended(); }
  std::uint64_t flushed() const { return flushed_before_ + frames().consumed(); }

  // `announce`: the first thing that is said on it is that it is used.
  Stream& add(UniqueFd fd, bool announce) {
    Stream& stream = streams_.emplace_back(std::move(fd), streams_.size(), checksum_);
    if (announce) stream.frames().append(Frame{.kind = FrameKind::kOpen});
    if (streams_.size() == 1) {
      stream.frames().append(early_.pending());
      early_ = {};
    }
    return stream;
  }
  // Closes them; their counters stay. A forked child's copies keep no connection up.
  void close() {
    if (!streams_.empty()) closed_ = stats();
    queued_before_ = queued();
    flushed_before_ = flushed();
    for (const Stream& stream : streams_) shutdown(stream.fd(), SHUT_RDWR);
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

  std::vector<StreamStats> stats() const {
    std::vector<StreamStats> all = closed_;
    for (const Stream& stream : streams_) all.push_back(stream.stats());
    return all;
  }

 private:
  const OutBuffer& frames() const {
    return streams_.empty() ? early_ : streams_.front().frames();
  }

  const bool checksum_;
  Set streams_;
  OutBuffer early_;
  std::vector<StreamStats> closed_;
  std::uint64_t queued_before_ = 0;
  std::uint64_t flushed_before_ = 0;
};

}  // namespace bluecomm::stream
