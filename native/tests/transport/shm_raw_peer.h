#pragma once

#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/transport/shm_support.h"
#include "transport/shm/channel.h"

// A channel of the shm transport, whose other end a test writes and reads by hand.

namespace bluecomm::test {

using namespace shm;

inline std::shared_ptr<SharedState> make_shared_state() {
  auto shared = std::make_shared<SharedState>();
  shared->options = shm_options(0, "");
  return shared;
}

// Accepts and reads all messages.
class Sink final : public Receiver {
 public:
  void on_message(int, std::unique_ptr<Incoming> message) override {
    message->accept({});
    messages.push_back(std::move(message));
  }
  void on_lost(int, Status status) override { lost.push_back(status.text); }
  void on_goodbye(int) override {}

  void read() {
    for (const auto& message : messages) message->consume(message->readable().size());
  }

  std::vector<std::unique_ptr<Incoming>> messages;
  std::vector<std::string> lost;
};

// A channel, and the raw memory of its other end.
class RawShmPeer {
 public:
  explicit RawShmPeer(std::shared_ptr<SharedState> shared = make_shared_state()) {
    UniqueFd memory_file = make_memfd("test", sizeof(RingPair));
    memory_ = Mapping(memory_file.get(), sizeof(RingPair), Access::kReadWrite);
    int sockets[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0) {
      throw std::runtime_error("socketpair failed");
    }
    socket_.reset(sockets[1]);
    RingConnection::Endpoints endpoints{
        .socket = UniqueFd(sockets[0]),
        .memory = std::make_shared<Mapping>(memory_file.get(), sizeof(RingPair),
                                            Access::kReadWrite),
        .doorbell = PeerDoorbell(UniqueFd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
                                 make_memfd("test", sizeof(DoorbellState))),
        .dialled = true};
    channel = std::make_unique<RingChannel>(std::move(shared), 1, "");
    channel->attach(std::make_unique<RingConnection>(std::move(endpoints)));
  }

  RingPair& memory() { return *reinterpret_cast<RingPair*>(memory_.bytes().data()); }
  // The ring that the peer writes.
  RingState& ring() { return memory().directions[1].ring; }

  void write(const Frame& frame, std::span<const std::byte> more = {}) {
    RingWriter writer(ring());
    writer.skip(written_);
    writer.append(std::as_bytes(std::span(&frame, 1)));
    writer.append(more);
    written_ += std::max<std::size_t>(frame.nbytes, sizeof frame);
    ring().head = written_;
  }

  // Writes a well-formed start of a message.
  void start_message(std::uint64_t id, FrameKind kind, std::uint64_t nbytes) {
    Header header;
    header.nbytes = nbytes;
    write({.nbytes = sizeof(Frame) + sizeof(Header), .kind = kind, .id = id},
          std::as_bytes(std::span(&header, 1)));
  }

  // The kind of the frame that the channel has written last.
  FrameKind last_answer() {
    Frame frame;
    RingState& out = memory().directions[0].ring;
    std::memcpy(&frame, out.data + (out.head - sizeof frame) % kRingBytes,
                sizeof frame);
    return frame.kind;
  }

  Sink sink;
  std::unique_ptr<RingChannel> channel;

 private:
  Mapping memory_;
  UniqueFd socket_;
  std::uint64_t written_ = 0;
};

}  // namespace bluecomm::test
