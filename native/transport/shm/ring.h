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
// Neither side trusts the other: each keeps its own position in private memory and
// checks what it reads of the other's, so a peer that dies or writes nonsense at any
// moment costs the link and nothing else. Bytes become visible all at once by
// publish(), so a writer killed in the middle of a frame has written nothing.

namespace bluecomm::shm {

// The link is unusable; what() says why.
class ConnectionError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

inline constexpr std::size_t kRingBytes = 64 << 10;

// All zero at first.
struct RingState {
  alignas(64) std::atomic<std::uint64_t> head;  // bytes published by the writer
  alignas(64) std::atomic<std::uint64_t> tail;  // bytes given back by the reader
  alignas(64) std::atomic<std::uint32_t> writer_waits;  // 1: ring it when tail moves
  alignas(64) std::byte data[kRingBytes];
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// Orders of memory: a side that is about to sleep stores `sleeping` (or writer_waits)
// and then looks at the ring; the other side moves the ring and then looks at that
// flag. All four accesses are sequentially consistent, so at least one of them sees the
// other.

class RingWriter {
 public:
  explicit RingWriter(RingState& state) : state_(state) {}

  // True when `nbytes` more can be appended.
  bool fits(std::size_t nbytes) {
    if (head_ + nbytes - tail_ <= kRingBytes) return true;
    tail_ = checked_tail();
    return head_ + nbytes - tail_ <= kRingBytes;
  }

  // After fits(). Seen by the reader at the next publish().
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

  // Asks to be rung when the reader gives bytes back; look at fits() or empty() after
  // it.
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
  std::uint64_t tail_ = 0;  // as last seen
};

class RingReader {
 public:
  explicit RingReader(RingState& state) : state_(state) {}

  // Bytes that can be copied.
  std::size_t available() {
    const std::uint64_t head = state_.head.load();
    if (head < tail_ || head - tail_ > kRingBytes) {
      throw ConnectionError("its ring has an impossible start (" +
                            std::to_string(head) + ", read up to " +
                            std::to_string(tail_) + ")");
    }
    return head - tail_;
  }

  // StagedCopies what starts `offset` bytes further on. All of it must be available.
  void copy(std::size_t offset, std::span<std::byte> to) const {
    const std::size_t at = (tail_ + offset) % kRingBytes;
    const std::size_t first = std::min(to.size(), kRingBytes - at);
    std::copy_n(state_.data + at, first, to.data());
    std::copy_n(state_.data, to.size() - first, to.data() + first);
  }

  // Gives bytes back. True when the writer waits for that and must be rung.
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
