// Tests windows of several ranks in one process, with messages and with shared memory.
#include "window/service.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "tests/check.h"
#include "tests/engine/engine_world.h"
#include "tests/values.h"
#include "tests/window/windows.h"
#include "window/calls.h"

namespace bluecomm::test {
namespace {

using WindowPtr = std::shared_ptr<Window>;

// One rank's window on a ring, used as a program uses it.
class End {
 public:
  End(Engine& engine, int rank, int size, std::vector<double> values)
      : engine_(engine), values_(std::move(values)) {
    WindowConfig config;
    config.id = 7;
    config.name = "x";
    config.rank = rank;
    config.dtype = DType::kFloat64;
    config.nbytes = values_.size() * sizeof(double);
    if (size > 1) {
      left = (rank + size - 1) % size;
      right = (rank + 1) % size;
      config.in_neighbors = {left};
      config.out_neighbors = {right};
    }
    config.zero_init = true;
    window = std::make_shared<Window>(config, bytes_of(values_), allocate_aligned);
    CHECK_EQ(wait(engine_.with_windows([&](WindowService& service) {
               return service.open(window, deadline())->id();
             })),
             "");
  }

  static Clock::time_point deadline() { return Clock::now() + kDeadline; }

  // Waits for a request and releases it, unless `id` is 0. Returns the error.
  std::string wait(RequestId id) {
    if (id == 0) return "";
    const std::string text = engine_.wait(id, deadline() + 5s)->text;
    CHECK(engine_.release(id));
    return text;
  }

  std::string put(const std::vector<double>& x, bool accumulates) {
    return wait(start_put(x, accumulates));
  }

  // Uses shared memory if the neighbor shares it, as a program does.
  RequestId start_put(const std::vector<double>& x, bool accumulates) {
    const WindowPut call{bytes_of(x), {{right, 1.0}}, accumulates, true};
    return bluecomm::put(engine_, window, call, deadline(), false);
  }

  RequestId start_get() {
    return bluecomm::get(engine_, window, {{{left, 1.0}}, true}, deadline(), false);
  }

