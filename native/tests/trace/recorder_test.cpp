#include "trace/recorder.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "tests/check.h"
#include "tests/trace/trace_file.h"

namespace bluecomm::test {
namespace {

Event event_at(std::int64_t begin_ns) {
  Event event;
  event.type = EventType::kCombine;
  event.begin_ns = begin_ns;
  event.end_ns = begin_ns + 1;
  event.operation = static_cast<std::uint64_t>(begin_ns);
  return event;
}

TEST(recorder, writes_events_and_the_header) {
  const TraceFile file;
  Recorder recorder(file.path(), 10 * sizeof(Event), 3, 8);
  CHECK_EQ(recorder.capacity(), 10U);
  Event event = event_at(5);
  event.name = recorder.name("weight");
  event.peer = 2;
  recorder.add(event);
  const TraceHeader header = file.header();
  CHECK_EQ(std::string(header.magic, sizeof header.magic), "BLUETRCE");
  CHECK_EQ(header.rank, 3);
  CHECK_EQ(header.size, 8);
  CHECK_EQ(header.pid, ::getpid());
  CHECK_EQ(header.written, 1U);
  CHECK(header.started_ns > 0);
  CHECK_EQ(file.slots().size(), 10U);
  const Event got = file.slots()[0];
  CHECK(got.type == EventType::kCombine);
  CHECK_EQ(got.begin_ns, 5);
  CHECK_EQ(got.end_ns, 6);
  CHECK_EQ(got.peer, 2);
  CHECK_EQ(file.name(got.name), "weight");
  CHECK(file.slots()[1].type == EventType::kNone);
}

TEST(recorder, keeps_the_newest_events) {
  const TraceFile file;
  Recorder recorder(file.path(), 4 * sizeof(Event), 0, 1);
  for (int i = 0; i < 10; ++i) recorder.add(event_at(i));
  CHECK_EQ(file.header().written, 10U);
  std::vector<std::int64_t> begins;
  for (const Event& event : file.slots()) begins.push_back(event.begin_ns);
  CHECK(begins == std::vector<std::int64_t>({8, 9, 6, 7}));
}

TEST(recorder, gives_each_text_one_number) {
  const TraceFile file;
  Recorder recorder(file.path(), 64, 0, 1);
  CHECK_EQ(recorder.name(""), 0U);
  const std::uint32_t weight = recorder.name("weight");
  CHECK_EQ(recorder.name("bias") == weight, false);
  CHECK_EQ(recorder.name("weight"), weight);
  CHECK_EQ(file.name(recorder.name(std::string(1000, 'x'))), std::string(512, 'x'));
}

TEST(recorder, says_when_there_is_no_room_for_a_name) {
  const TraceFile file;
  Recorder recorder(file.path(), 64, 0, 1);
  for (int i = 0; i < 3000; ++i) {
    recorder.name(std::to_string(i) + std::string(500, 'x'));
  }
  CHECK_EQ(file.name(recorder.name(std::string(512, 'y'))),
           "(the table of names is full)");
  CHECK(file.header().names_bytes <= file.header().names_capacity);
  const std::string early = "7" + std::string(500, 'x');
  CHECK_EQ(file.name(recorder.name(early)), early);
}

TEST(recorder, keeps_all_events_of_several_threads) {
  constexpr int kThreads = 4;
  constexpr int kEach = 1000;
  const TraceFile file;
  Recorder recorder(file.path(), kThreads * kEach * sizeof(Event), 0, 1);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        Event event = event_at(t * kEach + i);
        event.name = recorder.name(std::to_string(i % 50));
        event.thread = Recorder::thread();
        recorder.add(event);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<int> seen(kThreads * kEach, 0);
  for (const Event& event : file.slots()) {
    REQUIRE(event.type == EventType::kCombine);
    ++seen[event.operation];
    CHECK_EQ(event.name, recorder.name(std::to_string(event.begin_ns % kEach % 50)));
  }
  for (const int count : seen) CHECK_EQ(count, 1);
}

TEST(recorder, events_survive_a_killed_process) {
  const TraceFile file;
  const pid_t child = ::fork();
  if (child == 0) {
    Recorder recorder(file.path(), 640, 0, 1);
    recorder.add(event_at(1));
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  CHECK_EQ(file.header().written, 1U);
  CHECK_EQ(file.slots()[0].begin_ns, 1);
}

TEST(recorder, numbers_operations_of_each_engine_separately) {
  const TraceFile file;
  Recorder recorder(file.path(), 64, 0, 1);
  CHECK_EQ(recorder.operations_from(), 0U);
  CHECK(recorder.operations_from() > 1'000'000'000U);
}

TEST(recorder, rejects_an_existing_file) {
  const TraceFile file;
  const Recorder recorder(file.path(), 64, 0, 1);
  CHECK_THROWS(Recorder(file.path(), 64, 0, 1), std::system_error, "cannot create");
}

}  // namespace
}  // namespace bluecomm::test
