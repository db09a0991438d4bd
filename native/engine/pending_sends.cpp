#include "engine/pending_sends.h"

#include <algorithm>
#include <functional>

namespace bluecomm {
namespace {

Header header_of(const Send& send, std::uint32_t phase, Envelope call) {
  call.phase = phase;
  call.slot = send.slot;
  call.scale = send.scale;
  call.first_dim = send.first_dim;
  return to_header(call, send.bytes.size());
}

Channel& channel_to(int peer, const PendingSends::MessageContext& context) {
  return *context.channels[static_cast<std::size_t>(peer)];
}

}  // namespace

void PendingSends::add(std::span<const Send> sends, std::uint32_t phase,
                       Growing growing, const MessageContext& context) {
  messages_.reserve(messages_.size() + sends.size());
  for (const Send& send : sends) {
    Message& message = messages_.emplace_back(Message{&send, phase, nullptr, false});
    ++unsupplied_;
    if (growing == Growing::kNone || send.bytes.empty()) continue;
    Channel& channel = channel_to(send.peer, context);
    if (growing == Growing::kBetweenMachines && channel.shares_memory()) continue;
    message.outgoing =
        channel.send_growing(header_of(send, phase, context.call), send.bytes);
    message.is_limited = message.outgoing && !channel.shares_memory();
    if (message.is_limited) lead_ = std::min(lead_, channel.lead());
  }
}

std::size_t PendingSends::growth_left(std::size_t received) const {
  if (!is_limited()) return Channel::kAnyLead;
  const std::size_t limit = received + std::min(lead_, Channel::kAnyLead - received);
  return limit - std::min(limit, grown_);
}

bool PendingSends::supply(const Ready& ready, std::size_t received,
                          const MessageContext& context) {
  if (unsupplied_ == 0) return false;
  bool changed = false;
  std::shared_ptr<void> copies;  // copies of the payload shared by the latest sends
  std::span<const std::byte> last;
  for (std::size_t i = 0; i < messages_.size(); ++i) {
    Message& message = messages_[i];
    if (message.is_supplied()) continue;
    const Send& send = *message.send;
    const std::size_t whole = send.bytes.size();
    std::size_t nbytes = ready(send.bytes, message.phase);
    if (message.is_limited && nbytes > message.supplied) {
      nbytes =
          message.supplied + std::min(nbytes - message.supplied, growth_left(received));
    }
    if (nbytes < whole) nbytes -= nbytes % kChunkAlignment;
    if (message.outgoing) {
      if (nbytes <= message.supplied || follows_unreleased(i)) continue;
      message.outgoing->grow(nbytes);
      if (message.is_limited) grown_ += nbytes - message.supplied;
    } else {
      if (nbytes < whole) continue;
      if (send.bytes.data() != last.data() || whole != last.size()) {
        copies.reset();
        last = send.bytes;
      }
      message.outgoing = channel_to(send.peer, context)
                             .send_to_many(header_of(send, message.phase, context.call),
                                           send.bytes, copies, context.lease);
    }
    message.supplied = nbytes;
    if (nbytes == whole) --unsupplied_;
    changed = true;
  }
  return changed;
}

// Returns whether an earlier phase has a message to the same peer that the transport
// still reads.
bool PendingSends::follows_unreleased(std::size_t index) const {
  const Message& message = messages_[index];
  return std::any_of(
      messages_.begin(), messages_.begin() + static_cast<std::ptrdiff_t>(index),
      [&](const Message& one) {
        return one.phase < message.phase && one.send->peer == message.send->peer &&
               !one.is_released();
      });
}

void PendingSends::forget_released() {
  std::erase_if(messages_, [](const Message& one) { return one.is_released(); });
}

bool PendingSends::released() {
  forget_released();
  return messages_.empty();
}

bool PendingSends::all_released() const {
  return std::all_of(messages_.begin(), messages_.end(),
                     [](const Message& one) { return one.is_released(); });
}

bool PendingSends::phase_released(std::uint32_t phase) {
  forget_released();
  return std::all_of(messages_.begin(), messages_.end(), [phase](const Message& one) {
    return one.phase > phase || one.send->lingers;
  });
}

bool PendingSends::released(std::span<const std::byte> range,
                            std::uint32_t phase) const {
  const std::less<const std::byte*> before;
  const std::byte* const end = range.data() + range.size();
  for (const Message& one : messages_) {
    if (one.phase > phase) continue;
    const std::span<const std::byte> bytes = one.send->bytes;
    const std::byte* const bytes_end = bytes.data() + bytes.size();
    if (!before(bytes.data(), end) || !before(range.data(), bytes_end)) continue;
    const std::byte* const last = std::min(end, bytes_end, before);
    if (one.released() < static_cast<std::size_t>(last - bytes.data())) {
      return false;
    }
  }
  return true;
}

bool PendingSends::has_for(int peer) const {
  return std::any_of(messages_.begin(), messages_.end(), [peer](const Message& one) {
    return one.send->peer == peer && !one.is_released();
  });
}

void PendingSends::drop(int peer) {
  std::erase_if(messages_, [&](const Message& one) {
    if (one.send->peer != peer) return false;
    if (!one.is_supplied()) --unsupplied_;
    return true;
  });
}

void PendingSends::collect_readers(std::vector<int>& peers) const {
  for (const Message& one : messages_) {
    if (one.outgoing && one.released() < one.supplied) peers.push_back(one.send->peer);
  }
}

}  // namespace bluecomm
