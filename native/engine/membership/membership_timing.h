#pragma once

#include <chrono>

namespace bluecomm {

// How long members wait for each other while they agree. The protocol is correct for
// any values; short ones cost more ballots, long ones a longer pause.
struct MembershipTiming {
  using Duration = std::chrono::microseconds;

  // A proposer collects deaths for this long, so that several make one epoch.
  Duration gather{5'000};
  // Unanswered messages are sent again.
  Duration repeat{50'000};
  // A member that seems unreachable may answer for this long before it is left out: a
  // lost packet is sent again after 200 ms.
  Duration answer{250'000};
  // The same for a member that nobody accuses.
  Duration patience{2'000'000};
  // The lowest member that can be reached proposes at once; each other member after
  // this time for each member before it, if nothing has been decided.
  Duration takeover{250'000};
  // A member whose clock has jumped this far has been stopped itself. It waits anew,
  // instead of taking its own absence for that of others.
  Duration jump{300'000};
  // A member that has been held for this long leaves the primary, if it may.
  Duration split{2'000'000};
};

}  // namespace bluecomm
