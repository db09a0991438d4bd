// The states of one call through NCCL. The engine calls the functions of the ticket
// under its progress lock, the thread of the queue those that change the state, and
// threads of the program the others. No lock is held while the queue is called.
#include "device/nccl_call.h"

#include <utility>

#include "device/nccl_offer.h"
#include "device/nccl_queue.h"

namespace bluecomm::device {

NcclCall::NcclCall(const std::shared_ptr<NcclQueue>& queue, NcclGroup group,
                   NcclWork work, std::shared_ptr<StreamPoint> ready, Limit limit)
    : queue_(queue),
      device_(queue->device()),
      awaits_device_(queue->awaits_device()),
      group_(std::move(group)),
      offer_(queue->offer(group_, work)),
      work_(std::move(work)),
      ready_(std::move(ready)),
      limit_(limit) {}

NcclCall::NcclCall(const std::shared_ptr<NcclQueue>& queue, const NcclCall& draft,
                   const NcclGroup& group)
    : NcclCall(queue, group, renumber(draft.work_, draft.group_, group), draft.ready_,
               draft.limit_) {}

std::shared_ptr<NcclQueue> NcclCall::queue() const {
  if (std::shared_ptr<NcclQueue> queue = queue_.lock()) return queue;
  throw TicketFailure({Code::kClosed, "the queue of NCCL has ended", -1});
}

void NcclCall::check_offers(std::span<const std::byte> offers) {
  check_nccl_offers(offers, offer_.size());
  may_have_number_ = true;
}

std::uint64_t NcclCall::propose() {
  proposal_ = queue()->propose();
  may_have_number_ = true;
  return proposal_;
}

void NcclCall::write_answer(std::span<const std::uint64_t> proposals,
                            std::span<std::byte> answer) {
  proposal_ = queue()->write_answer(group_, proposals, answer);
}

void NcclCall::take_answer(std::span<const std::byte> answer) {
  queue()->add(shared_from_this(), std::exchange(proposal_, 0), answer);
}

void NcclCall::fail(const Status& status) {
  set_failed(status);
  if (const std::shared_ptr<NcclQueue> queue = queue_.lock()) {
    if (proposal_ != 0) queue->withdraw(std::exchange(proposal_, 0));
    // No device waits for a call that nobody can have issued, so its communicator is
    // still of use after a deadline. After a member has freed the group, or shut down,
    // it carries out the calls that have a number. Other failures concern later calls,
    // too.
    const bool is_of_one_call =
        status.code == Code::kTimedOut || is_withdrawal(status.code);
    if (is_of_one_call && !may_have_number_) return;
    queue->note_failed_ticket(group_.id, status);
  }
}

std::vector<LibraryMessage> NcclCall::messages() const {
  std::vector<LibraryMessage> messages;
  const auto add = [&](const std::vector<NcclMessage>& those, bool are_sent) {
    for (const NcclMessage& one : those) {
      if (one.peer == group_.rank) continue;
      const int peer = group_.ranks[static_cast<std::size_t>(one.peer)];
      messages.push_back({peer, are_sent, one.nbytes});
    }
  };
  add(work_.sends, true);
  add(work_.receives, false);
  return messages;
}

std::optional<Status> NcclCall::poll() {
  const LockGuard lock(mutex_);
  switch (state_) {
    case State::kWaiting:
      return std::nullopt;
    case State::kIssued:
      if (awaits_device_ && is_in_use_) return std::nullopt;
      return Status{};
    case State::kFailed:
      break;
  }
  return status_;
}

std::optional<Status> NcclCall::follow(CudaStream stream) const {
  std::shared_ptr<StreamPoint> done;
  {
    const LockGuard lock(mutex_);
    if (state_ == State::kFailed) return status_;
    done = done_;
  }
  if (!done) return Status{Code::kInternal, "NCCL has not got the call yet", -1};
  device_->wait_for(*done, stream);
  return std::nullopt;
}

bool NcclCall::has_ended() const {
  const LockGuard lock(mutex_);
  return state_ != State::kWaiting && !is_in_use_;
}

bool NcclCall::is_waiting() const {
  const LockGuard lock(mutex_);
  return state_ == State::kWaiting;
}

bool NcclCall::begin() {
  const LockGuard lock(mutex_);
  is_in_use_ = state_ == State::kWaiting;
  return is_in_use_;
}

void NcclCall::set_issued(std::shared_ptr<StreamPoint> done) {
  const LockGuard lock(mutex_);
  if (state_ != State::kWaiting) return;
  state_ = State::kIssued;
  done_ = std::move(done);
}

void NcclCall::set_failed(const Status& status) {
  const LockGuard lock(mutex_);
  // The result of a call that has ended is right.
  if (state_ == State::kFailed || (state_ == State::kIssued && !is_in_use_)) return;
  state_ = State::kFailed;
  status_ = status;
}

void NcclCall::set_ended() {
  const LockGuard lock(mutex_);
  is_in_use_ = false;
}

}  // namespace bluecomm::device
