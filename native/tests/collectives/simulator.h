// Runs the plans of all ranks against each other in memory, in random order, and checks
// the rules of engine/plan.h while it does.
//
// A rank's memory is treated as badly as the rules allow: a message is copied when it
// is sent (eager), or else read where it lies, in chunks, as late as the receiver
// pleases; a destination is poisoned when its phase starts; input and output are
// scribbled over the moment the rank is done.
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

// A broken rule: the text says which, and where.
struct RuleBroken : std::logic_error {
  using std::logic_error::logic_error;
};

// One member's call, with the memory it works on.
struct Call {
  Request request;
  std::vector<std::byte> input;
  std::vector<std::byte> output;     // unused in place
  bool in_place = false;             // output is input
  std::vector<std::byte> allocated;  // through Request::allocate
  std::vector<std::int64_t> rows;    // as told to Request::allocate
  Plan plan;

  // Copies made when the plan ended, before the memory was scribbled over.
  std::vector<std::byte> result;
  std::vector<std::byte> input_after;
};

// The calls of all members of a group. Global ranks are not member indices, so that a
// mix-up shows.
class World {
 public:
  // `machine_of` of each member.
  explicit World(const std::vector<int>& machine_of);
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int size() const { return static_cast<int>(calls_.size()); }
  Call& operator[](int member) { return calls_[member]; }

  // Gives a member its tensor: zeros; and memory for an output of `output_nbytes`
  // unless `in_place`. Points the request to them.
  void set_tensor(int member, DType dtype, std::vector<std::int64_t> shape,
                  std::size_t output_nbytes, bool in_place = false);

  // Makes the plans of all members.
  void plan(const Tuning& tuning = {});

  // Runs the plans made last. Throws RuleBroken. Member `late`, if any, starts when
  // nobody else can go on; `before_late` is called just then.
  void run(
      unsigned seed, int late = -1, const std::function<void()>& before_late = [] {});

  // True once the member's plan has ended.
  bool done(int member) const { return done_[member]; }

 private:
  std::vector<Call> calls_;
  std::vector<bool> done_;
};

// All members on one machine, each alone, or machine m with `sizes[m]` members.
std::vector<int> one_machine(int members);
std::vector<int> machines_of_one(int members);
std::vector<int> machines_of(const std::vector<int>& sizes);

}  // namespace bluecomm::test
