// A link: one Outbox, one Inbox and the streams that carry their frames.
//
// The owner calls progress() on one thread at a time: the engine's progress thread, or
// a caller of the NCCL plugin. progress() reads all readable streams, then writes chunk
// by chunk over all writable ones. Frames that have an order travel on stream 0.
#include "stream/link.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <utility>

#include "stream/socket.h"

namespace bluecomm::stream {
namespace {

// The bytes that one call of progress() moves in each direction. The limit lets other
// links have a turn, and received data is combined while it is in the cache.
constexpr std::size_t kBudget = 1 << 20;

// A turn reads no further while as many messages wait for the owner. So short messages
// are taken while they are in the cache.
constexpr std::size_t kEnoughMessages = 16;

constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

}  // namespace

void Link::send(SentMessage& message, std::span<const std::byte> head,
                std::span<const std::byte> payload) {
  if (closing_ || refusing_ || peer_finished_) return;
  outbox_.send(message, head, payload);
}

void Link::send_growing(SentMessage& message, std::span<const std::byte> head,
                        std::span<const std::byte> payload) {
  if (closing_ || refusing_ || peer_finished_) return;
  outbox_.send_growing(message, head, payload);
}

void Link::post(std::span<const std::byte> head, std::span<const std::byte> payload) {
  if (closing_ || refusing_ || peer_finished_) return;
  outbox_.post(head, payload);
}

LinkStats Link::stats() const {
  return {outbox_.stats(), inbox_.stats(), streams_.stats()};
}

void Link::add(StreamSocket socket, bool announce) {
  streams_.add(std::move(socket), announce);
}

bool Link::progress() {
  if (streams_.empty()) return false;
  const std::uint64_t messages_before = inbox_.stats().messages;
  bool moved = read_all(kBudget, kEnoughMessages);
  if (closing_ && !goodbye_queued_ && outbox_.idle()) queue_goodbye();
  // The owner accepts new messages after this turn. Grants that were written behind
  // chunks would reach the peer only after all bytes that the kernel holds. So chunks
  // wait for one turn, but not for two in a row.
  const bool has_news = inbox_.stats().messages != messages_before;
  held_chunks_ = has_news && !held_chunks_;
  moved |= write_all(kBudget, !held_chunks_);
  check_ends();
  return moved || ended_.has_value();
}

bool Link::busy() const {
  if (inbox_.has_arrived()) return true;
  if (closing_ && !goodbye_queued_ && is_open() && outbox_.idle()) return true;
  const auto& all = streams_.all();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].readable) return true;
    const bool chunks = takes_chunks(i) && outbox_.has_chunks() && !all[i].passed_over;
    if (all[i].writable && (chunks || all[i].has_output())) return true;
  }
  const Clock::time_point next = next_timer();
  return next != Clock::time_point::max() && next <= Clock::now();
}

bool Link::has_unsent() const {
  const auto& all = streams_.all();
  return std::any_of(all.begin(), all.end(), [](const Stream& stream) {
    return stream.writable && stream.has_output();
  });
}

// A stream that left its chunk to others waits for them. The kernel reports when they
// can take more, but not when they have stalled or are no longer used, so check again
// later.
Clock::time_point Link::next_timer() const {
  const auto& all = streams_.all();
  for (std::size_t i = 0; outbox_.has_chunks() && i < all.size(); ++i) {
    const bool waits = takes_chunks(i) && all[i].writable && all[i].passed_over;
    if (waits) return rates_updated_at_ + DeliveryRate::kSpan;
  }
  return Clock::time_point::max();
}

bool Link::is_blocked() const {
  if (!outbox_.has_chunks()) return false;
  const auto& all = streams_.all();
  for (std::size_t i = 0; i < all.size() && takes_chunks(i); ++i) {
    if (all[i].writable && !all[i].passed_over) return false;
  }
  return true;
}

void Link::retry_single_stream() {
  auto& all = streams_.all();
  if (all.size() == 1 && !all.front().ended) all.front().writable = true;
}

bool Link::read_all(std::size_t budget, std::size_t messages) {
  bool any = false;
  for (Stream& stream : streams_.all()) {
    std::size_t moved = 0;
    while (stream.readable && !stream.ended && moved < budget &&
           inbox_.arrived() < messages &&
           (messages == kNoLimit || !inbox_.needs_owner())) {
      moved += stream.read_some(*this);
    }
    any |= moved > 0 || stream.ended.has_value();
  }
  return any;
}

// Writes frames and, if `with_chunks`, chunk by chunk over all streams that have room,
// so that all of them are busy.
bool Link::write_all(std::size_t budget, bool with_chunks) {
  auto& all = streams_.all();
  // A single stream cannot hold back another one, so its chunks may be larger.
  const bool single = std::min(all.size(), in_use_) == 1;
  const std::size_t chunk = chunk_ > 0 ? chunk_ : single ? kSegment : kSmallChunk;
  std::size_t moved = 0;
  std::size_t before;
  do {
    before = moved;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (!all[i].writable) continue;
      all[i].passed_over = passes_over(i, chunk);
      const bool takes = with_chunks && takes_chunks(i) && !all[i].passed_over;
      moved += all[i].write_some(outbox_, takes ? chunk : 0);
    }
  } while (moved > before && moved < budget);
  return moved > 0;
}

