// The simulator must notice plans that break the rules of engine/plan.h.
#include "tests/collectives/simulator.h"

#include <algorithm>
#include <functional>

#include "tests/check.h"

namespace bluecomm::test {
namespace {

// Breaks a valid ring allreduce of three members in place, which sends long messages.
void check_broken(const std::function<void(SimulatedWorld&)>& spoil,
                  std::string_view rule) {
  SimulatedWorld world(one_machine(3));
  for (int i = 0; i < 3; ++i) {
    world.set_tensor(i, DType::kFloat32, {30'000}, 0, /*in_place=*/true);
    world[i].call.kind = Kind::kAllreduce;
  }
  Tuning ring;
  ring.direct_members = 0;
  world.plan(ring);
  spoil(world);
  CHECK_THROWS(world.run(1), RuleBroken, rule);
}

Phase& first_phase(SimulatedWorld& world) { return world[0].plan.phases[0]; }

TEST(simulator, notices_messages_that_do_not_match) {
  check_broken([](SimulatedWorld& world) { first_phase(world).sends[0].slot = 5; },
               "deadlock");
  check_broken([](SimulatedWorld& world) { first_phase(world).sends.clear(); },
               "deadlock");
  check_broken([](SimulatedWorld& world) { world[0].plan.phases.pop_back(); },
               "deadlock");
  check_broken([](SimulatedWorld& world) { first_phase(world).sends[0].peer = 106; },
               "deadlock");
  check_broken(
      [](SimulatedWorld& world) {
        Send& send = first_phase(world).sends[0];
        send.bytes = send.bytes.first(send.bytes.size() - 64);
      },
      "bytes arrived for");
  check_broken(
      [](SimulatedWorld& world) {
        Phase& phase = first_phase(world);
        phase.sends.push_back(phase.sends[0]);
      },
      "two sends share peer, phase and slot");
  check_broken(
      [](SimulatedWorld& world) {
        Send empty = first_phase(world).sends[0];
        empty.slot = 7;
        empty.bytes = {};
        first_phase(world).sends.push_back(empty);
      },
      "has no receiver");
}

TEST(simulator, notices_two_receivers_of_a_message) {
  check_broken(
      [](SimulatedWorld& world) {
        Gather& gather = first_phase(world).gathers[0];
        gather.sources.push_back(gather.sources[0]);
      },
      "two receivers");
}

TEST(simulator, notices_memory_that_is_still_needed) {
  check_broken(
      [](SimulatedWorld& world) {
        Gather& gather = first_phase(world).gathers[0];
        gather.dst = std::span(world[1].input).first(gather.dst.size());
      },
      "a destination leaves the caller's memory");
  check_broken(
      [](SimulatedWorld& world) { first_phase(world).sends[0].bytes = world[1].input; },
      "a send leaves the caller's memory");
  check_broken(
      [](SimulatedWorld& world) {
        Phase& phase = first_phase(world);
        phase.sends[0].bytes = phase.gathers[0].dst;
      },
      "a destination overlaps a send of phase 0");
  check_broken(
      [](SimulatedWorld& world) {
        Phase& phase = first_phase(world);
        phase.gathers.push_back(phase.gathers[0]);
      },
      "two destinations overlap");
  check_broken(
      [](SimulatedWorld& world) {
        Gather& gather = first_phase(world).gathers[0];
        const std::span<const std::byte> input = world[0].input;
        const std::size_t start = gather.dst.data() - input.data();
        gather.sources[1].own = input.subspan(start - 64, gather.dst.size());
      },
      "a source in own memory overlaps a destination in part");
  check_broken(
      [](SimulatedWorld& world) {
        Gather& gather = first_phase(world).gathers[0];
        gather.dst = gather.dst.first(64);
      },
      "a source in own memory has another length than its destination");
}

// The second phase of a direct allreduce writes where peers may still read the first.
TEST(simulator, notices_a_lingering_send_that_is_overwritten) {
  int broken = 0;
  for (unsigned seed = 0; seed < 20; ++seed) {
    SimulatedWorld world(one_machine(3));
    for (int i = 0; i < 3; ++i) {
      world.set_tensor(i, DType::kFloat32, {30'000}, 0, /*in_place=*/true);
      world[i].call.kind = Kind::kAllreduce;
    }
    world.plan();
    for (Gather& gather : world[0].plan.phases[1].gathers) {
      CHECK(gather.overwrites_sent);
      gather.overwrites_sent = gather.follows_reads = false;
    }
    try {
      world.run(seed);
    } catch (const RuleBroken& error) {
      CHECK_EQ(std::string(error.what()),
               "a destination overlaps a send of phase 0 (rank 100, phase 1)");
      ++broken;
    }
  }
  CHECK(broken > 0);
}

// A message that is computed from what this member has sent may overwrite it. One that
// is not may arrive too early.
TEST(simulator, notices_overlapping_phases_that_overwrite_what_is_sent) {
  const auto run_pair = [](bool is_echo, unsigned seed) {
    SimulatedWorld world(one_machine(2));
    for (int i = 0; i < 2; ++i) {
      world.set_tensor(i, DType::kUInt8, {200'000}, 200'000, /*in_place=*/false);
      world[i].call.kind = Kind::kAllreduce;
    }
    world.plan();
    for (int i = 0; i < 2; ++i) {
      const int peer = world[1 - i].call.group->ranks[1 - i];
      const std::span<std::byte> sent = std::span(world[i].output).first(100'000);
      const std::span<std::byte> received = std::span(world[i].output).last(100'000);
      const std::span<const std::byte> input = std::span(world[i].input).first(100'000);
      Gather first;
      first.dst = received;
      first.sources = {{.peer = peer, .slot = 0, .own = {}}};
      Gather second;
      second.dst = sent;
      second.sources = {{.peer = peer, .slot = 0, .own = {}}};
      second.follows_reads = true;
      Phase phases[2];
      phases[0].sends = {{.peer = peer, .slot = 0, .bytes = sent}};
      phases[0].gathers = {first};
      phases[1].sends = {
          {.peer = peer, .slot = 0, .bytes = is_echo ? received : input}};
      phases[1].gathers = {second};
      phases[1].overlaps = true;
      world[i].plan.phases = {phases[0], phases[1]};
    }
    world.run(seed);
  };
  int broken = 0;
  for (unsigned seed = 0; seed < 20; ++seed) {
    run_pair(/*is_echo=*/true, seed);
    try {
      run_pair(/*is_echo=*/false, seed);
    } catch (const RuleBroken& error) {
      CHECK(std::string(error.what()).find("that phase 0 still sends") !=
            std::string::npos);
      ++broken;
    }
  }
  CHECK(broken > 0);
}

// A peer that reads the memory later than the rules allow then gets a wrong result.
TEST(simulator, overwrites_the_memory_of_finished_members) {
  SimulatedWorld world(one_machine(2));
  for (int i = 0; i < 2; ++i) {
    world.set_tensor(i, DType::kUInt8, {10'000}, 10'000);
    world[i].call.kind = Kind::kBroadcast;
    world[i].call.root = 1;
    std::fill(world[i].input.begin(), world[i].input.end(), std::byte{1});
  }
  world.plan();
  world.run(1);
  CHECK(world[0].result == std::vector<std::byte>(10'000, std::byte{1}));
  CHECK(world[1].input == std::vector<std::byte>(10'000, std::byte{0xff}));
  CHECK(world[1].output == std::vector<std::byte>(10'000, std::byte{0xff}));
}

}  // namespace
}  // namespace bluecomm::test
