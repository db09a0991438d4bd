// The effect of a lost peer on running and later operations in a job that survives
// losses: each element's weights still add up to one, whatever had arrived from the
// peer.
#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/gather_state.h"
#include "tests/check.h"
#include "tests/engine/engine_world.h"

namespace bluecomm::test {
namespace {

// --- One gather ----------------------------------------------------------------------

// A message of which a test decides how much has arrived.
class FakeIncoming final : public Incoming {
 public:
  struct State {
    std::vector<float> values;
    std::size_t arrived = 0;  // bytes
    bool revoked = false;
  };

  explicit FakeIncoming(std::shared_ptr<State> state) : state_(std::move(state)) {
    header_.nbytes = state_->values.size() * sizeof(float);
  }
  const Header& header() const override { return header_; }
  void accept(std::span<std::byte>) override {}
  std::span<const std::byte> readable() const override {
    return std::as_bytes(std::span(state_->values))
        .subspan(consumed_, state_->arrived - consumed_);
  }
  void consume(std::size_t nbytes) override {
    if (!state_->revoked) consumed_ += nbytes;
  }
  std::size_t consumed() const override { return consumed_; }

 private:
  const std::shared_ptr<State> state_;
  Header header_;
  std::size_t consumed_ = 0;
};

// Rank 0's gather of its own value 8 (weight 1/2), of rank 1's 16 (1/4), and of rank
// 2's 32 (1/8, which rank 2 doubles).
class Average {
 public:
  static constexpr std::size_t kCount = 1000;

  explicit Average(bool in_place)
      : own_(kCount, 8.0F), result_(in_place ? 0 : kCount), in_place_(in_place) {
    gather_.dst = std::as_writable_bytes(std::span(in_place ? own_ : result_));
    gather_.combine = Combine::kWeighted;
    gather_.sources = {{kSelf, 0, std::as_bytes(std::span(own_)), 0.5},
                       {1, 0, {}, 0.25},
                       {2, 0, {}, 0.125}};
    state_.emplace(gather_, 0, DType::kFloat32);
    state_->open(sends_);
  }

  // Takes the message of a rank, all of whose elements are `value`.
  std::shared_ptr<FakeIncoming::State> put(int rank, float value, double scale) {
    auto message = std::make_shared<FakeIncoming::State>();
    message->values.assign(kCount, value);
    const bool fits =
        state_->put(static_cast<std::size_t>(rank),
                    std::make_unique<FakeIncoming>(message), scale, sends_);
    CHECK(fits);
    return message;
  }

  void advance() {
    std::size_t budget = 1 << 20;
    state_->advance(budget, sends_);
  }

  GatherState& state() { return *state_; }
  const std::vector<float>& result() const { return in_place_ ? own_ : result_; }

