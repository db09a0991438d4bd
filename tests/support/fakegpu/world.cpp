#include "world.h"

#include <signal.h>
#include <unistd.h>

#include <thread>

#include "report.h"

namespace fakegpu {
namespace {

using std::chrono::microseconds;

// Returns the time by which the next task of a stream is late. A stream is lazy or
// eager for some tasks, so that one runs far ahead of another. Needs the mutex.
microseconds draw_delay(CUstream stream) {
  if (stream->tasks_of_mood-- == 0) {
    stream->tasks_of_mood = static_cast<int>(stream->random() % 8);
    stream->is_lazy = stream->random() % 2 == 0;
  }
  const int most = settings().delay_us;
  if (!stream->is_lazy || most <= 0) return microseconds(0);
  return microseconds(stream->random() % static_cast<unsigned>(most));
}

bool is_copy_to_host(const Task& task) { return task.label == "cuMemcpyDtoHAsync"; }

bool may_start(CUstream stream) {
  if (stream->held || stream->tasks.empty()) return false;
  const Task& task = stream->tasks.front();
  if (is_copy_to_host(task) && world().copies_to_host_left == 0) return false;
  return task.waits_for == nullptr || task.waits_for->done;
}

// The thread of a stream. It ends when the stream is destroyed and has no task left.
void run_stream(CUstream stream) {
  World& all = world();
  std::unique_lock lock(all.mutex);
  for (;;) {
    stream->ready.wait(lock, [&] {
      return may_start(stream) || (stream->destroyed && stream->tasks.empty());
    });
    if (stream->tasks.empty()) return;
    const microseconds delay = draw_delay(stream);
    if (delay.count() > 0) {
      lock.unlock();
      std::this_thread::sleep_for(delay);
      lock.lock();
      if (!may_start(stream)) continue;
    }
    const Task task = std::move(stream->tasks.front());
    stream->tasks.pop_front();
    if (is_copy_to_host(task) && all.copies_to_host_left > 0) --all.copies_to_host_left;
    if (task.run) {
      lock.unlock();
      task.run();
      lock.lock();
    }
    ++stream->completed;
    all.changed.notify_all();
  }
}

void start_thread(CUstream stream) {
  // Signals are for the program's own threads.
  sigset_t signals;
  sigset_t before;
  sigfillset(&signals);
  pthread_sigmask(SIG_SETMASK, &signals, &before);
  std::thread(run_stream, stream).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

// Never destroyed: threads of streams may outlive main().
World& world() {
  static World* const all = new World;
  return *all;
}

std::vector<CUcontext>& context_stack() {
  thread_local std::vector<CUcontext> stack;
  return stack;
}

CUcontext current_context() {
  return context_stack().empty() ? nullptr : context_stack().back();
}

bool& in_host_function() {
  thread_local bool inside = false;
  return inside;
}

void seed_stream(CUstream stream) {
  stream->random.seed(settings().seed * 1000003 +
                      static_cast<std::uint64_t>(stream->actor));
}

void seed_streams() {
  for (CUstream const stream : world().streams) seed_stream(stream);
}

CUstream add_stream(int device, const std::string& name) {
  World& all = world();
  auto* const stream = new CUstream_st;  // kept for ever, so that late uses are found
  stream->actor = all.next_actor++;
  stream->device = device;
  stream->name = name + " " + std::to_string(stream->actor);
  seed_stream(stream);
  all.streams.insert(stream);
  start_thread(stream);
  return stream;
}

CUstream find_stream(CUstream handle, const std::string& by) {
  World& all = world();
  const auto number = reinterpret_cast<std::uintptr_t>(handle);
  if (number <= 2) {
    const CUcontext context = current_context();
    if (context == nullptr) {
      violation(by, "the default stream, without a current context");
      return nullptr;
    }
    CUstream& legacy = all.legacy_streams.at(static_cast<std::size_t>(context->device));
    if (legacy == nullptr) legacy = add_stream(context->device, "the default stream");
    return legacy;
  }
  if (!all.streams.contains(handle)) {
    violation(by, "not a stream");
    return nullptr;
  }
  if (handle->destroyed) {
    violation(by, "the stream is destroyed");
    return nullptr;
  }
  return handle;
}

bool note_accesses(CUstream stream, const std::string& label,
                   const std::vector<Range>& ranges) {
  World& all = world();
  Clock clock = stream->clock;
  clock.join(all.host);
  clock.advance(stream->actor);
  const std::string by = label + " on " + stream->name;
  bool is_valid = true;
  for (const Range& range : ranges) {
    is_valid = all.memory.access(range, stream->actor, clock, by) && is_valid;
  }
  if (is_valid) stream->clock = clock;
  return is_valid;
}

bool submit(CUstream stream, Task task, const std::vector<Range>& ranges) {
  if (!note_accesses(stream, task.label, ranges)) return false;
  stream->tasks.push_back(std::move(task));
  ++stream->submitted;
  stream->ready.notify_one();
  return true;
}

void wake_streams() {
  for (CUstream const stream : world().streams) {
    if (may_start(stream)) stream->ready.notify_one();
  }
}

void host_has_seen(const Clock& clock) { world().host.join(clock); }

void drain(std::unique_lock<std::mutex>& lock, CUstream stream) {
  const std::uint64_t last = stream->submitted;
  const Clock clock = stream->clock;
  world().changed.wait(lock, [&] { return stream->completed >= last; });
  host_has_seen(clock);
}

}  // namespace fakegpu
