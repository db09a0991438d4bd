#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nccl_net/failure.h"
#include "nccl_net/housekeeper.h"
#include "nccl_net/listen_handle.h"
#include "nccl_net/message.h"
#include "stream/connection.h"
#include "stream/poller.h"

namespace bluecomm::nccl_net {

class Comm;
class IoThread;

// A request, which isend and irecv return and test() completes.
struct CommRequest {
  Comm* comm = nullptr;  // null if the request is free
};
inline bool is_free(const CommRequest& request) { return request.comm == nullptr; }

// The requests that may be in flight on one comm.
inline constexpr std::size_t kMaxRequests = 32;

// One end of a connection from a sender to a receiver: the base of send comms and recv
// comms. Every call moves the data that can be moved now. While no call runs, the
// comm's I/O thread moves data if it has one, and the housekeeper exchanges heartbeats.
class Comm : public Maintained {
 public:
  // `hello` names this end and the peer. `name` is the peer's name in error texts.
  Comm(const stream::Options& options, const stream::Hello& hello, std::string name,
       std::vector<stream::Address> addresses);

  // Returns the number of bytes of a request that has completed, which is free
  // afterwards, or nothing. Returns nothing immediately if the I/O thread holds the
  // mutex. Throws Failure.
  std::optional<std::size_t> test(CommRequest& request) EXCLUDES(mutex);

  // Releases the user's buffers and the sockets. If no request is in flight, waits
  // for the peer's kernel to acknowledge what was sent, but gives up if nothing more
  // was acknowledged for some time.
  void close() EXCLUDES(mutex);

  stream::LinkStats stats() EXCLUDES(mutex);
  virtual const char* direction() const = 0;

  // Readable when a turn would do something.
  int fd() const { return poller_.fd(); }

  // Lets `io_thread` move data of this comm from now on.
  void attach(IoThread& io_thread);
  // Returns the I/O thread, or null, and stops waking it.
  IoThread* detach_io_thread() EXCLUDES(mutex);
  // For the I/O thread: a comm is due while it has work to do.
  bool is_due() const { return due_; }
  bool take_due() { return due_.exchange(false); }
  void set_due() { due_ = true; }
  // For the I/O thread: moves data, and returns whether any moved. If a caller holds
  // the mutex or waits for it, does nothing and leaves the comm due.
  bool take_turn() EXCLUDES(mutex);

  void maintain(Clock::time_point now) override REQUIRES(mutex);
  void abandon() noexcept override;

 protected:
  // Locks the mutex for a call. The call waits for at most one turn of the I/O thread,
  // which skips its next turn while a call waits.
  void acquire() ACQUIRE(mutex);

  // Moves the data that can be moved now, in both directions.
  void advance(Clock::time_point now) REQUIRES(mutex);
  // Like advance(), but does not ask the kernel what has arrived.
  void push(Clock::time_point now) REQUIRES(mutex);

  // Handles a message from the peer.
  virtual void on_message(std::unique_ptr<stream::ReceivedMessage> message)
      REQUIRES(mutex) = 0;
  // Called at each heartbeat.
  virtual void on_beat(Clock::time_point) REQUIRES(mutex) {}
  // Called whenever data is about to be moved.
  virtual void on_turn(Clock::time_point) REQUIRES(mutex) {}
  // Whether no request is in flight.
  virtual bool idle() const REQUIRES(mutex) = 0;
  // Frees a request that has completed and returns its bytes; otherwise returns
  // nothing.
  virtual std::optional<std::size_t> finish(CommRequest& request) REQUIRES(mutex) = 0;

  // Records why the connection can no longer be used. The first failure stays.
  void fail(abi::Result code, std::string text) REQUIRES(mutex);
  // Throws the recorded failure, if any.
  void check() const REQUIRES(mutex);

  stream::Connection& connection() REQUIRES(mutex) { return connection_; }
  const stream::Connection& connection() const REQUIRES(mutex) { return connection_; }
  stream::Poller& poller() REQUIRES(mutex) { return poller_; }

 private:
  bool move(Clock::time_point now) REQUIRES(mutex);
  bool move_or_fail(Clock::time_point now) REQUIRES(mutex);
  void notify_io_thread() REQUIRES(mutex);
  void beat(Clock::time_point now) REQUIRES(mutex);
  void drain() REQUIRES(mutex);
  // The bytes sent or queued that the peer's kernel has not acknowledged.
  std::uint64_t unacknowledged() const REQUIRES(mutex);

  const stream::Options options_;
  stream::Poller poller_;  // under the mutex, except for fd()
  stream::Connection connection_ GUARDED_BY(mutex);
  std::optional<Failure> failure_ GUARDED_BY(mutex);
  Clock::time_point last_beat_ GUARDED_BY(mutex);
  Clock::time_point heard_at_ GUARDED_BY(mutex);  // when the peer's bytes last arrived
  std::uint64_t bytes_received_ GUARDED_BY(mutex) = 0;
  std::uint64_t frames_queued_ GUARDED_BY(mutex) = 0;
  std::atomic<IoThread*> io_thread_ = nullptr;
  std::atomic<bool> due_ = false;
  std::atomic<bool> wanted_ = false;  // a caller found the mutex locked
};

}  // namespace bluecomm::nccl_net
