#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "transport/channel.h"
#include "window/message.h"
#include "window/window.h"

namespace bluecomm {

// The arriving payload of a message about a window.
class WindowArrival {
 public:
  // Receives a put into the mailbox of its sender and other payloads into bytes(), each
  // multiplied by `weight`.
  WindowArrival(int peer, const WindowMessage& message, std::shared_ptr<Window> window,
                std::unique_ptr<Incoming> incoming, double weight);

  int peer() const { return peer_; }
  const WindowMessage& message() const { return message_; }
  const std::shared_ptr<Window>& window() const { return window_; }

  // Takes at most about `budget` of the bytes that have arrived. Returns whether it
  // took any.
  bool move(std::size_t budget);
  bool done() const { return received_ == incoming_->header().nbytes; }
  std::vector<std::byte>& bytes() { return own_; }

 private:
  const int peer_;
  const WindowMessage message_;
  const std::shared_ptr<Window> window_;  // null if the payload is text
  const std::unique_ptr<Incoming> incoming_;
  const double weight_;
  std::vector<std::byte> own_;
  std::span<std::byte> into_;
  std::size_t received_ = 0;
};

}  // namespace bluecomm
