// How calls, communicators and the queue end. Only the queue's thread runs these
// functions.
//
// A call is ENDED once the device has passed its event or, if its group has failed, has
// left the kernels of the aborted communicator. A communicator ends in order after the
// program has freed its group; it is aborted when its group fails or that takes too
// long. The queue ends when close() says so. docs/notes/nccl-backend.md has the states,
// and what follows from each failure.
#include <algorithm>
#include <utility>

#include "common/seconds.h"
#include "device/nccl_queue.h"

namespace bluecomm::device {
namespace {

// How long the communicator of a freed group may take to end in order.
constexpr std::chrono::seconds kFinalizeLimit{10};

}  // namespace

Status NcclQueue::status_of(const std::exception& error) {
  const auto* const nccl = dynamic_cast<const NcclError*>(&error);
  const bool is_remote = nccl != nullptr && nccl->is_remote();
  return {is_remote ? Code::kPeerLost : Code::kInternal, error.what(), -1};
}

// Releases the calls that the device has finished, and looks for failures.
void NcclQueue::watch() {
  try {
    watch_device();
    watch_comms();
    end_forgotten();
    end_settled();
  } catch (const std::exception& error) {
    fail_device(status_of(error));
  }
  is_working_ = !issued_.empty();
}

void NcclQueue::watch_device() {
  while (!issued_.empty()) {
    const std::optional<Status> outcome = issued_.front().done->poll();
    if (!outcome) break;
    if (!outcome->ok()) {
      fail_device(*outcome);
      give_up();  // before the calls look as if they had succeeded
    }
    issued_.front().call->set_ended();
    issued_.pop_front();
    oldest_since_ = Clock::now();
  }
  if (issued_.empty()) return;
  const NcclCall& oldest = *issued_.front().call;
  if (Clock::now() - oldest_since_ <= oldest.limit()) return;
  const std::string limit = seconds_text(
      std::chrono::duration_cast<std::chrono::milliseconds>(oldest.limit()));
  if (has_failed(oldest.group())) {
    fail_device({Code::kTimedOut,
                 "the device has not left a call of NCCL within " + limit +
                     " after the communicator was aborted",
                 -1});
    return;
  }
  fail(oldest.group().id,
       {Code::kTimedOut,
        "the device has not finished a call of NCCL within " + limit +
            "; perhaps another rank has not issued it, or earlier work of a program "
            "does not end",
        -1});
}

// Looks for asynchronous errors of NCCL while the device works.
void NcclQueue::watch_comms() {
  if (issued_.empty()) return;
  const ContextScope scope(*device_);
  for (const auto& [id, comm] : comms_) {
    try {
      comm->is_settled();
    } catch (const NcclError& error) {
      fail_by_nccl(id, error);
    }
  }
}

// Begins to end the communicators of freed groups, once the device has finished their
// calls.
void NcclQueue::end_forgotten() {
  std::vector<std::uint64_t> ended;
  {
    const LockGuard lock(mutex_);
    ended = groups_.take_forgotten([&](std::uint64_t id) {
      return std::ranges::none_of(
          issued_, [id](const Issued& one) { return one.call->group().id == id; });
    });
  }
  const ContextScope scope(*device_);
  for (const std::uint64_t id : ended) {
    auto node = comms_.extract(id);
    if (!node) {  // it made none, or that has been aborted
      const LockGuard lock(mutex_);
      groups_.remove(id);
      continue;
    }
    ending_.push_back({id, std::move(node.mapped()), Clock::now() + kFinalizeLimit});
    try {
      ending_.back().comm->finalize();
    } catch (const NcclError& error) {
      fail(id, status_of(error));
    }
  }
}

// Frees the communicators that have ended, or do not end in time.
void NcclQueue::end_settled() {
  if (ending_.empty()) return;
  const ContextScope scope(*device_);
  std::erase_if(ending_, [&](Ending& one) {
    bool is_over = Clock::now() >= one.until;
    try {
      is_over |= one.comm->is_settled();
    } catch (const NcclError&) {
      is_over = true;
    }
    if (!is_over) return false;
    one.comm->abort();
    const LockGuard lock(mutex_);
    groups_.remove(one.group);
    return true;
  });
}

// Aborts the communicators of groups that have failed, once each. Returns whether there
// were any.
bool NcclQueue::give_up() {
  std::vector<NcclGroups::FailedGroup> failed;
  {
    const LockGuard lock(mutex_);
    failed = groups_.take_failed();
  }
  for (const NcclGroups::FailedGroup& one : failed) give_up(one);
  if (!failed.empty() && !cut_short_.empty()) await_aborted();
  return !failed.empty();
}

// Fails the calls of a group that have not ended, and aborts its communicator.
void NcclQueue::give_up(const NcclGroups::FailedGroup& failed) {
  const auto& [id, status] = failed;
  fail_waiting(status, id);
  // Before the abort, after which the device goes on without results.
  for (const Issued& one : issued_) {
    if (one.call->group().id == id) one.call->set_failed(status);
  }
  if (!issued_.empty() && issued_.front().call->group().id == id) {
    oldest_since_ = Clock::now();  // the device may take as long again to leave it
  }
  try {
    const ContextScope scope(*device_);
    comms_.erase(id);
    std::erase_if(ending_, [&, group = id](const Ending& one) {
      if (one.group != group) return false;
      const LockGuard lock(mutex_);
      groups_.remove(group);
      return true;
    });
  } catch (const CudaError&) {
    // The device is unusable.
  }
}

// Has the calls that were cut short keep their memory until the device has left them.
void NcclQueue::await_aborted() {
  try {
    const ContextScope scope(*device_);
    const auto left = std::make_shared<StreamPoint>(device_, stream_);
    if (issued_.empty()) oldest_since_ = Clock::now();
    for (auto& call : cut_short_) issued_.push_back({std::move(call), left});
    cut_short_.clear();
  } catch (const CudaError&) {
    // The device is unusable. The memory of the calls is never released.
  }
}

// Fails the calls that NCCL has not got, those of one group or all. Returns whether
// other ranks may have issued one of them.
bool NcclQueue::fail_waiting(const Status& status, std::optional<std::uint64_t> group) {
  const auto concerns = [group](const NcclCall& call) {
    return !group || call.group().id == *group;
  };
  std::vector<std::shared_ptr<NcclCall>> waiting;
  {
    const LockGuard lock(mutex_);
    std::erase_if(numbered_,
                  [&](const auto& one) { return concerns(*one.second.call); });
    for (const std::weak_ptr<NcclCall>& one : made_) {
      const std::shared_ptr<NcclCall> call = one.lock();
      if (call && concerns(*call) && call->is_waiting()) waiting.push_back(call);
    }
  }
  for (const auto& call : waiting) call->set_failed(status);
  return std::ranges::any_of(waiting,
                             [](const auto& call) { return call->may_have_number(); });
}

void NcclQueue::end() {
  Clock::time_point deadline;
  {
    const LockGuard lock(mutex_);
    deadline = *stop_at_;
  }
  give_up();
  // At once, so that the engine tells the other ranks, which may have issued them.
  const bool is_cut_short = fail_waiting(closed_status(), std::nullopt);
  try {
    if (!is_cut_short) finalize(deadline);
  } catch (const std::exception&) {
    // Another rank ended first, or takes too long.
  }
  fail_all(closed_status());
  give_up();
  while (!issued_.empty() && Clock::now() < deadline) {
    watch_device();
    std::this_thread::sleep_for(kInterval);
  }
}

Status NcclQueue::closed_status() const {
  return {Code::kClosed,
          "cut short, because rank " + std::to_string(rank_) + " shut down", rank_};
}

// Ends the communicators in order. Throws NcclError.
void NcclQueue::finalize(Clock::time_point deadline) {
  if (!cut_short_.empty() || !issued_.empty()) {
    throw NcclError("a call was cut short");
  }
  const auto wait = [deadline] {
    if (Clock::now() >= deadline) throw NcclError("the deadline has passed");
    std::this_thread::sleep_for(kInterval);
  };
  const ContextScope scope(*device_);
  for (auto& [id, comm] : comms_) {
    comm->finalize();
    ending_.push_back({id, std::move(comm), deadline});
  }
  comms_.clear();
  for (const Ending& one : ending_) {
    while (!one.comm->is_settled()) wait();
    one.comm->abort();
  }
  ending_.clear();
}

}  // namespace bluecomm::device
