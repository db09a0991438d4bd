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
#include "transport/shm/link.h"

// One link of the shm transport, whose other end a test writes and reads by hand.

namespace bluecomm::test {

using namespace shm;

inline std::shared_ptr<Shared> shm_shared() {
  auto shared = std::make_shared<Shared>();
  shared->options = shm_options(0, "");
  return shared;
}

// Takes and reads all that comes.
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

// A link, and the raw other end of it.
class Fixture {
 public:
  explicit Fixture(std::shared_ptr<Shared> shared = shm_shared()) {
    UniqueFd memory_file = make_memfd("test", sizeof(LinkMemory));
    memory_ = Mapping(memory_file.get(), sizeof(LinkMemory), Access::kReadWrite);
    int sockets[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0) {
      throw std::runtime_error("socketpair failed");
    }
    socket_.reset(sockets[1]);
    Wire::Ends ends{
        .socket = UniqueFd(sockets[0]),
        .memory = std::make_shared<Mapping>(memory_file.get(), sizeof(LinkMemory),
                                            Access::kReadWrite),
        .doorbell = PeerDoorbell(UniqueFd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
                                 make_memfd("test", sizeof(DoorbellState))),
        .dialled = true};
    link = std::make_unique<Link>(std::move(shared), 1, "");
    link->attach(std::make_unique<Wire>(std::move(ends)));
  }

  LinkMemory& memory() {
    return *reinterpret_cast<LinkMemory*>(memory_.bytes().data());
  }
  // Where the peer writes.
  RingState& ring() { return memory().directions[1].ring; }

  void write(const Record& record, std::span<const std::byte> more = {}) {
    RingWriter writer(ring());
    writer.skip(written_);
    writer.append(std::as_bytes(std::span(&record, 1)));
    writer.append(more);
    written_ += std::max<std::size_t>(record.nbytes, sizeof record);
    ring().head = written_;
  }

  // A well-formed start of a message.
  void start_message(std::uint64_t id, RecordType type, std::uint64_t nbytes) {
    Header header;
    header.nbytes = nbytes;
    write({.nbytes = sizeof(Record) + sizeof(Header), .type = type, .id = id},
          std::as_bytes(std::span(&header, 1)));
  }

  // The type of the record that the link has written last.
  RecordType last_answer() {
    Record record;
    RingState& out = memory().directions[0].ring;
    std::memcpy(&record, out.data + (out.head - sizeof record) % kRingBytes,
                sizeof record);
    return record.type;
  }

  Sink sink;
  std::unique_ptr<Link> link;

 private:
  Mapping memory_;
  UniqueFd socket_;
  std::uint64_t written_ = 0;
};

}  // namespace bluecomm::test
