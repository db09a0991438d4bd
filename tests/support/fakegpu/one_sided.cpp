// The puts of a communicator travel over sockets of their own. The thread of the target
// writes them in the order of each sender, but a random one among senders, after random
// delays; the program of the target takes no part. In vector clocks another rank is an
// actor, whose n-th write happens before what follows a wait for n of its signals. The
// host's clock counts as seen by a write: what the host does not know to have ended
// when the bytes arrive may still use them.
#include "one_sided.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "comm_checks.h"
#include "group.h"
#include "mesh.h"
#include "reduce.h"
#include "report.h"
#include "world.h"

namespace fakegpu {
namespace {

constexpr int kReceiverPollMs = 5;

// Takes part in the registration of a window.
struct Registration {
  std::uint64_t bytes;
  Introduction rank;
};

// Sends `own` to all ranks, and returns those of all. Empty: failed.
std::vector<Registration> gather_registrations(FakeComm& comm,
                                               const Registration& own) {
  std::vector<Registration> all(static_cast<std::size_t>(comm.size));
  Registration sent = own;
  all[static_cast<std::size_t>(comm.rank)] = own;
  const MessageKey key{Operation::kRegister, 0, 0, 0, sizeof own, 0};
  std::vector<Message> messages;
  for (int peer = 0; peer < comm.size; ++peer) {
    if (peer == comm.rank) continue;
    auto* const to = reinterpret_cast<std::byte*>(&all[static_cast<std::size_t>(peer)]);
    messages.push_back(
        {peer, true, reinterpret_cast<std::byte*>(&sent), sizeof sent, key});
    messages.push_back({peer, false, to, sizeof sent, key});
  }
  if (!exchange_messages(comm, messages)) all.clear();
  return all;
}

// Writes to and reads from other ranks for one communicator.
class Receiver {
 public:
  Receiver(FakeComm& comm, OneSided& own) : comm_(comm), own_(own) {}

  void run() {
    while (!own_.stops) {
      wait();
      for (std::size_t i = 0; i < own_.sources.size(); ++i) read(i);
      step();
    }
  }

 private:
  bool has_pending() {
    const std::scoped_lock lock(own_.mutex);
    return std::ranges::any_of(own_.sources,
                               [](const Source& one) { return !one.pending.empty(); });
  }

  void wait() {
    std::vector<pollfd> waits;
    for (std::size_t i = 0; i < own_.sources.size(); ++i) {
      const int fd = own_.mesh.peers[i].fd.get();
      if (fd >= 0 && !own_.sources[i].is_lost) waits.push_back({fd, POLLIN, 0});
    }
    poll(waits.data(), waits.size(), has_pending() ? 0 : kReceiverPollMs);
  }

  // Takes what has arrived of one rank.
  void read(std::size_t i) {
    Source& source = own_.sources[i];
    const int fd = own_.mesh.peers[i].fd.get();
    while (fd >= 0 && !source.is_lost) {
      Put& put = source.arriving;
      const std::size_t in_head = sizeof put.head;
      const bool reads_head = source.arrived < in_head;
      std::byte* const to =
          reads_head ? reinterpret_cast<std::byte*>(&put.head) + source.arrived
                     : put.data.data() + (source.arrived - in_head);
      const std::size_t left = reads_head ? in_head - source.arrived
                                          : in_head + put.data.size() - source.arrived;
      const ssize_t got = recv(fd, to, left, MSG_DONTWAIT);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (got <= 0) return lose(i);
      source.arrived += static_cast<std::size_t>(got);
      if (source.arrived == in_head) put.data.resize(put.head.bytes);
      if (source.arrived == in_head + put.data.size()) take(source);
    }
  }

  void take(Source& source) {
    source.arrived = 0;
    Put put = std::move(source.arriving);
    source.arriving = {};
    if (put.head.is_goodbye != 0) {
      source.said_goodbye = true;
      return;
    }
    const std::scoped_lock lock(own_.mutex);
    source.pending.push_back(std::move(put));
  }

  void lose(std::size_t i) {
    Source& source = own_.sources[i];
    source.is_lost = true;
    if (source.said_goodbye || !settings().remote_errors) return;
    set_error(comm_, kNcclRemote, "rank " + std::to_string(i) + " is gone");
  }

