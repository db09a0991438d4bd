#include "nccl_net/recv_comm.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "stream/socket.h"

namespace bluecomm::nccl_net {

RecvComm::RecvComm(std::shared_ptr<Acceptor> acceptor,
                   stream::AcceptedConnection newcomer)
    : Comm(acceptor->identity().options, acceptor->identity().receiver,
           "the sender at " + stream::peer_text(newcomer.socket.fd.get()), {}),
      acceptor_(std::move(acceptor)),
      acceptor_watch_(poller(), acceptor_->fd(), EPOLLIN) {
  connection().admit(newcomer.hello, std::move(newcomer.socket), Clock::now());
}

CommRequest* RecvComm::irecv(std::span<std::byte> into) {
  acquire();
  const LockGuard lock(mutex, std::adopt_lock);
  const auto slot = std::find_if(requests_.begin(), requests_.end(), is_free);
  // A message that has arrived is valid even if the connection has failed since.
  if (unexpected_.empty()) check();
  if (slot == requests_.end()) {
    advance(Clock::now());
    return nullptr;
  }
  slot->comm = this;
  slot->into = into;
  posted_.push_back(&*slot);
  ++posted_so_far_;
  // A long message is then received into the buffer, although its chunks are read
  // together with its head. The sender needs an announcement only of what it does not
  // send unsolicited.
  if (unexpected_.empty() && expects_) {
    connection().expect(posted_so_far_, into, announces_);
  }
  match();
  const stream::Link& link = connection().link();
  if (link.flushed() < link.queued()) push(Clock::now());
  return &*slot;
}

bool RecvComm::advance_opening() {
  const LockGuard lock(mutex);
  advance(Clock::now());
  return connection().was_opened() || !connection().is_idle();
}

bool RecvComm::is_open() {
  const LockGuard lock(mutex);
  return connection().was_opened();
}

void RecvComm::on_turn(Clock::time_point now) {
  if (acceptor_watch_.take_events() == 0) return;
  acceptor_->advance();
  take_streams(now);
}

void RecvComm::take_streams(Clock::time_point now) {
  if (!connection().is_open()) return;
  for (stream::AcceptedConnection& one :
       acceptor_->take_streams(connection().group())) {
    connection().admit(one.hello, std::move(one.socket), now);
  }
}

void RecvComm::on_message(std::unique_ptr<stream::ReceivedMessage> message) {
  const MessageKind kind = head_of(*message).kind;
  if (!begun_ && kind == MessageKind::kBegin && message->nbytes() == 0) {
    begun_ = true;
  } else if (begun_ && kind == MessageKind::kData) {
    unexpected_.push_back(std::move(message));
    match();
  } else {
    fail(abi::kInternalError,
         connection().name() +
             " broke the protocol; use the same version of bluecomm on all ranks");
  }
}

void RecvComm::match() {
  while (!posted_.empty() && !unexpected_.empty()) {
    RecvRequest& receiving = *posted_.front();
    const std::size_t nbytes = unexpected_.front()->nbytes();
    if (nbytes > receiving.into.size()) {
      return refuse(nbytes, receiving.into.size());
    }
    receiving.message = std::move(unexpected_.front());
    expects_ = nbytes > connection().eager_bytes();
    announces_ = !receiving.message->is_unsolicited();
    if (!receiving.message->accepted()) {
      receiving.message->accept(receiving.into.first(nbytes));
    }
    unexpected_.pop_front();
    posted_.pop_front();
  }
}

void RecvComm::refuse(std::size_t nbytes, std::size_t room) {
  MessageHead head{.kind = MessageKind::kRefused};
  head.detail = static_cast<std::uint32_t>(Refusal::kTooLong);
  connection().post(bytes_of(head), {});
  fail(abi::kInvalidUsage, "received a message of " + std::to_string(nbytes) +
                               " bytes from " + connection().name() +
                               " for a receive of " + std::to_string(room) + " bytes");
}

bool RecvComm::has_arrived(RecvRequest& receiving) const {
  stream::ReceivedMessage& message = *receiving.message;
  const auto bytes = message.readable();
  if (bytes.size() + message.consumed() < message.nbytes()) return false;
  if (!bytes.empty() && bytes.data() != receiving.into.data()) {
    std::memcpy(receiving.into.data(), bytes.data(), bytes.size());
  }
  message.consume(bytes.size());
  return true;
}

std::optional<std::size_t> RecvComm::finish(CommRequest& request) {
  auto& receiving = static_cast<RecvRequest&>(request);
  if (!receiving.message || !has_arrived(receiving)) return std::nullopt;
  const std::size_t nbytes = receiving.message->nbytes();
  receiving.message.reset();
  receiving.comm = nullptr;
  return nbytes;
}

bool RecvComm::idle() const {
  return std::all_of(requests_.begin(), requests_.end(), is_free);
}

}  // namespace bluecomm::nccl_net
