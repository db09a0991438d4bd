// Moves the bytes of one message, in steps that keep copied data in the caches; see
// point_transfer.h.
#include "p2p/point_transfer.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

namespace bluecomm {
namespace {

// The sender gets its memory back in steps of this size.
constexpr std::size_t kStep = 256 << 10;

}  // namespace

PointTransfer::PointTransfer(SentPoint sent, PointRequestPtr receive)
    : sent_(std::move(sent)), receive_(std::move(receive)) {
  if (sent_.incoming) sent_.incoming->accept(receive_->call().memory);
}

bool PointTransfer::move(std::size_t budget) {
  const std::span<std::byte> memory = receive_->call().memory;
  const std::size_t before = received_;
  while (!done() && received_ - before < budget) {
    const std::span<const std::byte> shown =
        sent_.own ? std::span<const std::byte>(sent_.own->call().memory)
                        .subspan(received_, sent_.own->written() - received_)
                  : sent_.incoming->readable();
    const std::span<const std::byte> part = shown.first(std::min(shown.size(), kStep));
    if (part.empty()) break;
    std::byte* const to = memory.data() + received_;
    // A transport may have received it there itself; a rank may send to its own tensor.
    if (to != part.data()) std::memmove(to, part.data(), part.size());
    if (sent_.incoming) {
      sent_.incoming->consume(part.size());
      // consume() fails if the sender has cancelled the message.
      if (sent_.incoming->consumed() != received_ + part.size()) break;
    }
    received_ += part.size();
  }
  receive_->set_received(received_);
  return received_ != before;
}

}  // namespace bluecomm
