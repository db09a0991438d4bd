// Allreduces between engines on different machines: phases that overlap, and what the
// ranks send to each other.
#include <algorithm>
#include <cstring>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/check.h"
#include "tests/engine/engine_world.h"

namespace bluecomm::test {
namespace {

constexpr std::uint64_t kHosts = 7;  // id of the group that spans machines

// Adds the group of all ranks, with rank i on machine `machine_of[i]`.
void add_hosts(EngineWorld& world, const std::vector<int>& machine_of) {
  std::vector<int> ranks;
  for (int rank = 0; rank < world.size(); ++rank) ranks.push_back(rank);
  for (const int rank : ranks) world.engine(rank).add_group(kHosts, ranks, machine_of);
}

std::vector<int> one_rank_each(int size) {
  std::vector<int> machine_of;
  for (int rank = 0; rank < size; ++rank) machine_of.push_back(rank);
  return machine_of;
}

// Values whose sums depend on the order of the additions.
std::vector<float> reciprocals_of(int rank, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = 1.0F / static_cast<float>(3 + 7 * rank + static_cast<int>(i % 1013));
  }
  return values;
}

// Runs allreduces of several lengths at once, in place and out of place. All ranks must
// get the same bits, which are those of `machine_of` and do not depend on the
// transport.
using Results = std::vector<std::vector<float>>;
Results reduce_all(EngineWorld& world, const std::vector<int>& machine_of) {
  add_hosts(world, machine_of);
  constexpr std::size_t kCounts[] = {20'001, 65'536, 333'333};
  std::vector<Results> of_rank(static_cast<std::size_t>(world.size()));
  world.run([&](int rank, Engine& engine) {
    Results inputs;
    Results outputs;
    std::vector<Call> calls;
    for (const std::size_t count : kCounts) {
      for (int copy = 0; copy < 2; ++copy) {
        inputs.push_back(reciprocals_of(rank, count));
        outputs.push_back(std::vector<float>(copy == 0 ? 0 : count));
      }
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      std::vector<float>& output = outputs[i].empty() ? inputs[i] : outputs[i];
      calls.push_back(make_call(engine, Kind::kAllreduce, std::to_string(i), inputs[i],
                                output, kHosts));
    }
    CHECK_EQ(run_calls(engine, std::move(calls)).text, "");
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!outputs[i].empty())
        CHECK(inputs[i] == reciprocals_of(rank, inputs[i].size()));
      of_rank[static_cast<std::size_t>(rank)].push_back(
          outputs[i].empty() ? inputs[i] : outputs[i]);
    }
  });
  for (const Results& other : of_rank) CHECK(other == of_rank.front());
  const Results& results = of_rank.front();
  for (std::size_t i = 0; i < results.size(); i += 2) {
    CHECK(results[i] == results[i + 1]);
    int wrong = 0;
    for (std::size_t k = 0; k < results[i].size(); ++k) {
      double sum = 0;
      for (int rank = 0; rank < world.size(); ++rank) {
        sum += 1.0 / (3 + 7 * rank + static_cast<int>(k % 1013));
      }
      const double error = static_cast<double>(results[i][k]) - sum;
      if (std::max(error, -error) > 1e-5) ++wrong;
    }
    CHECK_EQ(wrong, 0);
  }
  return results;
}

std::vector<std::vector<int>> layouts() {
  return {one_rank_each(2), one_rank_each(3), one_rank_each(4),
          one_rank_each(8), {0, 0, 1, 1},     {0, 1, 1, 2, 0}};
}

TEST(overlap, gives_all_ranks_the_same_bits_over_any_transport) {
  for (const std::vector<int>& machine_of : layouts()) {
    const int size = static_cast<int>(machine_of.size());
    EngineWorld plain(size);
    const Results expected = reduce_all(plain, machine_of);
    const InprocOptions odd{.eager_bytes = 200,
                            .chunk_bytes = 64 * 77,
                            .max_delay = std::chrono::microseconds(200)};
    EngineWorld delayed(size, odd);
    CHECK(reduce_all(delayed, machine_of) == expected);
    // The ranks wait for each other's bytes at every step.
    const InprocOptions in_step{.eager_bytes = 200, .chunk_bytes = 4096, .lead = 4096};
    EngineWorld together(size, in_step);
    CHECK(reduce_all(together, machine_of) == expected);
    EngineWorld streams(size, over_tcp(3, stream::Encryption::kOff));
    CHECK(reduce_all(streams, machine_of) == expected);
  }
}

TEST(overlap, gives_the_same_bits_when_encrypted) {
  const std::vector<int> machine_of{0, 0, 1, 1};
  EngineWorld plain(4);
  const Results expected = reduce_all(plain, machine_of);
  EngineWorld encrypted(4, over_tcp(2, stream::Encryption::kFull));
  CHECK(reduce_all(encrypted, machine_of) == expected);
}

