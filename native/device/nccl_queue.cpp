// Passes calls to NCCL. The engine numbers the calls (NcclCall is its ticket), so that
// all ranks issue them in one order; docs/notes/nccl-backend.md says why. All functions
// from run() on belong to the queue's thread, which owns the communicators and never
// waits for longer than it takes to notice a failure.
#include "device/nccl_queue.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/quiet_thread.h"
#include "common/seconds.h"
#include "device/nccl_offer.h"
#include "device/timed_work.h"

namespace bluecomm::device {
namespace {

// How often the thread looks at the device and at a communicator that is in progress.
constexpr std::chrono::microseconds kInterval{200};

// How long suspend() waits for the thread.
constexpr std::chrono::seconds kParkLimit{5};

// How long the communicator of a freed group may take to end in order.
constexpr std::chrono::seconds kFinalizeLimit{10};

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

// --- The thread ----------------------------------------------------------------------

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
    fail(group.id, status_of(error));
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
      fail(id, status_of(error));
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
// there were any.
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
  return !waiting.empty();
}

// --- The end -------------------------------------------------------------------------

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
