#include "nccl_net/send_comm.h"

#include <algorithm>
#include <utility>

namespace bluecomm::nccl_net {
namespace {

// Short messages that follow others go to the kernel together: when this much waits, or
// one of them is tested, which NCCL does next.
constexpr std::uint64_t kTogether = 64 << 10;

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
  // Something to send makes the connection be dialled.
  connection().post(bytes_of(MessageHead{.kind = MessageKind::kBegin}), {});
}

bool SendComm::advance_opening() {
  const std::scoped_lock lock(mutex);
  advance(Clock::now());
  if (connection().was_opened()) return true;
  check();
  return false;
}

Request* SendComm::isend(std::span<const std::byte> payload, int tag) {
  const auto lock = hold();
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
                     link.queued() - link.flushed() < kTogether;
  if (!waits) push(Clock::now());
  return &*slot;
}

// Done means that the kernel has every byte: NCCL may not call for a long time then.
std::optional<std::size_t> SendComm::finish(Request& request) {
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
         connection().name() + " has posted less memory than this message is long");
  } else {
    fail(abi::kInternalError, connection().name() + " broke the protocol");
  }
}

}  // namespace bluecomm::nccl_net
