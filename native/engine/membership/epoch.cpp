#include "engine/membership/epoch.h"

#include <cstddef>

#include "engine/envelope.h"

namespace bluecomm {
namespace {

std::uint64_t mix_number(std::uint64_t hash, std::uint64_t value) {
  return hash_bytes({reinterpret_cast<const char*>(&value), sizeof value}, hash);
}

}  // namespace

std::optional<int> Epoch::rank_of(Uid uid) const {
  for (int rank = 0; rank < size(); ++rank) {
    if (members[static_cast<std::size_t>(rank)].uid == uid) return rank;
  }
  return std::nullopt;
}

std::uint64_t Epoch::id() const {
  std::uint64_t hash = mix_number(mix_number(3, number), lineage);
  hash = mix_number(hash, first_round);
  for (const Member& member : members) {
    hash = mix_number(mix_number(hash, member.uid), member.host);
  }
  return hash;
}

Epoch next_epoch(const Epoch& base, const MemberSet& survivors,
                 std::uint64_t first_round) {
  const int size = survivors.count();
  Epoch next{base.number + 1, base.lineage, first_round, {}};
  next.members.reserve(static_cast<std::size_t>(size));
  int mover = survivors.lowest(size);
  for (int rank = 0; rank < size; ++rank) {
    int from = rank;
    if (!survivors.contains(rank)) {
      from = mover;
      mover = survivors.lowest(mover + 1);
    }
    next.members.push_back(base.members[static_cast<std::size_t>(from)]);
  }
  return next;
}

Epoch split_epoch(const Epoch& base, const MemberSet& founders) {
  Epoch first = next_epoch(base, founders, base.first_round);
  std::uint64_t lineage = mix_number(5, base.id());
  for (const Member& member : first.members) lineage = mix_number(lineage, member.uid);
  // No other lineage has the number of the primary.
  first.lineage = lineage == Epoch::kPrimary ? 1 : lineage;
  return first;
}

}  // namespace bluecomm
