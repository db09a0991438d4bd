#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "mpi/library.h"

namespace bluecomm::mpi {

// Operations that MPI has under way, which one call looks at. Each call that finds
// nothing may cost a turn of the core: MPI yields it if it is told to.
class Requests {
 public:
  using Id = std::size_t;

  explicit Requests(Communicator& mpi) : mpi_(mpi) {}

  Id add(Request request);
  // One that is over already.
  Id add_ended(const Done& done);
  // How it ended, and the id is free. Nothing while it goes on.
  std::optional<Done> take(Id id);
  // Looks after it no longer. Nothing if it has ended.
  std::optional<Request> release(Id id);

  // True if any has ended.
  bool look();

 private:
  struct Slot {
    std::size_t at = 0;  // in under_way_, until it is done
    std::optional<Done> done;
  };

  Id take_slot();
  void remove_unowned();

  Communicator& mpi_;
  std::vector<Slot> slots_;
  std::vector<Id> free_;
  std::vector<Request> under_way_;
  std::vector<std::optional<Id>> owners_;  // of those
  std::vector<Ended> ended_;
};

}  // namespace bluecomm::mpi
