// The first bytes of a result, for which a caller can wait while the others are on
// their way.
#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "tests/check.h"
#include "tests/engine/engine_world.h"
#include "tests/engine/gradual_gate.h"

namespace bluecomm::test {
namespace {

std::vector<float> values_of(int rank) {
  std::vector<float> values(kCount);
  for (std::size_t i = 0; i < kCount; ++i) values[i] = part_value(rank, i);
  return values;
}

std::span<const std::byte> raw_bytes(const std::vector<float>& values) {
  return std::as_bytes(std::span(values));
}

// Waits for a request part by part, and keeps a copy of each part as it was when it
// became final.
Status wait_in_parts(Engine& engine, RequestId id, const std::vector<float>& result,
                     std::vector<float>& copy) {
  const std::span<std::byte> to = std::as_writable_bytes(std::span(copy));
  std::size_t copied = 0;
  while (true) {
    const std::size_t wanted = std::min(copied + kPart, to.size());
    const Engine::Part part = engine.wait_part(id, wanted, Clock::now() + kDeadline);
    CHECK(part.status || part.final_prefix >= wanted);
    if (part.final_prefix > copied) {
      std::copy(
          raw_bytes(result).begin() + static_cast<std::ptrdiff_t>(copied),
          raw_bytes(result).begin() + static_cast<std::ptrdiff_t>(part.final_prefix),
          to.begin() + static_cast<std::ptrdiff_t>(copied));
      copied = part.final_prefix;
    }
    if (part.status || copied < wanted) return part.status.value_or(Status{});
    if (copied == to.size()) return *engine.wait(id, Clock::now() + kDeadline);
  }
}

Call call_of(Engine& engine, int rank, int size, Kind kind,
             const std::vector<float>& input, std::vector<float>& result) {
  Call call = make_call(engine, kind, "x", input, result);
  if (kind == Kind::kNeighborAllreduce) {
    call.self_weight = 0.5;
    call.sources = {{(rank + size - 1) % size, 0.5}};
    call.destinations = {{(rank + 1) % size, 1.0}};
  }
  return call;
}

void check_parts(EngineWorld& world, Kind kind, bool in_place) {
  world.run([&](int rank, Engine& engine) {
    std::vector<float> expected(kCount);
    const std::vector<float> whole = values_of(rank);
    CHECK_EQ(
        run_call(engine, call_of(engine, rank, world.size(), kind, whole, expected))
            .text,
        "");
    std::vector<float> input = values_of(rank);
    std::vector<float> other(kCount);
    std::vector<float>& result = in_place ? input : other;
    std::vector<float> copy(kCount);
    const RequestId id =
        engine.submit(call_of(engine, rank, world.size(), kind, input, result));
    CHECK_EQ(wait_in_parts(engine, id, result, copy).text, "");
    engine.release(id);
    CHECK(result == expected);
    CHECK(copy == expected);  // no part changed after it was final
  });
}

TEST(parts, of_a_result_do_not_change_once_they_are_final) {
  for (const bool over_sockets : {false, true}) {
    EngineWorld world = over_sockets
                            ? EngineWorld(3, over_tcp(2, stream::Encryption::kOff))
                            : EngineWorld(3);
    for (const Kind kind :
         {Kind::kAllreduce, Kind::kNeighborAllreduce, Kind::kBroadcast}) {
      for (const bool in_place : {false, true}) check_parts(world, kind, in_place);
    }
  }
}

TEST(parts, are_final_while_later_ones_have_not_been_sent) {
  EngineWorld world(2);
  const auto gate = std::make_shared<GradualGate>();
  world.run([&](int rank, Engine& engine) {
    std::vector<float> input = values_of(0);
    std::vector<float> result(kCount);
    Call call = make_call(engine, Kind::kBroadcast, "x", input, result);
    if (rank == 0) {
      call.gate = gate;
      gate->write(2 * kPart);
    }
    const RequestId id = engine.submit(std::move(call));
    if (rank == 1) {
      const Engine::Part part = engine.wait_part(id, kPart, Clock::now() + kDeadline);
      CHECK(!part.status.has_value());
      CHECK(part.final_prefix >= kPart);
      CHECK(part.final_prefix <= 2 * kPart);
      CHECK(std::equal(input.begin(), input.begin() + kPart / sizeof(float),
                       result.begin()));
      gate->finish();
    }
    CHECK_EQ(engine.wait(id, Clock::now() + kDeadline)->text, "");
    CHECK_EQ(engine.wait_part(id, 1, Clock::now()).final_prefix, kPart * kParts);
    engine.release(id);
  });
}

TEST(parts, of_a_failed_operation_are_not_final) {
  EngineWorld world(2);
  const auto gate = std::make_shared<GradualGate>();
  world.run([&](int rank, Engine& engine) {
    std::vector<float> input = values_of(0);
    std::vector<float> result(kCount);
    Call call = make_call(engine, Kind::kBroadcast, "x", input, result);
    if (rank == 0) {
      call.gate = gate;
      gate->write(kPart);
    }
    const RequestId id = engine.submit(std::move(call));
    if (rank == 1) {
      engine.wait_part(id, kPart / 2, Clock::now() + kDeadline);
      gate->break_off();
    }
    const Engine::Part part = engine.wait_part(id, 2 * kPart, Clock::now() + kDeadline);
    check_failure(*part.status, Code::kInternal, "the copy failed");
    CHECK_EQ(part.final_prefix, 0U);
    engine.release(id);
  });
}

TEST(parts, of_a_receive_are_final_when_they_have_arrived) {
  EngineWorld world(2);
  world.run([&](int rank, Engine& engine) {
    std::vector<float> sent = values_of(0);
    std::vector<float> result(kCount);
    PointCall call;
    call.kind = rank == 0 ? RequestKind::kSend : RequestKind::kRecv;
    call.group = kWorld;
    call.members = std::make_shared<const std::vector<int>>(std::vector<int>{0, 1});
    call.peer = 1 - rank;
    call.dtype = DType::kFloat32;
    call.shape = {static_cast<std::int64_t>(kCount)};
    call.memory = std::as_writable_bytes(std::span(rank == 0 ? sent : result));
    call.deadline = Clock::now() + kDeadline;
    const RequestId id = engine.submit(std::move(call));
    if (rank == 1) {
      std::vector<float> copy(kCount);
      CHECK_EQ(wait_in_parts(engine, id, result, copy).text, "");
      CHECK(copy == sent);
    } else {
      CHECK_EQ(engine.wait(id, Clock::now() + kDeadline)->text, "");
    }
    engine.release(id);
  });
}

}  // namespace
}  // namespace bluecomm::test