  RequestId start_lock(int owner) {
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

  // Returns the value that the left neighbor has left; `resets` sets it to zero.
  std::vector<double> look(bool resets) {
    std::vector<double> result(values_.size());
    window->update(std::as_writable_bytes(std::span(result)), bytes_of(values_),
                   {0.0, {{left, 1.0}}, resets, false, false});
    return result;
  }

  WindowPtr window;
  int left = -1;
  int right = -1;

 private:
  Engine& engine_;
  std::vector<double> values_;
};

InprocOptions options_of(bool shares_memory) {
  InprocOptions options;
  options.shares_memory = shares_memory;
  options.max_delay = std::chrono::microseconds(200);
  return options;
}

void barrier(Engine& engine) {
  std::vector<float> nothing;
  CHECK_EQ(
      run_call(engine, make_call(engine, Kind::kBarrier, "", nothing, nothing)).text,
      "");
}

constexpr std::size_t kCounts[] = {0, 1, 100, 100000};

TEST(window, a_put_that_is_done_has_its_effect) {
  for (const bool shares_memory : {false, true}) {
    for (const std::size_t count : kCounts) {
      EngineWorld world(3, options_of(shares_memory));
      world.run([&](int rank, Engine& engine) {
        End end(engine, rank, 3, std::vector<double>(count, 0.0));
        for (int k = 1; k <= 3; ++k) {
          const std::vector<double> x(count, 10.0 * rank + k);
          CHECK_EQ(end.put(x, false), "");
          barrier(engine);
          CHECK(end.look(false) == std::vector<double>(count, 10.0 * end.left + k));
          barrier(engine);
        }
      });
    }
  }
}

TEST(window, a_reset_without_p_leaves_p_unchanged) {
  EngineWorld world(2, options_of(false));
  world.run([&](int rank, Engine& engine) {
    End end(engine, rank, 2, {1.0});
    end.window->scale_p(5.0);
    CHECK_EQ(end.put({3.0}, false), "");
    end.window->scale_p(0.0);
    barrier(engine);
    CHECK(end.look(true) == std::vector<double>{3.0});
    CHECK(end.look(false) == std::vector<double>{0.0});
    std::vector<double> result(1);
    const std::span<std::byte> bytes = std::as_writable_bytes(std::span(result));
    end.window->update(bytes, bytes_of(result), {0.0, {{end.left, 1.0}}, true, true});
    CHECK_EQ(end.window->p(), 5.0);
    end.window->update(bytes, bytes_of(result), {0.0, {{end.left, 1.0}}, true, true});
    CHECK_EQ(end.window->p(), 0.0);
    barrier(engine);
  });
}

TEST(window, shared_memory_is_used_if_available) {
  for (const bool shares_memory : {false, true}) {
    EngineWorld world(2, options_of(shares_memory));
    world.run([&](int rank, Engine& engine) {
      End end(engine, rank, 2, {1.0 + rank});
      const std::vector<double> x{5.0};
      CHECK_EQ(end.window->put_directly(end.right, {bytes_of(x), 1.0, false, {}}),
               shares_memory);
      CHECK_EQ(end.window->get_directly(end.left, 1.0, false), shares_memory);
      barrier(engine);
      engine.with_windows([&](WindowService& service) {
        service.remove(*end.window);
        return true;
      });
      CHECK(!end.window->put_directly(end.right, {bytes_of(x), 1.0, false, {}}));
      barrier(engine);
    });
  }
}

TEST(window, requests_take_effect_in_the_order_of_the_calls) {
  EngineWorld world(2, options_of(false));
  world.run([&](int rank, Engine& engine) {
    End end(engine, rank, 2, std::vector<double>(5000, 0.0));
    std::vector<std::vector<double>> xs;
    for (int k = 0; k < 10; ++k) xs.emplace_back(5000, k);
    std::vector<RequestId> requests;
    for (const auto& x : xs) requests.push_back(end.start_put(x, false));
    requests.push_back(end.start_put(xs[3], true));
    for (const RequestId id : requests) CHECK_EQ(end.wait(id), "");
    barrier(engine);
    CHECK(end.look(false) == std::vector<double>(5000, 12.0));
    barrier(engine);
  });
}

TEST(window, a_get_reads_the_value_published_last) {
  EngineWorld world(3, options_of(false));
  world.run([&](int rank, Engine& engine) {
    End end(engine, rank, 3, std::vector<double>(3000, rank));
    CHECK_EQ(end.wait(end.start_get()), "");
    CHECK(end.look(false) == std::vector<double>(3000, end.left));
    barrier(engine);
    end.window->publish(bytes_of(std::vector<double>(3000, 100.0 + rank)));
    barrier(engine);
    CHECK_EQ(end.wait(end.start_get()), "");
    CHECK(end.look(false) == std::vector<double>(3000, 100.0 + end.left));
    CHECK_EQ(end.window->versions().at(end.left), 0U);
    barrier(engine);
  });
}

TEST(window, accumulating_conserves_the_sum_while_all_collect) {
  constexpr std::size_t kCount = 2000;
  constexpr int kRounds = 200;
  for (const bool shares_memory : {false, true}) {
    EngineWorld world(2, options_of(shares_memory));
    world.run([&](int rank, Engine& engine) {
      End end(engine, rank, 2, std::vector<double>(kCount, 0.0));
      std::vector<double> sum(kCount, 0.0);
      const auto collect = [&] {
        const std::vector<double> got = end.look(true);
        for (std::size_t i = 0; i < kCount; ++i) sum[i] += got[i];
      };
      for (int i = 1; i <= kRounds; ++i) {
        CHECK_EQ(end.put(std::vector<double>(kCount, i), true), "");
        collect();
      }
      barrier(engine);
      collect();
      CHECK(sum == std::vector<double>(kCount, kRounds * (kRounds + 1) / 2.0));
      barrier(engine);
    });
  }
}

TEST(window, a_mutex_has_one_holder_at_a_time) {
  EngineWorld world(3, options_of(false));
  std::atomic<int> holders = 0;
  world.run([&](int rank, Engine& engine) {
    End end(engine, rank, 3, {0.0});
    for (int i = 0; i < 20; ++i) {
      const RequestId lock = end.start_lock(1);
      CHECK_EQ(end.wait(lock), "");
      CHECK_EQ(++holders, 1);
      --holders;
      end.unlock(1, lock);
    }
    barrier(engine);
  });
}

TEST(window, a_lost_rank_fails_requests_and_releases_its_mutexes) {
  EngineWorld world(3, options_of(false));
  std::atomic<int> past_barrier = 0;
  std::atomic<bool> killed = false;
  world.run([&](int rank, Engine& engine) {
    End end(engine, rank, 3, {0.0});
    if (rank == 2) {
      CHECK_EQ(end.wait(end.start_lock(0)), "");
    }
    barrier(engine);
    ++past_barrier;
    if (rank == 2) {
      await([&] { return killed.load(); });
      return;
    }
    const RequestId waits = end.start_lock(0);
    if (rank == 0) {
      await([&] { return past_barrier == 3; });
      world.kill(2);
      for (int other : {0, 1}) world.engine(other).peer_lost(2, "rank 2 was killed");
      killed = true;
    }
    CHECK_EQ(end.wait(waits), "");
    end.unlock(0, waits);
    if (rank == 1) {
      const std::string text = end.wait(end.start_put({1.0}, false));
      CHECK_EQ(text, "win_put 'x' on rank 1: rank 2 was killed");
    }
  });
}

TEST(window, a_window_in_use_cannot_be_removed) {
  EngineWorld world(2, options_of(false));
  world.run([&](int rank, Engine& engine) {
    End end(engine, rank, 2, {0.0});
    const auto remove = [&] {
      engine.with_windows([&](WindowService& service) {
        service.remove(*end.window);
        return true;
      });
    };
    const RequestId first = end.start_lock(rank);
    const RequestId second = end.start_lock(rank);
    CHECK_EQ(end.wait(first), "");
    CHECK_THROWS(remove(), std::invalid_argument, "win_mutex 'x' on rank");
    end.unlock(rank, second);  // cancels the request
    end.unlock(rank, first);
    remove();
    barrier(engine);
    CHECK(end.wait(end.start_get()).find("no such window") != std::string::npos);
    barrier(engine);
  });
}

// --- One table of requests -----------------------------------------------------------

// An operation and a window request of rank 0 that rank 1 does not answer.
struct Unanswered {
  Unanswered(End& end, Engine& engine, std::vector<float>& tensor)
      : lock(end.start_lock(1)),
        operation(
            engine.submit(make_call(engine, Kind::kAllreduce, "a", tensor, tensor))) {}

