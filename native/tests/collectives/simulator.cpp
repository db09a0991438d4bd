// The simulator of plans; see simulator.h. It runs in the test's thread: one PlanRunner
// per rank does one step at a time, in an order drawn from the seed.
#include "tests/collectives/simulator.h"

#include <algorithm>
#include <deque>
#include <random>
#include <utility>

#include "tests/collectives/plan_runner.h"

namespace bluecomm::test {
namespace {

void finish(MemberCall& member) {
  member.input_after = member.input;
  member.result = !member.call.output.empty() ? std::vector(member.call.output.begin(),
                                                            member.call.output.end())
                                              : member.allocated;
  for (const std::span<std::byte> output : member.call.outputs) {
    member.result.insert(member.result.end(), output.begin(), output.end());
  }
  for (auto* memory : {&member.input, &member.output, &member.allocated}) {
    std::fill(memory->begin(), memory->end(), kPoison);
  }
}

}  // namespace

SimulatedWorld::SimulatedWorld(const std::vector<int>& machine_of)
    : calls_(machine_of.size()), done_(machine_of.size()) {
  Group group;
  group.id = 1;
  group.machine_of = machine_of;
  for (int i = 0; i < size(); ++i) group.ranks.push_back(100 + 3 * i);
  for (int i = 0; i < size(); ++i) {
    group.me = i;
    calls_[i].call.group = std::make_shared<Group>(group);
  }
}

void SimulatedWorld::set_tensor(int member, DType dtype,
                                std::vector<std::int64_t> shape,
                                std::size_t output_nbytes, bool in_place) {
  MemberCall& mine = calls_[member];
  std::size_t nbytes = item_size(dtype);
  for (std::int64_t dimension : shape) nbytes *= static_cast<std::size_t>(dimension);
  mine.input.assign(nbytes, std::byte{0});
  mine.in_place = in_place;
  mine.output.assign(in_place ? 0 : output_nbytes, kPoison);
  mine.call.dtype = dtype;
  mine.call.shape = std::move(shape);
  mine.call.input = mine.input;
  mine.call.output = in_place ? std::span(mine.input) : std::span(mine.output);
  mine.call.allocate = [&mine](std::size_t length, std::span<const std::int64_t> rows) {
    mine.allocated.assign(length, kPoison);
    mine.rows.assign(rows.begin(), rows.end());
    return std::span(mine.allocated);
  };
}

void SimulatedWorld::plan(const Tuning& tuning) {
  for (MemberCall& member : calls_) member.plan = make_plan(member.call, tuning);
}

void SimulatedWorld::run(unsigned seed, int late,
                         const std::function<void()>& before_late) {
  std::mt19937 random(seed);
  Network network;
  std::deque<PlanRunner> runners;
  for (MemberCall& member : calls_) runners.emplace_back(member, network, random);
  std::fill(done_.begin(), done_.end(), false);

  const auto finish_if_done = [&](int member) {
    if (done_[member] || !runners[member].done()) return;
    done_[member] = true;
    finish(calls_[member]);
  };
  bool is_late = late >= 0;
  std::vector<int> order(calls_.size());
  for (int i = 0; i < size(); ++i) order[i] = i;
  while (true) {
    // One randomly chosen rank does one thing.
    std::shuffle(order.begin(), order.end(), random);
    const bool any = std::any_of(order.begin(), order.end(), [&](int member) {
      if (is_late && member == late) return false;
      const bool did = runners[member].step();
      finish_if_done(member);
      return did;
    });
    if (any) continue;
    if (!is_late) break;
    before_late();
    is_late = false;
  }

  std::string states;
  for (int i = 0; i < size(); ++i) {
    if (!done_[i]) states += runners[i].text() + "; ";
  }
  if (!states.empty()) throw RuleBroken("deadlock: " + states);
  for (const auto& [key, message] : network) {
    if (message.is_received) continue;
    throw RuleBroken("the message from rank " + std::to_string(std::get<0>(key)) +
                     " to " + std::to_string(std::get<1>(key)) + " in phase " +
                     std::to_string(std::get<2>(key)) + " has no receiver");
  }
}

std::vector<int> one_machine(int members) {
  return std::vector<int>(static_cast<std::size_t>(members), 0);
}

std::vector<int> machines_of_one(int members) {
  return machines_of(std::vector<int>(static_cast<std::size_t>(members), 1));
}

std::vector<int> machines_of(const std::vector<int>& sizes) {
  std::vector<int> machine_of;
  for (std::size_t machine = 0; machine < sizes.size(); ++machine) {
    machine_of.insert(machine_of.end(), static_cast<std::size_t>(sizes[machine]),
                      static_cast<int>(machine));
  }
  return machine_of;
}

}  // namespace bluecomm::test
