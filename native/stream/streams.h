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

// The streams of a link. Frames queued before the first stream opens wait for it.
class Streams {
 public:
  using Set = std::deque<Stream>;  // does not move its elements

  // `checksum` says whether to queue a checksum with each frame.
  explicit Streams(bool checksum) : checksum_(checksum) {}

  Set& all() { return streams_; }
  const Set& all() const { return streams_; }
  bool empty() const { return streams_.empty(); }
  std::size_t size() const { return streams_.size(); }

  // Queues a frame on stream 0.
  void queue_on_first(const Frame& frame, std::span<const std::byte> head = {},
                      std::span<const std::byte> tail = {}) {
    if (!streams_.empty()) return streams_.front().queue(frame, head, tail);
    if (checksum_) early_.append(checksum_of(frame, head, tail));
    early_.append(frame);
    early_.append(head);
    early_.append(tail);
  }
  bool has_early_frames() const { return !early_.empty(); }
  // Bytes of frames queued on stream 0 so far, and those that the kernel has taken.
  // Valid after close(), too.
  std::uint64_t queued() const { return queued_before_ + frames().appended(); }
  std::uint64_t flushed() const { return flushed_before_ + frames().consumed(); }

  // `announce` says whether to send a kOpen frame first.
  Stream& add(StreamSocket socket, bool announce) {
    Stream& stream =
        streams_.emplace_back(std::move(socket), streams_.size(), checksum_);
    // The peer reads this frame before it sets up its parser, so it has no checksum.
    const Frame open{.kind = FrameKind::kOpen};
    if (announce) stream.queue_all(bytes_of(open));
    if (streams_.size() == 1) {
      stream.queue_all(early_.pending());
      early_ = {};
    }
    return stream;
  }
  // Closes all streams; their counters stay. shutdown() ends the connections even if a
  // forked child holds copies of the descriptors.
  void close() {
    if (!streams_.empty()) closed_ = stats();
    queued_before_ = queued();
    flushed_before_ = flushed();
    for (const Stream& stream : streams_) shutdown(stream.fd(), SHUT_RDWR);
    streams_.clear();
    early_ = {};
  }

  // The payload of a sent message, or the buffer of a received one, is about to be
  // freed.
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
