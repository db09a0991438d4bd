// Tests the queue from which a thread learns that watched requests have ended.
#include "request/completion_queue.h"

#include <chrono>
#include <optional>
#include <thread>
#include <vector>

#include "tests/check.h"
#include "tests/engine/engine_world.h"

namespace bluecomm::test {
namespace {

using Ids = std::vector<RequestId>;

TEST(completion_queue, wakes_its_reader_for_each_id_and_for_its_end) {
  CompletionQueue queue;
  Ids read;
  std::thread reader([&] {
    while (true) {
      queue.wait(Clock::time_point::max());
      const std::optional<Ids> ids = queue.take();
      if (!ids) return;
      read.insert(read.end(), ids->begin(), ids->end());
    }
  });
  Ids pushed;
  for (RequestId id = 1; id <= 1000; ++id) {
    queue.expect();
    queue.push(id);
    pushed.push_back(id);
  }
  queue.close();
  reader.join();
  CHECK(read == pushed);
}

TEST(completion_queue, returns_what_is_left_after_its_end) {
  CompletionQueue queue;
  queue.expect();
  queue.push(7);
  queue.close();
  CHECK(!queue.wait(Clock::time_point::max()));
  CHECK(queue.take() == Ids{7});
  CHECK(!queue.take());
}

TEST(completion_queue, wakes_its_reader_when_an_id_is_expected) {
  CompletionQueue queue;
  CHECK(!queue.wait(Clock::now()));
  std::thread program([&] { queue.expect(); });
  CHECK(queue.wait(Clock::now() + kDeadline));
  program.join();
  CHECK(!queue.ready());
  queue.push(1);
  CHECK(queue.ready());
}

// --- In the engine -------------------------------------------------------------------

// Starts an operation that rank 1 never calls, so that it is not done.
RequestId start_watched(EngineWorld& world, std::vector<float>& tensor) {
  Engine& engine = world.engine(0);
  const RequestId id =
      engine.submit(make_call(engine, Kind::kAllreduce, "x", tensor, tensor));
  CHECK(engine.watch(id));
  CHECK(engine.next_done(Clock::now()) == Ids());
  return id;
}

TEST(completion_queue, reports_success_failure_and_the_end_of_the_engine) {
  std::vector<float> tensor(1000);
  {
    EngineWorld world(2);
    const RequestId id = start_watched(world, tensor);
    std::vector<float> theirs(1000);
    Engine& other = world.engine(1);
    run_call(other, make_call(other, Kind::kAllreduce, "x", theirs, theirs));
    CHECK(world.engine(0).next_done(Clock::now() + kDeadline) == Ids{id});
  }
  {
    EngineWorld world(2);
    const RequestId id = start_watched(world, tensor);
    world.engine(0).fail(id, {Code::kPeerLost, "rank 1 is lost", 1});
    CHECK(world.engine(0).next_done(Clock::now() + kDeadline) == Ids{id});
  }
  {
    EngineWorld world(2);
    const RequestId id = start_watched(world, tensor);
    world.engine(0).close(0s);
    CHECK(world.engine(0).next_done(Clock::now() + kDeadline) == Ids{id});
    CHECK(!world.engine(0).next_done(Clock::now() + kDeadline));
    CHECK(!world.engine(0).watch(id));
  }
}

}  // namespace
}  // namespace bluecomm::test
