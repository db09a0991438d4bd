#include "engine/layout.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace bluecomm {
namespace {

[[noreturn]] void refuse_machines(int got) {
  throw std::invalid_argument(
      "expected the machines of a group to be numbered from 0 without a gap, got "
      "number " +
      std::to_string(got) + " although a lower number has no member");
}

}  // namespace

std::size_t nbytes_of(std::span<const std::int64_t> shape, DType dtype) {
  std::size_t nbytes = item_size(dtype);
  for (const std::int64_t dim : shape) {
    if (dim < 0 ||
        __builtin_mul_overflow(nbytes, static_cast<std::size_t>(dim), &nbytes)) {
      throw std::invalid_argument("the shape is not that of a tensor");
    }
  }
  return nbytes;
}

std::vector<std::int64_t> share_rows(std::int64_t rows, int parts) {
  std::vector<std::int64_t> shares(static_cast<std::size_t>(parts), rows / parts);
  const std::int64_t left_over = rows % parts;
  for (std::int64_t i = 0; i < left_over; ++i) ++shares[i];
  return shares;
}

std::vector<Range> cut(std::size_t nbytes, int parts) {
  const std::size_t blocks = (nbytes + kSliceAlignment - 1) / kSliceAlignment;
  std::vector<Range> slices;
  std::size_t offset = 0;
  for (std::int64_t share : share_rows(static_cast<std::int64_t>(blocks), parts)) {
    // The last block may be incomplete.
    const std::size_t length =
        std::min(static_cast<std::size_t>(share) * kSliceAlignment, nbytes - offset);
    slices.push_back({offset, length});
    offset += length;
  }
  return slices;
}

Machines::Machines(const Group& group) {
  for (int member = 0; member < group.size(); ++member) {
    const auto machine = static_cast<std::size_t>(group.machine_of[member]);
    // There are at most as many machines as members, and the cast makes a negative
    // number huge.
    if (machine >= group.ranks.size()) refuse_machines(group.machine_of[member]);
    if (machine >= members.size()) members.resize(machine + 1);
    if (member == group.me) {
      mine = static_cast<int>(machine);
      local = static_cast<int>(members[machine].size());
    }
    members[machine].push_back(member);
  }
  for (const std::vector<int>& on_it : members) {
    if (on_it.empty()) refuse_machines(size() - 1);
  }
}

bool Machines::is_hierarchy() const {
  const auto has_several = [](const std::vector<int>& on_it) {
    return on_it.size() > 1;
  };
  return size() > 1 && std::any_of(members.begin(), members.end(), has_several);
}

std::vector<Piece> cut_into_pieces(const Machines& machines, std::size_t nbytes) {
  std::vector<std::vector<Range>> slices;  // of each machine
  std::vector<std::size_t> borders;
  for (const std::vector<int>& on_it : machines.members) {
    slices.push_back(cut(nbytes, static_cast<int>(on_it.size())));
    for (const Range& slice : slices.back()) borders.push_back(slice.end());
  }
  std::sort(borders.begin(), borders.end());
  borders.erase(std::unique(borders.begin(), borders.end()), borders.end());

  std::vector<Piece> pieces;
  std::size_t offset = 0;
  for (std::size_t border : borders) {
    Piece piece{{offset, border - offset}, {}};
    for (int machine = 0; machine < machines.size(); ++machine) {
      const std::vector<Range>& here = slices[machine];
      const auto owner = std::find_if(
          here.begin(), here.end(), [&](const Range& s) { return s.end() >= border; });
      piece.owners.push_back(machines.members[machine][owner - here.begin()]);
    }
    pieces.push_back(std::move(piece));
    offset = border;
  }
  return pieces;
}

}  // namespace bluecomm