// All phases have begun, but the peers of later ones only wait for rank 2, too.
TEST(overlap, a_timeout_names_only_the_silent_rank) {
  EngineWorld world(3);
  std::latch begun(2);
  add_hosts(world, one_rank_each(3));
  world.run([&](int rank, Engine& engine) {
    if (rank == 2) return;
    std::vector<float> tensor(20'000);
    Call call = make_call(engine, Kind::kAllreduce, "x", tensor, tensor, kHosts);
    if (rank == 0) {
      begun.arrive_and_wait();
      call.deadline = Clock::now() + 2s;
    }
    const RequestId id = engine.submit(std::move(call));
    if (rank == 1) begun.count_down();
    const std::optional<Status> status = engine.wait(id, Clock::now() + kDeadline);
    REQUIRE(status.has_value());
    check_failure(*status, Code::kTimedOut,
                  "allreduce 'x' on rank 0: no data from rank 2 within 2.0 s");
    CHECK_EQ(status->rank, 2);
    engine.release(id);
  });
}

TEST(overlap, a_lost_rank_fails_the_operation_on_all_others) {
  for (const int size : {2, 4}) {
    EngineWorld world(size);
    add_hosts(world, one_rank_each(size));
    // The last rank never calls, so the others stay between the phases.
    world.run([&](int rank, Engine& engine) {
      if (rank == size - 1) return;
      std::vector<float> tensor(300'000, 1.0F);
      const RequestId id = engine.submit(
          make_call(engine, Kind::kAllreduce, "x", tensor, tensor, kHosts));
      std::this_thread::sleep_for(20ms);
      if (rank == 0) world.kill(size - 1);
      engine.peer_lost(size - 1, "the last rank was killed");
      const Status status = *engine.wait(id, Clock::now() + kDeadline);
      CHECK_EQ(static_cast<int>(status.code), static_cast<int>(Code::kPeerLost));
      CHECK_EQ(status.rank, size - 1);
    });
  }
}

// The operation fails on all ranks while its messages are under way, and the next one
// is not disturbed by what is left of it.
TEST(overlap, an_operation_that_fails_halfway_leaves_the_next_one_alone) {
  for (const bool tcp : {false, true}) {
    constexpr int kSize = 4;
    const InprocOptions slow{.chunk_bytes = 4096, .max_delay = 100us};
    std::unique_ptr<EngineWorld> world =
        tcp ? std::make_unique<EngineWorld>(kSize,
                                            over_tcp(2, stream::Encryption::kOff))
            : std::make_unique<EngineWorld>(kSize, slow);
    add_hosts(*world, one_rank_each(kSize));
    world->run([&](int rank, Engine& engine) {
      for (int round = 0; round < 20; ++round) {
        std::vector<float> lost(400'000, 1.0F);
        Call call = make_call(engine, Kind::kAllreduce, "lost" + std::to_string(round),
                              lost, lost, kHosts);
        const RequestId id = engine.submit(std::move(call));
        if (rank == round % kSize) {
          std::this_thread::sleep_for(std::chrono::microseconds(100 * round));
          engine.fail(id, {Code::kInternal, "given up", rank});
        }
        static_cast<void>(*engine.wait(id, Clock::now() + kDeadline));
        engine.release(id);
        std::fill(lost.begin(), lost.end(), -1.0F);
        std::vector<float> tensor(100'000, static_cast<float>(rank));
        Call next = make_call(engine, Kind::kAllreduce, "next" + std::to_string(round),
                              tensor, tensor, kHosts);
        Status status = run_call(engine, std::move(next));
        // An ABORT that came too late for `lost` is raised by this call.
        if (!status.ok()) check_failure(status, Code::kInternal, "given up");
        CHECK(std::all_of(tensor.begin(), tensor.end(),
                          [](float value) { return value == 6.0F; }));
      }
    });
  }
}

// Rank 1 comes last, so its call is over as soon as it is made. Then it does nothing
// more: its process may have ended.
TEST(overlap, the_messages_of_a_call_that_is_over_at_once_have_left) {
  EngineWorld world(2, over_tcp(1, stream::Encryption::kOff));
  add_hosts(world, one_rank_each(2));
  Engine& first = world.engine(0);
  Engine& last = world.engine(1);
  const auto received = [&last] {
    return last.stats().peers[0].channel.messages_received;
  };
  for (int repeat = 0; repeat < 20; ++repeat) {
    std::vector<float> ours(4, 1.0F);
    std::vector<float> theirs(4, 2.0F);
    const auto before = received();
    const RequestId id =
        first.submit(make_call(first, Kind::kAllreduce, "x", ours, ours, kHosts));
    await([&] { return received() > before; });
    const RequestId left =
        last.run(make_call(last, Kind::kAllreduce, "x", theirs, theirs, kHosts));
    last.lock_for_fork();  // its progress thread stands still
    CHECK_EQ(first.wait(id, std::chrono::steady_clock::now() + 20s)->text, "");
    last.unlock_after_fork();
    CHECK_EQ(left, 0u);
    CHECK_EQ(ours[3], 3.0F);
    first.release(id);
  }
}

}  // namespace
}  // namespace bluecomm::test
