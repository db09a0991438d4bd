// The turns of the queue's thread, which pass calls to NCCL in the order of their
// numbers and make them ISSUED. Each turn acts on failures first. Then it issues the
// next call, or, if that is not known yet, looks at the device and waits for a change.
// Only the queue's thread runs these functions. It calls no function of NCCL or CUDA
// with the mutex held, and never waits for longer than it takes to notice a failure.
// docs/notes/nccl-backend.md has the states.
#include <utility>

#include "device/nccl_queue.h"
#include "device/timed_work.h"

namespace bluecomm::device {
namespace {

// How long an error of NCCL that another rank has caused waits for the engine, which
// hears of a process that has ended within milliseconds.
constexpr std::chrono::seconds kReasonLimit{5};

}  // namespace

void NcclQueue::run() {
  while (goes_on()) {
    if (!give_up()) {
      if (const std::optional<Numbered> next = take_next()) {
        issue(*next);
        continue;
      }
    }
    watch();
    wait_for_change();
  }
  end();
}

// Returns false when the queue is to stop, and the device has finished the issued calls
// or cannot be waited for.
bool NcclQueue::goes_on() const {
  const LockGuard lock(mutex_);
  if (!stop_at_) return true;
  return !groups_.have_all_failed() && !issued_.empty() && Clock::now() < *stop_at_;
}

// Returns whether the next call is known, which is the one that all its members issue
// next.
bool NcclQueue::has_next() const {
  return !stop_at_ && !is_suspended_ && !numbered_.empty() &&
         order_.is_settled(numbered_.begin()->first);
}

std::optional<NcclQueue::Numbered> NcclQueue::take_next() {
  const LockGuard lock(mutex_);
  if (!has_next()) return std::nullopt;
  return std::move(numbered_.extract(numbered_.begin()).mapped());
}

void NcclQueue::wait_for_change() {
  UniqueLock lock(mutex_);
  park(lock);
  const bool has_news = groups_.have_failed() || has_next() ||
                        (!stop_at_ && groups_.have_forgotten() && issued_.empty());
  if (has_news) return;
  if (!issued_.empty() || !ending_.empty()) {
    changed_.wait_for(lock, kInterval);
  } else if (!stop_at_) {
    changed_.wait(lock);
  }
}

// Stands still while the queue is suspended.
void NcclQueue::park(UniqueLock& lock) {
  if (!is_suspended_ || stop_at_) return;
  const Clock::time_point begin = Clock::now();
  is_parked_ = true;
  changed_.notify_all();
  while (is_suspended_ && !stop_at_) changed_.wait(lock);
  is_parked_ = false;
  oldest_since_ += Clock::now() - begin;
}

// Passes a call to NCCL. It is the first that its members have yet to issue.
void NcclQueue::issue(const Numbered& next) {
  NcclCall& call = *next.call;
  if (!call.begin()) return;  // its ticket has failed, and so has the group
  const NcclGroup& group = call.group();
  bool is_issued = false;
  try {
    const ContextScope scope(*device_);
    if (NcclComm* const comm = comm_of(next)) {
      call.ready().precede(stream_);
      const TimedWork work(*device_, stream_);
      comm->start(call.work(), stream_);
      is_issued = settle(*comm, group);
      if (is_issued) {
        // Only now is the work of the call on the stream.
        auto done =
            work.end("NCCL", function_name(call.work()), nbytes_of(call.work()));
        if (issued_.empty()) oldest_since_ = Clock::now();
        issued_.push_back({next.call, done});
        is_working_ = true;  // before the engine sees that the operation has ended
        call.set_issued(std::move(done));
      }
    }
  } catch (const CudaError& error) {
    is_issued = false;
    fail_device(status_of(error));
  } catch (const std::exception& error) {
    is_issued = false;
    fail_by_nccl(group.id, error);
  }
  if (is_issued) return;
  cut_short_.push_back(next.call);
  const std::optional<Status> failed = failure_of(group);
  call.set_failed(failed.value_or(closed_status()));
  if (!failed) fail(group.id, closed_status());
}

// Returns the communicator of a call's group, which the first call makes; null if the
// group has failed or the queue is to stop. Throws NcclError.
NcclComm* NcclQueue::comm_of(const Numbered& next) {
  const NcclGroup& group = next.call->group();
  if (const auto found = comms_.find(group.id); found != comms_.end()) {
    return found->second.get();
  }
  if (has_failed(group)) return nullptr;  // and its communicator has been aborted
  auto made = std::make_unique<NcclComm>(library_, next.id, group.rank, group.size());
  NcclComm* const comm = comms_.emplace(group.id, std::move(made)).first->second.get();
  return settle(*comm, group) ? comm : nullptr;
}

// Waits until NCCL has done what was started. Returns false if the group has failed or
// the queue is to stop. Throws NcclError.
bool NcclQueue::settle(NcclComm& comm, const NcclGroup& group) {
  while (!comm.is_settled()) {
    UniqueLock lock(mutex_);
    park(lock);
    if (groups_.failure_of(group) || stop_at_) return false;
    changed_.wait_for(lock, kInterval);
  }
  return true;
}

// Fails a group in which NCCL has failed. NCCL says only that it has lost a member, and
// may do so before the engine hears why: the member is lost, has failed, or has freed
// the group.
void NcclQueue::fail_by_nccl(std::uint64_t group, const std::exception& error) {
  const Status status = status_of(error);
  const bool is_remote = status.code == Code::kPeerLost;
  fail(group, is_remote ? await_reason(group).value_or(status) : status);
}

// Waits until the engine has told why NCCL may have lost a member of a group. Returns
// nothing if it does not in time, or the queue is to stop.
std::optional<Status> NcclQueue::await_reason(std::uint64_t group) {
  Clock::time_point deadline = Clock::now() + kReasonLimit;
  UniqueLock lock(mutex_);
  while (true) {
    const Clock::time_point begin = Clock::now();
    park(lock);
    deadline += Clock::now() - begin;
    if (std::optional<Status> reason = groups_.reason_of(group)) return reason;
    if (stop_at_ || Clock::now() >= deadline) return std::nullopt;
    changed_.wait_until(lock, deadline);
  }
}

}  // namespace bluecomm::device
