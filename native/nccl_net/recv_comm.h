#pragma once

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <span>

#include "nccl_net/acceptor.h"
#include "nccl_net/comm.h"

namespace bluecomm::nccl_net {

// The end that receives. The k-th message is for the k-th irecv.
class RecvComm final : public Comm {
 public:
  // `newcomer`: what came through the acceptor, which it keeps open for further
  // streams.
  RecvComm(std::shared_ptr<Acceptor> acceptor, stream::AcceptedConnection newcomer);

  const char* direction() const override { return "recv"; }

  // Takes the mutex. Posts memory for the next message, which may be shorter. Null: too
  // many requests are in flight. Throws Failure.
  Request* irecv(std::span<std::byte> into);

  // Take the mutex. advance_opening() is false if the sender has given this attempt up:
  // it will never open.
  bool advance_opening();
  bool is_open();

 private:
  struct RecvRequest : Request {
    std::span<std::byte> into;
    std::unique_ptr<stream::ReceivedMessage> message;  // once it has begun to arrive
  };

  void on_message(std::unique_ptr<stream::ReceivedMessage> message) override;
  void on_beat(Clock::time_point now) override { take_streams(now); }
  void on_turn(Clock::time_point now) override;
  std::optional<std::size_t> finish(Request& request) override;
  bool idle() const override;

  void take_streams(Clock::time_point now);
  void match();
  void refuse(std::size_t nbytes, std::size_t room);
  bool has_arrived(RecvRequest& receiving) const;

  const std::shared_ptr<Acceptor> acceptor_;
  stream::Watch acceptor_watch_;
  bool begun_ = false;
  // Receives so far. Message 0 of the connection is the sender's kBegin.
  std::uint64_t posted_so_far_ = 0;
  bool expects_ = false;  // the last message was one that pays to be expected
  std::array<RecvRequest, kMaxRequests> requests_;
  std::deque<RecvRequest*> posted_;  // that no message has come for, in order
  std::deque<std::unique_ptr<stream::ReceivedMessage>> unexpected_;
};

}  // namespace bluecomm::nccl_net
