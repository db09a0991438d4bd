#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/mutex.h"
#include "mpi/session.h"

namespace bluecomm::test {

// A fake MPI of one process, whose long messages move when the test allows it.
//
// As with a real MPI, a message is read from the sender's memory only when it moves,
// and a send that has been started cannot be taken back. Thread-safe.
class FakeMpi final : public mpi::Communicator, public mpi::Library {
 public:
  static std::shared_ptr<mpi::Session> make_session(
      const std::shared_ptr<FakeMpi>& fake) {
    return std::make_shared<mpi::Session>(fake, fake);
  }

  // From now on, messages longer than a frame (64 KiB and some) are held back, except
  // for the next `allowed` ones.
  void hold(std::size_t allowed = 0);
  void let_through() { hold(SIZE_MAX); }
  // Returns the memory of long messages that have not moved.
  std::vector<std::span<const std::byte>> held();
  // Behaves as if the program had called MPI_Finalize: every later call but
  // finalized() throws.
  void end() { ended_ = true; }
  // The number of calls since end() or finalize().
  int late_calls() const { return late_calls_; }

  int rank() override { return 0; }
  int size() override { return 1; }
  std::shared_ptr<Communicator> duplicate() override { return nullptr; }
  mpi::RequestHandle isend(std::span<const std::byte> bytes, int to, int tag) override;
  mpi::RequestHandle issend(std::span<const std::byte> bytes, int to,
                            int tag) override {
    return isend(bytes, to, tag);
  }
  mpi::RequestHandle irecv(std::span<std::byte> into, int from, int tag) override;
  mpi::RequestHandle ibcast(std::span<std::byte> bytes, int root) override;
  std::optional<mpi::Completion> test(mpi::RequestHandle& request) override;
  void test_some(std::span<mpi::RequestHandle> requests,
                 std::vector<mpi::IndexedCompletion>& ended) override;
  void cancel(mpi::RequestHandle& request) override;

  std::string abi() override { return "none"; }
  std::string version() override { return "none"; }
  bool initialized() override { return true; }
  bool finalized() override { return ended_; }
  mpi::ThreadLevel init(mpi::ThreadLevel wanted) override { return wanted; }
  mpi::ThreadLevel thread_level() override { return mpi::ThreadLevel::kMultiple; }
  bool on_main_thread() override { return true; }
  void finalize() override;
  void before_finalize(std::function<void()> body) override;
  std::shared_ptr<Communicator> world() override { return nullptr; }
  std::shared_ptr<Communicator> from_fortran(int) override { return nullptr; }

 private:
  struct Message {
    std::uint64_t request;
    int tag;
    std::span<const std::byte> from;
    std::span<std::byte> into;
    std::optional<mpi::Completion> done;
  };

  void check_running();
  enum class Side { kSend, kReceive };
  mpi::RequestHandle start(Side side, Message message);
  bool is_held(const Message& send) const REQUIRES(mutex_);
  // Moves every message that may move and has a receive.
  void deliver() REQUIRES(mutex_);

  Mutex mutex_;
  std::atomic<bool> ended_ = false;
  std::atomic<int> late_calls_ = 0;
  std::vector<std::function<void()>> before_end_;
  std::size_t allowed_ GUARDED_BY(mutex_) = SIZE_MAX;  // long messages that may move
  std::uint64_t last_request_ GUARDED_BY(mutex_) = 0;
  std::list<Message> sends_ GUARDED_BY(mutex_);
  std::list<Message> receives_ GUARDED_BY(mutex_);
};

}  // namespace bluecomm::test
