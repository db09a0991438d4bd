#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "net/failure.h"
#include "net/handle.h"
#include "net/keeper.h"
#include "net/message.h"
#include "stream/connection.h"
#include "stream/poller.h"

namespace bluecomm::net {

class Comm;

// What isend and irecv return, until test() says that it is done.
struct Request {
  Comm* comm = nullptr;  // null: free
};

// Requests of NCCL that are in flight on a connection at most.
inline constexpr std::size_t kMaxRequests = 32;

// A connection of a sender to a receiver; one end of it. No thread: who calls it moves
// what can be moved, and the keeper does while nobody calls.
class Comm : public Kept {
 public:
  // `hello`: this end and the other; `name`: of the other end, for errors.
  Comm(const stream::Options& options, const stream::Hello& hello, std::string name,
       std::vector<stream::Address> addresses);

  // Takes the mutex. The bytes of the request, which is free again; or nothing yet.
  // Throws Failure.
  std::optional<std::size_t> test(Request& request);

  // Takes the mutex. Gives user memory and sockets up. What was sent before is
  // delivered, for which it waits a second at most, unless requests are in flight.
  void close();

  // Takes the mutex.
  stream::LinkStats stats();
  virtual const char* direction() const = 0;

  void keep(Clock::time_point now) override { advance(now); }
  void abandon() noexcept override;

 protected:
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
  void push(Clock::time_point now) { connection_.advance(now); }

  stream::Connection& connection() { return connection_; }
  const stream::Connection& connection() const { return connection_; }
  stream::Poller& poller() { return poller_; }

 private:
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
};

}  // namespace bluecomm::net
