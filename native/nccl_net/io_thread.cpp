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

// While those that are due are in a caller's hands, or cannot go on yet.
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
    const std::scoped_lock lock(mutex_);
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
  const std::scoped_lock lock(mutex_);
  comms_.push_back(&comm);
  try {
    // At an edge only: what was reported is remembered until its turn.
    watch(epoll_.get(), comm.fd(), EPOLLIN | EPOLLET, &comm);
  } catch (...) {
    comms_.pop_back();
    throw;
  }
}

void IoThread::remove(Comm& comm) {
  std::unique_lock lock(mutex_);
  std::erase(comms_, &comm);
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, comm.fd(), nullptr);
  turn_over_.wait(lock, [&] { return current_ != &comm; });
}

void IoThread::wake() {
  if (!asleep_.exchange(false)) return;
  const std::uint64_t one = 1;
  // It fails only if nobody has read 2^64 - 1 of them: then it wakes as well.
  static_cast<void>(!write(event_.get(), &one, sizeof one));
}

void IoThread::loop() {
  pthread_setname_np(pthread_self(), "bluecomm-net-io");
  std::unique_lock lock(mutex_);
  while (!stop_) {
    const bool moved = turn_all(lock);
    // From here on wake() writes; what became due before is seen below.
    asleep_ = true;
    const bool due = std::any_of(comms_.begin(), comms_.end(),
                                 [](const Comm* one) { return one->is_due(); });
    if (!stop_) sleep(lock, !due ? kSleepMs : moved ? 0 : kNapMs);
    asleep_ = false;
  }
}

// True if any has moved anything. The list may change during a turn: one that is passed
// over for that is still due afterwards.
bool IoThread::turn_all(std::unique_lock<std::mutex>& lock) {
  bool moved = false;
  for (std::size_t i = 0; i < comms_.size() && !stop_; ++i) {
    if (!comms_[i]->take_due()) continue;
    current_ = comms_[i];
    lock.unlock();
    moved |= current_->take_turn();
    lock.lock();
    current_ = nullptr;
    turn_over_.notify_all();
  }
  return moved;
}

void IoThread::sleep(std::unique_lock<std::mutex>& lock, int timeout_ms) {
  std::array<epoll_event, 64> events;
  lock.unlock();
  const int count = epoll_wait(epoll_.get(), events.data(), events.size(), timeout_ms);
  lock.lock();
  for (int i = 0; i < count; ++i) {
    void* const tag = events[static_cast<std::size_t>(i)].data.ptr;
    if (tag == nullptr) {
      std::uint64_t times = 0;
      static_cast<void>(!read(event_.get(), &times, sizeof times));
      continue;
    }
    // It may have been removed meanwhile.
    const auto found = std::find(comms_.begin(), comms_.end(), tag);
    if (found != comms_.end()) (*found)->set_due();
  }
}

void IoThread::abandon() noexcept {
  epoll_.reset();
  event_.reset();
}

}  // namespace bluecomm::nccl_net