 private:
  std::vector<float> own_;
  std::vector<float> result_;
  const bool in_place_;
  Gather gather_;
  PendingSends sends_;
  std::optional<GatherState> state_;
};

void check_values(const std::vector<float>& values, std::size_t first, float before,
                  float after) {
  CHECK_EQ(static_cast<std::size_t>(std::count(values.begin(), values.end(), before)),
           first);
  CHECK_EQ(values.front(), first > 0 ? before : after);
  CHECK_EQ(values.back(), after);
}

constexpr std::size_t kWhole = Average::kCount * sizeof(float);
// 8/2 + 16/4 + 32/4, and the same with rank 2's share, or both shares, given to 8.
constexpr float kAll = 16.0F;
constexpr float kWithoutTwo = 10.0F;
constexpr float kAlone = 8.0F;

TEST(losses, own_values_take_the_weight_of_bytes_that_have_not_arrived) {
  for (const bool in_place : {false, true}) {
    for (const std::size_t elements : {0UL, 16UL, 160UL, 992UL}) {
      Average average(in_place);
      average.put(1, 16.0F, 1.0)->arrived = kWhole;
      average.put(2, 32.0F, 2.0)->arrived = elements * sizeof(float);
      average.advance();
      CHECK(average.state().drop(2) == GatherState::Drop::kReplaced);
      average.advance();
      CHECK(average.state().done());
      check_values(average.result(), elements, kAll, kWithoutTwo);
    }
  }
}

TEST(losses, a_lost_rank_without_a_header_is_counted_by_the_receivers_weight) {
  Average average(false);
  average.put(1, 16.0F, 1.0)->arrived = kWhole;
  CHECK(average.state().drop(2) == GatherState::Drop::kReplaced);
  average.advance();
  CHECK(average.state().done());
  // 8 * (1/2 + 1/8) + 16 / 4: the factor 2 would have come with the header.
  check_values(average.result(), 0, kAll, 9.0F);
}

TEST(losses, a_message_that_is_here_is_used) {
  Average average(false);
  average.put(2, 32.0F, 2.0)->arrived = kWhole;
  CHECK(average.state().drop(2) == GatherState::Drop::kKept);
  average.advance();
  CHECK(!average.state().done());
  average.put(1, 16.0F, 1.0)->arrived = kWhole;
  average.advance();
  CHECK(average.state().done());
  CHECK(!average.state().has_invalid_bytes());
  check_values(average.result(), 0, 0.0F, kAll);
}

TEST(losses, all_neighbors_may_be_lost) {
  Average average(false);
  average.put(1, 16.0F, 1.0)->arrived = 64;
  average.put(2, 32.0F, 2.0)->arrived = 64;
  CHECK(average.state().drop(2) == GatherState::Drop::kReplaced);
  CHECK(average.state().drop(1) == GatherState::Drop::kReplaced);
  average.advance();
  CHECK(average.state().done());
  check_values(average.result(), 0, 0.0F, kAlone);
}

TEST(losses, bytes_that_the_sender_took_back_are_not_used) {
  for (const bool is_whole : {false, true}) {
    Average average(false);
    average.put(1, 16.0F, 1.0)->arrived = kWhole;
    const auto message = average.put(2, 32.0F, 2.0);
    message->arrived = is_whole ? kWhole : 640;
    message->revoked = true;
    average.advance();
    const GatherState::Drop done = average.state().drop(2);
    CHECK(done == (is_whole ? GatherState::Drop::kKept : GatherState::Drop::kInvalid));
    CHECK_EQ(average.state().has_invalid_bytes(), is_whole);
    CHECK(average.state().keep_own());
    average.advance();
    CHECK(average.state().done());
    check_values(average.result(), 0, 0.0F, kAlone);
  }
}

TEST(losses, in_place_the_own_tensor_cannot_be_restored) {
  Average average(true);
  average.put(1, 16.0F, 1.0)->arrived = kWhole;
  const auto message = average.put(2, 32.0F, 2.0);
  message->arrived = kWhole;
  message->revoked = true;
  average.advance();
  CHECK(average.state().has_invalid_bytes());
  CHECK(!average.state().keep_own());
}

// --- Engines -------------------------------------------------------------------------

constexpr int kSize = 4;
constexpr int kVictim = 2;

// An average over all four ranks, in which each other rank has the weight 1/4.
Call average_of_all(Engine& engine, int rank, const std::string& name,
                    std::span<const float> input, std::span<float> output,
                    std::uint64_t group = kWorld) {
  Call call = make_call(engine, Kind::kNeighborAllreduce, name, input, output, group);
  call.self_weight = 0.25;
  for (int other = 0; other < kSize; ++other) {
    if (other == rank) continue;
    call.sources.emplace_back(other, 0.25);
    call.destinations.emplace_back(other, 1.0);
  }
  return call;
}

float value_of(int rank) { return static_cast<float>(4 << rank); }

// The average of the ranks but the victim, whose share goes to `rank` itself.
float without_victim(int rank) {
  float sum = value_of(rank);
  for (int other = 0; other < kSize; ++other) {
    if (other != kVictim) sum += value_of(other);
  }
  return sum / 4;
}

TEST(losses, neighbors_go_on_and_later_calls_do_not_wait) {
  for (const std::size_t count : {5UL, 100'000UL}) {
    EngineWorld world(EngineWorld::SurvivesLosses{}, kSize);
    world.run([&](int rank, Engine& engine) {
      if (rank == kVictim) return world.kill(kVictim);
      const std::vector<float> input(count, value_of(rank));
      for (const char* const name : {"first", "second", "third"}) {
        std::vector<float> output(count);
        CHECK_EQ(
            run_call(engine, average_of_all(engine, rank, name, input, output)).text,
            "");
        CHECK(output == std::vector<float>(count, without_victim(rank)));
      }
      CHECK_EQ(engine.stats().replaced, 3U);
    });
  }
}

TEST(losses, a_message_that_came_before_the_call_is_used) {
  std::vector<std::vector<float>> inputs;
  std::vector<std::vector<float>> outputs(kSize, std::vector<float>(5));
  for (int rank = 0; rank < kSize; ++rank) inputs.emplace_back(5, value_of(rank));
  EngineWorld world(EngineWorld::SurvivesLosses{}, kSize);
  Engine& victim = world.engine(kVictim);
  victim.submit(
      average_of_all(victim, kVictim, "x", inputs[kVictim], outputs[kVictim]));
  for (const int rank : {0, 1, 3}) {
    await([&] {
      return world.engine(rank)
                 .stats()
                 .peers[rank < kVictim ? 1 : 2]
                 .channel.messages_received == 1;
    });
  }
  world.kill(kVictim);
  world.run([&](int rank, Engine& engine) {
    if (rank == kVictim) return;
    std::vector<float>& output = outputs[static_cast<std::size_t>(rank)];
    const std::vector<float>& input = inputs[static_cast<std::size_t>(rank)];
    CHECK_EQ(run_call(engine, average_of_all(engine, rank, "x", input, output)).text,
             "");
    CHECK_EQ(output[4], 15.0F);
  });
}

TEST(losses, a_rank_that_closes_is_dropped_too) {
  const std::vector<float> given(100'000, 1.0F);
  std::vector<float> taken(given.size());
  EngineWorld world(EngineWorld::SurvivesLosses{}, kSize);
  Engine& victim = world.engine(kVictim);
  // It takes no part in the others' call, but sends its end.
  victim.submit(average_of_all(victim, kVictim, "cut short", given, taken));
  victim.close(1s);
  world.run([&](int rank, Engine& engine) {
    if (rank == kVictim) return;
    engine.peer_lost(kVictim, "rank 2 raised KeyError");
    for (const char* const name : {"cut short", "next"}) {
      const bool is_cut = std::string(name) == "cut short";
      const std::vector<float> values(is_cut ? given.size() : 5, value_of(rank));
      std::vector<float> result(values.size());
      CHECK_EQ(
          run_call(engine, average_of_all(engine, rank, name, values, result)).text,
          "");
      CHECK_EQ(result.back(), without_victim(rank));
    }
  });
}

TEST(losses, a_rank_that_is_excluded_fails_no_call_of_the_others) {
  EngineWorld world(EngineWorld::SurvivesLosses{}, kSize);
  Engine& victim = world.engine(kVictim);
  victim.leave_members("the launcher ends this rank: rank 2 called sys.exit(3)");
  const std::vector<float> given(5, 1.0F);
  std::vector<float> taken(given.size());
  check_failure(run_call(victim, average_of_all(victim, kVictim, "x", given, taken)),
                Code::kPeerLost, "called sys.exit(3)");
  const auto received = [&](int rank) {
    const std::size_t of_victim = rank < kVictim ? 1 : 2;
    return world.engine(rank).stats().peers[of_victim].channel.messages_received;
  };
  // It comes after all that the failed call has sent.
  victim.tell_failing("called sys.exit(3)");
  for (const int rank : {0, 1, 3}) {
    await([&] { return received(rank) > 0; });
  }
  world.run([&](int rank, Engine& engine) {
    if (rank == kVictim) return;
    const std::vector<float> values(5, value_of(rank));
    std::vector<float> result(values.size());
    engine.peer_lost(kVictim, "rank 2 called sys.exit(3)");
    CHECK_EQ(run_call(engine, average_of_all(engine, rank, "x", values, result)).text,
             "");
    CHECK_EQ(result.back(), without_victim(rank));
  });
}

TEST(losses, a_rank_that_frees_the_group_is_not_lost) {
  constexpr std::uint64_t kSet = 7;
  EngineWorld world(EngineWorld::SurvivesLosses{}, kSize);
  for (int rank = 0; rank < kSize; ++rank) {
    world.engine(rank).add_group(kSet, {0, 1, 2, 3}, {0, 0, 0, 0});
  }
  world.run([&](int rank, Engine& engine) {
    if (rank == kVictim) return engine.remove_group(kSet);
    // Rank 2 may have freed the group already, or do so while the call waits.
    for (const char* const name : {"x", "x"}) {
      const std::vector<float> input(5, value_of(rank));
      std::vector<float> output(5);
      check_failure(
          run_call(engine, average_of_all(engine, rank, name, input, output, kSet)),
          Code::kFreed, "cut short, because rank 2 (host2) has freed the process set");
    }
    CHECK_EQ(engine.stats().replaced, 0U);
  });
}

TEST(losses, only_operations_that_need_the_rank_fail) {
  EngineWorld world(EngineWorld::SurvivesLosses{}, kSize);
  world.kill(kVictim);
  world.run([&](int rank, Engine& engine) {
    if (rank == kVictim) return;
    engine.add_group(7, {0, 1, 3}, {0, 0, 0});
    engine.peer_lost(kVictim, "rank 2 was killed by SIGKILL");
    std::vector<float> tensor(3, 1.0F);
    check_failure(
        run_call(engine, make_call(engine, Kind::kAllreduce, "all", tensor, tensor)),
        Code::kPeerLost, "was killed by SIGKILL");
    std::vector<float> left(3, 1.0F);
    CHECK_EQ(
        run_call(engine, make_call(engine, Kind::kAllreduce, "left", left, left, 7))
            .text,
        "");
    CHECK_EQ(left[0], 3.0F);
    const std::vector<float> input(5, value_of(rank));
    std::vector<float> output(5);
    CHECK_EQ(run_call(engine, average_of_all(engine, rank, "mean", input, output)).text,
             "");
    CHECK_EQ(output[0], without_victim(rank));
  });
}

TEST(losses, one_of_the_ranks_of_a_broken_link_goes_on) {
  EngineWorld world(EngineWorld::SurvivesLosses{}, 2);
  world.kill(0);
  world.run([&](int rank, Engine& engine) {
    const std::vector<float> input(5, value_of(rank));
    std::vector<float> output(5);
    Call call = make_call(engine, Kind::kPairGossip, "x", input, output);
    call.self_weight = 0.5;
    call.sources = {{1 - rank, 0.5}};
    call.destinations = {{1 - rank, 1.0}};
    if (rank == 0) {
      CHECK_EQ(run_call(engine, std::move(call)).text, "");
      CHECK(output == input);
    } else {
      // It may be cut off from a rank that goes on, so it waits.
      call.deadline = Clock::now() + 1s;
      check_failure(run_call(engine, std::move(call)), Code::kTimedOut, "rank 0");
    }
  });
}

}  // namespace
}  // namespace bluecomm::test
