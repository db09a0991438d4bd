#include "engine/sends.h"

#include <algorithm>
#include <functional>

namespace bluecomm {

Sends::Sends(std::span<const Send> sends, Envelope call, std::uint32_t phase,
             std::span<Channel* const> channels)
    : sends_(sends) {
  messages_.reserve(sends.size());
  call.phase = phase;
  for (const Send& send : sends) {
    call.slot = send.slot;
    call.scale = send.scale;
    call.first_dim = send.first_dim;
    Channel& channel = *channels[static_cast<std::size_t>(send.peer)];
    messages_.push_back(channel.send(to_header(call, send.bytes.size()), send.bytes));
  }
}

bool Sends::released() {
  while (finished_ < messages_.size() &&
         messages_[finished_]->released() == sends_[finished_].bytes.size()) {
    ++finished_;
  }
  return finished_ == messages_.size();
}

bool Sends::released(std::span<const std::byte> range) const {
  const std::less<const std::byte*> before;
  const std::byte* const end = range.data() + range.size();
  for (std::size_t i = finished_; i < messages_.size(); ++i) {
    const std::span<const std::byte> bytes = sends_[i].bytes;
    const std::byte* const bytes_end = bytes.data() + bytes.size();
    if (!before(bytes.data(), end) || !before(range.data(), bytes_end)) continue;
    const std::byte* const last = std::min(end, bytes_end, before);
    if (messages_[i]->released() < static_cast<std::size_t>(last - bytes.data())) {
      return false;
    }
  }
  return true;
}

void Sends::collect_readers(std::vector<int>& peers) const {
  for (std::size_t i = finished_; i < messages_.size(); ++i) {
    if (messages_[i]->released() < sends_[i].bytes.size()) {
      peers.push_back(sends_[i].peer);
    }
  }
}

}  // namespace bluecomm
