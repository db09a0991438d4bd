#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "mpi/library.h"

namespace bluecomm::mpi {

// What came of a meeting: the records by rank, or else the ranks that did not come.
struct ExchangedRecords {
  std::vector<std::string> records;
  std::vector<int> missing;
};

// Brings the records of all ranks to all. Collective. Rank 0 collects them until
// `deadline`, under `tag`, so that it can say who is missing, and broadcasts. Ends
// early, with nobody missing and no records, when `interrupted` says so.
ExchangedRecords exchange_records(Communicator& communicator, int tag,
                                  const std::string& mine,
                                  std::chrono::steady_clock::time_point deadline,
                                  const std::function<bool()>& interrupted);

}  // namespace bluecomm::mpi
