#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>

#include "stream/prefix.h"
#include "stream/segment_pool.h"
#include "stream/wire.h"

namespace bluecomm::stream {

class Inbox;

// A message whose head has arrived. It owns what has arrived of its payload (unless
// that lies in the receiver's own memory), so it stays readable when the link is gone.
// Destroying it discards what is left.
class ReceivedMessage {
 public:
  // `bytes`: `head_nbytes` of head and, if `length` is longer, the eager payload.
  ReceivedMessage(Inbox& inbox, const Frame& frame, std::size_t head_nbytes,
                  std::unique_ptr<std::byte[]> bytes,
                  std::shared_ptr<SegmentPool> pool);
  ReceivedMessage(const ReceivedMessage&) = delete;
  ReceivedMessage& operator=(const ReceivedMessage&) = delete;
  ~ReceivedMessage();

  std::span<const std::byte> head() const { return {bytes_.get(), head_nbytes_}; }
  std::size_t nbytes() const { return nbytes_; }

  // The payload lands in memory that was given before.
  bool accepted() const { return accepted_; }
  // Asks for the payload; called once. `into` is empty, or as long as the payload: then
  // chunks land there, and readable() points into it.
  void accept(std::span<std::byte> into);

  // The next bytes of the payload in order, starting at offset consumed(). Its length
  // is a multiple of kAlignment unless it reaches the end of the payload. Valid until
  // the next consume() or the next progress of the link.
  std::span<const std::byte> readable() const;

  // Gives back the first `nbytes` of readable(): the sender may send more.
  void consume(std::size_t nbytes);
  std::size_t consumed() const { return consumed_; }

 private:
  friend class Inbox;

  void adopt(std::span<std::byte> into, Prefix begun, Prefix arrived);
  bool in_segments() const { return !eager_ && into_.empty(); }
  // Where a chunk goes; empty if it lies outside of what was granted.
  std::span<std::byte> destination(std::size_t offset, std::size_t length);
  void free_segments();

  Inbox* inbox_;  // null once the link is gone
  const std::uint64_t message_;
  const std::size_t nbytes_;
  const std::size_t head_nbytes_;
  const bool charged_;
  const bool eager_;
  std::unique_ptr<std::byte[]> bytes_;
  bool accepted_ = false;
  std::span<std::byte> into_;
  std::size_t consumed_ = 0;
  std::size_t granted_ = 0;  // the sender may send [0, granted_)
  std::size_t held_ = 0;     // of the inbox's budget for segments
  Prefix begun_;             // ranges whose chunks have begun to arrive ...
  Prefix arrived_;           // ... and are complete
  std::shared_ptr<SegmentPool> pool_;
  std::deque<Segment> segments_;   // null: not needed yet
  std::size_t first_segment_ = 0;  // number of segments_[0] in the payload
};

}  // namespace bluecomm::stream
