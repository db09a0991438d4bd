// Operations of ranks while others have joined. The engine calls these functions under
// its progress lock. docs/data-plane.md describes the protocol.
//
// A rank that joins sends JOIN to all peers. From then on each rank announces its
// operations to the members that have joined, with ANNOUNCE; these take part with
// neutral values, although their programs do not call the operation. The engine answers
// calls that it carries out itself. A call that the library of a device carries out
// needs memory of the device, so it waits in `announced_` until the program, which
// waits for the others to join, takes it and makes the same call. While nobody has
// joined, a call costs one comparison more.
#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>
#include <utility>

#include "engine/announcement.h"
#include "engine/collectives/allreduce.h"
#include "engine/describe.h"
#include "engine/dispatcher.h"
#include "engine/layout.h"
#include "engine/neutral.h"
#include "engine/planner.h"

namespace bluecomm {
namespace {

// The limit of an operation in which this rank takes part for others. They have
// deadlines of their own, and their ABORT ends it.
constexpr std::chrono::hours kAnswerLimit{24 * 365};

using Standing = Matching::Standing;

// Returns the length of this rank's result of a reducescatter.
std::size_t own_rows_nbytes(const Call& call) {
  if (call.shape.empty() || call.shape.front() == 0) return 0;
  const std::int64_t rows = share_rows(
      call.shape.front(), call.group->size())[static_cast<std::size_t>(call.group->me)];
  return call.input.size() / static_cast<std::size_t>(call.shape.front()) *
         static_cast<std::size_t>(rows);
}

// Returns the call of which another rank has told, without group and memory.
Call announced_call(const Envelope& theirs, Announcement announcement) {
  Call call;
  call.kind = theirs.kind;
  call.name = std::move(announcement.name);
  call.dtype = theirs.dtype;
  call.shape = std::move(announcement.shape);
  call.splits = std::move(announcement.splits);
  call.op = theirs.op;
  call.prescale = theirs.prescale;
  call.postscale = theirs.postscale;
  call.local_only = theirs.local_only != 0;
  return call;
}

}  // namespace

void Dispatcher::join() {
  if (joining_.is_joined()) return;
  joined_at_ = requests_.next_id();
  Envelope message;
  message.job = job_;
  message.type = MessageType::kJoin;
  message.key.epoch = config_.epoch;
  message.key.sequence = joining_.enter();
  for (int rank = 0; rank < config_.size; ++rank) post(rank, message, {});
}

Dispatcher::JoinReport Dispatcher::join_report() const {
  return {joining_.answers(), matching_.unused_sequence()};
}

void Dispatcher::leave_join(std::uint32_t sequence) {
  joining_.leave();
  announced_.clear();
  taken_.reset();
  matching_.restart(sequence);
}

void Dispatcher::handle_join(int peer, std::uint32_t round) {
  joining_.note(peer, round);
  for (const Operation* const operation : operations_) {
    // Operations that began after this rank joined are answers, or the round's barrier.
    if (!joining_.is_joined() || operation->id() < joined_at_) announce(*operation);
  }
}

// Tells the members that have joined about an operation, unless they take part in it
// because they have taken part in the one before.
void Dispatcher::announce(const Operation& operation) {
  const Call& call = operation.call();
  if (call.follows) return;
  std::vector<std::byte> payload = to_payload(call);
  // Without the whole payload, the member answers that it cannot take part.
  if (payload.size() > Channel::kMaxPost) payload.clear();
  Envelope message = operation.envelope();
  message.type = MessageType::kAnnounce;
  for (const int rank : participants(operation)) {
    if (joining_.is_joined(rank)) post(rank, message, payload);
  }
}

// Takes part in an operation of other ranks, or tells them that it cannot. Does nothing
// if this rank has called the operation before it joined, or has answered already.
void Dispatcher::handle_announcement(int peer, const Envelope& theirs,
                                     std::string_view payload) {
  if (!joining_.is_joined() || groups_.was_removed(theirs.key.group) ||
      matching_.standing(theirs.key) != Standing::kFuture) {
    return;
  }
  const std::shared_ptr<const Group> group = groups_.find(theirs.key.group);
  if (!group) {
    // Its members make it with the operations for which they need it, such as a pair.
    send_abort(peer, theirs, joined_status(theirs));
    return;
  }
  if (matching_.has_failed(theirs.key)) {
    refuse_announcement(peer, theirs);
    return;
  }
  Call call;
  try {
    if (!kind_info(theirs.kind).has_neutral) {
      throw std::invalid_argument("the operation needs data of all ranks");
    }
    call = announced_call(theirs, read_announcement(theirs, payload));
  } catch (const std::invalid_argument&) {
    refuse_announcement(peer, theirs);
    return;
  }
  call.group = group;
  if (theirs.algorithm == Algorithm::kTicket) {
    keep_announced({peer, theirs, std::move(call)});
  } else {
    answer(peer, theirs, std::move(call));
  }
}

// Keeps a call for take_announced(), unless another member has announced it before.
void Dispatcher::keep_announced(AnnouncedCall announced) {
  const auto is_same = [&key = announced.envelope.key](const AnnouncedCall& one) {
    return one.envelope.key == key;
  };
  if (taken_ && is_same(*taken_)) return;
  if (std::any_of(announced_.begin(), announced_.end(), is_same)) return;
  announced_.push_back(std::move(announced));
}

std::optional<Call> Dispatcher::take_announced() {
  if (taken_ && matching_.standing(taken_->envelope.key) == Standing::kFuture) {
    refuse_announcement(taken_->peer, taken_->envelope);
  }
  taken_.reset();
  while (!announced_.empty()) {
    AnnouncedCall one = std::move(announced_.front());
    announced_.pop_front();
    const Key& key = one.envelope.key;
    const bool is_open = matching_.standing(key) == Standing::kFuture;
    if (!is_open || !groups_.find(key.group)) continue;
    if (one.call.group->size() == config_.size) joining_.count_answer();
    matching_.continue_at(key);
    taken_ = std::move(one);
    return taken_->call;
  }
  return std::nullopt;
}

// Takes part in an operation that the engine carries out.
void Dispatcher::answer(int peer, const Envelope& theirs, Call call) {
  // The others may have chosen it, or have left it to the thresholds.
  if (call.kind == Kind::kAllreduce && call.op != ReduceOp::kAdasum &&
      can_be_chosen(theirs.algorithm)) {
    call.algorithm = theirs.algorithm;
  }
  call.deadline = Clock::now() + kAnswerLimit;
  const bool is_everybody = call.group->size() == config_.size;
  try {
    Result memory = give_neutral(call);
    const RequestId id =
        add(std::move(call), theirs.key, CalledBy::kOthers, requests_.next_id());
    operation(id).set_result(std::move(memory));
    answers_.push_back(id);
  } catch (const std::exception&) {
    // The memory does not suffice, or the call is invalid on the other ranks, too.
    refuse_announcement(peer, theirs);
    return;
  }
  if (is_everybody) joining_.count_answer();
}

// Points a call to memory with the neutral value, and returns that memory.
Result Dispatcher::give_neutral(Call& call) const {
  if (!kind_info(call.kind).is_reduction) return {};
  const std::size_t nbytes = nbytes_of(call.shape, call.dtype);
  if (nbytes == 0) return {};
  const bool in_place = call.kind == Kind::kAllreduce;
  // A reducescatter writes at most as much as it reads.
  Result memory = config_.allocate(in_place ? nbytes : 2 * nbytes);
  const std::span<std::byte> input = memory.bytes.first(nbytes);
  fill_neutral(input, call.dtype, call.op, call.prescale);
  call.input = input;
  call.output = in_place ? input : memory.bytes.subspan(nbytes, own_rows_nbytes(call));
  return memory;
}

// Tells the ranks that take part in an operation that this one does not, once: before
// any message of a later operation of the name, which they would not understand.
void Dispatcher::refuse_announcement(int peer, const Envelope& theirs) {
  const bool is_known = matching_.has_failed(theirs.key);
  matching_.remember_failure(theirs.key);  // its messages and ABORTs are ignored
  const Status status = joined_status(theirs);
  if (kind_info(theirs.kind).spares_group) {
    send_abort(peer, theirs, status);
  } else if (!is_known) {
    for (const int rank : group(theirs.key.group)->ranks) {
      send_abort(rank, theirs, status);
    }
  }
}

// Returns why this rank, which has joined, takes no part in an operation of others.
Status Dispatcher::joined_status(const Envelope& theirs) const {
  return {Code::kMismatch,
          describe_operation(theirs, theirs.name_text()) + ": " +
              peers_.describe_rank(config_.rank) +
              " has joined. It takes part only in barrier, reducescatter and allreduce "
              "(of at most 500 tensors for adasum). Call other operations before the "
              "first rank joins, or among ranks that have not joined.",
          config_.rank};
}

// Forgets the operations that this rank has answered and that have ended.
void Dispatcher::release_answers() {
  std::erase_if(answers_, [this](RequestId id) {
    if (!requests_.at(id)->done()) return false;
    requests_.release(id);
    return true;
  });
}

}  // namespace bluecomm
