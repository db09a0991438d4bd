#include "engine/pending_sends.h"

#include <algorithm>
#include <functional>

namespace bluecomm {

void PendingSends::start(std::span<const Send> sends, Envelope call,
                         std::uint32_t phase, std::span<Channel* const> channels,
                         Lease& lease) {
  messages_.reserve(messages_.size() + sends.size());
  call.phase = phase;
  std::shared_ptr<void> copies;  // copies of the payload shared by the latest sends
  std::span<const std::byte> last;
  for (const Send& send : sends) {
    if (send.bytes.data() != last.data() || send.bytes.size() != last.size()) {
      copies.reset();
      last = send.bytes;
    }
    call.slot = send.slot;
    call.scale = send.scale;
    call.first_dim = send.first_dim;
    Channel& channel = *channels[static_cast<std::size_t>(send.peer)];
    const Header header = to_header(call, send.bytes.size());
    messages_.push_back(
        {&send, channel.send_to_many(header, send.bytes, copies, lease)});
  }
}

void PendingSends::forget_released() {
  std::erase_if(messages_, [](const Message& one) { return one.released(); });
}

bool PendingSends::released() {
  forget_released();
  return messages_.empty();
}

bool PendingSends::phase_released() {
  forget_released();
  return std::all_of(messages_.begin(), messages_.end(),
                     [](const Message& one) { return one.send->lingers; });
}

bool PendingSends::released(std::span<const std::byte> range) const {
  const std::less<const std::byte*> before;
  const std::byte* const end = range.data() + range.size();
  for (const Message& one : messages_) {
    const std::span<const std::byte> bytes = one.send->bytes;
    const std::byte* const bytes_end = bytes.data() + bytes.size();
    if (!before(bytes.data(), end) || !before(range.data(), bytes_end)) continue;
    const std::byte* const last = std::min(end, bytes_end, before);
    if (one.outgoing->released() < static_cast<std::size_t>(last - bytes.data())) {
      return false;
    }
  }
  return true;
}

void PendingSends::collect_readers(std::vector<int>& peers) const {
  for (const Message& one : messages_) {
    if (!one.released()) peers.push_back(one.send->peer);
  }
}

}  // namespace bluecomm
