// Writes and reads the messages of the membership protocol: a head of fixed size, and
// five sets of one bit for each member. The bytes of a message are unique, so a reader
// accepts exactly those that encode() writes. They come from peers: the ranks in a
// decoded message are below its size, and its sets have that size.
#include "engine/membership/membership_message.h"

#include <array>
#include <utility>

#include "transport/channel.h"

namespace bluecomm {
namespace {

// The fields that the messages of an action have. The others are zero.
struct CarriedFields {
  bool ballot = true;
  bool other = false;
  bool limit = false;
  bool proposal = false;
  bool accusations = false;
};

CarriedFields fields_of(const MembershipMessage& message) {
  switch (message.action) {
    case MembershipAction::kSuspect:
      return {.ballot = false, .accusations = true};
    case MembershipAction::kGather:
      return {.accusations = true};
    case MembershipAction::kReport: {
      const bool has_accepted = message.other.is_set();
      return {.other = has_accepted,
              .limit = true,
              .proposal = has_accepted,
              .accusations = true};
    }
    case MembershipAction::kPrepare:
      return {.proposal = true, .accusations = true};
    case MembershipAction::kCommit:
      return {.ballot = false, .proposal = true};
    case MembershipAction::kClaim:
      return {.ballot = false, .limit = true, .proposal = true};
    case MembershipAction::kAck:
      return {};
    case MembershipAction::kNack:
      return {.other = true};
  }
  return {};
}

// The head: action, number, epoch, size, from, two ballots, limit, first round.
constexpr std::size_t kHeadBytes = 1 + 4 + 8 + 4 + 4 + 2 * 8 + 8 + 8;
constexpr std::size_t kSets = 5;

constexpr std::size_t message_bytes(int size) {
  return kHeadBytes + kSets * ((static_cast<std::size_t>(size) + 7) / 8);
}
static_assert(message_bytes(MembershipMessage::kMaxMembers) <= Channel::kMaxPost);

// Both ends of a wire walk through the fields of a message in the same order.
class WireWriter {
 public:
  template <typename T>
  void number(const T& value, std::size_t nbytes) {
    const auto bits = static_cast<std::uint64_t>(value);
    for (std::size_t i = 0; i < nbytes; ++i) {
      bytes_.push_back(static_cast<std::byte>(bits >> (8 * i)));
    }
  }
  void set(const MemberSet& set, int size) {
    for (int low = 0; low < size; low += 8) {
      unsigned byte = 0;
      for (int rank = low; rank < low + 8 && rank < set.size(); ++rank) {
        if (set.contains(rank)) byte |= 1U << (rank - low);
      }
      bytes_.push_back(static_cast<std::byte>(byte));
    }
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

// Reads as many bytes as the caller has checked that there are.
class WireReader {
 public:
  explicit WireReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <typename T>
  void number(T& value, std::size_t nbytes) {
    std::uint64_t bits = 0;
    for (std::size_t i = 0; i < nbytes; ++i) {
      bits |= std::to_integer<std::uint64_t>(rest_[i]) << (8 * i);
    }
    value = static_cast<T>(bits);
    rest_ = rest_.subspan(nbytes);
  }
  void set(MemberSet& set, int size) {
    set = MemberSet(size);
    for (int low = 0; low < size; low += 8) {
      const auto byte = std::to_integer<unsigned>(rest_.front());
      rest_ = rest_.subspan(1);
      for (int bit = 0; bit < 8; ++bit) {
        if ((byte >> bit & 1) == 0) continue;
        if (low + bit >= size) valid_ = false;
        if (low + bit < size) set.insert(low + bit);
      }
    }
  }
  bool valid() const { return valid_; }

 private:
  std::span<const std::byte> rest_;
  bool valid_ = true;
};

template <typename Wire, typename Message>
void walk_head(Wire& wire, Message& message) {
  wire.number(message.action, 1);
  wire.number(message.number, 4);
  wire.number(message.epoch, 8);
  wire.number(message.size, 4);
  wire.number(message.from, 4);
  for (auto* ballot : {&message.ballot, &message.other}) {
    wire.number(ballot->counter, 4);
    wire.number(ballot->rank, 4);
  }
  wire.number(message.limit, 8);
  wire.number(message.proposal.first_round, 8);
}

template <typename Wire, typename Message>
void walk_sets(Wire& wire, Message& message) {
  auto& said = message.accusations;
  for (auto* set : {&message.proposal.survivors, &said.silent, &said.stopped,
                    &said.broken, &said.dead}) {
    wire.set(*set, message.size);
  }
}

bool has_valid_ballots(const MembershipMessage& message, const CarriedFields& fields) {
  for (const auto& [ballot, is_carried] :
       {std::pair{message.ballot, fields.ballot}, {message.other, fields.other}}) {
    if (ballot.is_set() != is_carried) return false;
    if (ballot.rank < 0 || ballot.rank >= message.size) return false;
    if (!is_carried && ballot.rank != 0) return false;
  }
  switch (message.action) {
    case MembershipAction::kGather:
    case MembershipAction::kPrepare:
      return message.ballot.rank == message.from;
    case MembershipAction::kReport:
      return message.other <= message.ballot;
    case MembershipAction::kNack:
      return message.other > message.ballot;
    default:
      return true;
  }
}

bool has_valid_content(const MembershipMessage& message, const CarriedFields& fields) {
  const Accusations& said = message.accusations;
  if (!fields.limit && message.limit != 0) return false;
  if (message.proposal.survivors.empty() == fields.proposal) return false;
  if (!fields.proposal && message.proposal.first_round != 0) return false;
  if (!fields.accusations && !said.empty()) return false;
  if (message.action == MembershipAction::kClaim &&
      (message.limit < 1 || message.limit > 3 || message.proposal.first_round != 0 ||
       !message.proposal.survivors.contains(message.from))) {
    return false;
  }
  for (const MemberSet* set : {&said.silent, &said.stopped, &said.broken, &said.dead}) {
    if (set->contains(message.from)) return false;
  }
  return true;
}

}  // namespace

std::vector<std::byte> encode(const MembershipMessage& message) {
  WireWriter wire;
  walk_head(wire, message);
  walk_sets(wire, message);
  return wire.take();
}

std::optional<MembershipMessage> decode_membership_message(
    std::span<const std::byte> bytes) {
  if (bytes.size() < kHeadBytes) return std::nullopt;
  MembershipMessage message;
  WireReader head(bytes);
  walk_head(head, message);
  if (message.action < MembershipAction::kSuspect ||
      message.action > MembershipAction::kClaim || message.size < 1 ||
      message.size > MembershipMessage::kMaxMembers || message.from < 0 ||
      message.from >= message.size || bytes.size() != message_bytes(message.size)) {
    return std::nullopt;
  }
  WireReader sets(bytes.subspan(kHeadBytes));
  walk_sets(sets, message);
  const CarriedFields fields = fields_of(message);
  if (!sets.valid() || !has_valid_ballots(message, fields) ||
      !has_valid_content(message, fields)) {
    return std::nullopt;
  }
  return message;
}

}  // namespace bluecomm
