#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>

// A byte ring in memory that two processes share: one writes, the other reads.
//
// Neither side trusts the other. Each keeps its own position in private memory and
// checks the position that it reads from the other. So a peer that dies, or writes
// nonsense, costs this rank only the connection. Bytes become visible together at
// publish(), so a writer that is killed in the middle of a frame has written nothing.

namespace bluecomm::shm {

// The connection can no longer be used; what() says why, as a phrase about the peer.
class ConnectionError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

inline constexpr std::size_t kRingBytes = 64 << 10;

// Initially zero.
struct RingState {
  alignas(64) std::atomic<std::uint64_t> head;  // bytes published by the writer
  alignas(64) std::atomic<std::uint64_t> tail;  // bytes that the reader has given back
  alignas(64) std::atomic<std::uint32_t> writer_waits;  // 1: ring the writer's doorbell
                                                        // when tail moves
  alignas(64) std::byte data[kRingBytes];
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// Memory order: a side that is about to sleep arms its doorbell (or sets writer_waits)
// and then looks at the ring. The other side moves the ring and then looks at the
// doorbell (or at writer_waits). All four accesses are sequentially consistent, so at
// least one side sees the other's store.

class RingWriter {
 public:
  explicit RingWriter(RingState& state) : state_(state) {}

  // Whether `nbytes` more can be appended. Throws ConnectionError.
  bool fits(std::size_t nbytes) {
    if (head_ + nbytes - tail_ <= kRingBytes) return true;
    tail_ = checked_tail();
    return head_ + nbytes - tail_ <= kRingBytes;
  }

  // Appends bytes, after fits() has returned true. The reader sees them at the next
  // publish().
  void append(std::span<const std::byte> bytes) {
    const std::size_t at = head_ % kRingBytes;
    const std::size_t first = std::min(bytes.size(), kRingBytes - at);
    std::copy_n(bytes.data(), first, state_.data + at);
    std::copy(bytes.begin() + static_cast<std::ptrdiff_t>(first), bytes.end(),
              state_.data);
    head_ += bytes.size();
  }

  void skip(std::size_t nbytes) { head_ += nbytes; }
  void publish() { state_.head.store(head_); }

  // Asks the reader to ring this rank's doorbell when it gives bytes back. The caller
  // must check fits() or empty() afterwards.
  void wait() { state_.writer_waits.store(1); }
  bool empty() { return (tail_ = checked_tail()) == head_; }

 private:
  std::uint64_t checked_tail() const {
    const std::uint64_t tail = state_.tail.load();
    if (tail < tail_ || tail > head_) {
      throw ConnectionError("its ring has an impossible end (" + std::to_string(tail) +
                            " not in " + std::to_string(tail_) + ".." +
                            std::to_string(head_) + ")");
    }
    return tail;
  }

  RingState& state_;
  std::uint64_t head_ = 0;
  std::uint64_t tail_ = 0;  // as last read
};

class RingReader {
 public:
  explicit RingReader(RingState& state) : state_(state) {}

  // The number of bytes that can be copied. Throws ConnectionError.
  std::size_t available() {
    const std::uint64_t head = state_.head.load();
    if (head < tail_ || head - tail_ > kRingBytes) {
      throw ConnectionError("its ring has an impossible start (" +
                            std::to_string(head) + ", read up to " +
                            std::to_string(tail_) + ")");
    }
    return head - tail_;
  }

  // Copies bytes that start `offset` bytes after the current position. All of them
  // must be available.
  void copy(std::size_t offset, std::span<std::byte> to) const {
    const std::size_t at = (tail_ + offset) % kRingBytes;
    const std::size_t first = std::min(to.size(), kRingBytes - at);
    std::copy_n(state_.data + at, first, to.data());
    std::copy_n(state_.data, to.size() - first, to.data() + first);
  }

  // Gives bytes back. Returns true if the writer waits for that and must be woken.
  bool advance(std::size_t nbytes) {
    tail_ += nbytes;
    state_.tail.store(tail_);
    if (state_.writer_waits.load() == 0) return false;
    state_.writer_waits.store(0);
    return true;
  }

 private:
  RingState& state_;
  std::uint64_t tail_ = 0;
};

}  // namespace bluecomm::shm