  // Does the next step of one put: writes its data, or raises its signal.
  void step() {
    std::vector<std::size_t> ready;
    {
      const std::scoped_lock lock(own_.mutex);
      for (std::size_t i = 0; i < own_.sources.size(); ++i) {
        if (!own_.sources[i].pending.empty()) ready.push_back(i);
      }
    }
    if (ready.empty()) return;
    const std::uint64_t drawn = draw();
    if (drawn % 2 == 0 && settings().delay_us > 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(
          drawn / 2 % static_cast<std::uint64_t>(settings().delay_us)));
    }
    const std::size_t i = ready[drawn / 7 % ready.size()];
    Source& source = own_.sources[i];
    Put* put = nullptr;
    {
      const std::scoped_lock lock(own_.mutex);
      put = &source.pending.front();  // stays: others only append
    }
    if (!put->is_written) {
      write(i, *put);
      put->is_written = true;
      return;
    }
    const std::scoped_lock lock(own_.mutex);
    source.pending.pop_front();
    ++source.signals;
    own_.changed.notify_all();
  }

  void write(std::size_t i, const Put& put) {
    if (put.head.window == kNoWindow) return;
    FakeWindow* window = nullptr;
    std::uint64_t signal = 0;
    {
      const std::scoped_lock lock(own_.mutex);
      window = own_.windows.at(put.head.window).get();
      signal = own_.sources[i].signals + 1;
    }
    const std::string by = "ncclPutSignal of rank " + std::to_string(i);
    const std::scoped_lock lock(world().mutex);
    if (!window->is_open) {
      violation(by, "the target has deregistered the window");
      return;
    }
    World& all = world();
    const std::uintptr_t to = window->begin + put.head.offset;
    const int actor = own_.sources[i].actor;
    Clock clock = all.host;
    while (clock.of(actor) < signal) clock.advance(actor);
    if (!all.memory.access({to, put.data.size(), true}, actor, clock, by)) return;
    std::memcpy(all.memory.alias(to), put.data.data(), put.data.size());
  }

