#include "engine/collectives/stack.h"

#include <string>

#include "engine/collectives/validate.h"

namespace bluecomm {
namespace {

void check_arrival(const Call& call, const Arrival& arrival, std::size_t row_nbytes) {
  const auto rows = static_cast<std::size_t>(arrival.first_dim);
  const bool fits = row_nbytes == 0 ? arrival.nbytes == 0
                                    : arrival.nbytes % row_nbytes == 0 &&
                                          arrival.nbytes / row_nbytes == rows;
  if (arrival.first_dim >= 0 && fits) return;
  reject(call, "expected rows of " + std::to_string(row_nbytes) + " bytes from rank " +
                   std::to_string(arrival.peer) + ", got " +
                   std::to_string(arrival.first_dim) + " rows in " +
                   std::to_string(arrival.nbytes) + " bytes");
}

[[noreturn]] void reject_output(const Call& call, std::size_t expected, std::size_t got,
                                const std::string& of) {
  reject(call, "expected an output of " + std::to_string(expected) +
                   " bytes for the rows of " + of + ", got " + std::to_string(got) +
                   " bytes");
}

// Sets the destinations of the gathers to the memory that the caller has given.
void use_outputs(const Call& call, std::span<const std::size_t> lengths,
                 std::size_t total, std::vector<Gather>& gathers) {
  std::span<std::byte> rest = call.outputs.front();
  const bool is_whole = call.outputs.size() == 1;
  if (is_whole && rest.size() != total) {
    reject_output(call, total, rest.size(), "all ranks");
  }
  for (std::size_t i = 0; i < gathers.size(); ++i) {
    Gather& gather = gathers[i];
    const Source& source = gather.sources.front();
    if (is_whole) {
      gather.dst = rest.first(lengths[i]);
      rest = rest.subspan(lengths[i]);
    } else {
      gather.dst = call.outputs[i];
      if (gather.dst.size() != lengths[i]) {
        reject_output(
            call, lengths[i], gather.dst.size(),
            source.peer == kSelf ? "this rank" : "rank " + std::to_string(source.peer));
      }
    }
    const bool is_own = source.peer == kSelf && source.own.data() == gather.dst.data();
    if (!is_own && shares_memory(gather.dst, call.input)) {
      reject(call,
             "expected an output that does not overlap the input, got one that shares "
             "its memory" +
                 std::string(call.kind == Kind::kAllgather
                                 ? " elsewhere than in this rank's own rows"
                                 : ""));
    }
  }
}

}  // namespace

void bind_stacked(Phase& phase, const Call& call, std::int64_t own_rows) {
  phase.bind = [call, own_rows, row_nbytes = row_nbytes(call)](
                   std::span<const Arrival> arrivals, std::vector<Gather>& gathers) {
    std::vector<std::int64_t> rows;
    std::vector<std::size_t> lengths;
    std::size_t total = 0;
    std::size_t heard = 0;
    for (const Gather& gather : gathers) {
      const Source& source = gather.sources.front();
      if (source.peer == kSelf) {
        rows.push_back(own_rows);
        lengths.push_back(source.own.size());
      } else {
        const Arrival& arrival = arrivals[heard++];
        check_arrival(call, arrival, row_nbytes);
        rows.push_back(arrival.first_dim);
        lengths.push_back(arrival.nbytes);
      }
      total += lengths.back();
    }
    if (!call.outputs.empty()) {
      use_outputs(call, lengths, total, gathers);
      return;
    }
    std::span<std::byte> rest = call.allocate(total, rows);
    for (std::size_t i = 0; i < gathers.size(); ++i) {
      gathers[i].dst = rest.first(lengths[i]);
      rest = rest.subspan(lengths[i]);
    }
  };
}

}  // namespace bluecomm
