// The bootstrap of a communicator. Ranks meet at the abstract socket that the unique id
// names, learn each other's sockets there, and each connects to all lower ranks.
#include "mesh.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <thread>

#include "report.h"

namespace fakegpu {
namespace {

constexpr int kBootstrapPollMs = 10;
constexpr int kBacklog = 256;

sockaddr_un name_to_address(const std::string& name, socklen_t* length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  *length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

int unix_socket() { return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0); }

// Waits until a descriptor is readable. False: aborted.
bool wait_readable(const FakeComm& comm, int fd) {
  while (!comm.aborted) {
    pollfd wait{fd, POLLIN, 0};
    if (poll(&wait, 1, kBootstrapPollMs) > 0) return true;
  }
  return false;
}

bool read_all(const FakeComm& comm, int fd, void* to, std::size_t bytes) {
  auto* at = static_cast<char*>(to);
  while (bytes > 0) {
    if (!wait_readable(comm, fd)) return false;
    const ssize_t got = recv(fd, at, bytes, MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return false;
    if (got < 0) continue;
    at += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

bool write_all(int fd, const void* from, std::size_t bytes) {
  const auto* at = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t put = send(fd, at, bytes, MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    at += put;
    bytes -= static_cast<std::size_t>(put);
  }
  return true;
}

bluecomm::UniqueFd dial(const std::string& name) {
  socklen_t length = 0;
  const sockaddr_un address = name_to_address(name, &length);
  bluecomm::UniqueFd fd(unix_socket());
  const auto* const plain = reinterpret_cast<const sockaddr*>(&address);
  if (connect(fd.get(), plain, length) != 0) fd.reset();
  return fd;
}

// Waits until another rank comes. False: one that has come is gone, which says nothing
// otherwise, so the communicator is never made.
bool wait_for_rank(int listener, const std::vector<bluecomm::UniqueFd>& ranks) {
  std::vector<pollfd> waits{{listener, POLLIN, 0}};
  for (const bluecomm::UniqueFd& fd : ranks) waits.push_back({fd.get(), POLLIN, 0});
  while (poll(waits.data(), waits.size(), -1) < 0 && errno == EINTR) {
  }
  return std::ranges::all_of(waits.begin() + 1, waits.end(),
                             [](const pollfd& one) { return one.revents == 0; });
}

// The thread of an id: collects one introduction of each rank, and sends all to all. It
// ends when they are complete, or one of them is gone, or with the process.
void bring_together(bluecomm::UniqueFd listener) {
  pthread_setname_np(pthread_self(), "fakegpu-id");
  std::vector<bluecomm::UniqueFd> ranks;
  std::vector<Introduction> all;
  std::size_t known = 0;
  do {
    if (!wait_for_rank(listener.get(), ranks)) return;
    const bluecomm::UniqueFd fd(
        accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    Introduction one;
    if (!fd || recv(fd.get(), &one, sizeof one, MSG_WAITALL) != sizeof one) continue;
    if (ranks.empty()) {
      ranks.resize(static_cast<std::size_t>(one.size));
      all.resize(ranks.size());
    }
    const auto rank = static_cast<std::size_t>(one.rank);
    if (rank >= ranks.size() || ranks[rank]) {
      violation("ncclCommInitRank", "rank " + std::to_string(one.rank) +
                                        " came twice, or is not below " +
                                        std::to_string(ranks.size()));
      continue;
    }
    all[rank] = one;
    ranks[rank].reset(dup(fd.get()));
    ++known;
  } while (ranks.empty() || known < ranks.size());
  for (const bluecomm::UniqueFd& fd : ranks) {
    write_all(fd.get(), all.data(), all.size() * sizeof(Introduction));
  }
}

// Returns what is wrong with a set of ranks, as NCCL finds it.
std::string find_misfit(const std::vector<Introduction>& ranks) {
  std::set<std::pair<std::string, int>> gpus;
  for (const Introduction& one : ranks) {
    if (one.version != ranks[0].version) {
      return "Mismatched NCCL version detected : rank 0 version " +
             std::to_string(ranks[0].version) + " rank " + std::to_string(one.rank) +
             " version " + std::to_string(one.version);
    }
    if (one.size != ranks[0].size) return "the ranks have different sizes";
    if (!gpus.insert({one.host, one.device}).second) {
      return "Duplicate GPU detected : rank " + std::to_string(one.rank) +
             " uses device " + std::to_string(one.device) + " of another rank";
    }
  }
  return "";
}

}  // namespace

MeshListener listen_for_ranks() {
  unsigned char random[16];
  if (getrandom(random, sizeof random, 0) != sizeof random) std::abort();
  std::string name = "fakegpu-";
  for (const unsigned char byte : random) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", byte);
    name += digits;
  }
  socklen_t length = 0;
  const sockaddr_un address = name_to_address(name, &length);
  bluecomm::UniqueFd fd(unix_socket());
  const auto* const plain = reinterpret_cast<const sockaddr*>(&address);
  if (bind(fd.get(), plain, length) != 0 || listen(fd.get(), kBacklog) != 0) {
    std::perror("fakegpu: listen");
    std::abort();
  }
  return {std::move(fd), name};
}

Introduction introduce(int rank, int size, int device, const MeshListener& listener) {
  Introduction own{};
  own.rank = rank;
  own.size = size;
  own.device = device;
  own.version = settings().nccl_version;
  const char* const host = std::getenv("NCCL_HOSTID");
  std::snprintf(own.host, sizeof own.host, "%s", host == nullptr ? "" : host);
  std::snprintf(own.address, sizeof own.address, "%s", listener.address.c_str());
  return own;
}

ncclUniqueId make_unique_id() {
  MeshListener listener = listen_for_ranks();
  ncclUniqueId id{};
  std::memcpy(id.internal, listener.address.data(), listener.address.size());
  sigset_t signals;
  sigset_t before;
  sigfillset(&signals);
  pthread_sigmask(SIG_SETMASK, &signals, &before);
  std::thread(bring_together, std::move(listener.fd)).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return id;
}

std::vector<Introduction> meet(FakeComm& comm, const ncclUniqueId& id,
                               const Introduction& own) {
  const bluecomm::UniqueFd root = dial(std::string(id.internal));
  std::vector<Introduction> ranks(static_cast<std::size_t>(own.size));
  if (!root || !write_all(root.get(), &own, sizeof own) ||
      !read_all(comm, root.get(), ranks.data(), ranks.size() * sizeof own)) {
    if (!comm.aborted) set_error(comm, kNcclRemote, "the process of the id is gone");
    return {};
  }
  if (const std::string misfit = find_misfit(ranks); !misfit.empty()) {
    set_error(comm, kNcclInvalidUsage, misfit);
    return {};
  }
  return ranks;
}

bool connect_mesh(FakeComm& comm, const MeshListener& listener,
                  const std::vector<Introduction>& ranks) {
  comm.peers.resize(ranks.size());
  const auto own = static_cast<std::size_t>(comm.rank);
  for (std::size_t i = 0; i < own; ++i) {
    bluecomm::UniqueFd fd = dial(ranks[i].address);
    if (!fd || !write_all(fd.get(), &comm.rank, sizeof comm.rank)) {
      set_error(comm, kNcclRemote, "rank " + std::to_string(i) + " is gone");
      return false;
    }
    comm.peers[i].fd = std::move(fd);
  }
  for (std::size_t left = ranks.size() - own - 1; left > 0; --left) {
    if (!wait_readable(comm, listener.fd.get())) return false;
    bluecomm::UniqueFd fd(accept4(listener.fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
    int rank = -1;
    if (!read_all(comm, fd.get(), &rank, sizeof rank)) {
      set_error(comm, kNcclRemote, "a rank is gone");
      return false;
    }
    comm.peers.at(static_cast<std::size_t>(rank)).fd = std::move(fd);
  }
  return true;
}

}  // namespace fakegpu