bool Link::passes_over(std::size_t index, std::size_t chunk) {
  auto& all = streams_.all();
  const std::size_t count = std::min(all.size(), in_use_);
  if (count == 1 || index >= count || !outbox_.has_chunks()) return false;
  if (outbox_.has_unsolicited_chunks()) return false;
  // Updates the other streams now and then, because they may have become slower.
  const Clock::time_point now = Clock::now();
  const bool due = now - rates_updated_at_ >= DeliveryRate::kSpan / 4;
  if (due) rates_updated_at_ = now;
  for (std::size_t i = 0; i < count; ++i) {
    if (due || i == index) all[i].update_delivery_rate(now);
  }
  std::array<const DeliveryRate*, kMaxStreams> rates;
  for (std::size_t i = 0; i < count; ++i) rates[i] = &all[i].delivery_rate();
  return leaves_chunk_to_others(std::span(rates).first(count), index, outbox_.pending(),
                                chunk);
}

void Link::ask_for_streams(std::size_t count) {
  Frame frame{.kind = FrameKind::kGrow};
  frame.offset = count;
  streams_.queue_on_first(frame);
}

void Link::send_heartbeat() {
  streams_.queue_on_first(Frame{.kind = FrameKind::kHeartbeat});
}

std::uint64_t Link::bytes_received() const {
  std::uint64_t total = 0;
  for (const Stream& stream : streams_.all()) total += stream.stats().bytes_received;
  return total;
}

std::uint64_t Link::bytes_acknowledged() const {
  std::uint64_t total = 0;
  for (const Stream& stream : streams_.all()) total += stream.acknowledged();
  return total;
}

std::size_t Link::lead() const {
  const auto& all = streams_.all();
  std::array<PathState, kMaxStreams> paths;
  const std::size_t most = std::min(all.size(), peer_streams_.number());
  std::size_t count = 0;
  while (count < most && takes_chunks(count)) {
    paths[count] = all[count].path();
    ++count;
  }
  return lead_on(std::span(paths).first(count));
}

bool Link::is_drained() const {
  const auto& all = streams_.all();
  for (std::size_t i = in_use_; i < all.size(); ++i) {
    const bool holds = all[i].acknowledged() < all[i].stats().bytes_sent;
    if (holds || all[i].has_output()) return false;
  }
  return true;
}

void Link::queue_goodbye() {
  goodbye_queued_ = true;
  Frame frame{.kind = FrameKind::kGoodbye};
  frame.offset = outbox_.chunks_started();
  streams_.queue_on_first(frame);
}

// The goodbye arrives on stream 0 and may overtake chunks on the others.
void Link::check_goodbye() {
  if (peer_finished_ || !peer_chunks_ || inbox_.chunks_ended() < *peer_chunks_) return;
  peer_finished_ = true;
  streams_.queue_on_first(Frame{.kind = FrameKind::kGoodbyeSeen});
}

// A single broken stream ends the link. Before that, reads what has arrived on the
// others: the peer may have sent everything, goodbye included, before it exited.
void Link::check_ends() {
  const auto has_ended = [](const Stream& stream) { return stream.ended.has_value(); };
  auto& all = streams_.all();
  const auto broken = std::find_if(all.begin(), all.end(), has_ended);
  if (broken == all.end()) return;
  if (!peer_finished_) {
    // The poller may not have reported yet what has arrived on them.
    for (Stream& stream : all) stream.readable = !stream.ended;
    read_all(kNoLimit, kNoLimit);
  }
  if (peer_finished_) {
    if (std::all_of(all.begin(), all.end(), has_ended)) ended_.emplace();
    return;
  }
  ended_ = broken->peer() + ": " + *broken->ended;
  if (all.size() > 1) {
    ended_ = "stream " + std::to_string(broken - all.begin() + 1) + " of " +
             std::to_string(all.size()) + " to " + *ended_;
  }
}

FrameSink::Destination Link::begin(const Frame& frame, std::size_t stream) {
  if (frame.kind == FrameKind::kMessage && stream != 0) {
    return {{}, "a message on a stream for chunks"};
  }
  return inbox_.begin(frame, stream);
}

std::string_view Link::end(const Frame& frame, std::size_t stream) {
  if (frame.kind != FrameKind::kChunk && stream != 0) {
    return "a control frame on a stream for chunks";
  }
  switch (frame.kind) {
    case FrameKind::kMessage:
      return inbox_.end(frame);
    case FrameKind::kChunk: {
      streams_.all()[stream].count_received_chunk();
      peer_streams_.count(stream, frame.length);
      const auto defect = inbox_.end(frame);
      check_goodbye();
      return defect;
    }
    case FrameKind::kGrant:
      return outbox_.grant(frame);
    case FrameKind::kExpected:
      return outbox_.expect(frame);
    case FrameKind::kDiscard:
      return outbox_.discard(frame);
    case FrameKind::kCredit:
      return outbox_.credit(frame);
    case FrameKind::kGrow:
      if (frame.offset > static_cast<std::uint64_t>(kMaxStreams)) {
        return "too many streams";
      }
      asked_for_ = frame.offset;
      return {};
    case FrameKind::kGoodbye:
      if (peer_chunks_) return "a second goodbye";
      peer_chunks_ = frame.offset;
      check_goodbye();
      return {};
    case FrameKind::kGoodbyeSeen:
      goodbye_seen_ = true;
      return {};
    case FrameKind::kHeartbeat:
    case FrameKind::kChecksum:  // the parser handles these
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

}  // namespace bluecomm::stream
