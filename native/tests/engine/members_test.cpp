// How the engines of a job that survives losses agree who is left.
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "tests/check.h"
#include "tests/engine/engine_world.h"

namespace bluecomm::test {
namespace {

constexpr int kMembers = 4;
constexpr int kStopped = 2;

using ChangeKind = MemberChange::ChangeKind;

// Keeps an engine from beating and answering, as SIGSTOP does.
class Frozen {
 public:
  explicit Frozen(Engine& engine) : engine_(engine) { engine_.lock_for_fork(); }
  ~Frozen() { engine_.unlock_after_fork(); }
  Frozen(const Frozen&) = delete;
  Frozen& operator=(const Frozen&) = delete;

 private:
  Engine& engine_;
};

// A world in which the kernel says of the victim what the test wants.
struct StoppableWorld {
  EngineWorld& operator*() { return *engines; }

  std::shared_ptr<std::atomic<ProcessState>> state =
      std::make_shared<std::atomic<ProcessState>>(ProcessState::kRuns);
  std::optional<EngineWorld> engines{
      std::in_place, EngineWorld::SurvivesLosses{[state = state](int rank) {
        return rank == kStopped ? state->load() : ProcessState::kRuns;
      }},
      kMembers};
};

// Waits for a change that is not about being held. Records a failure if there is none.
MemberChange next_change(Engine& engine) {
  const auto deadline = Clock::now() + kDeadline;
  while (auto change = engine.next_member_change(deadline)) {
    const bool is_news =
        change->kind == ChangeKind::kGone || change->kind == ChangeKind::kExcluded;
    if (is_news) return *change;
  }
  CHECK(false);
  return {};
}

// Checks the next change, and returns its cause as this rank knows it.
std::string check_gone(Engine& engine, int rank) {
  const MemberChange change = next_change(engine);
  CHECK(change.kind == ChangeKind::kGone);
  CHECK_EQ(change.rank, rank);
  return change.cause;
}

// Lets all ranks beat at least once, so that their silence counts.
void warm_up(EngineWorld& world) {
  world.run([](int, Engine& engine) {
    std::vector<float> tensor(3, 1.0F);
    CHECK_EQ(
        run_call(engine, make_call(engine, Kind::kAllreduce, "warm", tensor, tensor))
            .text,
        "");
  });
  std::this_thread::sleep_for(300ms);
}

TEST(members, a_report_to_one_rank_is_known_to_all) {
  EngineWorld world(EngineWorld::SurvivesLosses{}, kMembers);
  world.kill(kStopped);
  world.engine(1).peer_lost(kStopped, "rank 2 was killed by SIGKILL");
  for (const int rank : {0, 1, 3}) check_gone(world.engine(rank), kStopped);
}

TEST(members, a_rank_that_is_needed_after_its_goodbye_is_gone) {
  EngineWorld world(EngineWorld::SurvivesLosses{}, kMembers);
  warm_up(world);
  world.engine(kStopped).close(kDeadline);
  std::vector<float> tensor(3, 1.0F);
  check_failure(run_call(world.engine(0), make_call(world.engine(0), Kind::kAllreduce,
                                                    "x", tensor, tensor)),
                Code::kPeerLost, "rank 2");
  // There is no report of the end of its process.
  for (const int rank : {0, 1, 3}) {
    CHECK_EQ(check_gone(world.engine(rank), kStopped), "left");
  }
}

TEST(members, all_learn_of_several_losses_in_one_order) {
  EngineWorld world(EngineWorld::SurvivesLosses{}, 6);
  for (const int rank : {1, 4, 5}) world.kill(rank);
  // Each rank hears of them in its own order.
  world.engine(0).peer_lost(5, "gone");
  world.engine(2).peer_lost(1, "gone");
  world.engine(3).peer_lost(4, "gone");
  world.engine(0).peer_lost(4, "gone");
  world.engine(2).peer_lost(5, "gone");
  world.engine(3).peer_lost(1, "gone");
  std::vector<std::vector<int>> orders;
  for (const int rank : {0, 2, 3}) {
    std::vector<int>& order = orders.emplace_back();
    while (order.size() < 3) order.push_back(next_change(world.engine(rank)).rank);
  }
  CHECK(orders[0] == orders[1]);
  CHECK(orders[0] == orders[2]);
}

TEST(members, a_stopped_rank_is_excluded_and_learns_of_it) {
  StoppableWorld world;
  warm_up(*world);
  std::optional<Frozen> frozen(std::in_place, (*world).engine(kStopped));
  *world.state = ProcessState::kStopped;
  // Two accusations suffice, so not every rank has seen the reason itself.
  bool is_known = false;
  for (const int rank : {0, 1, 3}) {
    if (check_gone((*world).engine(rank), kStopped) == "stopped") is_known = true;
  }
  CHECK(is_known);
  frozen.reset();
  Engine& victim = (*world).engine(kStopped);
  CHECK(next_change(victim).kind == ChangeKind::kExcluded);
  std::vector<float> tensor(3, 1.0F);
  check_failure(
      run_call(victim, make_call(victim, Kind::kAllreduce, "late", tensor, tensor)),
      Code::kPeerLost, "the other ranks have gone on without it");
}

TEST(members, a_late_rank_stays) {
  StoppableWorld world;
  warm_up(*world);
  {
    const Frozen frozen((*world).engine(kStopped));
    std::this_thread::sleep_for(1s);
  }
  (*world).run([](int, Engine& engine) {
    std::vector<float> tensor(3, 1.0F);
    CHECK_EQ(
        run_call(engine, make_call(engine, Kind::kAllreduce, "after", tensor, tensor))
            .text,
        "");
    CHECK(!engine.next_member_change(Clock::now()));
  });
}

TEST(members, a_suspended_rank_stays) {
  StoppableWorld world;
  warm_up(*world);
  (*world).engine(kStopped).suspend();
  // It answers, so the others decide with it, and it learns of the decision.
  (*world).kill(1);
  (*world).engine(0).peer_lost(1, "gone");
  for (const int rank : {0, kStopped, 3}) check_gone((*world).engine(rank), 1);
  (*world).engine(kStopped).resume();
}

TEST(members, a_rank_that_leaves_fails_its_calls) {
  EngineWorld world(EngineWorld::SurvivesLosses{}, 2);
  Engine& engine = world.engine(0);
  engine.leave_members("the launcher ends this rank: enough");
  std::vector<float> tensor(3, 1.0F);
  check_failure(
      run_call(engine, make_call(engine, Kind::kAllreduce, "x", tensor, tensor)),
      Code::kPeerLost, "the launcher ends this rank: enough");
  CHECK(next_change(engine).kind == ChangeKind::kExcluded);
}

}  // namespace
}  // namespace bluecomm::test
