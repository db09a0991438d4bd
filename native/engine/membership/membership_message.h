#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/membership/suspicions.h"
#include "engine/membership/voter.h"

// The messages by which members agree on the next epoch; docs/membership.md describes
// the protocol. On the wire a message is the payload of a post, of at most
// Channel::kMaxPost bytes.

namespace bluecomm {

enum class MembershipAction : std::uint8_t {
  kSuspect = 1,  // the sender's accusations have changed, or it waits for a decision
  kGather,       // asks for a report, and to take part in no lower ballot
  kReport,       // answers: the sender's round, and the proposal that it has accepted
  kPrepare,      // asks to accept a proposal
  kAck,          // the sender has accepted it
  kNack,         // the sender has promised itself to a higher ballot
  kCommit,       // the proposal is decided
  kClaim,        // the sender has left the epoch, and goes on with these members
};

struct MembershipMessage {
  // More members than this are refused.
  static constexpr int kMaxMembers = 4096;

  MembershipAction action = MembershipAction::kSuspect;
  // The epoch whose successor is decided; ranks and sets are those of this epoch.
  std::uint32_t number = 0;
  std::uint64_t epoch = 0;  // Epoch::id()
  int size = 0;
  int from = 0;

  Ballot ballot;  // all but kSuspect, kCommit and kClaim
  Ballot other;   // kReport: the accepted ballot, if any; kNack: the promised one
  // kReport: the sender starts no round from this one on; kClaim: Secession::Stage.
  std::uint64_t limit = 0;
  Proposal proposal;        // kReport, if one was accepted; kPrepare, kCommit, kClaim
  Accusations accusations;  // kSuspect, kGather, kReport; kPrepare: the dead

  bool operator==(const MembershipMessage&) const = default;
};

std::vector<std::byte> encode(const MembershipMessage& message);

// Returns nothing for bytes that encode() of this version cannot have written.
std::optional<MembershipMessage> decode_membership_message(
    std::span<const std::byte> bytes);

}  // namespace bluecomm
