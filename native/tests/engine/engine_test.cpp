#include "engine/engine.h"

#include <numeric>
#include <vector>

#include "tests/check.h"
#include "tests/engine/engine_world.h"

namespace bluecomm::test {
namespace {

constexpr int kSizes[] = {1, 2, 3, 5, 8};

std::vector<float> values_of(int rank, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>((static_cast<std::size_t>(rank) * 7 + i) % 13);
  }
  return values;
}

std::vector<float> sum_of(int size, std::size_t count) {
  std::vector<float> sum(count, 0.0F);
  for (int rank = 0; rank < size; ++rank) {
    const std::vector<float> values = values_of(rank, count);
    for (std::size_t i = 0; i < count; ++i) sum[i] += values[i];
  }
  return sum;
}

TEST(engine, allreduces_in_place_and_out_of_place) {
  for (const int size : kSizes) {
    for (const std::size_t count : {0UL, 1UL, 1000UL, 300000UL}) {
      EngineWorld world(size);
      world.run([&](int rank, Engine& engine) {
        std::vector<float> input = values_of(rank, count);
        std::vector<float> output(count);
        const Status status =
            run_call(engine, make_call(engine, Kind::kAllreduce, "x", input, output));
        CHECK_EQ(status.text, "");
        CHECK(output == sum_of(size, count));
        CHECK_EQ(
            run_call(engine, make_call(engine, Kind::kAllreduce, "x", input, input))
                .text,
            "");
        CHECK(input == sum_of(size, count));
      });
    }
  }
}

TEST(engine, counts_calls_by_group_and_name) {
  EngineWorld world(1);
  Engine& engine = world.engine(0);
  std::vector<float> tensor(3);
  const auto call = [&](const char* name) {
    return make_call(engine, Kind::kAllreduce, name, tensor, tensor);
  };
  CHECK_EQ(engine.calls_like(call("x")), 0U);
  CHECK_EQ(run_call(engine, call("x")).text, "");
  CHECK_EQ(run_call(engine, call("x")).text, "");
  CHECK_EQ(run_call(engine, call("y")).text, "");
  CHECK_EQ(engine.calls_like(call("x")), 2U);
  CHECK_EQ(engine.calls_like(call("y")), 1U);
}

TEST(engine, averages_with_ring_neighbors) {
  for (const int size : {2, 3, 5}) {
    EngineWorld world(size);
    const std::size_t count = 500000;
    world.run([&](int rank, Engine& engine) {
      std::vector<float> tensor = values_of(rank, count);
      Call call = make_call(engine, Kind::kNeighborAllreduce, "w", tensor, tensor);
      const int left = (rank + size - 1) % size;
      call.self_weight = 0.5;
      call.sources = {{left, 0.25}};
      call.destinations = {{(rank + 1) % size, 2.0}};
      CHECK_EQ(run_call(engine, std::move(call)).text, "");
      const std::vector<float> own = values_of(rank, count);
      const std::vector<float> other = values_of(left, count);
      for (std::size_t i = 0; i < count; ++i) {
        if (tensor[i] == 0.5F * own[i] + 0.5F * other[i]) continue;
        CHECK_EQ(tensor[i], 0.5F * own[i] + 0.5F * other[i]);
        break;
      }
    });
  }
}

TEST(engine, gathers_into_memory_of_its_own) {
  EngineWorld world(3);
  world.run([&](int rank, Engine& engine) {
    const std::vector<float> input = values_of(rank, static_cast<std::size_t>(rank));
    const RequestId id =
        engine.submit(make_call(engine, Kind::kAllgather, "g", input, {}));
    REQUIRE(engine.wait(id, Clock::now() + kDeadline)->ok());
    const Result result = engine.result(id);
    CHECK(result.rows == std::vector<std::int64_t>({0, 1, 2}));
    CHECK_EQ(result.bytes.size(), 3 * sizeof(float));
    engine.release(id);
    CHECK_THROWS(engine.result(id), std::invalid_argument, "was released");
  });
}

TEST(engine, matches_by_name_in_any_order) {
  EngineWorld world(3);
  world.run([&](int rank, Engine& engine) {
    std::vector<std::vector<float>> tensors;
    for (int i = 0; i < 20; ++i) tensors.push_back(values_of(rank + i, 100));
    std::vector<Call> calls;
    for (int i = 0; i < 20; ++i) {
      const int which = rank == 0 ? i : 19 - i;
      std::vector<float>& tensor = tensors[static_cast<std::size_t>(which)];
      calls.push_back(make_call(engine, Kind::kAllreduce, "t" + std::to_string(which),
                                tensor, tensor));
    }
    CHECK_EQ(run_calls(engine, std::move(calls)).text, "");
    CHECK_EQ(tensors[4][5], static_cast<float>((4 * 7 + 5) % 13 + (5 * 7 + 5) % 13 +
                                               (6 * 7 + 5) % 13));
  });
}

TEST(engine, queues_the_second_use_of_a_name) {
  EngineWorld world(2);
  world.run([&](int rank, Engine& engine) {
    std::vector<float> tensor(1000, rank == 0 ? 1.0F : 2.0F);
    std::vector<Call> calls;
    for (int i = 0; i < 3; ++i) {
      calls.push_back(make_call(engine, Kind::kAllreduce, "x", tensor, tensor));
    }
    CHECK_EQ(run_calls(engine, std::move(calls)).text, "");
    CHECK_EQ(tensor[999], 12.0F);
  });
}

TEST(engine, lists_what_is_outstanding_and_what_has_finished) {
  EngineWorld world(2);
  std::vector<float> a(4, 1.0F);
  std::vector<float> b(4, 2.0F);
  Engine& first = world.engine(0);
  const RequestId id = first.submit(make_call(first, Kind::kAllreduce, "late", a, a));
  const std::vector<PendingRequest> pending = first.pending();
  REQUIRE(pending.size() == 1);
  CHECK_EQ(pending[0].id, id);
  CHECK_EQ(pending[0].wish, "");
  CHECK_EQ(pending[0].kind, "allreduce");
  CHECK_EQ(pending[0].name, "late");
  CHECK(pending[0].waiting_for == std::vector<int>({1}));
  CHECK_EQ(pending[0].received_bytes, 0U);
  CHECK_EQ(pending[0].expected_bytes, 16U);
  CHECK(!first.done(id));
  CHECK(first.finished().empty());
  CHECK_THROWS(first.release(id), std::invalid_argument, "cannot be released");

  Engine& second = world.engine(1);
  CHECK_EQ(run_call(second, make_call(second, Kind::kAllreduce, "late", b, b)).text,
           "");
  REQUIRE(first.wait(id, Clock::now() + kDeadline).has_value());
  CHECK(first.finished() == std::vector<RequestId>({id}));
  CHECK(first.finished().empty());
  first.release(id);
  CHECK_EQ(b[0], 3.0F);
  CHECK(first.stats().kinds[0].second.duration_s > 0);
  CHECK(first.stats().peers[0].channel.messages_sent > 0);
}

TEST(engine, gives_up_waiting_without_ending_the_operation) {
  EngineWorld world(2);
  std::vector<float> a(4, 1.0F);
  Engine& engine = world.engine(0);
  const RequestId id = engine.submit(make_call(engine, Kind::kBarrier, "b", {}, {}));
  CHECK(!engine.wait(id, Clock::now() + 10ms).has_value());
  int asked = 0;
  CHECK(!engine.wait(id, Clock::now() + kDeadline, [&] { return ++asked == 2; }));
  CHECK_EQ(asked, 2);
  Engine& other = world.engine(1);
  CHECK_EQ(run_call(other, make_call(other, Kind::kBarrier, "b", {}, {})).text, "");
  CHECK(engine.wait(id, Clock::now() + kDeadline)->ok());
}

TEST(engine, runs_what_the_caller_waits_for) {
  EngineWorld world(2);
  std::vector<float> a(4, 1.0F);
  Engine& engine = world.engine(0);
  // The peer has not called the barrier, so run() returns after a while with a request
  // to wait for.
  const RequestId late = engine.run(make_call(engine, Kind::kBarrier, "late", {}, {}));
  REQUIRE(late != 0);
  CHECK(!engine.done(late));
  Engine& other = world.engine(1);
  CHECK_EQ(run_call(other, make_call(other, Kind::kBarrier, "late", {}, {})).text, "");
  CHECK(engine.wait(late, Clock::now() + 10s)->ok());
  CHECK(engine.finished() == std::vector<RequestId>({late}));
}

TEST(engine, runs_a_call_after_others) {
  EngineWorld world(3);
  const auto barrier = [](Engine& engine, const char* name) {
    return make_call(engine, Kind::kBarrier, name, {}, {});
  };
  const auto first = [&](int rank) {
    Engine& engine = world.engine(rank);
    return engine.submit(barrier(engine, "first"));
  };
  const auto after = [&](int rank, RequestId id) {
    Engine& engine = world.engine(rank);
    return engine.run_after({id}, barrier(engine, "after"));
  };
  const auto calls_after = [&](int rank) {
    Engine& engine = world.engine(rank);
    return engine.calls_like(barrier(engine, "after"));
  };
  std::vector<RequestId> begun = {first(0)};
  CHECK(!after(0, begun[0]));  // the peers have not called the first barrier
  CHECK_EQ(calls_after(0), 0U);
  begun.push_back(first(1));
  begun.push_back(first(2));
  world.run([&](int rank, Engine& engine) {
    std::optional<RequestId> id;
    while (!id) id = after(rank, begun[static_cast<std::size_t>(rank)]);
    if (*id != 0) CHECK(engine.wait(*id, Clock::now() + 10s)->ok());
    CHECK_EQ(calls_after(rank), 1U);
  });

  // Rank 2 calls nothing, so the request cannot end before the failure arrives.
  world.engine(0).fail(first(0), {Code::kMismatch, "enough", 0});
  const RequestId failed = first(1);
  CHECK_EQ(world.engine(1).wait(failed, Clock::now() + 10s)->text, "enough");
  CHECK(!after(1, failed));
  CHECK_EQ(calls_after(1), 1U);
}

TEST(engine, keeps_what_has_failed_for_the_caller) {
  // Rank 2 calls nothing, so the request cannot end before the failure arrives.
  EngineWorld world(3);
  std::vector<float> a(4, 1.0F);
  Engine& engine = world.engine(0);
  engine.fail(engine.submit(make_call(engine, Kind::kAllreduce, "x", a, a)),
              {Code::kMismatch, "enough", 0});
  Engine& other = world.engine(1);
  const RequestId failed = other.run(make_call(other, Kind::kAllreduce, "x", a, a));
  REQUIRE(failed != 0);
  CHECK_EQ(other.wait(failed, Clock::now() + 10s)->text, "enough");
  CHECK(other.finished() == std::vector<RequestId>({failed}));
}

TEST(engine, releases_what_it_has_run_to_a_good_end) {
  EngineWorld world(1);
  std::vector<float> a(4, 1.0F);
  Engine& engine = world.engine(0);
  CHECK_EQ(engine.run(make_call(engine, Kind::kAllreduce, "x", a, a)), 0U);
  CHECK(engine.finished().empty());
  CHECK(engine.stats().kinds[0].second.calls == 1);

  // A request whose result the engine has allocated is not released.
  const RequestId gather = engine.run(make_call(engine, Kind::kAllgather, "g", a, {}));
  REQUIRE(gather != 0);
  CHECK(engine.done(gather));
  CHECK_EQ(engine.result(gather).bytes.size(), 4 * sizeof(float));
}

}  // namespace
}  // namespace bluecomm::test
