// Messages about the membership, which other ranks send.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <optional>
#include <vector>

#include "engine/membership/membership.h"
#include "fuzz/fuzz.h"

namespace {

using namespace bluecomm;

constexpr int kMembers = 3;

Epoch first_epoch() {
  Epoch epoch;
  for (Uid uid = 1; uid <= kMembers; ++uid) epoch.members.push_back({uid, 0});
  return epoch;
}

// Takes a message from the input, and has the fields that anybody knows set right if
// the input wants it.
std::optional<MembershipMessage> next_message(fuzz::Input& input, const Epoch& epoch) {
  const bool knows_epoch = input.byte() % 4 != 0;
  const std::size_t size = input.byte();
  const auto bytes = input.take(size);
  auto message = decode_membership_message(bytes);
  if (!message) return message;
  const auto again = encode(*message);
  MUST(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()));
  if (knows_epoch) {
    message->number = epoch.number;
    message->epoch = epoch.id();
  }
  return message;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  Membership::Time now{std::chrono::seconds(1)};
  Membership membership(first_epoch(), 1, now);
  while (!input.empty()) {
    now += std::chrono::milliseconds(input.byte());
    const auto message = next_message(input, membership.epoch());
    if (!message) {
      membership.tick(now);
      continue;
    }
    const std::uint32_t number = membership.epoch().number;
    // From whom it says that it is, unless nobody else can be.
    const Epoch& epoch = membership.epoch();
    const bool is_other =
        message->from < epoch.size() && epoch.rank_of(1) != message->from;
    const auto rank = static_cast<std::size_t>(message->from);
    const Uid sender = is_other ? epoch.members[rank].uid : Uid{7};
    membership.receive(sender, *message, now);
    MUST(membership.epoch().number - number <= 1);
    MUST(membership.epoch().rank_of(1).has_value());
    for (const Membership::Post& post : membership.take_posts()) {
      MUST(post.to != 1);
      MUST(decode_membership_message(encode(post.message)) == post.message);
    }
  }
  return 0;
}
