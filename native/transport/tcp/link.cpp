#include "transport/tcp/link.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

namespace bluecomm::tcp {
namespace {

// Moved by one call of progress() in each direction, so that other links get a turn and
// what has come is combined while it is in the cache.
constexpr std::size_t kBudget = 1 << 20;

}  // namespace

std::unique_ptr<Outgoing> Link::send(const Header& header,
                                     std::span<const std::byte> payload) {
  if (closing_ || refusing_ || peer_finished_) return std::make_unique<TcpOutgoing>(0);
  return outbox_.send(header, payload);
}

void Link::post(const Header& header, std::span<const std::byte> payload) {
  if (closing_ || refusing_ || peer_finished_) return;
  outbox_.post(header, payload);
}

ChannelStats Link::stats() const {
  ChannelStats stats = outbox_.stats();
  stats.messages_received = inbox_.stats().messages_received;
  stats.bytes_received = inbox_.stats().bytes_received;
  return stats;
}

void Link::open(Streams::Set streams, bool announce) {
  if (announce) streams.front().frames().append(Frame{.kind = FrameKind::kOpen});
  streams_.open(std::move(streams));
}

bool Link::progress() {
  if (streams_.empty()) return false;
  bool moved = read_all(kBudget);
  if (closing_ && !goodbye_queued_ && outbox_.idle()) queue_goodbye();
  moved |= write_all(kBudget);
  check_ends();
  return moved || ended_.has_value();
}

bool Link::busy() const {
  if (inbox_.has_arrived()) return true;
  if (closing_ && !goodbye_queued_ && is_open() && outbox_.idle()) return true;
  return std::any_of(streams_.all().begin(), streams_.all().end(),
                     [this](const Stream& stream) {
                       const bool output = stream.has_output() || outbox_.has_chunks();
                       return stream.readable || (stream.writable && output);
                     });
}

bool Link::read_all(std::size_t budget) {
  bool any = false;
  for (Stream& stream : streams_.all()) {
    std::size_t moved = 0;
    while (stream.readable && !stream.ended && moved < budget) {
      moved += stream.read_some(*this);
    }
    any |= moved > 0 || stream.ended.has_value();
  }
  return any;
}

// Chunk by chunk over all streams that have room, so that all of them are busy.
bool Link::write_all(std::size_t budget) {
  // With one stream nothing can be held back by another one.
  const std::size_t max_chunk = streams_.all().size() == 1 ? kSegment : kSmallChunk;
  std::size_t moved = 0;
  std::size_t before;
  do {
    before = moved;
    for (Stream& stream : streams_.all()) {
      if (stream.writable) moved += stream.write_some(outbox_, max_chunk);
    }
  } while (moved > before && moved < budget);
  return moved > 0;
}

void Link::queue_goodbye() {
  goodbye_queued_ = true;
  for (Stream& stream : streams_.all()) {
    stream.frames().append(Frame{.kind = FrameKind::kGoodbye});
  }
}

// One stream that broke ends the link. What the others have brought is read before, as
// the peer may have sent all that it wanted to, goodbye included, before it ended.
void Link::check_ends() {
  const auto has_ended = [](const Stream& stream) { return stream.ended.has_value(); };
  auto& all = streams_.all();
  const auto broken = std::find_if(all.begin(), all.end(), [](const Stream& stream) {
    return stream.ended && !stream.ended->empty();
  });
  if (broken != all.end()) {
    read_all(std::numeric_limits<std::size_t>::max());
    ended_ = broken->peer() + ": " + *broken->ended;
    if (all.size() > 1) {
      ended_ = "stream " + std::to_string(broken - all.begin() + 1) + " of " +
               std::to_string(all.size()) + " to " + *ended_;
    }
  } else if (std::all_of(all.begin(), all.end(), has_ended)) {
    ended_.emplace();
  }
}

FrameSink::Place Link::begin(const Frame& frame, std::size_t stream) {
  if (frame.kind == FrameKind::kMessage && stream != 0) {
    return {{}, "a message on a stream for chunks"};
  }
  return inbox_.begin(frame);
}

std::string_view Link::end(const Frame& frame, std::size_t stream) {
  switch (frame.kind) {
    case FrameKind::kMessage:
    case FrameKind::kChunk:
      return inbox_.end(frame);
    case FrameKind::kGrant:
      return outbox_.grant(frame);
    case FrameKind::kDiscard:
      return outbox_.discard(frame);
    case FrameKind::kCredit:
      return outbox_.credit(frame);
    case FrameKind::kGoodbye: {
      auto& all = streams_.all();
      all[stream].goodbye = true;
      peer_finished_ = std::all_of(all.begin(), all.end(),
                                   [](const Stream& other) { return other.goodbye; });
      if (peer_finished_) streams_.queue(Frame{.kind = FrameKind::kGoodbyeSeen});
      return {};
    }
    case FrameKind::kGoodbyeSeen:
      goodbye_seen_ = true;
      return {};
    case FrameKind::kOpen:
      return "a link opened twice";
  }
  return "an unknown kind of frame";
}

void Link::end() {
  refusing_ = true;
  outbox_.lose();
  inbox_.lose();
  streams_.close();
}

void Link::abandon() noexcept {
  for (Stream& stream : streams_.all()) stream.abandon();
}

}  // namespace bluecomm::tcp
