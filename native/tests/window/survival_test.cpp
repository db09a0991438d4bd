// Windows of several engines that go on when a rank is lost, over messages and over
// shared memory.
#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "tests/check.h"
#include "tests/engine/engine_world.h"
#include "tests/window/windows.h"
#include "window/calls.h"
#include "window/service.h"

namespace bluecomm::test {
namespace {

constexpr int kSize = 4;
constexpr int kVictim = 2;

// One rank's window, used as a program uses it. All ranks are neighbors except 0 and 1,
// which have no edge.
class Participant {
 public:
  Participant(Engine& engine, int rank) : rank(rank), engine_(engine) {
    WindowConfig config;
    config.id = 7;
    config.name = "x";
    config.rank = rank;
    config.dtype = DType::kFloat64;
    config.nbytes = kCount * sizeof(double);
    for (int other = 0; other < kSize; ++other) {
      if (other == rank || other + rank == 1) continue;
      config.in_neighbors.push_back(other);
      config.out_neighbors.push_back(other);
    }
    config.ranks = kSize;
    config.zero_init = true;
    window = std::make_shared<Window>(config, bytes_of(own()), allocate_aligned);
    CHECK_EQ(wait(engine.with_windows([&](WindowService& service) {
               return service.open(window, deadline())->id();
             })),
             "");
  }

  static Clock::time_point deadline() { return Clock::now() + kDeadline; }
  std::vector<double> own() const { return std::vector<double>(kCount, 1.0 + rank); }

  // Waits for a request and releases it, unless `id` is 0. Returns the error.
  std::string wait(RequestId id) {
    if (id == 0) return "";
    const std::string text = engine_.wait(id, deadline() + 5s)->text;
    CHECK(engine_.release(id));
    return text;
  }

  std::string put(int target, double value, bool accumulates = false) {
    const std::vector<double> x(kCount, value);
    const WindowPut call{bytes_of(x), {{target, 1.0}}, accumulates, true};
    return wait(bluecomm::put(engine_, window, call, deadline(), true));
  }

  std::string get(int source) {
    return wait(
        bluecomm::get(engine_, window, {{{source, 1.0}}, true}, deadline(), true));
  }

  RequestId lock(int owner) {
    return engine_.with_windows([&](WindowService& service) {
      return service.lock(window, owner, deadline())->id();
    });
  }
  void unlock(int owner, RequestId id) {
    engine_.with_windows([&](WindowService& service) {
      service.unlock(window, owner, id);
      return true;
    });
  }

  // Returns self_weight * own + weight * the value of `source`.
  double update(double self_weight, int source, double weight) {
    std::vector<double> result(kCount);
    bluecomm::update(engine_, window, std::as_writable_bytes(std::span(result)),
                     bytes_of(own()), {self_weight, {{source, weight}}});
    CHECK(result == std::vector<double>(kCount, result[0]));
    return result[0];
  }

  void connect(int neighbor) {
    const std::vector<int> added = window->add_in_edges({neighbor}, bytes_of(own()));
    engine_.with_windows([&](WindowService& service) {
      service.connect(window, added, {neighbor});
      return true;
    });
  }

  bool reaches(int target) const {
    const std::vector<int> targets = window->targets();
    return std::find(targets.begin(), targets.end(), target) != targets.end();
  }

  const int rank;
  std::shared_ptr<Window> window;

 private:
  static constexpr std::size_t kCount = 5000;
  Engine& engine_;
};

// Lets all ranks that still run pass when `count` have come.
class Turnstile {
 public:
  void pass(int count) {
    ++come_;
    await([&] { return come_ >= count; });
  }

 private:
  std::atomic<int> come_ = 0;
};

TEST(window_survival, windows_go_on_without_a_rank_and_get_new_edges) {
  for (const bool shares_memory : {false, true}) {
    InprocOptions options;
    options.shares_memory = shares_memory;
    EngineWorld world(EngineWorld::SurvivesLosses{}, kSize, options);
    std::array<Turnstile, 10> gates;
    std::atomic<int> holders = 0;
    world.run([&](int rank, Engine& engine) {
      Participant member(engine, rank);
      gates[0].pass(kSize);
      if (rank == kVictim) {
        CHECK_EQ(member.put(3, 100.0), "");
        CHECK_EQ(member.wait(member.lock(0)), "");
        gates[1].pass(kSize);
        gates[2].pass(kSize);
        return;
      }
      gates[1].pass(kSize);
      const RequestId lock = member.lock(0);  // waits for the victim
      gates[2].pass(kSize);
      if (rank == 0) {
        world.kill(kVictim);
        for (const int other : {0, 1, 3}) {
          world.engine(other).peer_lost(kVictim, "rank 2 was killed");
        }
      }
      CHECK_EQ(member.wait(lock), "");
      CHECK_EQ(++holders, 1);
      --holders;
      member.unlock(0, lock);
      gates[3].pass(kSize - 1);

      await([&] { return !member.reaches(kVictim); });
      for (int i = 0; i < 3; ++i) {
        CHECK_EQ(member.put(kVictim, 9.0), "");
        CHECK_EQ(member.get(kVictim), "");
      }
      const RequestId other = member.lock(kVictim);
      CHECK_EQ(member.wait(other), "");
      member.unlock(kVictim, other);
      CHECK_EQ(engine.stats().dropped, 7U);
      if (rank == 3) CHECK_EQ(member.update(0.5, kVictim, 0.5), 52.0);
      CHECK_EQ(member.update(0.5, kVictim, 0.5), 1.0 + rank);
      if (rank < 2) CHECK(!member.reaches(1 - rank));
      gates[4].pass(kSize - 1);

      // The graph of those that are left has an edge from 0 to 1 and back.
      if (rank < 2) {
        const int neighbor = 1 - rank;
        if (rank == 0) member.connect(neighbor);
        gates[5].pass(2);
        if (rank == 1) member.connect(neighbor);
        await([&] { return member.reaches(neighbor); });
        CHECK_EQ(member.get(neighbor), "");
        gates[6].pass(2);
        CHECK_EQ(member.update(0.0, neighbor, 1.0), 1.0 + neighbor);
        gates[7].pass(2);
        CHECK_EQ(member.put(neighbor, 30.0 + rank), "");
        CHECK_EQ(member.put(neighbor, 10.0, true), "");
        gates[8].pass(2);
        CHECK_EQ(member.update(0.0, neighbor, 1.0), 40.0 + neighbor);
      }
      gates[9].pass(kSize - 1);
    });
  }
}

TEST(window_survival, an_excluded_rank_learns_it_from_its_windows) {
  EngineWorld world(EngineWorld::SurvivesLosses{}, kSize);
  std::array<Turnstile, 2> gates;
  world.run([&](int rank, Engine& engine) {
    Participant member(engine, rank);
    gates[0].pass(kSize);
    if (rank == kVictim) {
      engine.leave_members("rank 2 is no member any more");
      CHECK_EQ(member.put(3, 1.0),
               "win_put 'x' on rank 2: rank 2 is no member any more");
    }
    gates[1].pass(kSize);
  });
}

}  // namespace
}  // namespace bluecomm::test
