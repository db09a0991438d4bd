// Runs the plans of all ranks against each other in memory, in random order, and checks
// the rules of engine/plan.h at the same time.
//
// A rank's memory is treated as badly as the rules allow: a message is either copied
// when it is sent (eager), or read from the sender's memory in chunks as late as
// possible; a destination is poisoned when its phase starts; input and output are
// overwritten as soon as the rank is done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/planner.h"

namespace bluecomm::test {

// Thrown when a plan breaks a rule. The text names the rule, the rank and the phase.
struct RuleBroken : std::logic_error {
  using std::logic_error::logic_error;
};

// One member's call and its memory.
struct MemberCall {
  Call call;
  std::vector<std::byte> input;
  std::vector<std::byte> output;     // unused in place
  bool in_place = false;             // output is input
  std::vector<std::byte> allocated;  // by Call::allocate
  std::vector<std::int64_t> rows;    // as passed to Call::allocate
  Plan plan;

  // Copies made when the plan ended, before the memory was overwritten.
  std::vector<std::byte> result;
  std::vector<std::byte> input_after;
};

// The calls of all members of a group. Global ranks differ from member indices, so that
// confusing them is noticed.
class SimulatedWorld {
 public:
  // Makes a group whose member i is on machine `machine_of[i]`.
  explicit SimulatedWorld(const std::vector<int>& machine_of);
  SimulatedWorld(const SimulatedWorld&) = delete;
  SimulatedWorld& operator=(const SimulatedWorld&) = delete;

  int size() const { return static_cast<int>(calls_.size()); }
  MemberCall& operator[](int member) { return calls_[member]; }

  // Gives a member a tensor of zeros, and memory for an output of `output_nbytes`
  // unless `in_place`, and sets the spans of its call to them.
  void set_tensor(int member, DType dtype, std::vector<std::int64_t> shape,
                  std::size_t output_nbytes, bool in_place = false);

  // Makes the plans of all members.
  void plan(const Tuning& tuning = {});

  // Runs the plans made last. Throws RuleBroken. If `late` is not -1, that member
  // starts only when no other member can continue, right after `before_late` is called.
  void run(
      unsigned seed, int late = -1, const std::function<void()>& before_late = [] {});

  // Returns whether the member's plan has ended.
  bool done(int member) const { return done_[member]; }

 private:
  std::vector<MemberCall> calls_;
  std::vector<bool> done_;
};

// Return `machine_of` for all members on one machine, for each member on a machine of
// its own, and for machines with `sizes[m]` members.
std::vector<int> one_machine(int members);
std::vector<int> machines_of_one(int members);
std::vector<int> machines_of(const std::vector<int>& sizes);

}  // namespace bluecomm::test
