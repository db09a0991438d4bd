#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "stream/prefix.h"
#include "stream/segment_pool.h"
#include "stream/wire.h"

namespace bluecomm::stream {

class Inbox;

// A message whose head has arrived. It owns the part of its payload that has arrived
// (unless the receiver gave a buffer), so it stays readable after the link has ended.
// Destroying it discards the rest.
class ReceivedMessage {
 public:
  // `bytes` holds the head of `head_nbytes` bytes and, if `frame.length` is larger, the
  // eager payload.
  ReceivedMessage(Inbox& inbox, const Frame& frame, std::size_t head_nbytes,
                  std::unique_ptr<std::byte[]> bytes,
                  const std::shared_ptr<SegmentPool>& pool);
  ReceivedMessage(const ReceivedMessage&) = delete;
  ReceivedMessage& operator=(const ReceivedMessage&) = delete;
  ~ReceivedMessage();

  std::span<const std::byte> head() const { return {bytes_.get(), head_nbytes_}; }
  std::size_t nbytes() const { return nbytes_; }

  // Whether the payload was asked for, by accept() or by Link::expect().
  bool accepted() const { return accepted_; }
  // Whether the chunks arrive although accept() was not called.
  bool is_unsolicited() const { return unsolicited_; }
  // Asks for the payload; called once. `into` is a buffer as long as the payload, into
  // which chunks are then received and readable() points. If it is empty, chunks are
  // received into segments. The part of an unsolicited message that has arrived before
  // is copied into the buffer.
  void accept(std::span<std::byte> into);

  // The next bytes of the payload in order, starting at offset consumed(). The length
  // is a multiple of kAlignment unless it reaches the end of the payload. Valid until
  // the next consume() or Link::progress().
  std::span<const std::byte> readable() const;

  // Releases the first `nbytes` of readable(), so that the sender may send more.
  void consume(std::size_t nbytes);
  std::size_t consumed() const { return consumed_; }

 private:
  friend class Inbox;

  void adopt(std::span<std::byte> into, Prefix begun, Prefix arrived);
  bool in_segments() const { return !eager_ && !unsolicited_ && into_.empty(); }
  // Where to receive a chunk from a stream; empty if it was not granted.
  std::span<std::byte> destination(const Frame& frame, std::size_t stream);
  std::span<std::byte> unsolicited_destination(std::size_t offset, std::size_t length);
  void end_chunk(std::size_t begin, std::size_t end);
  void copy_stored(std::size_t begin, std::size_t end);
  void free_segments();

  Inbox* inbox_;           // null once the link has ended
  std::size_t index_ = 0;  // in the inbox's list of eager messages
  const std::uint64_t message_;
  const std::size_t nbytes_;
  const std::size_t head_nbytes_;
  const bool charged_;
  const bool eager_;
  const bool unsolicited_;
  std::unique_ptr<std::byte[]> bytes_;
  bool accepted_ = false;
  std::span<std::byte> into_;
  std::size_t consumed_ = 0;
  std::size_t granted_ = 0;            // the sender may send [0, granted_)
  std::size_t held_ = 0;               // bytes of the inbox's kViewBudget
  Prefix begun_;                       // ranges whose chunks have begun to arrive ...
  Prefix arrived_;                     // ... and have arrived completely
  std::shared_ptr<SegmentPool> pool_;  // null if eager
  std::vector<PayloadSegment> segments_;  // null where no chunk has begun
  std::size_t first_segment_ = 0;         // index of segments_[0] in the payload
  // The payload of an unsolicited message whose first chunk began before accept().
  std::unique_ptr<std::byte[]> stored_;
};

}  // namespace bluecomm::stream
