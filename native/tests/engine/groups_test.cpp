// Groups that are removed: their calls fail on all members, and nothing of them is
// left.
#include "engine/groups.h"

#include <malloc.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "tests/check.h"
#include "tests/engine/engine_world.h"

namespace bluecomm::test {
namespace {

constexpr std::uint64_t kRemoved = 77;

Status reduce_in(Engine& engine, std::vector<float>& tensor, const std::string& name,
                 std::uint64_t group = kRemoved) {
  return run_call(engine,
                  make_call(engine, Kind::kAllreduce, name, tensor, tensor, group));
}

TEST(groups, are_forgotten_and_their_ids_remembered) {
  Groups groups;
  groups.add({.id = 1, .ranks = {0}, .machine_of = {0}});
  CHECK_THROWS(groups.add({.id = 1, .ranks = {0}, .machine_of = {0}}),
               std::invalid_argument, "group 1 already exists");
  CHECK(groups.find(1) != nullptr);
  CHECK(!groups.was_removed(1));
  groups.remove(1);
  CHECK(groups.find(1) == nullptr);
  CHECK(groups.was_removed(1));
  CHECK_THROWS(groups.remove(1), std::invalid_argument, "there is no group 1");
}

TEST(groups, removers_are_forgotten_with_their_group) {
  Groups groups;
  groups.note_removed_by(1, 3);
  groups.add({.id = 1, .ranks = {0, 3}, .machine_of = {0, 0}});
  CHECK(groups.removed().removers(1)->contains(3));
  groups.remove(1);
  CHECK(groups.removed().removers(1) == nullptr);
  groups.note_removed_by(1, 3);
  CHECK(groups.removed().removers(1) == nullptr);
}

TEST(groups, removal_fails_calls_under_way_on_all_members) {
  EngineWorld world(3);
  world.run([&](int rank, Engine& engine) {
    engine.add_group(kRemoved, {0, 1, 2}, {0, 0, 0});
    std::vector<float> tensor(1000, 1.0F);
    CHECK_EQ(reduce_in(engine, tensor, "ready").text, "");
    if (rank == 2) {
      engine.remove_group(kRemoved);
      CHECK_THROWS(engine.group(kRemoved), std::invalid_argument, "there is no group");
    } else {
      // Rank 2 may have removed the group already, or do so while the call waits.
      for (const std::string name : {"x", "x", ""}) {
        check_failure(reduce_in(engine, tensor, name), Code::kFreed,
                      "cut short, because rank 2 (host2) has freed the process set");
      }
      engine.remove_group(kRemoved);
    }
    std::vector<float> other(10, 1.0F);
    CHECK_EQ(reduce_in(engine, other, "other group", kWorld).text, "");
    CHECK(!engine.take_late_failure());
    CHECK(engine.pending().empty());
  });
}

TEST(groups, removal_fails_own_calls_and_those_that_wait_for_them) {
  EngineWorld world(2);
  for (const int rank : {0, 1}) world.engine(rank).add_group(kRemoved, {0, 1}, {0, 0});
  Engine& engine = world.engine(0);
  std::vector<float> tensor(10);
  std::vector<RequestId> ids;
  for (int i = 0; i < 3; ++i) {
    ids.push_back(engine.submit(
        make_call(engine, Kind::kAllreduce, "x", tensor, tensor, kRemoved)));
  }
  Call late = make_call(engine, Kind::kAllreduce, "x", tensor, tensor, kRemoved);
  engine.remove_group(kRemoved);
  for (const RequestId id : ids) {
    check_failure(*engine.wait(id, Clock::now() + kDeadline), Code::kFreed,
                  "allreduce 'x' on rank 0: cut short");
    engine.release(id);
  }
  CHECK_THROWS(engine.submit(std::move(late)), std::invalid_argument, "was removed");
  std::vector<float> theirs(10);
  Status status;
  // Rank 1 may receive the data that rank 0 sent before the removal first, and only
  // then hear that the group was removed.
  for (std::size_t i = 0; i <= ids.size(); ++i) {
    status = reduce_in(world.engine(1), theirs, "x");
    if (!status.ok()) break;
  }
  check_failure(status, Code::kFreed, "rank 0 (host0)");
}

TEST(groups, removal_fails_calls_of_members_that_have_sent_nothing) {
  for (const bool is_called_before : {true, false}) {
    EngineWorld world(2);
    for (const int rank : {0, 1}) {
      world.engine(rank).add_group(kRemoved, {0, 1}, {0, 0});
    }
    Engine& engine = world.engine(1);
    std::vector<float> tensor(10);
    const auto receive = [&] {
      Call call = make_call(engine, Kind::kBroadcast, "x", tensor, tensor, kRemoved);
      call.root = 0;
      return engine.submit(std::move(call));
    };
    std::vector<RequestId> ids;
    if (is_called_before) ids.push_back(receive());
    world.engine(0).remove_group(kRemoved);
    ids.push_back(receive());
    for (const RequestId id : ids) {
      const std::optional<Status> status = engine.wait(id, Clock::now() + kDeadline);
      CHECK(status.has_value());
      check_failure(*status, Code::kFreed, "rank 0 (host0) has freed the process set");
      engine.release(id);
    }
    engine.remove_group(kRemoved);
  }
}

TEST(groups, removal_fails_calls_of_groups_that_the_member_has_not_made) {
  constexpr std::uint64_t kPair = 78;
  for (const bool is_called_before : {true, false}) {
    EngineWorld world(2);
    for (const int rank : {0, 1}) {
      world.engine(rank).add_group(kRemoved, {0, 1}, {0, 0});
    }
    Engine& engine = world.engine(1);
    engine.add_group(kPair, {0, 1}, {0, 0}, kRemoved);
    std::vector<float> tensor(10);
    const auto start = [&] {
      return engine.submit(
          make_call(engine, Kind::kAllreduce, "x", tensor, tensor, kPair));
    };
    std::vector<RequestId> ids;
    if (is_called_before) ids.push_back(start());
    world.engine(0).remove_group(kRemoved);
    ids.push_back(start());
    for (const RequestId id : ids) {
      const std::optional<Status> status = engine.wait(id, Clock::now() + kDeadline);
      CHECK(status.has_value());
      check_failure(*status, Code::kFreed, "rank 0 (host0) has freed the process set");
      engine.release(id);
    }
  }
}

TEST(groups, removal_leaves_what_the_member_has_sent) {
  EngineWorld world(2);
  for (const int rank : {0, 1}) world.engine(rank).add_group(kRemoved, {0, 1}, {0, 0});
  std::vector<float> sent{1.0F};
  Engine& root = world.engine(0);
  const RequestId id =
      root.submit(make_call(root, Kind::kBroadcast, "x", sent, sent, kRemoved));
  std::vector<float> received(1);
  Engine& engine = world.engine(1);
  const RequestId other = engine.submit(
      make_call(engine, Kind::kBroadcast, "x", received, received, kRemoved));
  CHECK_EQ(root.wait(id, Clock::now() + kDeadline)->text, "");
  root.release(id);
  root.remove_group(kRemoved);
  CHECK_EQ(engine.wait(other, Clock::now() + kDeadline)->text, "");
  engine.release(other);
  CHECK_EQ(received.front(), 1.0F);
}

TEST(groups, leave_no_memory_behind) {
  EngineWorld world(2);
  // Runs a group's life on both ranks and returns the bytes in use after it.
  const auto round = [&](std::uint64_t id) {
    world.run([&](int, Engine& engine) {
      engine.add_group(id, {0, 1}, {0, 0});
      std::vector<float> tensor(10, 1.0F);
      CHECK_EQ(reduce_in(engine, tensor, "x", id).text, "");
      engine.remove_group(id);
    });
    return mallinfo2().uordblks;
  };
  std::uint64_t id = 100;
  for (int i = 0; i < 2100; ++i) round(++id);  // until the remembered ids are full
  const std::size_t before = round(++id);
  for (int i = 0; i < 1000; ++i) round(++id);
  const std::size_t after = round(++id);
  CHECK(after < before + 1000 * 16);  // less than two words for each group
}

}  // namespace
}  // namespace bluecomm::test
