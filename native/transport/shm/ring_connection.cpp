#include "transport/shm/ring_connection.h"

#include <array>
#include <cstring>
#include <utility>

#include "transport/shm/socket.h"

namespace bluecomm::shm {
namespace {

// The only kind of packet on the socket of an established connection. It comes with
// the segment's file descriptor.
struct SegmentPacket {
  std::array<char, 8> magic{'b', 'l', 'u', 'e', 's', 'e', 'g', '1'};
  std::uint64_t id = 0;
};

}  // namespace

RingConnection::RingConnection(Endpoints endpoints)
    : endpoints_(std::move(endpoints)),
      peer_pid_(peer_credentials(endpoints_.socket.get()).pid),
      directions_(
          reinterpret_cast<RingPair*>(endpoints_.memory->bytes().data())->directions),
      outbound_(endpoints_.dialled ? 0 : 1),
      writer_(outbound().ring),
      reader_(inbound().ring) {}

void RingConnection::revoke() {
  outbound().revoked.store(1);
  fence();
}

bool RingConnection::fits(std::size_t nbytes) {
  if (!error_.empty()) return false;
  try {
    return writer_.fits(nbytes);
  } catch (const ConnectionError& error) {
    error_ = error.what();
    return false;
  }
}

bool RingConnection::drained() {
  if (!error_.empty()) return false;
  try {
    return writer_.empty();
  } catch (const ConnectionError& error) {
    error_ = error.what();
    return false;
  }
}

bool RingConnection::push(Frame frame, std::span<const std::byte> header,
                          std::span<const std::byte> payload) {
  const std::size_t nbytes = sizeof frame + header.size() + payload.size();
  frame.nbytes = static_cast<std::uint32_t>(padded(nbytes));
  if (!fits(frame.nbytes)) return false;
  writer_.append(std::as_bytes(std::span(&frame, 1)));
  writer_.append(header);
  writer_.append(payload);
  writer_.skip(frame.nbytes - nbytes);
  writer_.publish();
  ring();
  return true;
}

bool RingConnection::share(const std::shared_ptr<const Segment>& segment) {
  if (shared_.contains(segment->id())) return true;
  const SegmentPacket packet{.id = segment->id()};
  if (!send_packet(socket(), std::as_bytes(std::span(&packet, 1)), {segment->fd()})) {
    return false;
  }
  shared_[segment->id()] = segment;
  return true;
}

std::shared_ptr<const Mapping> RingConnection::segment(std::uint64_t id) {
  auto found = segments_.find(id);
  if (found == segments_.end()) {
    // The packet was sent before the frame that names the segment.
    receive();
    found = segments_.find(id);
  }
  return found == segments_.end() ? nullptr : found->second;
}

void RingConnection::receive() {
  while (!ended_) {
    Packet packet = receive_packet(socket());
    if (packet.state == Packet::State::kNothing) return;
    if (packet.state == Packet::State::kEnded) {
      ended_ = true;
      return;
    }
    SegmentPacket announced;
    const SegmentPacket expected;
    if (packet.nbytes == sizeof announced) {
      std::memcpy(&announced, packet.bytes.data(), sizeof announced);
    }
    if (packet.nbytes != sizeof announced || announced.magic != expected.magic) {
      error_ = "it sent a packet of " + std::to_string(packet.nbytes) +
               " bytes that describes no segment";
      return;
    }
    if (packet.files.size() != 1)
      continue;  // this process has no file descriptors left
    try {
      segments_[announced.id] =
          std::make_shared<const Mapping>(packet.files[0].get(), 1, Access::kRead);
    } catch (const ConnectionError&) {
      // The inbox then asks for payloads in this segment in chunks.
    }
  }
}

void RingConnection::abandon_after_fork() noexcept {
  endpoints_.socket.reset();
  endpoints_.doorbell.close();
}

}  // namespace bluecomm::shm
