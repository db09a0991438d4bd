#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "mpi/library.h"

namespace bluecomm::mpi {

// The outcome of an exchange: the records by rank, or else the ranks whose record is
// missing.
struct ExchangedRecords {
  std::vector<std::string> records;
  std::vector<int> missing;
};

// Sends the records of all ranks to all ranks. Collective. Rank 0 collects the records
// until `deadline`, under `tag`, so that it can say which ranks are missing, and
// broadcasts them. Returns early, with neither records nor missing ranks, when
// `interrupted` returns true.
ExchangedRecords exchange_records(Communicator& communicator, int tag,
                                  const std::string& mine,
                                  std::chrono::steady_clock::time_point deadline,
                                  const std::function<bool()>& interrupted);

}  // namespace bluecomm::mpi
