#include "tests/nccl_net/socket_strategy.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace bluecomm::test {
namespace {

// The smallest piece (NCCL_SOCKET_MIN_TASKSIZE).
constexpr std::size_t kMinPiece = 64 << 10;
// The longest message whose bytes follow its length at once (NCCL_SOCKET_INLINE).
constexpr std::size_t kInline = 128;

std::size_t inline_size(std::size_t size) { return size <= kInline ? size : 0; }

void prepare(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

}  // namespace

SocketStrategy::SocketStrategy(bool sends, UniqueFd control, std::vector<UniqueFd> data,
                               int threads)
    : sends_(sends), control_(std::move(control)), data_(std::move(data)) {
  prepare(control_.get());
  for (const UniqueFd& fd : data_) prepare(fd.get());
  for (int k = 0; k < threads; ++k) {
    Helper& helper = *helpers_.emplace_back(std::make_unique<Helper>());
    helper.thread = std::thread([this, &helper] { help(helper); });
  }
}

SocketStrategy::~SocketStrategy() {
  for (const auto& helper : helpers_) {
    {
      const std::scoped_lock lock(helper->mutex);
      helper->stop = true;
    }
    helper->changed.notify_one();
    helper->thread.join();
  }
}

SocketStrategy::SocketRequest* SocketStrategy::post(std::byte* data, std::size_t size) {
  const auto slot = std::find_if(requests_.begin(), requests_.end(),
                                 [](const SocketRequest& one) { return !one.used; });
  if (slot == requests_.end()) return nullptr;
  slot->used = true;
  slot->announced = false;
  slot->data = data;
  slot->size = size;
  slot->offset = 0;
  return &*slot;
}

bool SocketStrategy::test(SocketRequest& request, std::size_t* size) {
  if (!request.announced) {
    if (!announce(request)) return false;
    request.announced = true;
    if (!data_.empty()) split(request);
  }
  if (data_.empty()) {
    request.offset += move(control_.get(), request.data + request.offset,
                           request.size - request.offset);
    if (request.offset < request.size) return false;
  } else if (request.pieces_left != 0) {
    return false;
  }
  *size = request.size;
  request.used = false;
  return true;
}

// Moves the length, and the bytes of a short message: all of them or nothing.
bool SocketStrategy::announce(SocketRequest& request) {
  return sends_ ? send_head(request) : receive_head(request);
}

bool SocketStrategy::send_head(SocketRequest& request) {
  const auto length = static_cast<std::uint32_t>(request.size);
  std::array<std::byte, sizeof length + kInline> head;
  const std::size_t follows = inline_size(request.size);
  std::memcpy(head.data(), &length, sizeof length);
  std::copy_n(request.data, follows, head.data() + sizeof length);
  const std::size_t nbytes = sizeof length + follows;
  const std::size_t moved = move(control_.get(), head.data(), nbytes);
  if (moved == 0) return false;
  move_all(head.data() + moved, nbytes - moved);
  request.offset = follows;
  return true;
}

bool SocketStrategy::receive_head(SocketRequest& request) {
  std::uint32_t length = 0;
  auto* const bytes = reinterpret_cast<std::byte*>(&length);
  const std::size_t moved = move(control_.get(), bytes, sizeof length);
  if (moved == 0) return false;
  move_all(bytes + moved, sizeof length - moved);
  if (length > request.size) throw std::runtime_error("a receive is too small");
  request.size = length;
  request.offset = inline_size(length);
  move_all(request.data, request.offset);
  return true;
}

void SocketStrategy::split(SocketRequest& request) {
  const std::size_t rest = request.size - request.offset;
  const std::size_t equal = (rest + data_.size() - 1) / data_.size();
  const std::size_t piece = std::max(equal, kMinPiece);
  const std::size_t count = (rest + piece - 1) / piece;
  request.pieces_left = static_cast<int>(count);
  for (std::size_t offset = request.offset; offset < request.size; offset += piece) {
    const std::size_t socket = next_socket_++ % data_.size();
    Helper& helper = *helpers_[socket % helpers_.size()];
    {
      const std::scoped_lock lock(helper.mutex);
      helper.pieces.push_back({data_[socket].get(), request.data + offset,
                               std::min(piece, request.size - offset), 0, &request});
    }
    helper.changed.notify_one();
  }
}

// Spins while there are pieces to move, as NCCL's helper threads do.
void SocketStrategy::help(Helper& helper) const {
  std::deque<MessagePiece> own;
  while (true) {
    {
      std::unique_lock lock(helper.mutex);
      if (own.empty()) {
        helper.changed.wait(lock,
                            [&] { return helper.stop || !helper.pieces.empty(); });
      }
      if (helper.stop) return;
      own.insert(own.end(), helper.pieces.begin(), helper.pieces.end());
      helper.pieces.clear();
    }
    for (MessagePiece& piece : own) {
      piece.offset +=
          move(piece.fd, piece.data + piece.offset, piece.size - piece.offset);
      if (piece.offset == piece.size) --piece.request->pieces_left;
    }
    std::erase_if(own,
                  [](const MessagePiece& piece) { return piece.offset == piece.size; });
  }
}

// Calls send() or recv() until all bytes have been moved or the call would block.
std::size_t SocketStrategy::move(int fd, std::byte* data, std::size_t size) const {
  std::size_t moved = 0;
  while (moved < size) {
    const ssize_t n =
        sends_ ? ::send(fd, data + moved, size - moved, MSG_NOSIGNAL | MSG_DONTWAIT)
               : ::recv(fd, data + moved, size - moved, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
      throw std::runtime_error("the peer is gone");
    }
    if (n < 0) break;
    moved += static_cast<std::size_t>(n);
  }
  return moved;
}

void SocketStrategy::move_all(std::byte* data, std::size_t size) const {
  for (std::size_t moved = 0; moved < size;) {
    moved += move(control_.get(), data + moved, size - moved);
  }
}

}  // namespace bluecomm::test
