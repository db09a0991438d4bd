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

// What isend and irecv return, until test() says that it is done.
struct Request {
  Comm* comm = nullptr;  // null: free
};
inline bool is_free(const Request& request) { return request.comm == nullptr; }

// Requests of NCCL that are in flight on a connection at most.
inline constexpr std::size_t kMaxRequests = 32;

// A connection of a sender to a receiver; one end of it. Who calls it moves what can be
// moved, and the housekeeper does while nobody calls; besides, a IoThread may.
class Comm : public Maintained {
 public:
  // `hello`: this end and the other; `name`: of the other end, for errors.
  Comm(const stream::Options& options, const stream::Hello& hello, std::string name,
       std::vector<stream::Address> addresses);

  // The bytes of the request, which is free again; or nothing yet. Takes the mutex, but
  // does not wait for a IoThread that has it. Throws Failure.
  std::optional<std::size_t> test(Request& request);

  // Takes the mutex. Gives user memory and sockets up. What was sent before is
  // delivered, for which it waits a second at most, unless requests are in flight.
  void close();

  // Takes the mutex.
  stream::LinkStats stats();
  virtual const char* direction() const = 0;

  // Readable when a turn would do something.
  int fd() const { return poller_.fd(); }
  // From now on a IoThread takes turns, whenever the connection is due.
  void use(IoThread& io_thread);
  // Takes the mutex. It is woken no more; null: there was none.
  IoThread* detach_io_thread();
  // Of its IoThread: whether a turn is due; begin one; and moves what can be moved,
  // unless a caller is busy with it or waits for it, when it stays due. True if
  // anything moved.
  bool is_due() const { return due_; }
  bool take_due() { return due_.exchange(false); }
  void set_due() { due_ = true; }
  bool take_turn();

  void maintain(Clock::time_point now) override { move_or_fail(now); }
  void abandon() noexcept override;

 protected:
  // The mutex, for a call. It waits for the turn of a IoThread at most, which then
  // leaves the next one to calls.
  std::unique_lock<std::mutex> hold();

  // With the mutex held, all of them.
  void advance(Clock::time_point now);
  // A message of the peer.
  virtual void on_message(std::unique_ptr<stream::ReceivedMessage> message) = 0;
  // Something that has to be done now and then, beside heartbeats.
  virtual void on_beat(Clock::time_point) {}
  virtual void on_turn(Clock::time_point) {}
  // No request is in flight.
  virtual bool idle() const = 0;
  // The bytes of the request, if it is done.
  virtual std::optional<std::size_t> finish(Request& request) = 0;
  void fail(abi::Result code, std::string text);
  void check() const;  // throws what fail() has been told
  // Moves what can be moved without asking the kernel what has come.
  void push(Clock::time_point now);

  stream::Connection& connection() { return connection_; }
  const stream::Connection& connection() const { return connection_; }
  stream::Poller& poller() { return poller_; }

 private:
  bool move(Clock::time_point now);
  bool move_or_fail(Clock::time_point now);
  void notify_io_thread();
  void beat(Clock::time_point now);
  bool is_drained() const;

  const stream::Options options_;
  stream::Poller poller_;
  stream::Connection connection_;
  std::optional<Failure> failure_;
  Clock::time_point last_beat_;
  Clock::time_point heard_at_;  // bytes of the peer
  std::uint64_t bytes_received_ = 0;
  std::uint64_t frames_queued_ = 0;
  std::atomic<IoThread*> io_thread_ = nullptr;
  std::atomic<bool> due_ = false;  // a turn of the io_thread
  std::atomic<bool> wanted_ =
      false;  // by a caller, who found the io_thread busy with it
};

}  // namespace bluecomm::nccl_net
