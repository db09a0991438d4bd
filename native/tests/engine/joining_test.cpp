#include "engine/joining.h"

#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "engine/neutral.h"
#include "tests/check.h"
#include "tests/engine/engine_world.h"

namespace bluecomm::test {
namespace {

TEST(joining, a_round_ends_for_all_peers_at_once) {
  Joining joining(3);
  CHECK(!joining.must_announce());
  joining.note(1, 1);
  CHECK(joining.is_joined(1));
  CHECK(!joining.is_joined(2));
  CHECK(joining.must_announce());
  CHECK_EQ(joining.enter(), 1U);
  CHECK(joining.is_joined());
  CHECK(!joining.must_announce());  // the others answer for themselves
  joining.count_answer();
  CHECK_EQ(joining.answers(), 1U);
  joining.note(2, 2);  // has left the round already, and joined the next one
  joining.leave();
  CHECK(!joining.is_joined());
  CHECK(!joining.is_joined(1));
  CHECK(joining.is_joined(2));
  CHECK(joining.must_announce());
  CHECK_EQ(joining.answers(), 0U);
  joining.note(2, 1);  // late
  CHECK(joining.is_joined(2));
}

template <typename T>
T neutral(DType dtype, ReduceOp op, double prescale = 1.0) {
  std::vector<T> values(3);
  fill_neutral(std::as_writable_bytes(std::span(values)), dtype, op, prescale);
  CHECK(values[0] == values[2]);
  return values[1];
}

TEST(joining, a_neutral_value_changes_no_reduction) {
  using Byte = std::numeric_limits<std::int8_t>;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  CHECK_EQ(neutral<float>(DType::kFloat32, ReduceOp::kAverage), 0.0F);
  CHECK_EQ(neutral<float>(DType::kFloat32, ReduceOp::kProduct, 4.0), 0.25F);
  CHECK_EQ(neutral<float>(DType::kFloat32, ReduceOp::kMin), kInfinity);
  CHECK_EQ(neutral<float>(DType::kFloat32, ReduceOp::kMin, -1.0), -kInfinity);
  CHECK_EQ(neutral<std::uint16_t>(DType::kFloat16, ReduceOp::kMax), 0xFC00);
  CHECK_EQ(neutral<std::uint16_t>(DType::kBfloat16, ReduceOp::kProduct), 0x3F80);
  CHECK_EQ(neutral<std::int8_t>(DType::kInt8, ReduceOp::kMin), Byte::max());
  CHECK_EQ(neutral<std::int8_t>(DType::kInt8, ReduceOp::kMax), Byte::min());
  CHECK_EQ(neutral<std::uint8_t>(DType::kBool, ReduceOp::kMin), 1);
  CHECK_EQ(neutral<std::uint8_t>(DType::kBool, ReduceOp::kSum), 0);
}

TEST(joining, a_rank_answers_for_others_in_each_algorithm) {
  for (const int size : {2, 3, 4, 6, 7}) {
    EngineWorld world(size);
    world.engine(0).join();
    world.run([&](int rank, Engine& engine) {
      if (rank == 0) return;
      // A member that starts later learns of the join before or after its call.
      for (const std::size_t count : {1UL, 1000UL, 300000UL}) {
        std::vector<float> tensor(count, 1.0F);
        const Call call = make_call(engine, Kind::kAllreduce, "x", tensor, tensor);
        CHECK_EQ(run_call(engine, call).text, "");
        CHECK_EQ(tensor.back(), static_cast<float>(size - 1));
      }
    });
    await([&] { return world.engine(0).join_report().answers == 3; });
    await([&] { return world.engine(0).pending().empty(); });
  }
}

TEST(joining, calls_match_again_after_a_round) {
  EngineWorld world(2);
  world.engine(0).join();
  std::vector<float> alone(5, 1.0F);
  Engine& other = world.engine(1);
  for (int i = 0; i < 3; ++i) {
    const Call call = make_call(other, Kind::kAllreduce, "x", alone, alone);
    CHECK_EQ(run_call(other, call).text, "");
  }
  other.join();
  const std::uint32_t unused = other.join_report().sequence;
  CHECK_EQ(unused, 3U);
  world.run([&](int, Engine& engine) {
    engine.leave_join(unused + 7);
    std::vector<float> tensor(5, 1.0F);
    const Call call = make_call(engine, Kind::kAllreduce, "x", tensor, tensor);
    CHECK_EQ(run_call(engine, call).text, "");
    CHECK_EQ(tensor.back(), 2.0F);
    CHECK_EQ(engine.calls_like(call), unused + 8);
  });
}

}  // namespace
}  // namespace bluecomm::test
