#include "nccl_net/send_comm.h"

#include <algorithm>
#include <utility>

namespace bluecomm::nccl_net {
namespace {

// Short messages sent while others are in flight are given to the kernel together: once
// this many bytes wait, or at the next test(), which NCCL calls right afterwards.
constexpr std::uint64_t kBatchBytes = 64 << 10;

Identity identity_with(const ListenHandle& handle, const Settings& settings,
                       std::shared_ptr<stream::StreamCount> count) {
  Identity identity = identity_of(handle.name(), settings);
  identity.options.count = std::move(count);
  return identity;
}

}  // namespace

SendComm::SendComm(const ListenHandle& handle, const Device& device,
                   const Settings& settings, std::shared_ptr<stream::StreamCount> count)
    : SendComm(identity_with(handle, settings, std::move(count)),
               handle.address(device)) {}

SendComm::SendComm(const Identity& identity, const stream::Address& address)
    : Comm(identity.options, identity.sender, "the receiver at " + address.text(),
           {address}) {
  // The connection is dialed because a message waits to be sent.
  connection().post(bytes_of(MessageHead{.kind = MessageKind::kBegin}), {});
}

bool SendComm::advance_opening() {
  const LockGuard lock(mutex);
  advance(Clock::now());
  if (connection().was_opened()) return true;
  check();
  return false;
}

CommRequest* SendComm::isend(std::span<const std::byte> payload, int tag) {
  acquire();
  const LockGuard lock(mutex, std::adopt_lock);
  check();
  const auto slot = std::find_if(requests_.begin(), requests_.end(), is_free);
  if (slot == requests_.end()) {
    advance(Clock::now());
    return nullptr;
  }
  MessageHead head{.kind = MessageKind::kData};
  head.detail = static_cast<std::uint32_t>(tag);
  const bool alone = idle();
  slot->comm = this;
  slot->nbytes = payload.size();
  slot->message.emplace();
  connection().send(*slot->message, bytes_of(head), payload);
  slot->frames_end = connection().link().queued();
  const stream::Link& link = connection().link();
  const bool waits = !alone && payload.size() <= connection().eager_bytes() &&
                     link.queued() - link.flushed() < kBatchBytes;
  if (!waits) push(Clock::now());
  return &*slot;
}

// A request completes once the kernel has every byte, because NCCL may make no further
// call for a long time.
std::optional<std::size_t> SendComm::finish(CommRequest& request) {
  auto& sending = static_cast<SendRequest&>(request);
  const bool released = sending.message->released() == sending.nbytes;
  if (!released || connection().link().flushed() < sending.frames_end) {
    return std::nullopt;
  }
  sending.message.reset();
  sending.comm = nullptr;
  return sending.nbytes;
}

bool SendComm::idle() const {
  return std::all_of(requests_.begin(), requests_.end(), is_free);
}

void SendComm::on_message(std::unique_ptr<stream::ReceivedMessage> message) {
  const MessageHead head = head_of(*message);
  const bool refused = head.kind == MessageKind::kRefused &&
                       head.detail == static_cast<std::uint32_t>(Refusal::kTooLong);
  if (refused) {
    fail(abi::kInvalidUsage,
         connection().name() +
             " posted a receive that is shorter than the message sent to it");
  } else {
    fail(abi::kInternalError,
         connection().name() +
             " broke the protocol; use the same version of bluecomm on all ranks");
  }
}

}  // namespace bluecomm::nccl_net
