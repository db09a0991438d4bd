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

// Unix sockets of type SOCK_SEQPACKET: a packet arrives whole, together with the file
// descriptors that were sent with it. No function blocks.

namespace bluecomm::shm {

// A socket that listens at a path of its own.
class Listener {
 public:
  // Creates `directory`/rank-<rank>-<random>. Throws std::system_error.
  Listener(const std::string& directory, int rank);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int fd() const { return fd_.get(); }
  const std::string& path() const { return path_; }
  // Returns the next connection, or an empty descriptor if there is none.
  UniqueFd accept();
  // In a forked child: closes the socket, and leaves the path to the parent.
  void abandon_after_fork() noexcept;

 private:
  std::string path_;
  UniqueFd fd_;
};

// Returns an empty descriptor, with errno set, on failure. EAGAIN means that the
// listener is busy and the caller should try again.
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
  bool files_lost = false;  // because this process has no descriptors left
};

Packet receive_packet(int socket);

// Returns false, with errno set, if the packet could not be sent.
bool send_packet(int socket, std::span<const std::byte> bytes,
                 std::initializer_list<int> files = {});

}  // namespace bluecomm::shm
