// One stream: the socket calls of a link, made on the thread that calls
// Link::progress(). write_some() sends frames and at most one chunk per call;
// read_some() lets the parser choose where the bytes go.
#include "stream/stream.h"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "common/crc32c.h"
#include "stream/socket.h"

namespace bluecomm::stream {
namespace {

// The buffers of one sendmsg or readv.
class Vector {
 public:
  void add(std::span<const std::byte> bytes) {
    if (bytes.empty()) return;
    parts_[count_++] = {const_cast<std::byte*>(bytes.data()), bytes.size()};
    nbytes_ += bytes.size();
  }
  iovec* data() { return parts_.data(); }
  std::size_t count() const { return count_; }
  std::size_t nbytes() const { return nbytes_; }

 private:
  std::array<iovec, 3> parts_{};
  std::size_t count_ = 0;
  std::size_t nbytes_ = 0;
};

// A stream seals another chunk when fewer bytes than these wait to be sent.
constexpr std::size_t kSealedBacklog = 16 << 10;

Frame chunk_head(const Chunk& chunk) {
  Frame head{.kind = FrameKind::kChunk};
  head.length = static_cast<std::uint32_t>(chunk.bytes.size());
  head.message = chunk.message;
  head.offset = chunk.offset;
  return head;
}

}  // namespace

Frame checksum_of(const Frame& frame, std::span<const std::byte> head,
                  std::span<const std::byte> tail) {
  Frame checksum{.kind = FrameKind::kChecksum};
  checksum.offset = crc32c(tail, crc32c(head, crc32c(bytes_of(frame))));
  return checksum;
}

void OutBuffer::consume(std::size_t nbytes) {
  done_ += nbytes;
  consumed_ += nbytes;
  if (done_ == bytes_.size()) {
    bytes_.clear();
    done_ = 0;
  } else if (done_ > bytes_.size() / 2) {
    bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(done_));
    done_ = 0;
  }
}

Stream::Stream(StreamSocket socket, std::size_t index, bool checksum)
    : socket_(std::move(socket)),
      checksum_(checksum),
      parser_(index, socket_.cipher ? &socket_.cipher->opener : nullptr) {
  stats_.peer = peer_text(socket_.fd.get());
}

std::uint64_t Stream::acknowledged() const {
  int held = 0;
  static_cast<void>(ioctl(socket_.fd.get(), SIOCOUTQ, &held));
  return stats_.bytes_sent -
         std::min(stats_.bytes_sent, static_cast<std::uint64_t>(held));
}

PathState Stream::path() const {
  tcp_info info{};  // unchanged if the socket is not TCP
  socklen_t length = sizeof(info);
  static_cast<void>(
      getsockopt(socket_.fd.get(), IPPROTO_TCP, TCP_INFO, &info, &length));
  return {.round_trip = std::chrono::microseconds(info.tcpi_rtt),
          .shortest_round_trip = std::chrono::microseconds(info.tcpi_min_rtt),
          .bytes_per_second = info.tcpi_delivery_rate};
}

void Stream::update_delivery_rate(Clock::time_point now) {
  int held = 0;
  if (ioctl(socket_.fd.get(), SIOCOUTQ, &held) != 0) return;
  int unsent = held;  // unchanged if the socket is not TCP
  static_cast<void>(ioctl(socket_.fd.get(), SIOCOUTQNSD, &unsent));
  delivery_rate_.update({.sent = stats_.bytes_sent,
                         .held = static_cast<std::size_t>(held),
                         .unsent = static_cast<std::size_t>(unsent),
                         .is_far = path().shortest_round_trip > kNear},
                        now);
}

void Stream::queue(const Frame& frame, std::span<const std::byte> head,
                   std::span<const std::byte> tail) {
  if (socket_.cipher) return seal(frame, head, tail);
  if (checksum_) frames_.append(checksum_of(frame, head, tail));
  frames_.append(frame);
  frames_.append(head);
  frames_.append(tail);
}

void Stream::queue_all(std::span<const std::byte> frames) {
  if (!socket_.cipher) return frames_.append(frames);
  while (!frames.empty()) {
    Frame frame;
    std::memcpy(&frame, frames.data(), sizeof frame);
    seal(frame, frames.subspan(sizeof frame, frame.length), {});
    frames = frames.subspan(sizeof frame + frame.length);
  }
}

void Stream::seal(const Frame& frame, std::span<const std::byte> head,
                  std::span<const std::byte> tail) {
  DirectionCipher& sealer = socket_.cipher->sealer;
  const std::size_t payload = head.size() + tail.size();
  const auto out = frames_.extend(sizeof frame + kTagNbytes +
                                  (payload > 0 ? payload + kTagNbytes : 0));
  const std::array first{bytes_of(frame)};
  sealer.seal(first, out.data());
  if (payload == 0) return;
  const std::array second{head, tail};
  sealer.seal(second, out.data() + sizeof frame + kTagNbytes);
}

