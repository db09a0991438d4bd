#include "tests/nccl_net/test_ranks.h"

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <thread>
#include <utility>

#include "tests/check.h"

namespace bluecomm::test {
namespace {

using Clock = std::chrono::steady_clock;

std::pair<UniqueFd, UniqueFd> make_socket_pair() {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
    throw std::runtime_error("socketpair failed");
  }
  const timeval limit{kDeadline.count(), 0};
  for (const int fd : fds) {
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

void write_all(int fd, const void* data, std::size_t nbytes) {
  if (send(fd, data, nbytes, MSG_NOSIGNAL) != static_cast<ssize_t>(nbytes)) {
    throw std::runtime_error("cannot write to the other process");
  }
}

void read_all(int fd, void* data, std::size_t nbytes) {
  if (recv(fd, data, nbytes, MSG_WAITALL) != static_cast<ssize_t>(nbytes)) {
    throw std::runtime_error("the other process has ended or sends nothing");
  }
}

[[noreturn]] void run_rank(TestRank& rank,
                           const std::map<std::string, std::string>& environment,
                           const std::function<void(TestRank&)>& body) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
  const int before = failures_so_far();
  int failures = 1;
  try {
    body(rank);
    failures = failures_so_far() - before;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank.number(), error.what());
  } catch (const TestAborted&) {
    // REQUIRE has printed why.
  }
  std::fflush(stderr);
  _exit(failures == 0 ? 0 : 1);
}

// Returns the wait status of a process. Kills it if it does not end in time.
int wait_for(int pid) {
  int status = -1;
  const auto deadline = Clock::now() + kDeadline;
  while (waitpid(pid, &status, WNOHANG) == 0) {
    if (Clock::now() > deadline) {
      ::kill(pid, SIGKILL);
      waitpid(pid, &status, 0);
      return status;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return status;
}

}  // namespace

void TestRank::send_bytes(const void* data, std::size_t nbytes) const {
  write_all(other_.get(), data, nbytes);
}

void TestRank::receive_bytes(void* data, std::size_t nbytes) const {
  read_all(other_.get(), data, nbytes);
}

void TestRank::report() const { write_all(controller_.get(), "r", 1); }

void TestRank::wait() const {
  char word = 0;
  read_all(controller_.get(), &word, 1);
}

void Controller::wait_for_report(int rank) const {
  char word = 0;
  read_all(ranks_[rank].control.get(), &word, 1);
}

void Controller::release(int rank) const {
  write_all(ranks_[rank].control.get(), "g", 1);
}

void Controller::signal(int rank, int number) const {
  ::kill(ranks_[rank].pid, number);
}

void Controller::kill(int rank) {
  const int pid = std::exchange(ranks_[rank].pid, -1);
  if (pid < 0) return;
  ::kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
}

void run_ranks(const std::map<std::string, std::string>& environment,
               const std::function<void(TestRank&)>& body,
               const std::function<void(Controller&)>& meanwhile) {
  Controller controller;
  auto [left, right] = make_socket_pair();
  UniqueFd ends[2] = {std::move(left), std::move(right)};
  for (int number = 0; number < 2; ++number) {
    auto [here, there] = make_socket_pair();
    const int pid = fork();
    if (pid < 0) throw std::runtime_error("fork failed");
    if (pid == 0) {
      here.reset();
      ends[1 - number].reset();
      for (Controller::Process& other : controller.ranks_) other.control.reset();
      TestRank rank(number, std::move(ends[number]), std::move(there));
      run_rank(rank, environment, body);
    }
    controller.ranks_[number] = {pid, std::move(here)};
  }
  for (UniqueFd& end : ends) end.reset();
  try {
    if (meanwhile) meanwhile(controller);
  } catch (const std::exception& error) {
    CHECK_EQ(std::string(error.what()), std::string());
  }
  for (const Controller::Process& rank : controller.ranks_) {
    if (rank.pid < 0) continue;
    CHECK_EQ(wait_for(rank.pid), 0);
  }
}

void run_ranks_in_both_modes(const std::map<std::string, std::string>& environment,
                             const std::function<void(TestRank&)>& body,
                             const std::function<void(Controller&)>& meanwhile) {
  for (const char* threads : {"0", "3"}) {
    auto variables = environment;
    variables["BLUECOMM_NET_THREADS"] = threads;
    run_ranks(variables, body, meanwhile);
  }
}

void spin_until(const char* what, const std::function<bool()>& done) {
  const auto deadline = Clock::now() + kDeadline;
  while (!done()) {
    if (Clock::now() > deadline) {
      throw std::runtime_error(std::string("waited too long for ") + what);
    }
    sched_yield();
  }
}

}  // namespace bluecomm::test
