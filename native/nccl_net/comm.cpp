// The common part of send comms and recv comms: who may move data of a connection, and
// how a silent peer is noticed.
//
// Three kinds of threads use a comm: NCCL's (isend, irecv, test), the comm's I/O thread
// if it has one (take_turn), and the housekeeper (maintain, every kBeat). The mutex
// lets one of them in at a time. Calls come first: test() returns rather than wait for
// the I/O thread, and `wanted_` makes the I/O thread skip a turn for a call that waits.
#include "nccl_net/comm.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <thread>
#include <utility>

#include "common/seconds.h"
#include "nccl_net/io_thread.h"

namespace bluecomm::nccl_net {
namespace {

// How long close() waits for the peer to acknowledge more of what was sent, and how
// long it sleeps between two checks. A peer that posts no receive reads once per kBeat,
// and each time no more than its kernel holds.
constexpr std::chrono::milliseconds kLinger = 4 * kBeat;
constexpr std::chrono::milliseconds kPollInterval{1};

// A test moves data in up to this many turns before it returns "not done yet", because
// NCCL then yields its core, and waits long for it if other programs want the core.
constexpr int kTurns = 16;
// The turns of the housekeeper at a connection without requests: enough to read all
// that a sender's credit allows.
constexpr int kIdleTurns = 256;

}  // namespace

Comm::Comm(const stream::Options& options, const stream::Hello& hello, std::string name,
           std::vector<stream::Address> addresses)
    : options_(options),
      connection_(poller_, options_, hello, std::move(name), std::move(addresses),
                  sizeof(MessageHead), std::make_shared<stream::SegmentPool>()),
      last_beat_(Clock::now()),
      heard_at_(last_beat_) {}

void Comm::acquire() {
  if (mutex.try_lock()) return;
  wanted_ = true;
  mutex.lock();
  wanted_ = false;
}

std::optional<std::size_t> Comm::test(CommRequest& request) {
  if (!mutex.try_lock()) {
    if (io_thread_ != nullptr) {
      wanted_ = true;
      return std::nullopt;
    }
    mutex.lock();
  }
  const LockGuard lock(mutex, std::adopt_lock);
  if (wanted_) wanted_ = false;
  auto nbytes = finish(request);
  if (!nbytes) connection_.retry_single_stream();
  for (int turn = 0; !nbytes && turn < kTurns; ++turn) {
    const bool moved = move(Clock::now());
    nbytes = finish(request);
    if (!moved) break;
  }
  if (!nbytes) check();
  return nbytes;
}

void Comm::close() {
  const LockGuard lock(mutex);
  if (connection_.is_open() && !failure_ && idle()) {
    connection_.close();
    drain();
  }
  connection_.forget();
}

// Waits until the peer's kernel has acknowledged everything. Before that, closing a
// socket with unread bytes would reset the connection and discard what was sent.
void Comm::drain() {
  auto deadline = Clock::now() + kLinger;
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  do {
    advance(Clock::now());
    const std::uint64_t left = unacknowledged();
    if (failure_ || left == 0) return;
    if (left < least) deadline = Clock::now() + kLinger;
    least = std::min(least, left);
    std::this_thread::sleep_for(kPollInterval);
  } while (Clock::now() < deadline);
}

std::uint64_t Comm::unacknowledged() const {
  const stream::Link& link = connection_.link();
  std::uint64_t total = link.queued() - link.flushed();
  for (const stream::Stream& one : link.streams()) {
    total += one.stats().bytes_sent - one.acknowledged();
  }
  return total;
}

stream::LinkStats Comm::stats() {
  const LockGuard lock(mutex);
  return connection_.stats();
}

void Comm::abandon() noexcept NO_THREAD_SAFETY_ANALYSIS {
  poller_.abandon();
  connection_.abandon();
  io_thread_ = nullptr;
}

void Comm::attach(IoThread& io_thread) {
  io_thread_ = &io_thread;
  set_due();
  io_thread.wake();
}

IoThread* Comm::detach_io_thread() {
  const LockGuard lock(mutex);
  return io_thread_.exchange(nullptr);
}

bool Comm::take_turn() {
  if (wanted_.exchange(false) || !mutex.try_lock()) {
    set_due();
    return false;
  }
  const LockGuard lock(mutex, std::adopt_lock);
  return move_or_fail(Clock::now());
}

// If no receive is posted, reads everything that has arrived. So the sender can close
// its end, although its last messages are received late.
void Comm::maintain(Clock::time_point now) {
  const int turns = idle() ? kIdleTurns : 1;
  for (int turn = 0; turn < turns && move_or_fail(now); ++turn) {
  }
}

// For threads without a caller that could catch an exception: the next test() throws
// it.
bool Comm::move_or_fail(Clock::time_point now) {
  try {
    return move(now);
  } catch (const std::exception& error) {
    fail(abi::kSystemError, error.what());
    return false;
  }
}

// Leaves remaining work to the I/O thread, as NCCL's next call may come late.
void Comm::notify_io_thread() {
  IoThread* const io_thread = io_thread_;
  if (io_thread == nullptr || !connection_.busy()) return;
  set_due();
  io_thread->wake();
}

void Comm::push(Clock::time_point now) {
  connection_.advance(now);
  notify_io_thread();
}

void Comm::advance(Clock::time_point now) { move(now); }

bool Comm::move(Clock::time_point now) {
  poller_.collect();
  on_turn(now);
  const bool moved = connection_.advance(now);
  const std::uint64_t queued = connection_.link().queued();
  while (auto message = connection_.take_arrived()) on_message(std::move(message));
  // Sends the frames that the messages' handlers have queued.
  if (connection_.link().queued() != queued) connection_.advance(now);
  if (const auto end = connection_.take_end()) {
    fail(abi::kRemoteError, end->empty() ? "the peer has closed the connection" : *end);
  }
  if (now - last_beat_ >= kBeat) beat(now);
  notify_io_thread();
  return moved;
}

void Comm::beat(Clock::time_point now) {
  // If this process was stopped for long, it cannot tell how long the peer was silent.
  const bool was_away = now - std::exchange(last_beat_, now) > 4 * kBeat;
  on_beat(now);
  if (!connection_.is_open()) {
    heard_at_ = now;
    return;
  }
  connection_.check_silence();
  const stream::Link& link = connection_.link();
  if (link.queued() == std::exchange(frames_queued_, link.queued())) {
    connection_.send_heartbeat();
    frames_queued_ = link.queued();
    connection_.advance(now);
  }
  const std::uint64_t received = link.bytes_received();
  if (received != std::exchange(bytes_received_, received) || was_away) {
    heard_at_ = now;
  } else if (now - heard_at_ >= options_.silence_timeout) {
    fail(abi::kRemoteError, "nothing was received from " + connection_.name() +
                                " for " + seconds_text(options_.silence_timeout) +
                                " (BLUECOMM_NET_TIMEOUT_S); its process is stopped, or "
                                "the network is down");
  }
}

void Comm::fail(abi::Result code, std::string text) {
  if (failure_) return;
  failure_.emplace(code, text);
}

void Comm::check() const {
  if (failure_) throw *failure_;
}

}  // namespace bluecomm::nccl_net
