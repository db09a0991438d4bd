// A sender that knows the key sends any messages in any order, while NCCL posts and
// tests receives. The worst result is the failure of this connection.
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "fuzz/fuzz.h"
#include "nccl_net/recv_comm.h"
#include "stream/stream.h"

namespace {

using namespace bluecomm;
using stream::Frame;
using stream::FrameKind;

nccl_net::Device loopback() {
  sockaddr_storage storage{};
  auto* four = reinterpret_cast<sockaddr_in*>(&storage);
  four->sin_family = AF_INET;
  four->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return {"lo", "", 10'000, 1, stream::Address(storage, sizeof(sockaddr_in))};
}

nccl_net::Settings one_stream() {
  nccl_net::Settings settings;
  settings.streams = 1;
  return settings;
}

// Accepts no connection: each session passes its sender in directly.
std::shared_ptr<nccl_net::Acceptor> acceptor() {
  static const auto only =
      std::make_shared<nccl_net::Acceptor>(loopback(), one_stream());
  return only;
}

class PluginSession {
 public:
  // `checked` says whether the sender's frames have checksums.
  explicit PluginSession(bool checked) : checked_(checked) {
    int pair[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0);
    peer_.reset(pair[0]);
    comm_.emplace(acceptor(), stream::AcceptedConnection{acceptor()->identity().sender,
                                                         UniqueFd(pair[1])});
    const Frame open{.kind = FrameKind::kOpen};
    write(std::as_bytes(std::span(&open, 1)));
    MUST(comm_->advance_opening());
  }
  ~PluginSession() {
    // Closes the sender's end, so that close() does not wait for it.
    peer_.reset();
    comm_->close();
  }

  void step(fuzz::Input& input) {
    const std::uint8_t what = input.byte();
    const std::uint8_t which = input.byte();
    switch (what % 8) {
      case 0:
        write(input.take(which));
        break;
      case 1:
      case 2:
        write_message(static_cast<nccl_net::MessageKind>(which % 5), input);
        break;
      case 3:
        write_frame(static_cast<FrameKind>(which % 14), input);
        break;
      case 4:
        post(which * 200u);
        break;
      case 5:
      case 6:
        test();
        break;
      case 7:
        if (which == 0) peer_.reset();
        break;
    }
  }

 private:
  struct Posted {
    std::vector<std::byte> memory;
    nccl_net::CommRequest* request;
  };

  void write(std::span<const std::byte> bytes) {
    if (!peer_ || bytes.empty()) return;
    static_cast<void>(::send(peer_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL));
  }

  // A message that is almost valid, so that it passes the first checks.
  void write_message(nccl_net::MessageKind kind, fuzz::Input& input) {
    const std::size_t nbytes = input.byte() * 100u;
    const bool eager = input.byte() % 4 != 0;
    const std::vector<std::byte> payload(nbytes, std::byte{input.byte()});
    nccl_net::MessageHead head{.kind = kind};
    head.detail = input.byte();
    Frame frame{.kind = FrameKind::kMessage};
    frame.message = announced_++;
    frame.offset = nbytes;
    frame.length = static_cast<std::uint32_t>(sizeof head + (eager ? nbytes : 0));
    frame.flags = eager && nbytes > 0 ? stream::kCharged : 0;
    const auto rest = std::span(payload).first(eager ? nbytes : 0);
    write_checksum(frame, nccl_net::bytes_of(head), rest, input);
    write(stream::bytes_of(frame));
    write(nccl_net::bytes_of(head));
    write(rest);
  }

  void write_frame(FrameKind kind, fuzz::Input& input) {
    Frame frame{.kind = kind};
    frame.message = input.byte() % 8;
    frame.offset = input.byte() % 4 * stream::kSmallChunk;
    const std::size_t payload = kind == FrameKind::kChunk ? input.byte() * 256u : 0;
    frame.length = static_cast<std::uint32_t>(payload);
    const std::vector<std::byte> bytes(payload);
    write_checksum(frame, bytes, {}, input);
    write(std::as_bytes(std::span(&frame, 1)));
    write(bytes);
  }

  // Usually valid.
  void write_checksum(const Frame& frame, std::span<const std::byte> head,
                      std::span<const std::byte> tail, fuzz::Input& input) {
    if (!checked_) return;
    Frame checksum = stream::checksum_of(frame, head, tail);
    const std::uint8_t how = input.byte();
    if (how % 8 == 0) ++checksum.offset;
    if (how % 8 != 1) write(stream::bytes_of(checksum));
  }

  void post(std::size_t nbytes) {
    try {
      std::vector<std::byte> memory(nbytes);
      nccl_net::CommRequest* const request = comm_->irecv(memory);
      MUST((request == nullptr) == (posted_.size() == nccl_net::kMaxRequests));
      if (request != nullptr) posted_.push_back({std::move(memory), request});
    } catch (const nccl_net::Failure&) {
      // Allowed: the connection has failed.
    }
  }

  // Tests the oldest request, as NCCL does.
  void test() {
    drain();
    if (posted_.empty()) return;
    try {
      const auto nbytes = comm_->test(*posted_.front().request);
      if (!nbytes) return;
      MUST(*nbytes <= posted_.front().memory.size());
      posted_.erase(posted_.begin());
    } catch (const nccl_net::Failure&) {
      // Allowed: the connection has failed.
    }
  }

  void drain() const {
    char buffer[65536];
    while (peer_ && recv(peer_.get(), buffer, sizeof buffer, 0) > 0) {
    }
  }

  const bool checked_;
  UniqueFd peer_;
  std::uint64_t announced_ = 0;
  std::vector<Posted> posted_;  // must outlive comm_
  std::optional<nccl_net::RecvComm> comm_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  PluginSession session(input.byte() % 2 == 0);
  while (!input.empty()) session.step(input);
  return 0;
}
