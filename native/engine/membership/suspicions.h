#pragma once

#include <cstdint>
#include <vector>

#include "engine/membership/epoch.h"
#include "engine/membership/member_set.h"

namespace bluecomm {

// Why a member is suspected, by rising strength.
enum class Evidence : std::uint8_t {
  kSilent,   // nothing has arrived from it for a while
  kStopped,  // its machine says that its process is stopped
  kBroken,   // the link between the accuser and it has broken for good
  kDead,     // its process has ended, or it has left the job
};

// The accusations of one member against the others.
struct Accusations {
  Accusations() = default;
  explicit Accusations(int size)
      : silent(size), stopped(size), broken(size), dead(size) {}

  MemberSet silent;
  MemberSet stopped;
  MemberSet broken;
  MemberSet dead;

  bool empty() const {
    return silent.empty() && stopped.empty() && broken.empty() && dead.empty();
  }
  bool operator==(const Accusations&) const = default;
};

// Collects the accusations of all members of an epoch, as one member knows them. An
// accusation calls for an agreement; it excludes nobody who answers.
class Suspicions {
 public:
  Suspicions(int size, int me);

  // Records evidence of this member. Returns whether it is new.
  bool observe(int rank, Evidence evidence);
  // Records that a message of `rank` has arrived: it is not stopped, whoever said so,
  // and this member withdraws what it said itself, but for a death. Returns whether it
  // had said anything.
  bool hear(int rank);
  // Replaces what `from` says of the others, but for deaths, which are observed.
  void listen(int from, const Accusations& accusations);

  // This member's own accusations.
  const Accusations& own() const { return own_; }
  const MemberSet& dead() const { return own_.dead; }
  // Returns the members because of whom there should be an agreement: the dead, those
  // that one member calls stopped or broken, and those that two call silent (one, if
  // only one is left to call).
  MemberSet accused() const;
  // Returns the members of whom this member expects no answer.
  MemberSet unreachable() const;
  // Returns whether `witness` has nothing against `rank`, although others call it
  // silent.
  bool is_vouched_for(int rank, int witness) const;

  // Returns what still holds in `next`, which follows `base`, for its rank `me`: who is
  // dead, and own broken links.
  Suspicions carry(const Epoch& base, const Epoch& next, int me) const;

 private:
  const Accusations& said_by(int rank) const {
    return rank == me_ ? own_ : others_[static_cast<std::size_t>(rank)];
  }
  bool is_silent_to_enough(int rank) const;

  int me_;
  Accusations own_;
  std::vector<Accusations> others_;
};

}  // namespace bluecomm
