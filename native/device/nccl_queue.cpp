// The functions that callers use. Threads of the program make and suspend the queue,
// enter calls and free groups. The engine gets numbers for calls and reports failures,
// under its progress lock, on whichever thread leads or calls. Failures are only noted
// here: the queue's thread, which notes its own in the same way, acts on them. No
// function of NCCL or CUDA is called with the mutex held. The other files have
//
// nccl_queue_thread.cpp   the thread's turns, which pass calls to NCCL
// nccl_queue_endings.cpp  how calls, communicators and the queue end
#include "device/nccl_queue.h"

#include <cstring>
#include <utility>

#include "common/quiet_thread.h"
#include "device/nccl_offer.h"

namespace bluecomm::device {
namespace {

// How long suspend() waits for the thread.
constexpr std::chrono::seconds kParkLimit{5};

struct NumberAnswer {
  CallNumber number;
  NcclId id;
};
static_assert(sizeof(NumberAnswer) <= Ticket::kAnswerBytes);

// The failure of a group after a member has sent what no rank of this version sends.
Status broken_order(int rank, const std::string& what, std::uint64_t time) {
  return {Code::kInternal,
          "rank " + std::to_string(rank) + " " + what + " " + std::to_string(time) +
              ", which breaks the order of the calls of NCCL; run the same bluecomm on "
              "all machines",
          rank};
}

}  // namespace

std::shared_ptr<NcclQueue> NcclQueue::open(std::shared_ptr<const NcclLibrary> library,
                                           std::shared_ptr<const CudaDevice> device,
                                           int rank, bool awaits_device) {
  auto* const made =
      new NcclQueue(std::move(library), std::move(device), rank, awaits_device);
  // A forked child has neither the thread nor the right to call NCCL.
  return {made, [](NcclQueue* queue) {
            if (!queue->device_->in_child()) delete queue;
          }};
}

NcclQueue::NcclQueue(std::shared_ptr<const NcclLibrary> library,
                     std::shared_ptr<const CudaDevice> device, int rank,
                     bool awaits_device)
    : library_(std::move(library)),
      device_(std::move(device)),
      rank_(rank),
      awaits_device_(awaits_device),
      stream_(device_->create_stream()) {
  try {
    thread_ = start_quiet_thread([this] { run(); });
  } catch (...) {
    device_->destroy_stream(stream_);
    throw;
  }
}

NcclQueue::~NcclQueue() {
  close({});
  device_->destroy_stream(stream_);
}

std::shared_ptr<NcclCall> NcclQueue::make_call(const NcclGroup& group,
                                               const NcclWork& work, CudaStream stream,
                                               NcclCall::Limit limit) {
  return std::make_shared<NcclCall>(shared_from_this(), group, work,
                                    device_->point_behind(stream), limit);
}

std::shared_ptr<NcclCall> NcclQueue::enter(const NcclCall& draft,
                                           const NcclGroup& group) {
  auto call = std::make_shared<NcclCall>(shared_from_this(), draft, group);
  bool needs_id = false;
  {
    const LockGuard lock(mutex_);
    groups_.enter(group);
    needs_id = groups_.needs_id(group);
  }
  NcclId id;
  if (needs_id) {
    library_->check(library_->call().get_unique_id(&id), "ncclGetUniqueId", nullptr);
  }
  std::optional<Status> failed;
  {
    const LockGuard lock(mutex_);
    groups_.enter(group);  // if another thread has freed it meanwhile
    if (needs_id) groups_.set_id(group.id, id);
    failed = groups_.failure_of(group);
    forget_issued();
    made_.push_back(call);
  }
  if (failed) call->set_failed(*failed);
  return call;
}

void NcclQueue::forget_group(std::uint64_t id) {
  const LockGuard lock(mutex_);
  groups_.forget(id);
  changed_.notify_all();
}

// Forgets the oldest calls, up to the first one that NCCL has not got.
void NcclQueue::forget_issued() {
  while (!made_.empty()) {
    const std::shared_ptr<NcclCall> oldest = made_.front().lock();
    if (oldest && oldest->is_waiting()) return;
    made_.pop_front();
  }
}

std::optional<Status> NcclQueue::failure_of(const NcclGroup& group) const {
  const LockGuard lock(mutex_);
  return groups_.failure_of(group);
}

void NcclQueue::suspend() {
  if (device_->in_child()) return;
  UniqueLock lock(mutex_);
  is_suspended_ = true;
  changed_.notify_all();
  const Clock::time_point deadline = Clock::now() + kParkLimit;
  while (is_suspended_ && !is_parked_ && !stop_at_ && Clock::now() < deadline) {
    changed_.wait_until(lock, deadline);
  }
}

void NcclQueue::resume() {
  const LockGuard lock(mutex_);
  is_suspended_ = false;
  changed_.notify_all();
}

void NcclQueue::close(Clock::duration limit) {
  if (device_->in_child()) return;
  {
    const LockGuard lock(mutex_);
    stop_at_ = Clock::now() + limit;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void NcclQueue::note_lost(int rank, const std::string& reason) {
  const LockGuard lock(mutex_);
  groups_.note_lost(rank, reason);
  changed_.notify_all();
}

void NcclQueue::note_removed_group(std::uint64_t group, const Status& status) {
  const LockGuard lock(mutex_);
  groups_.note_removed(group, status);
  changed_.notify_all();
}

void NcclQueue::note_failed_device(int rank, const std::string& reason) {
  const LockGuard lock(mutex_);
  groups_.note_failed_device(rank, reason);
  changed_.notify_all();
}

std::optional<Status> NcclQueue::device_failure() const {
  if (!has_failed_device_) return std::nullopt;  // the engine asks in each turn
  const LockGuard lock(mutex_);
  return device_failure_;
}

void NcclQueue::note_failed_ticket(std::uint64_t group, const Status& status) {
  // A call with a mismatch has got no number on any rank. Others may have a number on
  // other ranks, which then wait for this one.
  if (status.code != Code::kMismatch) fail(group, status);
}

// Notes the first failure of a group; the thread acts on it.
void NcclQueue::fail(std::uint64_t group, const Status& status) {
  const LockGuard lock(mutex_);
  groups_.fail(group, status);
  changed_.notify_all();
}

void NcclQueue::fail_all(const Status& status) {
  const LockGuard lock(mutex_);
  groups_.fail_all(status);
  changed_.notify_all();
}

// Fails all groups, and has the engine tell the other ranks.
void NcclQueue::fail_device(const Status& status) {
  fail_all(status);
  const LockGuard lock(mutex_);
  if (!device_failure_) device_failure_ = status;
  has_failed_device_ = true;
}

bool NcclQueue::has_failed(const NcclGroup& group) const {
  return failure_of(group).has_value();
}

// --- Order ---------------------------------------------------------------------------

std::vector<std::byte> NcclQueue::offer(const NcclGroup& group,
                                        const NcclWork& work) const {
  return make_nccl_offer(rank_, library_->version(), device_->name(), group.size(),
                         work);
}

std::uint64_t NcclQueue::propose() {
  const LockGuard lock(mutex_);
  return order_.propose();
}

void NcclQueue::withdraw(std::uint64_t proposal) {
  const LockGuard lock(mutex_);
  order_.withdraw(proposal);
  changed_.notify_all();
}

std::uint64_t NcclQueue::write_answer(const NcclGroup& group,
                                      std::span<const std::uint64_t> proposals,
                                      std::span<std::byte> answer) {
  NumberAnswer own;
  {
    const LockGuard lock(mutex_);
    const std::optional<Status> failed = groups_.failure_of(group);
    if (failed) throw TicketFailure(*failed);
    for (std::size_t i = 0; i < proposals.size(); ++i) {
      if (proposals[i] < CallOrder::kLatest) continue;
      throw TicketFailure(
          broken_order(group.ranks[i + 1], "proposed the time", proposals[i]));
    }
    own.number = order_.decide(proposals, group.first());
    own.id = groups_.id_of(group.id);
  }
  std::memcpy(answer.data(), &own, sizeof own);
  return own.number.time - 1;
}

void NcclQueue::add(std::shared_ptr<NcclCall> call, std::uint64_t proposal,
                    std::span<const std::byte> answer) {
  NumberAnswer given;
  std::memcpy(&given, answer.data(), sizeof given);
  const NcclGroup& group = call->group();
  std::optional<Status> failed;
  {
    const LockGuard lock(mutex_);
    failed = groups_.failure_of(group);
    if (!failed) failed = why_refused(group, proposal, given.number);
    if (failed) {
      order_.withdraw(proposal);
      groups_.fail(group.id, *failed);
    } else {
      order_.settle(proposal, given.number);
      numbered_.emplace(given.number, Numbered{call, given.id});
    }
    changed_.notify_all();
  }
  if (failed) call->set_failed(*failed);
}

// Returns the failure of a call whose number cannot be that of a call of its group.
std::optional<Status> NcclQueue::why_refused(const NcclGroup& group,
                                             std::uint64_t proposal,
                                             CallNumber number) const {
  if (!CallOrder::is_possible(proposal, number) || number.first != group.first()) {
    return broken_order(group.first(), "gave a call the number", number.time);
  }
  // A call whose number is above this proposal has not been issued.
  if (!numbered_.contains(number)) return std::nullopt;
  return broken_order(group.first(), "gave two calls the number", number.time);
}

}  // namespace bluecomm::device
