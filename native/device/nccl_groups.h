#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/status.h"
#include "device/nccl_comm.h"
#include "device/nccl_library.h"

namespace bluecomm::device {

// The groups whose calls a queue has got, and why some of them work no more. A group
// that has failed never works again. docs/notes/nccl-backend.md has its states. Not
// thread-safe.
class NcclGroups {
 public:
  using FailedGroup = std::pair<std::uint64_t, Status>;

  // Enters a group, unless it is known.
  void enter(const NcclGroup& group);
  // Returns whether this rank, which is its first member, has yet to make its id.
  bool needs_id(const NcclGroup& group) const;
  void set_id(std::uint64_t group, const NcclId& id);
  // Only for a group with an id.
  const NcclId& id_of(std::uint64_t group) const;

  // Returns why calls of a group fail, also for one that has yet to be entered.
  std::optional<Status> failure_of(const NcclGroup& group) const;
  // The following functions note the first failure of a group only. Texts say what
  // follows from it.
  void fail(std::uint64_t group, Status status);
  // Fails all groups, also those that are entered later.
  void fail_all(const Status& status);
  // Fail all groups of a rank, also those that are entered later.
  void note_lost(int rank, const std::string& reason);
  void note_failed_device(int rank, const std::string& reason);
  // Another member has removed a group. Its calls go on, unless NCCL needs that member.
  void note_removed(std::uint64_t group, const Status& status);
  // Returns why NCCL may have lost a member of a group, if that is known.
  std::optional<Status> reason_of(std::uint64_t group) const;
  bool have_all_failed() const { return failure_.has_value(); }

  // Returns the groups that have failed since the last time.
  std::vector<FailedGroup> take_failed() { return std::exchange(new_, {}); }
  bool have_failed() const { return !new_.empty(); }

  // The program has freed a group, which calls nothing any more.
  void forget(std::uint64_t group);
  // Returns the groups to end, each once, for which `can_end` says so.
  template <typename CanEnd>
  std::vector<std::uint64_t> take_forgotten(CanEnd can_end) {
    std::vector<std::uint64_t> taken;
    for (auto& [id, group] : groups_) {
      if (group.standing != Standing::kForgotten || !can_end(id)) continue;
      group.standing = Standing::kEnding;
      taken.push_back(id);
    }
    return taken;
  }
  bool have_forgotten() const;
  // The communicator of a forgotten group has ended.
  void remove(std::uint64_t group) { groups_.erase(group); }

 private:
  enum class Standing : std::uint8_t { kInUse, kForgotten, kEnding };

  struct Entry {
    std::vector<int> ranks;
    std::optional<NcclId> id;
    std::optional<Status> failure;
    std::optional<Status> removal;  // by another member, the first one
    Standing standing = Standing::kInUse;
  };

  void fail_entry(std::uint64_t id, Entry& entry, Status status);
  std::optional<Status> common_failure(const std::vector<int>& ranks) const;
  void fail_rank(int rank, const Status& status);

  std::map<std::uint64_t, Entry> groups_;
  std::map<int, Status> failed_ranks_;  // why no group with the rank works any more
  std::optional<Status> failure_;       // of all groups
  std::vector<FailedGroup> new_;
};

}  // namespace bluecomm::device
