// Operations that fail after they have succeeded on some ranks. These ranks raise the
// failure in their next call, which does not fail on any other rank.
#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "tests/check.h"
#include "tests/engine/engine_world.h"
#include "tests/p2p/points.h"

namespace bluecomm::test {
namespace {

constexpr int kAgreed = 4;  // calls after the one on which the ranks disagree

// Makes the calls on which all ranks agree, and checks that each was carried out.
// Returns their outcomes.
std::vector<Status> call_agreed(Engine& engine, int size) {
  std::vector<Status> outcomes;
  for (int i = 0; i < kAgreed; ++i) {
    std::vector<float> tensor(5, 1.0F);
    outcomes.push_back(
        run_call(engine, make_call(engine, Kind::kAllreduce,
                                   "agreed." + std::to_string(i), tensor, tensor)));
    CHECK_EQ(tensor[4], static_cast<float>(size));
  }
  return outcomes;
}

void check_raised_once(const Status& own, const std::vector<Status>& agreed) {
  int failures = own.ok() ? 0 : 1;
  if (!own.ok()) check_failure(own, Code::kMismatch, " called ");
  for (std::size_t i = 0; i < agreed.size(); ++i) {
    if (agreed[i].ok()) continue;
    ++failures;
    check_failure(agreed[i], Code::kMismatch,
                  "allreduce 'agreed." + std::to_string(i) + "' on rank ");
    check_failure(agreed[i], Code::kMismatch,
                  " was carried out; an earlier operation failed");
    CHECK(agreed[i].was_carried_out);
    check_failure(agreed[i], Code::kMismatch, "had finished its part of it: ");
    check_failure(agreed[i], Code::kMismatch, " called ");
  }
  CHECK_EQ(failures, 1);
  CHECK_EQ(agreed.back().text, "");
}

TEST(late_failures, each_rank_raises_a_disagreement_once) {
  struct Case {
    Kind kind;
    void (*change)(Call&);
  };
  const Case cases[] = {
      {Kind::kBroadcast, [](Call& call) { call.shape = {call.shape[0] / 2, 2}; }},
      {Kind::kBroadcast, [](Call& call) { call.dtype = DType::kInt32; }},
      {Kind::kBroadcast, [](Call& call) { call.root = 1; }},
      {Kind::kAllgather, [](Call& call) { call.dtype = DType::kInt32; }},
      {Kind::kAlltoall, [](Call& call) { call.dtype = DType::kInt32; }},
      {Kind::kAllreduce, [](Call& call) { call.dtype = DType::kInt32; }},
  };
  for (const Case& one : cases) {
    for (const std::size_t count : {6UL, 60000UL}) {
      EngineWorld world(3);
      world.run([&](int rank, Engine& engine) {
        std::vector<float> tensor(count);
        Call call = make_call(engine, one.kind, "x", tensor, tensor);
        if (one.kind == Kind::kAllgather || one.kind == Kind::kAlltoall)
          call.output = {};
        if (rank == 1) one.change(call);
        const Status own = run_call(engine, std::move(call));
        check_raised_once(own, call_agreed(engine, world.size()));
        CHECK(!engine.take_late_failure());
      });
    }
  }
}

TEST(late_failures, a_rank_that_knows_nothing_of_its_neighbors_failure_goes_on) {
  EngineWorld world(6);
  world.run([&](int rank, Engine& engine) {
    std::vector<float> input(rank == 2 ? 8 : 9);
    std::vector<float> output(input.size());
    Call call = make_call(engine, Kind::kNeighborAllreduce, "x", input, output);
    const int left = (rank + 5) % 6;
    const int right = (rank + 1) % 6;
    call.sources = {{left, 1.0}, {right, 1.0}};
    call.destinations = {{left, 1.0}, {right, 1.0}};
    const Status own = run_call(engine, std::move(call));
    const std::vector<Status> agreed = call_agreed(engine, world.size());
    int failures = own.ok() ? 0 : 1;
    for (const Status& status : agreed) failures += status.ok() ? 0 : 1;
    if (rank >= 1 && rank <= 3) CHECK_EQ(failures, 1);
    CHECK(failures <= 1);
  });
}

// Rank 2 finishes broadcasts that rank 1 calls with another shape, and knows of it when
// this returns. Rank 0 is the root.
void fail_broadcasts(EngineWorld& world, const std::vector<std::string>& names) {
  std::vector<float> tensor(4);
  Engine& through = world.engine(2);
  const auto submit = [&](Engine& engine) {
    std::vector<RequestId> ids;
    for (const std::string& name : names) {
      ids.push_back(
          engine.submit(make_call(engine, Kind::kBroadcast, name, tensor, tensor)));
    }
    return ids;
  };
  const std::vector<RequestId> sent = submit(world.engine(0));
  const std::vector<RequestId> received = submit(through);
  for (const RequestId id : received) {
    CHECK_EQ(through.wait(id, Clock::now() + kDeadline)->text, "");
  }
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string text = "broadcast '" + names[i] + "': rank 0 (host0) called";
    std::vector<float> odd(5);
    Engine& other = world.engine(1);
    check_failure(
        run_call(other, make_call(other, Kind::kBroadcast, names[i], odd, odd)),
        Code::kMismatch, text);
    check_failure(*world.engine(0).wait(sent[i], Clock::now() + kDeadline),
                  Code::kMismatch, text);
  }
  await([&] {
    const Stats stats = through.stats();
    return stats.peers[1].channel.messages_received == names.size();
  });
  through.with_windows([](WindowService&) { return true; });  // polls
}

TEST(late_failures, a_call_that_raises_one_has_its_result) {
  EngineWorld world(3);
  fail_broadcasts(world, {"x"});
  world.run([&](int rank, Engine& engine) {
    const std::vector<float> input(2, static_cast<float>(rank));
    const RequestId id =
        engine.submit(make_call(engine, Kind::kAllgather, "g", input, {}));
    const std::optional<Status> status = engine.wait(id, Clock::now() + kDeadline);
    REQUIRE(status.has_value());
    CHECK_EQ(status->ok(), rank != 2);
    CHECK_EQ(status->was_carried_out, rank == 2);
    const Result result = engine.result(id);
    REQUIRE(result.bytes.size() == 6 * sizeof(float));
    std::array<float, 6> rows;
    std::memcpy(rows.data(), result.bytes.data(), result.bytes.size());
    CHECK(rows == std::array<float, 6>({0, 0, 1, 1, 2, 2}));
    engine.release(id);
  });
}

TEST(late_failures, the_next_call_raises_all_of_them) {
  EngineWorld world(3);
  fail_broadcasts(world, {"x", "y", "z"});
  world.run([&](int rank, Engine& engine) {
    const std::vector<Status> agreed = call_agreed(engine, world.size());
    for (std::size_t i = 1; i < agreed.size(); ++i) CHECK_EQ(agreed[i].text, "");
    if (rank != 2) {
      CHECK_EQ(agreed[0].text, "");
      return;
    }
    check_failure(
        agreed[0], Code::kMismatch,
        "allreduce 'agreed.0' on rank 2 was carried out; an earlier operation "
        "failed on rank ");
    check_failure(agreed[0], Code::kMismatch,
                  " after rank 2 had finished its part of it: broadcast 'x': rank 0 "
                  "(host0) called broadcast float32 [4] from root 0, rank 1 (host1) "
                  "called broadcast float32 [5] from root 0.");
    check_failure(agreed[0], Code::kMismatch, " 2 more operations failed like this.");
  });
}

TEST(late_failures, the_next_call_may_have_the_name_of_the_failed_one) {
  EngineWorld world(3);
  fail_broadcasts(world, {"x"});
  world.run([&](int rank, Engine& engine) {
    std::vector<float> tensor(4, static_cast<float>(rank));
    const auto broadcast = [&] {
      return run_call(engine, make_call(engine, Kind::kBroadcast, "x", tensor, tensor));
    };
    const Status status = broadcast();
    CHECK_EQ(tensor[3], 0.0F);
    CHECK_EQ(status.ok(), rank != 2);
    CHECK_EQ(broadcast().text, "");
  });
}

TEST(late_failures, a_call_that_fails_itself_names_both_reasons) {
  EngineWorld world(3);
  fail_broadcasts(world, {"x"});
  Engine& through = world.engine(2);
  Call call = make_call(through, Kind::kBarrier, "b", {}, {});
  call.deadline = Clock::now() + 50ms;
  const Status status = run_call(through, std::move(call));
  check_failure(status, Code::kTimedOut, "barrier 'b' on rank 2: no data from rank");
  check_failure(status, Code::kTimedOut,
                ". Before it, an earlier operation failed on rank ");
  // The other ranks learn of the timeout only.
  Engine& other = world.engine(1);
  const Status theirs = run_call(other, make_call(other, Kind::kBarrier, "b", {}, {}));
  CHECK_EQ(static_cast<int>(theirs.code), static_cast<int>(Code::kTimedOut));
  CHECK(theirs.text.find("earlier operation") == std::string::npos);
}

// Adds a group whose calls raise and leave no late failures.
constexpr std::uint64_t kQuiet = 5;
void add_quiet_group(EngineWorld& world) {
  for (int rank = 0; rank < 3; ++rank) {
    world.engine(rank).add_group(kQuiet, {0, 1, 2}, {0, 1, 2});
  }
}

TEST(late_failures, wait_for_a_call_that_raises_them) {
  EngineWorld world(3);
  add_quiet_group(world);
  fail_broadcasts(world, {"x"});
  world.run([&](int rank, Engine& engine) {
    Call quiet = make_call(engine, Kind::kBarrier, "quiet", {}, {}, kQuiet);
    quiet.raises_late = false;
    CHECK_EQ(run_call(engine, std::move(quiet)).text, "");
    float value = 1.0F;
    PointCall send = send_call(engine, {&value, 1}, (rank + 1) % 3);
    PointCall receive = recv_call(engine, {&value, 1}, (rank + 2) % 3);
    send.raises_late = receive.raises_late = false;
    CHECK_EQ(run_point(engine, std::move(send)).text, "");
    CHECK_EQ(run_point(engine, std::move(receive)).text, "");
    const std::vector<Status> agreed = call_agreed(engine, world.size());
    CHECK_EQ(agreed[0].ok(), rank != 2);
    CHECK_EQ(agreed[1].text, "");
  });
}

TEST(late_failures, are_not_left_by_calls_that_raise_none) {
  EngineWorld world(3);
  add_quiet_group(world);
  world.run([&](int rank, Engine& engine) {
    std::vector<float> tensor(rank == 1 ? 5 : 4);
    Call call = make_call(engine, Kind::kBroadcast, "x", tensor, tensor, kQuiet);
    call.raises_late = false;
    const Status own = run_call(engine, std::move(call));
    if (rank == 1) check_failure(own, Code::kMismatch, " called ");
    for (const Status& status : call_agreed(engine, world.size())) {
      CHECK_EQ(status.text, "");
    }
    CHECK(!engine.take_late_failure());
  });
}

TEST(late_failures, a_call_that_was_started_before_does_not_raise_them) {
  EngineWorld world(3);
  Engine& through = world.engine(2);
  const RequestId early =
      through.submit(make_call(through, Kind::kBarrier, "early", {}, {}));
  fail_broadcasts(world, {"x"});
  world.run([&](int rank, Engine& engine) {
    if (rank == 2) return;
    CHECK_EQ(run_call(engine, make_call(engine, Kind::kBarrier, "early", {}, {})).text,
             "");
  });
  CHECK_EQ(through.wait(early, Clock::now() + kDeadline)->text, "");
  const std::optional<Status> late = through.take_late_failure();
  REQUIRE(late.has_value());
  check_failure(*late, Code::kMismatch, "an earlier operation failed on rank ");
  CHECK(!through.take_late_failure());
}

TEST(late_failures, a_timeout_does_not_name_a_call_that_failed_long_ago) {
  EngineWorld world(2);
  Engine& engine = world.engine(0);
  Engine& other = world.engine(1);
  // Rank 1 gives up a call that rank 0 never makes.
  Call failed = make_call(other, Kind::kBarrier, "long ago", {}, {});
  failed.deadline = Clock::now() + 50ms;
  check_failure(run_call(other, std::move(failed)), Code::kTimedOut, "'long ago'");
  other.submit(make_call(other, Kind::kBarrier, "now", {}, {}));
  other.submit(make_call(other, Kind::kBarrier, "next", {}, {}));
  await([&] { return engine.stats().peers[0].channel.messages_received == 4; });
  Call call = make_call(engine, Kind::kBarrier, "b", {}, {});
  call.deadline = Clock::now() + 50ms;
  const Status status = run_call(engine, std::move(call));
  check_failure(status, Code::kTimedOut,
                "; rank 1 (host1) has called barrier 'now', which this rank has not "
                "called yet");
  CHECK(status.text.find("long ago") == std::string::npos);
  // A call that arrives late gets the error of the rank that gave up.
  check_failure(run_call(engine, make_call(engine, Kind::kBarrier, "long ago", {}, {})),
                Code::kTimedOut, "barrier 'long ago' on rank 1: no data from rank 0");
}

}  // namespace
}  // namespace bluecomm::test
