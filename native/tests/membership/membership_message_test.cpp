#include "engine/membership/membership_message.h"

#include "tests/check.h"
#include "transport/channel.h"

namespace bluecomm::test {
namespace {

MembershipMessage make_message(MembershipAction action, int size = 10) {
  MembershipMessage message;
  message.action = action;
  message.number = 7;
  message.epoch = 0x0123456789ABCDEF;
  message.size = size;
  message.from = 3;
  message.proposal.survivors = MemberSet(size);
  message.accusations = Accusations(size);
  const bool has_ballot = action != MembershipAction::kSuspect &&
                          action != MembershipAction::kCommit &&
                          action != MembershipAction::kClaim;
  if (has_ballot) message.ballot = {4, 3};
  switch (action) {
    case MembershipAction::kReport:
      message.other = {2, 9};
      message.limit = 1000;
      [[fallthrough]];
    case MembershipAction::kPrepare:
      message.accusations.dead.insert(size - 1);
      [[fallthrough]];
    case MembershipAction::kCommit:
      message.proposal.first_round = 1016;
      message.proposal.survivors.insert(0);
      message.proposal.survivors.insert(8);
      break;
    case MembershipAction::kSuspect:
    case MembershipAction::kGather:
      message.accusations.silent.insert(0);
      message.accusations.stopped.insert(1);
      message.accusations.broken.insert(2);
      message.accusations.dead.insert(9);
      break;
    case MembershipAction::kNack:
      message.other = {5, 0};
      break;
    case MembershipAction::kClaim:
      message.limit = 2;
      message.proposal.survivors.insert(0);
      message.proposal.survivors.insert(3);
      break;
    case MembershipAction::kAck:
      break;
  }
  return message;
}

constexpr MembershipAction kActions[] = {
    MembershipAction::kSuspect, MembershipAction::kGather, MembershipAction::kReport,
    MembershipAction::kPrepare, MembershipAction::kAck,    MembershipAction::kNack,
    MembershipAction::kCommit,  MembershipAction::kClaim,
};

bool is_accepted(const MembershipMessage& message) {
  return decode_membership_message(encode(message)).has_value();
}

TEST(membership_message, survives_the_wire) {
  for (const MembershipAction action : kActions) {
    for (const int size : {10, 64, 65, MembershipMessage::kMaxMembers}) {
      const MembershipMessage sent = make_message(action, size);
      const auto bytes = encode(sent);
      CHECK(bytes.size() <= Channel::kMaxPost);
      const auto got = decode_membership_message(bytes);
      REQUIRE(got.has_value());
      CHECK(*got == sent);
    }
  }
}

TEST(membership_message, rejects_other_lengths) {
  for (const MembershipAction action : kActions) {
    auto bytes = encode(make_message(action));
    bytes.push_back(std::byte{0});
    CHECK(!decode_membership_message(bytes).has_value());
    while (!bytes.empty()) {
      bytes.pop_back();
      const bool is_whole = bytes.size() == encode(make_message(action)).size();
      CHECK_EQ(decode_membership_message(bytes).has_value(), is_whole);
    }
  }
}

TEST(membership_message, rejects_values_that_no_member_sends) {
  for (void (*spoil)(MembershipMessage&) : {
           +[](MembershipMessage& one) { one.action = MembershipAction{0}; },
           +[](MembershipMessage& one) { one.action = MembershipAction{8}; },
           +[](MembershipMessage& one) { one.from = 10; },
           +[](MembershipMessage& one) { one.from = -1; },
           +[](MembershipMessage& one) { one.ballot = {}; },
           +[](MembershipMessage& one) { one.ballot.rank = 10; },
           +[](MembershipMessage& one) { one.ballot.rank = -1; },
           +[](MembershipMessage& one) { one.other = {1, 10}; },
           +[](MembershipMessage& one) { one.other = {5, 3}; },  // above the ballot
           +[](MembershipMessage& one) { one.other = {}; },      // but a proposal
           +[](MembershipMessage& one) { one.proposal.survivors = MemberSet(10); },
           +[](MembershipMessage& one) { one.accusations.dead.insert(one.from); },
       }) {
    MembershipMessage message = make_message(MembershipAction::kReport);
    CHECK(is_accepted(message));
    spoil(message);
    CHECK(!is_accepted(message));
  }
  // Only the proposer asks.
  for (const auto action : {MembershipAction::kGather, MembershipAction::kPrepare}) {
    MembershipMessage message = make_message(action);
    message.ballot.rank = 2;
    CHECK(!is_accepted(message));
  }
  MembershipMessage nack = make_message(MembershipAction::kNack);
  nack.other = nack.ballot;
  CHECK(!is_accepted(nack));
}

TEST(membership_message, rejects_fields_of_other_actions) {
  MembershipMessage ack = make_message(MembershipAction::kAck);
  CHECK(is_accepted(ack));
  for (void (*spoil)(MembershipMessage&) : {
           +[](MembershipMessage& one) { one.other = {9, 0}; },
           +[](MembershipMessage& one) { one.other.rank = 1; },
           +[](MembershipMessage& one) { one.limit = 1; },
           +[](MembershipMessage& one) { one.proposal.first_round = 1; },
           +[](MembershipMessage& one) { one.proposal.survivors.insert(1); },
           +[](MembershipMessage& one) { one.accusations.silent.insert(1); },
       }) {
    MembershipMessage message = ack;
    spoil(message);
    CHECK(!is_accepted(message));
  }
}

TEST(membership_message, rejects_members_beyond_the_size) {
  auto bytes = encode(make_message(MembershipAction::kCommit));
  // The second byte of the survivors has two bits for members 8 and 9.
  const std::size_t survivors = bytes.size() - 10;
  bytes[survivors + 1] |= std::byte{4};
  CHECK(!decode_membership_message(bytes).has_value());
}

}  // namespace
}  // namespace bluecomm::test
