#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>

#include "transport/channel.h"
#include "transport/tcp/prefix.h"
#include "transport/tcp/segment_pool.h"

namespace bluecomm::tcp {

class Inbox;

// A received message. It owns what has arrived of its payload (unless that lies in the
// receiver's own memory), so it stays readable when the link is gone.
class TcpIncoming final : public Incoming {
 public:
  // `bytes`: the header and, if `nbytes` is longer, the eager payload.
  TcpIncoming(Inbox& inbox, std::uint64_t message, bool charged,
              std::unique_ptr<std::byte[]> bytes, std::size_t nbytes,
              std::shared_ptr<SegmentPool> pool);
  ~TcpIncoming() override;

  const Header& header() const override { return header_; }
  void accept(std::span<std::byte> into) override;
  std::span<const std::byte> readable() const override;
  void consume(std::size_t nbytes) override;
  std::size_t consumed() const override { return consumed_; }

 private:
  friend class Inbox;

  std::size_t nbytes() const { return header_.nbytes; }
  bool in_segments() const { return !eager_ && into_.empty(); }
  // Where a chunk goes; empty if it lies outside of what was granted.
  std::span<std::byte> place(std::size_t offset, std::size_t length);
  void free_segments();

  Inbox* inbox_;  // null once the link is gone
  const std::uint64_t message_;
  const bool charged_;
  const bool eager_;
  Header header_;
  std::unique_ptr<std::byte[]> eager_bytes_;
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

}  // namespace bluecomm::tcp
