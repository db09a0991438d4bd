// An I/O thread of the NCCL plugin. NCCL's progress threads call the plugin and move
// data themselves; where CPUs are free, an IoThread moves data between those calls.
//
// A comm becomes due by an event of its poller (sleep() marks it) or by a call that
// left work behind (Comm marks itself and calls wake()). A turn tries to lock the comm
// and leaves it due if a caller has it, so a call never waits for more than one turn.
#include "nccl_net/io_thread.h"

#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <system_error>

#include "common/quiet_thread.h"
#include "nccl_net/comm.h"

namespace bluecomm::nccl_net {
namespace {

// How long the thread sleeps while callers hold all comms that are due, or while these
// comms cannot make progress.
constexpr int kNapMs = 1;
constexpr int kSleepMs = kBeat.count();

UniqueFd checked(int fd, const char* call) {
  if (fd < 0) throw std::system_error(errno, std::generic_category(), call);
  return UniqueFd(fd);
}

void watch(int epoll, int fd, std::uint32_t interest, void* tag) {
  epoll_event event{};
  event.events = interest;
  event.data.ptr = tag;
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
    throw std::system_error(errno, std::generic_category(), "epoll_ctl");
  }
}

}  // namespace

IoThread::IoThread()
    : epoll_(checked(epoll_create1(EPOLL_CLOEXEC), "epoll_create1")),
      event_(checked(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd")) {
  watch(epoll_.get(), event_.get(), EPOLLIN, nullptr);
  thread_ = start_quiet_thread([this] { loop(); });
}

IoThread::~IoThread() {
  {
    const LockGuard lock(mutex_);
    stop_ = true;
  }
  wake();
  if (thread_.joinable()) thread_.join();
}

bool IoThread::run_on(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(static_cast<std::size_t>(cpu), &set);
  return pthread_setaffinity_np(thread_.native_handle(), sizeof set, &set) == 0;
}

void IoThread::add(Comm& comm) {
  const LockGuard lock(mutex_);
  comms_.push_back(&comm);
  try {
    // Edge-triggered: sleep() remembers an event by marking the comm as due.
    watch(epoll_.get(), comm.fd(), EPOLLIN | EPOLLET, &comm);
  } catch (...) {
    comms_.pop_back();
    throw;
  }
}

void IoThread::remove(Comm& comm) {
  UniqueLock lock(mutex_);
  std::erase(comms_, &comm);
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, comm.fd(), nullptr);
  while (current_ == &comm) turn_finished_.wait(lock);
}

void IoThread::wake() {
  if (!asleep_.exchange(false)) return;
  const std::uint64_t one = 1;
  // The write fails only if the counter is full, and a full counter wakes the thread
  // too.
  static_cast<void>(!write(event_.get(), &one, sizeof one));
}

void IoThread::loop() {
  pthread_setname_np(pthread_self(), "bluecomm-net-io");
  const LockGuard lock(mutex_);
  while (!stop_) {
    const bool moved = turn_all();
    // From here on wake() writes to event_. The check below sees a comm that became due
    // before.
    asleep_ = true;
    const bool due = std::any_of(comms_.begin(), comms_.end(),
                                 [](const Comm* one) { return one->is_due(); });
    if (!stop_) sleep(!due ? kSleepMs : moved ? 0 : kNapMs);
    asleep_ = false;
  }
}

// Gives each due comm one turn; returns whether any of them moved data. comms_ may
// change during a turn. A comm that is skipped because of that remains due.
bool IoThread::turn_all() {
  bool moved = false;
  for (std::size_t i = 0; i < comms_.size() && !stop_; ++i) {
    if (!comms_[i]->take_due()) continue;
    current_ = comms_[i];
    Comm& comm = *current_;
    mutex_.unlock();
    moved |= comm.take_turn();
    mutex_.lock();
    current_ = nullptr;
    turn_finished_.notify_all();
  }
  return moved;
}

void IoThread::sleep(int timeout_ms) {
  std::array<epoll_event, 64> events;
  mutex_.unlock();
  const int count = epoll_wait(epoll_.get(), events.data(), events.size(), timeout_ms);
  mutex_.lock();
  for (int i = 0; i < count; ++i) {
    void* const tag = events[static_cast<std::size_t>(i)].data.ptr;
    if (tag == nullptr) {
      std::uint64_t times = 0;
      static_cast<void>(!read(event_.get(), &times, sizeof times));
      continue;
    }
    // The comm may have been removed during the wait.
    const auto found = std::find(comms_.begin(), comms_.end(), tag);
    if (found != comms_.end()) (*found)->set_due();
  }
}

void IoThread::abandon() noexcept {
  epoll_.reset();
  event_.reset();
}

}  // namespace bluecomm::nccl_net
