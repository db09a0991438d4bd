// Passes calls to NCCL. The engine numbers the calls (NcclCall is its ticket), so that
// all ranks issue them in one order; docs/notes/nccl-backend.md says why. All functions
// from run() on belong to the queue's thread, which owns the communicators and never
// waits for longer than it takes to notice a failure.
#include "device/nccl_queue.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "common/quiet_thread.h"
#include "common/seconds.h"
#include "device/nccl_offer.h"

namespace bluecomm::device {
namespace {

// How often the thread looks at the device and at a communicator that is in progress.
constexpr std::chrono::microseconds kInterval{200};

// How long suspend() waits for the thread.
constexpr std::chrono::seconds kParkLimit{5};

// Ends the text of each failure. A text that another rank sent may end with it already.
constexpr std::string_view kOutcome =
    "; NCCL's communicator was aborted, and bluecomm makes another one only after "
    "shutdown() and init()";

struct NumberAnswer {
  CallNumber number;
  NcclId id;
};
static_assert(sizeof(NumberAnswer) <= Ticket::kAnswerBytes);

Status status_of(const std::exception& error) {
  const auto* const nccl = dynamic_cast<const NcclError*>(&error);
  const bool is_remote = nccl != nullptr && nccl->is_remote();
  return {is_remote ? Code::kPeerLost : Code::kInternal, error.what(), -1};
}

}  // namespace

std::shared_ptr<NcclQueue> NcclQueue::open(std::shared_ptr<const NcclLibrary> library,
                                           std::shared_ptr<const CudaDevice> device,
                                           int rank) {
  auto* const made = new NcclQueue(std::move(library), std::move(device), rank);
  // A forked child has neither the thread nor the right to call NCCL.
  return {made, [](NcclQueue* queue) {
            if (!queue->device_->in_child()) delete queue;
          }};
}

NcclQueue::NcclQueue(std::shared_ptr<const NcclLibrary> library,
                     std::shared_ptr<const CudaDevice> device, int rank)
    : library_(std::move(library)),
      device_(std::move(device)),
      rank_(rank),
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
  make_id(group);
  auto call = std::make_shared<NcclCall>(shared_from_this(), group, work,
                                         device_->point_behind(stream), limit);
  std::optional<Status> failed;
  {
    const LockGuard lock(mutex_);
    failed = failure_;
    forget_issued();
    made_.push_back(call);
  }
  if (failed) call->set_failed(*failed);
  return call;
}

// Makes the id of a group's communicator, if this rank is its first member.
void NcclQueue::make_id(const NcclGroup& group) {
  if (group.rank != 0) return;
  {
    const LockGuard lock(mutex_);
    if (ids_.contains(group.id)) return;
  }
  NcclId id;
  library_->check(library_->call().get_unique_id(&id), "ncclGetUniqueId", nullptr);
  const LockGuard lock(mutex_);
  ids_.emplace(group.id, id);
}

void NcclQueue::forget_group(std::uint64_t id) {
  const LockGuard lock(mutex_);
  ids_.erase(id);
  forgotten_.push_back(id);
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

std::optional<Status> NcclQueue::failure() const {
  const LockGuard lock(mutex_);
  return failure_;
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
  fail({Code::kPeerLost, reason, rank});
}

void NcclQueue::note_failed_ticket(const Status& status) {
  // A call with a mismatch has got no number on any rank. Others may have a number on
  // other ranks, which then wait for this one.
  if (status.code != Code::kMismatch) fail(status);
}

// Notes the first failure; the thread acts on it.
void NcclQueue::fail(Status status) {
  const LockGuard lock(mutex_);
  if (failure_) return;
  if (status.text.find(kOutcome) == std::string::npos) status.text += kOutcome;
  failure_ = std::move(status);
  changed_.notify_all();
}

// --- Order ---------------------------------------------------------------------------

std::vector<std::byte> NcclQueue::offer(const NcclGroup& group,
                                        const NcclWork& work) const {
  return make_nccl_offer(rank_, library_->version(), device_->name(), group.size, work);
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
    if (failure_) throw TicketFailure(*failure_);
    own.number = order_.decide(proposals, group.first);
    own.id = ids_.at(group.id);
  }
  std::memcpy(answer.data(), &own, sizeof own);
  return own.number.time - 1;
}

