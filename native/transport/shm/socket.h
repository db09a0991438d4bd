#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/fd.h"

// Unix sockets of the sequenced packet kind: a packet arrives whole, with the files
// that were sent along. Nothing here blocks.

namespace bluecomm::shm {

// A socket that listens at a path of its own.
class Listener {
 public:
  // Makes `directory`/rank-<rank>-<random>. Throws std::system_error.
  Listener(const std::string& directory, int rank);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int fd() const { return fd_.get(); }
  const std::string& path() const { return path_; }
  // The next connection; empty when there is none.
  UniqueFd accept();
  // Closes the socket and leaves the path to the process that made it.
  void abandon_after_fork() noexcept;

 private:
  std::string path_;
  UniqueFd fd_;
};

// Empty, with errno set, when it fails; EAGAIN: the listener is busy, try again.
UniqueFd connect_to(const std::string& path);

struct PeerCredentials {
  pid_t pid;
  uid_t uid;
};
PeerCredentials peer_credentials(int socket);

inline constexpr std::size_t kMaxPacket = 256;

struct Packet {
  enum class State { kArrived, kNothing, kEnded };

  State state = State::kNothing;
  std::array<std::byte, kMaxPacket> bytes;
  std::size_t nbytes = 0;
  std::vector<UniqueFd> files;
  bool files_lost = false;  // this process has no descriptors left
};

Packet receive_packet(int socket);

// False, with errno set, when it could not be sent now or ever.
bool send_packet(int socket, std::span<const std::byte> bytes,
                 std::initializer_list<int> files = {});

}  // namespace bluecomm::shm
