// The inproc transport: takes the events of its rank from the hub, and passes them to
// the channels. Each rank's engine calls its own transport under its own progress
// lock; what the ranks share is guarded by the hub's mutex.
#include "transport/inproc/transport.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "transport/inproc/channel.h"

namespace bluecomm {
namespace {

using namespace inproc;

class InprocTransport final : public Transport {
 public:
  InprocTransport(std::shared_ptr<Hub> hub, int rank)
      : hub_(std::move(hub)),
        rank_(rank),
        doorbell_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    UniqueFd doorbell(doorbell_fd_);
    if (!doorbell) throw std::system_error(errno, std::generic_category(), "eventfd");
    const LockGuard lock(hub_->mutex);
    EventQueue& queue = hub_->queue(rank_);
    if (queue.open) {
      throw std::logic_error("rank " + std::to_string(rank_) +
                             " of the hub already has a transport");
    }
    queue.doorbell = std::move(doorbell);
    queue.open = true;
    for (int peer = 0; peer < hub_->size(); ++peer) {
      channels_.push_back(std::make_unique<InprocChannel>(hub_, rank_, peer));
    }
  }

  ~InprocTransport() override {
    {
      const LockGuard lock(hub_->mutex);
      hub_->queue(rank_).open = false;
      hub_->queue(rank_).doorbell.reset();
    }
    const std::string text = "rank " + std::to_string(rank_) + " closed its transport";
    for (const auto& channel : channels_) channel->drop(text);
  }

  std::string_view name() const override { return "inproc"; }
  std::string offer() const override { return std::to_string(rank_); }

  Channel& channel(int peer, std::string_view) override {
    return *channels_.at(static_cast<std::size_t>(peer));
  }

  bool poll(Receiver& receiver) override {
    bool changed = false;
    for (InprocEvent& event : take_events(changed)) {
      changed = true;
      const auto from = static_cast<std::size_t>(event.from);
      channels_[from]->dispatch(std::move(event), receiver);
    }
    for (const auto& channel : channels_) changed |= channel->poll();
    return changed;
  }

  int wait_fd() const override { return doorbell_fd_; }

  bool prepare_sleep() override {
    const LockGuard lock(hub_->mutex);
    if (hub_->queue(rank_).rung || next_event() <= Clock::now()) return false;
    return std::none_of(channels_.begin(), channels_.end(),
                        [](const auto& channel) { return channel->can_copy(); });
  }

  void finish_sleep() override {}

  Clock::time_point next_timer() const override {
    const LockGuard lock(hub_->mutex);
    return next_event();
  }

  void forget(int peer) override {
    channels_.at(static_cast<std::size_t>(peer))->forget();
  }

  void close() override {
    closing_ = true;
    for (const auto& channel : channels_) channel->close();
  }

  bool closed() const override {
    return closing_ && std::all_of(channels_.begin(), channels_.end(),
                                   [](const auto& channel) { return channel->idle(); });
  }

  // Without the mutex: a thread that the child does not have may hold it.
  void abandon_after_fork() noexcept override NO_THREAD_SAFETY_ANALYSIS {
    hub_->queue(rank_).doorbell.reset();
  }

 private:
  Clock::time_point next_event() const REQUIRES(hub_->mutex) {
    Clock::time_point next = Clock::time_point::max();
    for (const InprocEvent& event : hub_->queue(rank_).events) {
      next = std::min(next, event.visible_at);
    }
    return next;
  }

  // Returns the events that are visible by now. Sets `rung` if the doorbell has rung.
  std::vector<InprocEvent> take_events(bool& rung) {
    const LockGuard lock(hub_->mutex);
    EventQueue& queue = hub_->queue(rank_);
    rung = std::exchange(queue.rung, false);
    eventfd_t ignored = 0;
    if (rung) eventfd_read(doorbell_fd_, &ignored);
    std::vector<InprocEvent> taken;
    if (queue.events.empty()) return taken;
    const Clock::time_point now = Clock::now();
    const auto visible = [now](const InprocEvent& event) {
      return event.visible_at <= now;
    };
    for (InprocEvent& event : queue.events) {
      if (!visible(event)) continue;
      if (event.message) event.message->arrived = true;
      taken.push_back(std::move(event));
    }
    std::erase_if(queue.events, visible);
    return taken;
  }

  const std::shared_ptr<Hub> hub_;
  const int rank_;
  const int doorbell_fd_;  // owned by the queue
  bool closing_ = false;
  std::vector<std::unique_ptr<InprocChannel>> channels_;  // by rank
};

}  // namespace

InprocHub::InprocHub(int size, const InprocOptions& options)
    : hub_(std::make_shared<Hub>(size, options)) {}

InprocHub::~InprocHub() = default;

std::unique_ptr<Transport> InprocHub::make_transport(int rank) {
  return std::make_unique<InprocTransport>(hub_, rank);
}

void InprocHub::cut_off(int rank) {
  const LockGuard lock(hub_->mutex);
  for (int other = 0; other < hub_->size(); ++other) {
    if (other == rank) continue;
    for (const auto& [from, to] : {std::pair(rank, other), std::pair(other, rank)}) {
      hub_->link(from, to) = LinkState::kUsed;  // so that both sides are told
      hub_->break_link(from, to, "the link was cut");
    }
  }
}

}  // namespace bluecomm