void NcclQueue::add(std::shared_ptr<NcclCall> call, std::uint64_t proposal,
                    std::span<const std::byte> answer) {
  NumberAnswer given;
  std::memcpy(&given, answer.data(), sizeof given);
  std::optional<Status> failed;
  {
    const LockGuard lock(mutex_);
    order_.settle(proposal, given.number);
    failed = failure_;
    if (!failed) {
      numbered_.emplace(given.number, Numbered{call, given.id});
      changed_.notify_all();
    }
  }
  if (failed) call->set_failed(*failed);
}

// --- The thread ----------------------------------------------------------------------

void NcclQueue::run() {
  while (goes_on()) {
    if (failure()) {
      give_up();
    } else if (const std::optional<Numbered> next = take_next()) {
      issue(*next);
      continue;
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
  return !failure_ && !issued_.empty() && Clock::now() < *stop_at_;
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
  const bool has_news =
      failure_ ? !has_given_up_
               : has_next() || (!stop_at_ && !forgotten_.empty() && issued_.empty());
  if (has_news) return;
  if (!issued_.empty() || !ending_.empty() || aborted_until_) {
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
  if (!call.begin()) return;  // its ticket has failed, and so has the queue
  bool is_issued = false;
  try {
    const ContextScope scope(*device_);
    if (NcclComm* const comm = comm_of(next)) {
      call.ready().precede(stream_);
      comm->start(call.work(), stream_);
      is_issued = settle(*comm);
    }
    if (is_issued) {
      // Only now is the work of the call on the stream.
      auto done = std::make_shared<StreamPoint>(device_, stream_);
      if (issued_.empty()) oldest_since_ = Clock::now();
      issued_.push_back({next.call, done});
      call.set_issued(std::move(done));
    }
  } catch (const std::exception& error) {
    is_issued = false;
    fail(status_of(error));
  }
  if (is_issued) return;
  aborted_.push_back(next.call);
  call.set_failed(failure().value_or(closed_status()));
}

// Returns the communicator of a call's group, which the first call makes; null if the
// queue has failed or is to stop. Throws NcclError.
NcclComm* NcclQueue::comm_of(const Numbered& next) {
  const NcclGroup& group = next.call->group();
  if (const auto found = comms_.find(group.id); found != comms_.end()) {
    return found->second.get();
  }
  auto made = std::make_unique<NcclComm>(library_, next.id, group.rank, group.size);
  NcclComm* const comm = comms_.emplace(group.id, std::move(made)).first->second.get();
  return settle(*comm) ? comm : nullptr;
}

// Waits until NCCL has done what was started. Returns false if the queue has failed or
// is to stop. Throws NcclError.
bool NcclQueue::settle(NcclComm& comm) {
  while (!comm.is_settled()) {
    UniqueLock lock(mutex_);
    park(lock);
    if (failure_ || stop_at_) return false;
    changed_.wait_for(lock, kInterval);
  }
  return true;
}

// Releases the calls that the device has finished, and looks for failures.
void NcclQueue::watch() {
  if (aborted_until_ && aborted_until_->poll()) {
    for (const auto& call : aborted_) call->set_ended();
    aborted_.clear();
    aborted_until_.reset();
  }
  try {
    watch_oldest();
    end_forgotten();
  } catch (const std::exception& error) {
    fail(status_of(error));
  }
}

void NcclQueue::watch_oldest() {
  while (!issued_.empty()) {
    const std::optional<Status> outcome = issued_.front().done->poll();
    if (!outcome) break;
    if (!outcome->ok()) return fail(*outcome);
    issued_.front().call->set_ended();
    issued_.pop_front();
    oldest_since_ = Clock::now();
  }
  if (issued_.empty()) return;
  const ContextScope scope(*device_);
  for (const auto& [id, comm] : comms_) comm->is_settled();
  const NcclCall::Limit limit = issued_.front().call->limit();
  if (Clock::now() - oldest_since_ > limit) {
    fail({Code::kTimedOut,
          "the device has not finished a call of NCCL within " +
              seconds_text(
                  std::chrono::duration_cast<std::chrono::milliseconds>(limit)) +
              "; perhaps another rank has not issued it, or earlier work of a program "
              "does not end",
          -1});
  }
}

// Ends the communicators of forgotten groups, once the device has finished their calls.
void NcclQueue::end_forgotten() {
  std::vector<std::uint64_t> ended;
  {
    const LockGuard lock(mutex_);
    std::erase_if(forgotten_, [&](std::uint64_t id) {
      const bool is_used = std::ranges::any_of(
          issued_, [id](const Issued& one) { return one.call->group().id == id; });
      if (!is_used) ended.push_back(id);
      return !is_used;
    });
  }
  if (ended.empty() && ending_.empty()) return;
  const ContextScope scope(*device_);
  for (const std::uint64_t id : ended) {
    if (auto node = comms_.extract(id)) {
      node.mapped()->finalize();
      ending_.push_back(std::move(node.mapped()));
    }
  }
  std::erase_if(ending_, [](const std::unique_ptr<NcclComm>& comm) {
    if (!comm->is_settled()) return false;
    comm->destroy();
    return true;
  });
}

// Aborts the communicators, and fails the calls that have not ended; once.
void NcclQueue::give_up() {
  if (std::exchange(has_given_up_, true)) return;
  const Status status = *failure();
  fail_waiting(status);
  // Before the abort, after which the device goes on without results.
  for (Issued& one : issued_) {
    one.call->set_failed(status);
    aborted_.push_back(std::move(one.call));
  }
  issued_.clear();
  try {
    const ContextScope scope(*device_);
    comms_.clear();
    ending_.clear();
    if (aborted_.empty()) return;
    aborted_until_ = std::make_shared<StreamPoint>(device_, stream_);
  } catch (const CudaError&) {
    // The device is unusable. The memory of the calls is never released.
  }
}

// Fails the calls that NCCL has not got. Returns whether there were any.
bool NcclQueue::fail_waiting(const Status& status) {
  std::map<CallNumber, Numbered> numbered;
  std::deque<std::weak_ptr<NcclCall>> made;
  {
    const LockGuard lock(mutex_);
    numbered.swap(numbered_);
    made.swap(made_);
  }
  bool any = false;
  for (const std::weak_ptr<NcclCall>& one : made) {
    const std::shared_ptr<NcclCall> call = one.lock();
    if (!call || !call->is_waiting()) continue;
    call->set_failed(status);
    any = true;
  }
  return any;
}

// --- The end -------------------------------------------------------------------------

void NcclQueue::end() {
  Clock::time_point deadline;
  {
    const LockGuard lock(mutex_);
    deadline = *stop_at_;
  }
  // At once, so that the engine tells the other ranks, which may have issued them.
  const bool is_cut_short = fail_waiting(closed_status());
  try {
    if (!is_cut_short && !failure()) finalize(deadline);
  } catch (const std::exception&) {
    // Another rank ended first, or takes too long.
  }
  {
    const LockGuard lock(mutex_);
    if (!failure_) failure_ = closed_status();
  }
  give_up();
  while (aborted_until_ && Clock::now() < deadline) {
    watch();
    std::this_thread::sleep_for(kInterval);
  }
}

Status NcclQueue::closed_status() const {
  return {Code::kClosed,
          "cut short, because rank " + std::to_string(rank_) + " shut down", rank_};
}

// Ends the communicators in order. Throws NcclError.
void NcclQueue::finalize(Clock::time_point deadline) {
  if (!aborted_.empty() || !issued_.empty()) {
    throw NcclError("a call was cut short");
  }
  const auto wait = [deadline] {
    if (Clock::now() >= deadline) throw NcclError("the deadline has passed");
    std::this_thread::sleep_for(kInterval);
  };
  const ContextScope scope(*device_);
  for (auto& [id, comm] : comms_) {
    comm->finalize();
    ending_.push_back(std::move(comm));
  }
  comms_.clear();
  for (const auto& comm : ending_) {
    while (!comm->is_settled()) wait();
    comm->destroy();
  }
  ending_.clear();
}

}  // namespace bluecomm::device
