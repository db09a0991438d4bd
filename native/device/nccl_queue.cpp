// Passes calls to NCCL. The engine numbers the calls (NcclCall is its ticket), so that
// all ranks issue them in one order; docs/notes/nccl-backend.md says why. All functions
// from run() on belong to the queue's thread, which owns the communicator and never
// waits for longer than it takes to notice a failure.
#include "device/nccl_queue.h"

#include <array>
#include <cstring>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "common/quiet_thread.h"
#include "common/seconds.h"

namespace bluecomm::device {
namespace {

// How often the thread looks at the device and at a communicator that is in progress.
constexpr std::chrono::microseconds kInterval{200};

// How long suspend() waits for the thread.
constexpr std::chrono::seconds kParkLimit{5};

// What follows from each failure. The text of another rank may have it already.
constexpr std::string_view kOutcome =
    "; NCCL's communicator was aborted, and bluecomm makes another one only after "
    "shutdown() and init()";

// A member's facts, which rank 0 compares. The peers of an exchange follow: a bit for
// each rank to which it sends, and one for each from which it receives.
struct Offer {
  std::int32_t version = 0;  // of NCCL
  std::array<char, 60> device{};
};

struct NumberAnswer {
  std::uint64_t number = 0;
  NcclId id;
};
static_assert(sizeof(NumberAnswer) <= Ticket::kAnswerBytes);

void add_peers(std::vector<std::byte>& bytes, const std::vector<NcclMessage>& messages,
               std::size_t nbytes) {
  const std::size_t begin = bytes.size();
  bytes.resize(begin + nbytes);
  for (const NcclMessage& one : messages) {
    const auto peer = static_cast<std::size_t>(one.peer);
    bytes[begin + peer / 8] |= std::byte{1} << (peer % 8);
  }
}

bool has_peer(std::span<const std::byte> bits, std::size_t peer) {
  return (bits[peer / 8] & std::byte{1} << (peer % 8)) != std::byte{0};
}

std::string describe_offer(std::size_t rank, const Offer& offer) {
  return "rank " + std::to_string(rank) + " (" + offer.device.data() + ") has NCCL " +
         describe_nccl_version(offer.version);
}

Status status_of(const std::exception& error) {
  const auto* const nccl = dynamic_cast<const NcclError*>(&error);
  const bool is_remote = nccl != nullptr && nccl->is_remote();
  return {is_remote ? Code::kPeerLost : Code::kInternal, error.what(), -1};
}

}  // namespace

std::shared_ptr<NcclQueue> NcclQueue::open(std::shared_ptr<const NcclLibrary> library,
                                           std::shared_ptr<const CudaDevice> device,
                                           int rank, int size) {
  auto* const made = new NcclQueue(std::move(library), std::move(device), rank, size);
  // A forked child has neither the thread nor the right to call NCCL.
  return {made, [](NcclQueue* queue) {
            if (!queue->device_->in_child()) delete queue;
          }};
}

NcclQueue::NcclQueue(std::shared_ptr<const NcclLibrary> library,
                     std::shared_ptr<const CudaDevice> device, int rank, int size)
    : library_(std::move(library)),
      device_(std::move(device)),
      rank_(rank),
      size_(size),
      stream_(device_->create_stream()) {
  try {
    if (rank == 0) {
      library_->check(library_->call().get_unique_id(&id_), "ncclGetUniqueId", nullptr);
    }
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

std::shared_ptr<NcclCall> NcclQueue::make_call(const NcclWork& work, CudaStream stream,
                                               NcclCall::Limit limit) {
  auto call = std::make_shared<NcclCall>(shared_from_this(), work,
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

std::vector<std::byte> NcclQueue::offer(const NcclWork& work) const {
  Offer offer;
  offer.version = library_->version();
  const std::string name = device_->name();
  name.copy(offer.device.data(), offer.device.size() - 1);
  std::vector<std::byte> bytes(sizeof offer);
  std::memcpy(bytes.data(), &offer, sizeof offer);
  if (work.function == NcclWork::Function::kExchange) {
    add_peers(bytes, work.sends, peers_nbytes());
    add_peers(bytes, work.receives, peers_nbytes());
  }
  return bytes;
}

// Throws unless the destinations of each rank are the sources of the others, since a
// message without its counterpart hangs.
void NcclQueue::check_peers(std::span<const std::byte> offers,
                            std::size_t nbytes) const {
  const auto size = static_cast<std::size_t>(size_);
  const auto peers_of = [&](std::size_t rank, std::size_t offset) {
    return offers.subspan(rank * nbytes + sizeof(Offer) + offset, peers_nbytes());
  };
  for (std::size_t from = 0; from < size; ++from) {
    for (std::size_t to = 0; to < size; ++to) {
      const bool is_sent = has_peer(peers_of(from, 0), to);
      if (is_sent == has_peer(peers_of(to, peers_nbytes()), from)) continue;
      const std::string sender = "rank " + std::to_string(from);
      const std::string receiver = "rank " + std::to_string(to);
      throw std::invalid_argument(
          (is_sent
               ? sender + " sends to " + receiver + ", which does not receive from it"
               : receiver + " receives from " + sender +
                     ", which does not send to it") +
          "; the sources of each rank must match the destinations of the other");
    }
  }
}

void NcclQueue::write_answer(std::span<const std::byte> offers, std::size_t nbytes,
                             std::span<std::byte> answer) {
  Offer first;
  std::memcpy(&first, offers.data(), sizeof first);
  for (std::size_t rank = 1; rank * nbytes < offers.size(); ++rank) {
    Offer other;
    std::memcpy(&other, offers.subspan(rank * nbytes).data(), sizeof other);
    other.device.back() = '\0';
    if (other.version == first.version) continue;
    throw std::invalid_argument(describe_offer(0, first) + ", but " +
                                describe_offer(rank, other) +
                                "; install the same torch and NCCL on all machines, or "
                                "set BLUECOMM_DEVICE_TRANSPORT=staged");
  }
  if (nbytes > sizeof(Offer)) check_peers(offers, nbytes);
  NumberAnswer own;
  own.id = id_;
  {
    const LockGuard lock(mutex_);
    if (failure_) throw TicketFailure(*failure_);
    own.number = next_number_++;
  }
  std::memcpy(answer.data(), &own, sizeof own);
}

void NcclQueue::add(std::shared_ptr<NcclCall> call, std::span<const std::byte> answer) {
  NumberAnswer given;
  std::memcpy(&given, answer.data(), sizeof given);
  std::optional<Status> failed;
  {
    const LockGuard lock(mutex_);
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

std::optional<NcclQueue::Numbered> NcclQueue::take_next() {
  const LockGuard lock(mutex_);
  const auto found = numbered_.find(next_to_issue_);
  if (stop_at_ || is_suspended_ || found == numbered_.end()) return std::nullopt;
  ++next_to_issue_;
  Numbered next = std::move(found->second);
  numbered_.erase(found);
  return next;
}

void NcclQueue::wait_for_change() {
  UniqueLock lock(mutex_);
  park(lock);
  const bool has_news =
      failure_ ? !has_given_up_ : !stop_at_ && numbered_.contains(next_to_issue_);
  if (has_news) return;
  if (!issued_.empty() || aborted_until_) {
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

// Passes a call to NCCL. It is the first that all ranks have yet to issue.
void NcclQueue::issue(const Numbered& next) {
  NcclCall& call = *next.call;
  if (!call.begin()) return;  // its ticket has failed, and so has the queue
  bool is_issued = false;
  try {
    const ContextScope scope(*device_);
    bool is_ready = true;
    if (!comm_) {
      comm_ = std::make_unique<NcclComm>(library_, next.id, rank_, size_);
      is_ready = settle();
    }
    if (is_ready) {
      call.ready().precede(stream_);
      comm_->start(call.work(), stream_);
      is_issued = settle();
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

// Waits until NCCL has done what was started. Returns false if the queue has failed or
// is to stop. Throws NcclError.
bool NcclQueue::settle() {
  while (!comm_->is_settled()) {
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
  comm_->is_settled();
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

// Aborts the communicator, and fails the calls that have not ended; once.
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
    comm_.reset();
    if (aborted_.empty()) return;
    aborted_until_ = std::make_shared<StreamPoint>(device_, stream_);
  } catch (const CudaError&) {
    // The device is unusable. The memory of the calls is never released.
  }
}

// Fails the calls that NCCL has not got. Returns whether there were any.
bool NcclQueue::fail_waiting(const Status& status) {
  std::map<std::uint64_t, Numbered> numbered;
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
    if (comm_ && !is_cut_short && !failure()) finalize(deadline);
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

// Ends the communicator in order. Throws NcclError.
void NcclQueue::finalize(Clock::time_point deadline) {
  if (!aborted_.empty() || !issued_.empty()) {
    throw NcclError("a call was cut short");
  }
  const auto wait = [deadline] {
    if (Clock::now() >= deadline) throw NcclError("the deadline has passed");
    std::this_thread::sleep_for(kInterval);
  };
  const ContextScope scope(*device_);
  comm_->finalize();
  while (!comm_->is_settled()) wait();
  comm_->destroy();
  comm_.reset();
}

}  // namespace bluecomm::device
