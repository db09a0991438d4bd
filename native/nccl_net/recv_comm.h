#pragma once

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <span>

#include "nccl_net/acceptor.h"
#include "nccl_net/comm.h"

namespace bluecomm::nccl_net {

// NCCL's recv comm: the receiving end of a connection. The k-th irecv receives the k-th
// message.
class RecvComm final : public Comm {
 public:
  // `newcomer` is the first stream. The comm keeps `acceptor` alive, because further
  // streams arrive there.
  RecvComm(std::shared_ptr<Acceptor> acceptor, stream::AcceptedConnection newcomer);

  const char* direction() const override { return "recv"; }

  // Posts a buffer for the next message, which may be shorter than the buffer. Returns
  // null if too many requests are in flight. Throws Failure.
  CommRequest* irecv(std::span<std::byte> into) EXCLUDES(mutex);

  // Returns false if the sender has given up, so that the comm will never open.
  bool advance_opening() EXCLUDES(mutex);
  bool is_open() EXCLUDES(mutex);

 private:
  struct RecvRequest : CommRequest {
    std::span<std::byte> into;
    std::unique_ptr<stream::ReceivedMessage> message;  // null until its head arrives
  };

  void on_message(std::unique_ptr<stream::ReceivedMessage> message) override
      REQUIRES(mutex);
  void on_beat(Clock::time_point now) override REQUIRES(mutex) { take_streams(now); }
  void on_turn(Clock::time_point now) override REQUIRES(mutex);
  std::optional<std::size_t> finish(CommRequest& request) override REQUIRES(mutex);
  bool idle() const override REQUIRES(mutex);

  void take_streams(Clock::time_point now) REQUIRES(mutex);
  void match() REQUIRES(mutex);
  void refuse(std::size_t nbytes, std::size_t room) REQUIRES(mutex);
  bool has_arrived(RecvRequest& receiving) const;

  const std::shared_ptr<Acceptor> acceptor_;
  stream::Watch acceptor_watch_ GUARDED_BY(mutex);
  bool begun_ GUARDED_BY(mutex) = false;
  // The number of irecvs so far. Message 0 of the connection is the sender's kBegin.
  std::uint64_t posted_so_far_ GUARDED_BY(mutex) = 0;
  // Whether to set buffers for messages before they arrive: the last one was long. And
  // whether to announce them to the sender: it was not unsolicited.
  bool expects_ GUARDED_BY(mutex) = false;
  bool announces_ GUARDED_BY(mutex) = false;
  std::array<RecvRequest, kMaxRequests> requests_ GUARDED_BY(mutex);
  // Receives without a message, and messages without a receive, each in order.
  std::deque<RecvRequest*> posted_ GUARDED_BY(mutex);
  std::deque<std::unique_ptr<stream::ReceivedMessage>> unexpected_ GUARDED_BY(mutex);
};

}  // namespace bluecomm::nccl_net
