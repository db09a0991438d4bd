// Calls through the library of a device in which a rank that has joined takes part.
#include <atomic>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "engine/announcement.h"
#include "tests/check.h"
#include "tests/engine/engine_world.h"
#include "tests/engine/test_ticket.h"

namespace bluecomm::test {
namespace {

// Takes the next call of others that has been announced to a rank that has joined.
Call take_announced(Engine& engine) {
  std::optional<Call> call;
  await([&] {
    if (!call) call = engine.take_announced();  // await() may ask again
    return call.has_value();
  });
  return call.value_or(Call{});
}

std::string_view text_of(const std::vector<std::byte>& payload) {
  return {reinterpret_cast<const char*>(payload.data()), payload.size()};
}

TEST(announcements, keep_shape_splits_and_the_whole_name) {
  Call call;
  call.kind = Kind::kReducescatter;
  call.name = std::string(3 * Envelope::kMaxName, 'x');
  call.shape = {5, 0, 7};
  call.splits = {2, 3};
  Envelope envelope;
  envelope.ndim = 3;
  const std::vector<std::byte> payload = to_payload(call);
  const Announcement read = read_announcement(envelope, text_of(payload));
  CHECK(read.shape == call.shape);
  CHECK(read.splits == call.splits);
  CHECK_EQ(read.name, call.name);

  call.name.clear();
  call.shape.clear();
  envelope.ndim = 0;
  CHECK_EQ(read_announcement(envelope, text_of(to_payload(call))).name, "");
}

TEST(announcements, of_other_calls_are_errors) {
  const auto check_invalid = [](std::uint8_t ndim, std::vector<std::int64_t> numbers,
                                std::size_t cut) {
    Envelope envelope;
    envelope.ndim = ndim;
    const std::string_view bytes{reinterpret_cast<const char*>(numbers.data()),
                                 numbers.size() * sizeof numbers.front() - cut};
    CHECK_THROWS(read_announcement(envelope, bytes), std::invalid_argument,
                 "too short");
  };
  check_invalid(0, {0}, 1);
  check_invalid(2, {0, 5}, 0);
  check_invalid(1, {2, 5, 1}, 0);
  check_invalid(1, {-1, 5, 1, 1}, 0);
  check_invalid(1, {INT64_MAX, 5}, 0);
}

TEST(joined_calls, are_made_by_the_program_with_the_number_of_the_others) {
  EngineWorld world(3);
  Tickets tickets;
  const std::string name(2 * Envelope::kMaxName, 'n');
  Engine& joined = world.engine(0);
  joined.join();
  world.run([&](int rank, Engine& engine) {
    for (int i = 0; i < 3; ++i) {
      if (rank != 0) {
        const auto ticket = tickets.make(rank);
        CHECK_EQ(run_call(engine, on_device(engine, name, ticket, 3 + i)).text, "");
        continue;
      }
      Call call = take_announced(engine);
      CHECK(call.kind == Kind::kAllreduce);
      CHECK_EQ(call.name, name);
      CHECK_EQ(call.shape.at(0), 3 + i);
      CHECK(!call.ticket);
      call.ticket = tickets.make(rank);
      call.deadline = Clock::now() + kDeadline;
      CHECK_EQ(run_call(engine, std::move(call)).text, "");
    }
  });
  CHECK(!joined.take_announced());
  CHECK_EQ(tickets.given(), 3);
  CHECK_EQ(joined.join_report().answers, 3U);
}

TEST(joined_calls, that_the_program_does_not_make_are_refused) {
  EngineWorld world(2);
  Tickets tickets;
  world.engine(0).join();
  world.run([&](int rank, Engine& engine) {
    if (rank == 0) {
      take_announced(engine);
      CHECK(!engine.take_announced());
      Call call = take_announced(engine);
      call.ticket = tickets.make(rank);
      call.deadline = Clock::now() + kDeadline;
      CHECK_EQ(run_call(engine, std::move(call)).text, "");
    } else {
      const Status status = run_call(engine, on_device(engine, "x", tickets.make(1)));
      check_failure(status, Code::kMismatch, "has joined");
      CHECK_EQ(run_call(engine, on_device(engine, "x", tickets.make(1))).text, "");
    }
  });
}

TEST(joined_calls, that_were_refused_are_not_taken_again) {
  EngineWorld world(3);
  Tickets tickets;
  Engine& joined = world.engine(0);
  joined.join();
  std::atomic<bool> is_refused{false};
  world.run([&](int rank, Engine& engine) {
    if (rank == 0) {
      take_announced(engine);
      CHECK(!engine.take_announced());
      is_refused = true;
      // Rank 2 announces the refused call, then another one.
      CHECK_EQ(take_announced(engine).name, "y");
      CHECK(!engine.take_announced());
      return;
    }
    if (rank == 2) await([&] { return is_refused.load(); });
    check_failure(run_call(engine, on_device(engine, "x", tickets.make(rank))),
                  Code::kMismatch, "has joined");
    if (rank == 1) return;
    check_failure(run_call(engine, on_device(engine, "y", tickets.make(rank))),
                  Code::kMismatch, "has joined");
  });
}

TEST(joined_calls, of_groups_that_a_joined_rank_lacks_are_refused) {
  EngineWorld world(2);
  Tickets tickets;
  world.engine(0).join();
  Engine& other = world.engine(1);
  constexpr std::uint64_t kPair = 7;
  other.add_group(kPair, {0, 1}, {0, 0});
  Call call = make_call(other, Kind::kAllreduce, "x", {}, {}, kPair);
  call.shape = {3};
  call.ticket = tickets.make(1);
  check_failure(run_call(other, std::move(call)), Code::kMismatch, "has joined");
  CHECK(!world.engine(0).take_announced());
}

TEST(joined_calls, that_follow_others_are_not_announced) {
  EngineWorld world(2);
  Tickets tickets;
  world.engine(0).join();
  const auto second = [&](int rank, Engine& engine) {
    Call call = on_device(engine, "x.second", tickets.make(rank));
    call.follows = true;
    return call;
  };
  world.run([&](int rank, Engine& engine) {
    if (rank == 1) {
      std::vector<Call> calls;
      calls.push_back(second(rank, engine));
      calls.push_back(on_device(engine, "y", tickets.make(rank)));
      CHECK_EQ(run_calls(engine, std::move(calls)).text, "");
    } else {
      Call call = take_announced(engine);
      CHECK_EQ(call.name, "y");
      call.ticket = tickets.make(rank);
      call.deadline = Clock::now() + kDeadline;
      CHECK_EQ(run_call(engine, std::move(call)).text, "");
      CHECK_EQ(run_call(engine, second(rank, engine)).text, "");
    }
  });
}

TEST(joined_calls, are_forgotten_at_the_end_of_a_round) {
  EngineWorld world(2);
  Tickets tickets;
  world.engine(0).join();
  Engine& other = world.engine(1);
  Call call = on_device(other, "x", tickets.make(1));
  call.deadline = Clock::now() + 1ms;
  check_failure(run_call(other, std::move(call)), Code::kTimedOut, "x");
  other.join();
  world.run([&](int, Engine& engine) { engine.leave_join(9); });
  CHECK(!world.engine(0).take_announced());
}

}  // namespace
}  // namespace bluecomm::test
