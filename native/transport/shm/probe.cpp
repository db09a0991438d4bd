#include "transport/shm/probe.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <exception>
#include <span>
#include <system_error>

#include "transport/shm/mapping.h"
#include "transport/shm/socket.h"

namespace bluecomm {
namespace {

constexpr std::size_t kNbytes = 4096;

std::string reason(const char* what) {
  return std::string(what) + ": " + std::generic_category().message(errno);
}

std::string exchange(const std::string& socket_dir, int rank) {
  constexpr std::array kNonce{std::byte{0x5a}, std::byte{0xa5}, std::byte{0x3c}};
  shm::Listener listener(socket_dir, rank);
  const UniqueFd near = shm::connect_to(listener.path());
  if (!near) return reason("cannot connect to a Unix socket");
  const UniqueFd far = listener.accept();
  if (!far) return reason("cannot accept on a Unix socket");

  const UniqueFd memory = shm::make_memfd("bluecomm-probe", kNbytes);
  const shm::Mapping written(memory.get(), kNbytes, shm::Access::kReadWrite);
  std::ranges::copy(kNonce, written.bytes().begin());
  if (!shm::send_packet(near.get(), kNonce, {memory.get()})) {
    return reason("cannot send a file descriptor");
  }
  const shm::Packet packet = shm::receive_packet(far.get());
  if (packet.state != shm::Packet::State::kArrived || packet.files.size() != 1) {
    return "a file descriptor that was sent did not arrive";
  }
  const shm::Mapping read(packet.files[0].get(), kNbytes, shm::Access::kRead);
  const bool same = std::ranges::equal(kNonce, read.bytes().first(kNonce.size()));
  return same ? "" : "shared memory does not show what was written to it";
}

}  // namespace

std::string probe_shm(const std::string& socket_dir, int rank) {
  try {
    return exchange(socket_dir, rank);
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace bluecomm