  const RequestId lock;
  const RequestId operation;
};

TEST(window, operations_and_window_requests_share_one_table) {
  EngineWorld world(2, options_of(false));
  std::vector<float> tensor(4);
  world.run([&](int rank, Engine& engine) {
    End end(engine, rank, 2, {0.0});
    RequestId held = 0;
    if (rank == 1) {
      held = end.start_lock(1);
      CHECK_EQ(engine.wait(held, End::deadline())->text, "");
    }
    barrier(engine);
    if (rank == 0) {
      const Unanswered unanswered(end, engine, tensor);
      CHECK(unanswered.lock != unanswered.operation);
      await([&] {
        const auto pending = engine.pending();
        return !pending.empty() && pending[0].wish != "to answer";
      });
      const auto pending = engine.pending();
      REQUIRE(pending.size() == 2);
      CHECK_EQ(pending[0].id, unanswered.lock);
      CHECK_EQ(pending[0].kind, "win_mutex");
      CHECK_EQ(pending[0].wish, "to release the mutex of rank 1 (host1)");
      CHECK(pending[0].waiting_for == std::vector{1});
      CHECK_EQ(pending[1].id, unanswered.operation);
      CHECK_EQ(pending[1].kind, "allreduce");
      CHECK_EQ(pending[1].wish, "");
      for (const RequestId id : {unanswered.lock, unanswered.operation}) {
        CHECK(!engine.done(id));
        CHECK(!engine.wait(id, Clock::now()).has_value());
        CHECK_THROWS(engine.release(id), std::invalid_argument, "before it has ended");
        engine.fail(id, {Code::kMismatch, "enough", -1});
        CHECK_EQ(engine.wait(id, End::deadline())->text, "enough");
      }
      CHECK(engine.pending().empty());
      const auto finished = engine.finished();
      for (const RequestId id : {unanswered.lock, unanswered.operation}) {
        CHECK_EQ(std::count(finished.begin(), finished.end(), id), 1);
        CHECK(engine.release(id));
        CHECK_THROWS(engine.done(id), std::invalid_argument, "is unknown");
      }
    }
    barrier(engine);
    if (rank == 1) end.unlock(1, held);
    barrier(engine);
  });
}

TEST(window, deadlines_of_operations_and_window_requests_are_extended) {
  EngineWorld world(2, options_of(false));
  std::vector<float> tensor(4);
  world.run([&](int rank, Engine& engine) {
    End end(engine, rank, 2, {0.0});
    barrier(engine);
    if (rank == 0) {
      const RequestId held = end.start_lock(0);
      CHECK_EQ(end.wait(held), "");
      const Clock::time_point first = Clock::now() + 1s;
      const RequestId lock = engine.with_windows([&](WindowService& service) {
        return service.lock(end.window, 0, first)->id();
      });
      Call request = make_call(engine, Kind::kAllreduce, "late", tensor, tensor);
      request.deadline = first;
      const RequestId operation = engine.submit(std::move(request));
      const Clock::time_point extended = Clock::now();
      for (const RequestId id : {lock, operation}) engine.extend_deadline(id, 3s);
      const bool in_time = Clock::now() < first;
      std::this_thread::sleep_for(1200ms);
      for (const RequestId id : {lock, operation}) {
        const bool done = engine.done(id);
        // A busy machine may run this thread after one of the deadlines.
        if (in_time && Clock::now() - extended < 3s) CHECK(!done);
      }
      for (const RequestId id : {lock, operation}) {
        CHECK(engine.wait(id, End::deadline())->code == Code::kTimedOut);
      }
      end.unlock(0, held);
    }
    barrier(engine);
  });
}

}  // namespace
}  // namespace bluecomm::test
