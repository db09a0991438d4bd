// How a rank refuses a call: its program has passed arguments that are wrong on this
// rank alone, or at least were found to be wrong before the call started. The engine
// calls these functions under its progress lock.
//
// A refused call takes the number that it would have had, so that later calls of the
// name still meet the right partners. The other ranks' calls of that number fail at
// once with the reason, by the same ABORT as for an operation that has failed. If they
// refuse the call, too, nothing is left of it.
#include <algorithm>
#include <stdexcept>
#include <utility>

#include "engine/describe.h"
#include "engine/dispatcher.h"
#include "engine/planner.h"

namespace bluecomm {
namespace {

// Returns the members of the group that `call` names as its neighbors.
std::vector<int> neighbors(const Call& call) {
  std::vector<int> ranks;
  for (const auto* const list : {&call.sources, &call.destinations}) {
    for (const auto& [member, weight] : *list) {
      if (member < 0 || member >= call.group->size()) continue;
      ranks.push_back(call.group->ranks[static_cast<std::size_t>(member)]);
    }
  }
  return ranks;
}

// Returns the members of the group that are on this rank's machine.
std::vector<int> machine_mates(const Group& group) {
  std::vector<int> ranks;
  const auto me = static_cast<std::size_t>(group.me);
  for (std::size_t i = 0; i < group.ranks.size(); ++i) {
    if (group.machine_of[i] == group.machine_of[me]) ranks.push_back(group.ranks[i]);
  }
  return ranks;
}

// Returns the ranks that take part in a call that has no plan.
std::vector<int> participants_of(const Call& call) {
  if (kind_info(call.kind).spares_group) return neighbors(call);
  return call.local_only ? machine_mates(*call.group) : call.group->ranks;
}

}  // namespace

void Dispatcher::refuse(const Call& call, const Status& reason, Informed whom) {
  if (closing_) return;
  // The key of a pairwise call contains the pair.
  if (kind_info(call.kind).is_pairwise && call.sources.empty()) return;
  const std::uint64_t name = name_hash(call);
  const std::uint32_t sequence = matching_.next_sequence(call.group->id, name);
  refuse(call, {call.group->id, name, config_.epoch, sequence}, reason,
         whom == Informed::kGroup ? call.group->ranks : participants_of(call));
}

void Dispatcher::refuse(const Call& call, const Key& key, const Status& reason,
                        std::vector<int> ranks) {
  matching_.skip(key);
  matching_.remember_failure(key);
  const Envelope envelope =
      make_envelope(call, Algorithm::kFlat, job_, key.epoch, key.sequence);
  const char* const verb = reason.code == Code::kMismatch
                               ? " refused its call: "
                               : " takes no part, because its call has failed before: ";
  const Status status{reason.code,
                      describe_operation(envelope, call.name) + ": " +
                          peers_.describe_rank(config_.rank) + verb + reason.text,
                      reason.rank < 0 ? config_.rank : reason.rank};
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  std::erase(ranks, config_.rank);
  for (const int rank : ranks) send_abort(rank, envelope, status);
}

Plan Dispatcher::plan_or_refuse(const Call& call, const Key& key) {
  try {
    return make_plan(call, config_.tuning);
  } catch (const std::invalid_argument& error) {
    refuse(call, key, {Code::kMismatch, std::string("ValueError: ") + error.what(), -1},
           participants_of(call));
    throw;
  }
}

}  // namespace bluecomm
