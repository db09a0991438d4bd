#include "window/window_arrival.h"

#include <algorithm>
#include <utility>

#include "kernels/combine.h"

namespace bluecomm {

WindowArrival::WindowArrival(int peer, const WindowMessage& message,
                             std::shared_ptr<Window> window,
                             std::unique_ptr<Incoming> incoming, double weight)
    : peer_(peer),
      message_(message),
      window_(std::move(window)),
      incoming_(std::move(incoming)),
      weight_(weight) {
  if (message.action == WindowAction::kPut) {
    into_ = window_->writer_for(peer).back();
  } else {
    own_.resize(incoming_->header().nbytes);
    into_ = own_;
  }
  incoming_->accept(weight_ == 1.0 ? into_ : std::span<std::byte>());
}

bool WindowArrival::move(std::size_t budget) {
  const std::size_t before = received_;
  while (!done() && received_ - before < budget) {
    const std::span<const std::byte> part = incoming_->readable();
    if (part.empty()) break;
    const std::span<std::byte> dst = into_.subspan(received_, part.size());
    // A transport may have received it into dst itself.
    if (dst.data() != part.data()) {
      copy_scaled(dst, part, weight_,
                  window_ ? window_->config().dtype : DType::kUInt8);
    }
    incoming_->consume(part.size());
    // consume() fails if the sender has cancelled the message: the bytes may be torn.
    if (incoming_->consumed() != received_ + part.size()) break;
    received_ += part.size();
  }
  return received_ != before;
}

}  // namespace bluecomm
