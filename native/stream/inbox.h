#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>

#include "stream/frame_parser.h"
#include "stream/prefix.h"
#include "stream/received_message.h"
#include "stream/stats.h"

namespace bluecomm::stream {

class Streams;

// Messages that arrive on a link, and how much the peer may send of each.
//
// Memory for one peer: kEagerCredit of eager messages, a head for each larger one that
// is not accepted yet, and for those read from segments kViewBudget in all, but at
// least one segment each, so that every accepted message gets through whatever the
// others do.
class Inbox {
 public:
  // `head_nbytes`: the length of every message's head.
  Inbox(Streams& streams, std::size_t head_nbytes, std::shared_ptr<SegmentPool> pool)
      : streams_(streams), head_nbytes_(head_nbytes), pool_(std::move(pool)) {}
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;
  ~Inbox() { lose(); }

  // Frames that belong here: kMessage and kChunk.
  FrameSink::Destination begin(const Frame& frame);
  std::string_view end(const Frame& frame);

  // See Link.
  void expect(std::uint64_t message, std::span<std::byte> into);

  bool has_arrived() const { return !arrived_.empty(); }
  // The next message in the order of the peer's sends; null if none.
  std::unique_ptr<ReceivedMessage> take_arrived();

  std::uint64_t chunks_ended() const { return chunks_ended_; }

  // The link is gone: messages keep what they have.
  void lose();

  const MessageStats& stats() const { return stats_; }

 private:
  friend class ReceivedMessage;

  static constexpr std::size_t kMessageWindow = 4 << 20;
  static constexpr std::size_t kViewBudget = 8 << 20;
  // Credit is returned in steps, for a frame costs something too.
  static constexpr std::size_t kCreditStep = kEagerCredit / 16;

  // Where a message will land whose head has not come; chunks may overtake it.
  struct PostedReceive {
    std::span<std::byte> into;
    std::size_t reach = 0;  // chunks begin and end before
    Prefix begun;
    Prefix arrived;
  };

  FrameSink::Destination begin_message(const Frame& frame);
  FrameSink::Destination begin_chunk(const Frame& frame);
  std::string_view end_message(const Frame& frame);
  std::string_view end_chunk(const Frame& frame);
  FrameSink::Destination begin_early_chunk(const Frame& frame);
  std::string_view adopt(ReceivedMessage& message, PostedReceive expected);
  void extend_grant(ReceivedMessage& message);
  void remove(ReceivedMessage& message);
  void control(FrameKind kind, std::uint64_t message, std::uint64_t offset);

  Streams& streams_;
  const std::size_t head_nbytes_;
  std::shared_ptr<SegmentPool> pool_;
  std::uint64_t next_message_ = 0;
  std::unique_ptr<std::byte[]> message_bytes_;  // of the kMessage that is coming in
  std::deque<std::unique_ptr<ReceivedMessage>> arrived_;
  std::unordered_map<std::uint64_t, ReceivedMessage*> known_;  // that have an owner
  std::unordered_map<std::uint64_t, PostedReceive> expected_;
  std::size_t in_segments_ = 0;   // granted and not consumed
  std::size_t freed_credit_ = 0;  // not yet returned
  std::uint64_t chunks_ended_ = 0;
  MessageStats stats_;
};

}  // namespace bluecomm::stream
