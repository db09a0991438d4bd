#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "mpi/library.h"

namespace bluecomm::mpi {

// The MPI requests under way, tested together by one call. Each call that finds nothing
// may cost a time slice of the core, because MPI yields the core if it is configured
// to.
class RequestSet {
 public:
  using Id = std::size_t;

  explicit RequestSet(Communicator& mpi) : mpi_(mpi) {}

  Id add(RequestHandle request);
  // Adds a request that has completed already.
  Id add_completed(const Completion& done);
  // Returns how the request completed, and frees the id. Returns nothing while the
  // request is under way.
  std::optional<Completion> take(Id id);
  // Removes the request and frees the id. Returns nothing if the request has
  // completed.
  std::optional<RequestHandle> release(Id id);

  // Tests all requests. Returns true if any has completed.
  bool poll();

 private:
  struct TrackedRequest {
    std::size_t at = 0;  // index in under_way_, until it is done
    std::optional<Completion> done;
  };

  Id take_slot();
  void remove_unowned();

  Communicator& mpi_;
  std::vector<TrackedRequest> slots_;
  std::vector<Id> free_;
  std::vector<RequestHandle> under_way_;
  std::vector<std::optional<Id>> owners_;  // of the requests in under_way_
  std::vector<IndexedCompletion> ended_;
};

}  // namespace bluecomm::mpi
