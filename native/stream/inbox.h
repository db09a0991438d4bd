#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "stream/frame_parser.h"
#include "stream/prefix.h"
#include "stream/received_message.h"
#include "stream/stats.h"

namespace bluecomm::stream {

class Streams;

// The messages that arrive on a link, and the limits that the peer may send up to.
//
// The memory used for one peer is bounded: the sender's eager_credit for eager and
// unsolicited messages, a head for each other message that is not accepted yet, and
// kViewBudget for all messages that are received into segments. Each accepted message
// may use at least one segment, so that it can make progress independently of the
// others.
class Inbox {
 public:
  // `head_nbytes` is the length of each message's head. Credit is returned in steps of
  // `credit_step` bytes, to save frames.
  Inbox(Streams& streams, std::size_t head_nbytes, std::shared_ptr<SegmentPool> pool,
        std::size_t credit_step)
      : streams_(streams),
        head_nbytes_(head_nbytes),
        pool_(std::move(pool)),
        credit_step_(credit_step) {}
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;
  ~Inbox() { lose(); }

  // Handle kMessage and kChunk frames, as in FrameSink.
  FrameSink::Destination begin(const Frame& frame, std::size_t stream);
  std::string_view end(const Frame& frame);

  // See Link::expect.
  void expect(std::uint64_t message, std::span<std::byte> into, bool announce);

  bool has_arrived() const { return !arrived_.empty(); }
  // Whether the owner should take the messages that have arrived before more is read:
  // the last one is unsolicited, and may get a buffer.
  bool needs_owner() const {
    return !arrived_.empty() && arrived_.back()->is_unsolicited() &&
           !arrived_.back()->accepted();
  }
  std::size_t arrived() const { return arrived_.size(); }
  // Returns the next message in the order of the peer's sends, or null.
  std::unique_ptr<ReceivedMessage> take_arrived();

  // The number of chunks that were received completely.
  std::uint64_t chunks_ended() const { return chunks_ended_; }

  // The link has ended: detaches all messages, which keep the data that has arrived.
  void lose();

  const MessageStats& stats() const { return stats_; }

 private:
  friend class ReceivedMessage;

  static constexpr std::size_t kMessageWindow = 4 << 20;
  static constexpr std::size_t kViewBudget = 8 << 20;

  // The buffer for a message whose head has not arrived. If it was announced to the
  // peer, chunks may arrive before the head.
  struct PostedReceive {
    std::span<std::byte> into;
    bool announced = false;
    std::size_t reach = 0;  // the end of the furthest chunk so far
    Prefix begun;
    Prefix arrived;
  };

  FrameSink::Destination begin_message(const Frame& frame);
  FrameSink::Destination begin_chunk(const Frame& frame, std::size_t stream);
  std::string_view end_message(const Frame& frame);
  std::string_view end_chunk(const Frame& frame);
  FrameSink::Destination begin_early_chunk(const Frame& frame);
  std::string_view adopt(ReceivedMessage& message, PostedReceive expected);
  void extend_grant(ReceivedMessage& message);
  bool is_eager(std::uint64_t message) const;
  void remove(ReceivedMessage& message);
  void remove_eager(ReceivedMessage& message);
  void return_credit(std::size_t nbytes);
  void control(FrameKind kind, std::uint64_t message, std::uint64_t offset);

  Streams& streams_;
  const std::size_t head_nbytes_;
  std::shared_ptr<SegmentPool> pool_;
  const std::size_t credit_step_;
  std::uint64_t next_message_ = 0;
  std::unique_ptr<std::byte[]> message_bytes_;  // the kMessage frame being received
  std::deque<std::unique_ptr<ReceivedMessage>> arrived_;
  // The messages not yet destroyed: eager ones in any order, and others by number.
  std::vector<ReceivedMessage*> eager_;
  std::unordered_map<std::uint64_t, ReceivedMessage*> known_;
  std::unordered_map<std::uint64_t, PostedReceive> expected_;
  std::size_t in_segments_ = 0;   // bytes granted in segments and not consumed
  std::size_t unsolicited_ = 0;   // bytes of unsolicited messages not destroyed yet
  std::size_t freed_credit_ = 0;  // credit not returned yet
  std::uint64_t chunks_ended_ = 0;
  MessageStats stats_;
};

}  // namespace bluecomm::stream
