#include "tests/transport/peer_process.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <stdexcept>
#include <utility>

namespace bluecomm::test {
namespace {

std::pair<UniqueFd, UniqueFd> make_pipe() {
  int fds[2];
  if (pipe(fds) != 0) throw std::runtime_error("pipe failed");
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

void write_line(int fd, const std::string& text) {
  const std::string line = text + "\n";
  if (write(fd, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    throw std::runtime_error("cannot write to the other process");
  }
}

std::string read_line(int fd) {
  std::string line;
  char c = 0;
  while (read(fd, &c, 1) == 1) {
    if (c == '\n') return line;
    line += c;
  }
  throw std::runtime_error("the other process has ended");
}

[[noreturn]] void run_child(int from_parent, int to_parent,
                            const std::function<std::unique_ptr<Transport>()>& make,
                            const std::function<void(Rank&)>& body) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  try {
    World world;
    world.transports.resize(2);
    world.transports[1] = make();
    write_line(to_parent, world.transports[1]->offer());
    const std::string offer = read_line(from_parent);
    world.channels = {{nullptr, nullptr}, {nullptr, nullptr}};
    world.channels[1][0] = &world.transports[1]->channel(0, offer);
    Rank self(world, 1);
    body(self);
    _exit(0);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank 1: %s\n", error.what());
    _exit(1);
  }
}

}  // namespace

PeerProcess::PeerProcess(
    const std::function<std::unique_ptr<Transport>()>& make_transport,
    const std::function<void(Rank& self)>& body) {
  auto [child_in, parent_out] = make_pipe();
  auto [parent_in, child_out] = make_pipe();
  pid_ = fork();
  if (pid_ < 0) throw std::runtime_error("fork failed");
  if (pid_ == 0) {
    parent_out.reset();
    parent_in.reset();
    run_child(child_in.get(), child_out.get(), make_transport, body);
  }
  child_out.reset();
  to_child_ = std::move(parent_out);
  offer_ = read_line(parent_in.get());
}

PeerProcess::~PeerProcess() { kill(); }

void PeerProcess::begin(const std::string& offer) {
  write_line(to_child_.get(), offer);
}

void PeerProcess::signal(int number) const { ::kill(pid_, number); }

void PeerProcess::kill() {
  if (pid_ < 0) return;
  signal(SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

void poll_or_sleep(Rank& rank) {
  if (rank.poll()) return;
  Transport& transport = rank.transport();
  if (transport.prepare_sleep()) {
    pollfd fd{transport.wait_fd(), POLLIN, 0};
    ::poll(&fd, 1, 50);
  }
  transport.finish_sleep();
}

}  // namespace bluecomm::test
