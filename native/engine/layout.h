// How a tensor is cut among the members of a group, and which members share a machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/request.h"

namespace bluecomm {

// Borders of slices are multiples of this many bytes from the start of the tensor, so
// that no element and no cache line of an aligned tensor is shared by two slices.
inline constexpr std::size_t kSliceAlignment = 64;

// Bytes [offset, offset + length) of a tensor.
struct Range {
  std::size_t offset = 0;
  std::size_t length = 0;

  std::size_t end() const { return offset + length; }
  template <typename Byte>
  std::span<Byte> of(std::span<Byte> tensor) const {
    return tensor.subspan(offset, length);
  }
  bool operator==(const Range&) const = default;
};

// `nbytes` bytes cut into `parts` adjoining slices, as even as the alignment allows;
// the last ones are empty where there are more parts than aligned blocks.
std::vector<Range> cut(std::size_t nbytes, int parts);

// `rows` rows cut into `parts` shares, as even as possible: the first rows % parts get
// one more.
std::vector<std::int64_t> share_rows(std::int64_t rows, int parts);

// The members of a group, machine by machine.
struct Machines {
  // Throws std::invalid_argument where the numbers of machines leave a gap.
  explicit Machines(const Group& group);

  std::vector<std::vector<int>> members;  // of each machine: member indices, ascending
  int mine = 0;                           // this rank's machine
  int local = 0;                          // its place in members[mine]

  int size() const { return static_cast<int>(members.size()); }
  // Members on this rank's machine.
  const std::vector<int>& local_members() const { return members[mine]; }
  // True when machines exist that hold several members, and several machines.
  bool is_hierarchy() const;
};

// A byte range that one member of each machine owns whole. Machines with different
// numbers of members cut a tensor differently; pieces are what all those cuts leave in
// one piece, so members exchange pieces with whoever owns them elsewhere.
struct Piece {
  Range range;
  std::vector<int> owners;  // of each machine: a member index
};

// All pieces in order, the same on all ranks. Never none: an empty tensor is one empty
// piece. Where all machines hold the same number of members, a piece is a slice.
std::vector<Piece> cut_into_pieces(const Machines& machines, std::size_t nbytes);

}  // namespace bluecomm