// Seals the next chunk once little is left of what was sealed before, so that the
// order of sealing is the order of sending.
std::size_t Stream::write_sealed(Outbox& outbox, std::size_t max_chunk) {
  if (max_chunk > 0 && frames_.pending().size() < kSealedBacklog) {
    if (const auto chunk = outbox.next_chunk(max_chunk)) {
      seal(chunk_head(*chunk), chunk->bytes, {});
      outbox.start(*chunk);
      outbox.finish(chunk->message, chunk->offset, chunk->bytes.size());
      ++stats_.chunks_sent;
    }
  }
  const auto pending = frames_.pending();
  if (pending.empty()) return 0;
  const ssize_t n = ::send(fd(), pending.data(), pending.size(), MSG_NOSIGNAL);
  if (n < 0) return fail_to_send();
  const auto moved = static_cast<std::size_t>(n);
  stats_.bytes_sent += moved;
  if (moved < pending.size()) writable = false;
  frames_.consume(moved);
  return moved;
}

// Handles an error of send() or sendmsg(), in errno. Returns 0, the number of bytes
// sent. The reading side decides whether an error ends the stream, because a goodbye
// may be waiting to be read.
std::size_t Stream::fail_to_send() {
  if (errno == EINTR) return 0;
  if (errno != EAGAIN) readable = hung_up = true;
  writable = false;
  return 0;
}

std::size_t Stream::write_some(Outbox& outbox, std::size_t max_chunk) {
  if (socket_.cipher) return write_sealed(outbox, max_chunk);
  std::optional<OpenChunk> fresh;
  if (!chunk_ && max_chunk > 0) {
    if (const auto next = outbox.next_chunk(max_chunk)) fresh = open(*next);
  }
  Vector vector;
  if (!chunk_) vector.add(frames_.pending());
  if (const OpenChunk* chunk = chunk_ ? &*chunk_ : fresh ? &*fresh : nullptr) {
    const std::size_t in_head = std::min(chunk->written, chunk->head_nbytes);
    const std::size_t in_payload = chunk->payload_written();
    const auto heads = std::span(chunk->heads).first(chunk->head_nbytes);
    vector.add(heads.subspan(in_head));
    const auto kept = std::span<const std::byte>(chunk->kept);
    const std::size_t missing = chunk->chunk.bytes.size() - in_payload;
    vector.add(kept.empty() ? chunk->chunk.bytes.subspan(in_payload)
                            : kept.last(missing));
  }
  if (chunk_) vector.add(frames_.pending());
  if (vector.nbytes() == 0) return 0;

  msghdr message{};
  message.msg_iov = vector.data();
  message.msg_iovlen = vector.count();
  const ssize_t n = sendmsg(socket_.fd.get(), &message, MSG_NOSIGNAL);
  if (n < 0) return fail_to_send();
  const auto moved = static_cast<std::size_t>(n);
  stats_.bytes_sent += moved;
  if (moved < vector.nbytes()) writable = false;
  account(moved, fresh, outbox);
  return moved;
}

Stream::OpenChunk Stream::open(const Chunk& chunk) const {
  const Frame head = chunk_head(chunk);
  OpenChunk opened{chunk, {}, 0, 0, {}};
  const auto add = [&opened](const Frame& frame) {
    std::memcpy(opened.heads.data() + opened.head_nbytes, &frame, sizeof frame);
    opened.head_nbytes += sizeof frame;
  };
  if (checksum_) add(checksum_of(head, chunk.bytes, {}));
  add(head);
  return opened;
}

void Stream::account(std::size_t nbytes, std::optional<OpenChunk>& fresh,
                     Outbox& outbox) {
  if (!chunk_) {
    const std::size_t count = std::min(nbytes, frames_.pending().size());
    frames_.consume(count);
    nbytes -= count;
    if (nbytes == 0) return;
    outbox.start(fresh->chunk);
    chunk_ = std::move(fresh);
  }
  const std::size_t count = std::min(nbytes, chunk_->nbytes() - chunk_->written);
  chunk_->written += count;
  nbytes -= count;
  if (chunk_->written == chunk_->nbytes()) {
    const Chunk done = chunk_->chunk;
    chunk_.reset();
    ++stats_.chunks_sent;
    outbox.finish(done.message, done.offset, done.bytes.size());
  }
  if (nbytes > 0) frames_.consume(nbytes);
}

std::size_t Stream::read_some(FrameSink& sink) {
  Vector vector;
  for (const auto space : parser_.spaces()) vector.add(space);
  const ssize_t n =
      readv(socket_.fd.get(), vector.data(), static_cast<int>(vector.count()));
  if (n < 0) {
    if (errno == EINTR) return 0;
    readable = false;
    if (errno != EAGAIN) end(error_text(errno));
    return 0;
  }
  const auto moved = static_cast<std::size_t>(n);
  stats_.bytes_received += moved;
  if (moved < vector.nbytes() && !hung_up) readable = false;
  if (moved == 0) {
    readable = false;
    end("closed by the peer without a goodbye");
    return 0;
  }
  const std::string_view defect = parser_.advance(moved, sink);
  if (!defect.empty()) {
    readable = false;
    ended = defect == kNotAuthentic
                ? std::string(defect)
                : "the peer broke the protocol: " + std::string(defect);
  }
  return moved;
}

void Stream::end(std::string why) {
  writable = false;
  ended = std::move(why);
}

void Stream::keep_chunk(std::uint64_t message) {
  if (!chunk_ || chunk_->chunk.message != message || !chunk_->kept.empty()) return;
  const auto rest = chunk_->chunk.bytes.subspan(chunk_->payload_written());
  chunk_->kept.assign(rest.begin(), rest.end());
}

}  // namespace bluecomm::stream
