#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "mpi/library.h"

namespace bluecomm::mpi {

// Operations that MPI has under way, which one call looks at. Each call that finds
// nothing may cost a turn of the core: MPI yields it if it is told to.
class RequestSet {
 public:
  using Id = std::size_t;

  explicit RequestSet(Communicator& mpi) : mpi_(mpi) {}

  Id add(RequestHandle request);
  // One that is over already.
  Id add_completed(const Completion& done);
  // How it ended, and the id is free. Nothing while it goes on.
  std::optional<Completion> take(Id id);
  // Looks after it no longer. Nothing if it has ended.
  std::optional<RequestHandle> release(Id id);

  // True if any has ended.
  bool poll();

 private:
  struct Slot {
    std::size_t at = 0;  // in under_way_, until it is done
    std::optional<Completion> done;
  };

  Id take_slot();
  void remove_unowned();

  Communicator& mpi_;
  std::vector<Slot> slots_;
  std::vector<Id> free_;
  std::vector<RequestHandle> under_way_;
  std::vector<std::optional<Id>> owners_;  // of those
  std::vector<IndexedCompletion> ended_;
};

}  // namespace bluecomm::mpi
