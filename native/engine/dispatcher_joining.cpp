// Operations of ranks while others have joined. The engine calls these functions under
// its progress lock. docs/data-plane.md describes the protocol.
//
// A rank that joins sends JOIN to all peers. From then on each rank announces its
// operations to the members that have joined, with ANNOUNCE; these take part with
// neutral values, although their programs do not call the operation. While nobody has
// joined, a call costs one comparison more.
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

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

std::vector<std::byte> to_bytes(const std::vector<std::int64_t>& numbers) {
  std::vector<std::byte> bytes(numbers.size() * sizeof(std::int64_t));
  if (!bytes.empty()) std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}

std::vector<std::int64_t> to_numbers(std::string_view bytes) {
  std::vector<std::int64_t> numbers(bytes.size() / sizeof(std::int64_t));
  if (!numbers.empty()) {
    std::memcpy(numbers.data(), bytes.data(), numbers.size() * sizeof(std::int64_t));
  }
  return numbers;
}

// Returns the number of bytes of a tensor. Throws std::invalid_argument if a dimension
// is negative or the number is too large.
std::size_t nbytes_of(const std::vector<std::int64_t>& shape, DType dtype) {
  std::size_t nbytes = item_size(dtype);
  for (const std::int64_t dim : shape) {
    if (dim < 0 ||
        __builtin_mul_overflow(nbytes, static_cast<std::size_t>(dim), &nbytes)) {
      throw std::invalid_argument("the shape is not that of a tensor");
    }
  }
  return nbytes;
}

// Returns the length of this rank's result of a reducescatter.
std::size_t own_rows_nbytes(const Call& call) {
  if (call.shape.empty() || call.shape.front() == 0) return 0;
  const std::int64_t rows = share_rows(
      call.shape.front(), call.group->size())[static_cast<std::size_t>(call.group->me)];
  return call.input.size() / static_cast<std::size_t>(call.shape.front()) *
         static_cast<std::size_t>(rows);
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
  matching_.restart(sequence);
}

void Dispatcher::handle_join(int peer, std::uint32_t round) {
  joining_.note(peer, round);
  for (const Operation* const operation : operations_) {
    // Operations that began after this rank joined are answers, or the round's barrier.
    if (!joining_.is_joined() || operation->id() < joined_at_) announce(*operation);
  }
}

// Tells the members that have joined about an operation.
void Dispatcher::announce(const Operation& operation) {
  const Call& call = operation.call();
  std::vector<std::int64_t> numbers = call.shape;
  numbers.insert(numbers.end(), call.splits.begin(), call.splits.end());
  std::vector<std::byte> payload = to_bytes(numbers);
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
  const std::shared_ptr<const Group> group = groups_.find(theirs.key.group);
  if (!joining_.is_joined() || !group ||
      matching_.standing(theirs.key) != Matching::Standing::kFuture) {
    return;
  }
  const std::vector<std::int64_t> numbers = to_numbers(payload);
  if (!kind_info(theirs.kind).has_neutral || numbers.size() < theirs.ndim ||
      theirs.algorithm == Algorithm::kTicket) {
    refuse_announcement(peer, theirs);
    return;
  }
  const auto split = numbers.begin() + static_cast<std::ptrdiff_t>(theirs.ndim);
  Call call;
  call.kind = theirs.kind;
  call.name = theirs.name_text();
  call.group = group;
  call.dtype = theirs.dtype;
  call.shape.assign(numbers.begin(), split);
  call.splits.assign(split, numbers.end());
  call.op = theirs.op;
  call.prescale = theirs.prescale;
  call.postscale = theirs.postscale;
  call.local_only = theirs.local_only != 0;
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
  const std::string text =
      describe_operation(theirs, theirs.name_text()) + ": " +
      peers_.describe_rank(config_.rank) +
      " has joined. It takes part only in barrier, reducescatter and allreduce (of at "
      "most 500 tensors for adasum), and in none through NCCL. Call other operations "
      "before the first rank joins, or among ranks that have not joined.";
  const Status status{Code::kMismatch, text, config_.rank};
  if (kind_info(theirs.kind).spares_group) {
    send_abort(peer, theirs, status);
  } else if (!is_known) {
    for (const int rank : group(theirs.key.group)->ranks) {
      send_abort(rank, theirs, status);
    }
  }
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
