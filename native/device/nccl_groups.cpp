#include "device/nccl_groups.h"

#include <algorithm>
#include <string_view>

namespace bluecomm::device {
namespace {

// Ends the text of each failure. A text that another rank sent may end with it already.
constexpr std::string_view kOutcome =
    "; NCCL's communicator was aborted, and bluecomm makes another one for these ranks "
    "only after shutdown() and init(), or for another process set";

Status with_outcome(Status status) {
  if (status.text.find(kOutcome) == std::string::npos) status.text += kOutcome;
  return status;
}

}  // namespace

void NcclGroups::enter(const NcclGroup& group) {
  const auto [found, is_new] = groups_.try_emplace(group.id);
  if (!is_new) return;
  found->second.ranks = group.ranks;
  found->second.failure = common_failure(group.ranks);
}

bool NcclGroups::needs_id(const NcclGroup& group) const {
  if (group.rank != 0) return false;
  const auto found = groups_.find(group.id);
  return found == groups_.end() || !found->second.id;
}

void NcclGroups::set_id(std::uint64_t group, const NcclId& id) {
  std::optional<NcclId>& own = groups_.at(group).id;
  if (!own) own = id;
}

const NcclId& NcclGroups::id_of(std::uint64_t group) const {
  return groups_.at(group).id.value();
}

std::optional<Status> NcclGroups::common_failure(const std::vector<int>& ranks) const {
  if (failure_) return failure_;
  for (const auto& [rank, status] : failed_ranks_) {
    if (std::ranges::find(ranks, rank) != ranks.end()) return with_outcome(status);
  }
  return std::nullopt;
}

std::optional<Status> NcclGroups::failure_of(const NcclGroup& group) const {
  const auto found = groups_.find(group.id);
  return found == groups_.end() ? common_failure(group.ranks) : found->second.failure;
}

void NcclGroups::fail_entry(std::uint64_t id, Entry& entry, Status status) {
  if (entry.failure) return;
  entry.failure = with_outcome(std::move(status));
  new_.emplace_back(id, *entry.failure);
}

void NcclGroups::fail(std::uint64_t group, Status status) {
  const auto found = groups_.find(group);
  if (found != groups_.end()) fail_entry(group, found->second, std::move(status));
}

void NcclGroups::fail_all(const Status& status) {
  if (failure_) return;
  failure_ = with_outcome(status);
  for (auto& [id, entry] : groups_) fail_entry(id, entry, status);
}

void NcclGroups::note_lost(int rank, const std::string& reason) {
  fail_rank(rank, {Code::kPeerLost, reason, rank});
}

void NcclGroups::note_failed_device(int rank, const std::string& reason) {
  fail_rank(rank, {Code::kInternal,
                   "the GPU of rank " + std::to_string(rank) + " has failed: " + reason,
                   rank});
}

void NcclGroups::note_removed(std::uint64_t group, const Status& status) {
  const auto found = groups_.find(group);
  if (found != groups_.end() && !found->second.removal) found->second.removal = status;
}

std::optional<Status> NcclGroups::reason_of(std::uint64_t group) const {
  const auto found = groups_.find(group);
  if (found == groups_.end()) return std::nullopt;
  return found->second.failure ? found->second.failure : found->second.removal;
}

void NcclGroups::fail_rank(int rank, const Status& status) {
  failed_ranks_.emplace(rank, status);
  for (auto& [id, entry] : groups_) {
    if (std::ranges::find(entry.ranks, rank) == entry.ranks.end()) continue;
    fail_entry(id, entry, status);
  }
}

void NcclGroups::forget(std::uint64_t group) {
  const auto found = groups_.find(group);
  if (found == groups_.end() || found->second.standing != Standing::kInUse) return;
  found->second.standing = Standing::kForgotten;
}

bool NcclGroups::have_forgotten() const {
  return std::ranges::any_of(groups_, [](const auto& one) {
    return one.second.standing == Standing::kForgotten;
  });
}

}  // namespace bluecomm::device