  FakeComm& comm_;
  OneSided& own_;
};

bool has_failed(FakeComm& comm) {
  const std::scoped_lock lock(comm.mutex);
  return comm.aborted || comm.error != kNcclSuccess;
}

// Writes all bytes to the socket of a peer. False: it is gone, or the communicator is
// aborted.
bool send_bytes(const FakeComm& comm, int fd, const void* from, std::size_t bytes) {
  const auto* at = static_cast<const std::byte*>(from);
  while (bytes > 0 && !comm.aborted) {
    const ssize_t put = send(fd, at, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (put > 0) {
      at += put;
      bytes -= static_cast<std::size_t>(put);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      pollfd wait{fd, POLLOUT, 0};
      poll(&wait, 1, kReceiverPollMs);
    } else if (errno != EINTR) {
      return false;
    }
  }
  return bytes == 0;
}

}  // namespace

FakeWindow* register_window(FakeComm& comm, std::uintptr_t begin, std::size_t bytes) {
  OneSided& own = *comm.one_sided;
  const bool is_first = own.sources.empty();
  const MeshListener listener = listen_for_ranks();
  const std::vector<Registration> all = gather_registrations(
      comm, {bytes, introduce(comm.rank, comm.size, comm.device, listener)});
  if (all.empty()) return nullptr;
  if (is_first) {
    own.mesh.rank = comm.rank;
    own.mesh.size = comm.size;
    std::vector<Introduction> ranks;
    for (const Registration& one : all) ranks.push_back(one.rank);
    if (!connect_mesh(own.mesh, listener, ranks)) {
      set_error(comm, kNcclRemote, "a rank is gone");
      return nullptr;
    }
    own.sources.resize(all.size());
    {
      const std::scoped_lock lock(world().mutex);
      for (Source& source : own.sources) source.actor = world().next_actor++;
    }
    own.receiver =
        start_apart([&comm, keep = comm.one_sided] { Receiver(comm, *keep).run(); });
  }
  auto window = std::make_unique<FakeWindow>();
  window->comm = &comm;
  window->begin = begin;
  for (const Registration& one : all) window->sizes.push_back(one.bytes);
  const std::scoped_lock lock(own.mutex);
  window->number = static_cast<std::uint32_t>(own.windows.size());
  own.windows.push_back(std::move(window));
  return own.windows.back().get();
}

bool is_window(const FakeComm& comm, const FakeWindow* window) {
  if (comm.one_sided == nullptr) return false;
  const std::scoped_lock lock(comm.one_sided->mutex);
  return std::ranges::any_of(comm.one_sided->windows, [&](const auto& one) {
    return one.get() == window && one->is_open;
  });
}

const FakeWindow* find_window(const FakeComm& comm, std::uintptr_t begin,
                              std::size_t bytes) {
  if (comm.one_sided == nullptr) return nullptr;
  const std::scoped_lock lock(comm.one_sided->mutex);
  for (const auto& one : comm.one_sided->windows) {
    const std::uint64_t size = one->sizes[static_cast<std::size_t>(comm.rank)];
    const bool holds = one->begin <= begin && begin + bytes <= one->begin + size;
    if (one->is_open && holds) return one.get();
  }
  return nullptr;
}

bool send_put(FakeComm& comm, const Operation& operation, const std::byte* data) {
  OneSided& own = *comm.one_sided;
  Put put;
  put.head.window = operation.window == nullptr ? kNoWindow : operation.window->number;
  put.head.offset = operation.offset;
  put.head.bytes = operation.count * size_of(operation.type);
  const auto peer = static_cast<std::size_t>(operation.root);
  if (operation.root == comm.rank) {
    put.data.assign(data, data + put.head.bytes);
    const std::scoped_lock lock(own.mutex);
    own.sources[peer].pending.push_back(std::move(put));
    return true;
  }
  const int fd = own.mesh.peers[peer].fd.get();
  if (send_bytes(comm, fd, &put.head, sizeof put.head) &&
      send_bytes(comm, fd, data, put.head.bytes)) {
    return true;
  }
  // Without remote errors it waits for the abort, as a kernel that spins for ever.
  if (comm.aborted) return false;
  if (settings().remote_errors) {
    set_error(comm, kNcclRemote, "rank " + std::to_string(peer) + " is gone");
  } else {
    std::unique_lock lock(comm.mutex);
    comm.changed.wait(lock, [&] { return comm.aborted.load(); });
  }
  return false;
}

bool await_signals(FakeComm& comm, const Operation& operation) {
  OneSided& own = *comm.one_sided;
  std::unique_lock lock(own.mutex);
  for (const auto& [peer, expected] : operation.waits) {
    const Source& source = own.sources[static_cast<std::size_t>(peer)];
    while (source.signals < expected) {
      own.changed.wait_for(lock, std::chrono::milliseconds(kReceiverPollMs));
      lock.unlock();
      const bool failed = has_failed(comm);
      lock.lock();
      if (failed) return false;
    }
  }
  return true;
}

Clock clock_of_signals(const FakeComm& comm, const Operation& operation) {
  Clock clock;
  for (const auto& [peer, expected] : operation.waits) {
    const int actor = comm.one_sided->sources[static_cast<std::size_t>(peer)].actor;
    while (clock.of(actor) < expected) clock.advance(actor);
  }
  return clock;
}

void stop_one_sided(FakeComm& comm, bool in_order) {
  const std::shared_ptr<OneSided> own = comm.one_sided;
  if (own == nullptr) return;
  own->mesh.aborted = true;
  own->stops = true;
  if (own->receiver.joinable()) own->receiver.join();
  {
    // The host knows that nothing is written any more.
    const std::scoped_lock lock(world().mutex);
    for (const Source& source : own->sources) {
      Clock& host = world().host;
      while (host.of(source.actor) <= source.signals) host.advance(source.actor);
    }
  }
  const Put::Head goodbye{kNoWindow, 1, 0, 0};
  for (Peer& peer : own->mesh.peers) {
    if (in_order && peer.fd) {
      send(peer.fd.get(), &goodbye, sizeof goodbye, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    peer.fd.reset();
  }
}

}  // namespace fakegpu
