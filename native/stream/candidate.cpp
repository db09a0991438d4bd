#include "stream/candidate.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <span>

namespace bluecomm::stream {

Candidate::Verdict Candidate::read_verdict(Poller& poller) {
  const int fd = socket_.fd.get();
  const std::size_t nbytes = sizeof(Frame) + (socket_.cipher ? kTagNbytes : 0);
  if (watch_.empty()) watch_ = Watch(poller, fd, EPOLLIN | EPOLLRDHUP | EPOLLET);
  while (received_ < nbytes) {
    const auto space = std::span(open_).first(nbytes).subspan(received_);
    const ssize_t n = recv(fd, space.data(), space.size(), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return Verdict::kNone;
    if (n <= 0) return Verdict::kClosed;
    received_ += static_cast<std::size_t>(n);
  }
  const auto record = std::span(open_).first(sizeof(Frame));
  const auto tag = std::span(open_).last(kTagNbytes);
  if (socket_.cipher && !socket_.cipher->opener.open(record, tag)) {
    return Verdict::kClosed;
  }
  Frame frame;
  std::memcpy(&frame, open_.data(), sizeof frame);
  const bool right = frame.kind == FrameKind::kOpen && defect_of(frame).empty();
  return right ? Verdict::kOpen : Verdict::kClosed;
}

}  // namespace bluecomm::stream
