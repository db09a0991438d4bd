// The bytes of tensors, their division among the members of a group, and the members of
// each machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/call.h"

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

// Returns the bytes of a tensor. Throws std::invalid_argument if a dimension is
// negative or the bytes exceed the address space.
std::size_t nbytes_of(std::span<const std::int64_t> shape, DType dtype);

// Divides `nbytes` bytes into `parts` adjacent slices, as evenly as the alignment
// allows. The last slices are empty if there are more parts than aligned blocks.
std::vector<Range> cut(std::size_t nbytes, int parts);

// Divides `rows` rows into `parts` shares, as evenly as possible: the first rows %
// parts shares get one additional row.
std::vector<std::int64_t> share_rows(std::int64_t rows, int parts);

// The members of a group, machine by machine.
struct Machines {
  // Throws std::invalid_argument if the numbers of machines have a gap.
  explicit Machines(const Group& group);

  std::vector<std::vector<int>> members;  // member indices of each machine, ascending
  int mine = 0;                           // this rank's machine
  int local = 0;                          // this rank's index in members[mine]

  int size() const { return static_cast<int>(members.size()); }
  // Returns the members on this rank's machine.
  const std::vector<int>& local_members() const { return members[mine]; }
  // Returns whether there are several machines, at least one of them with several
  // members.
  bool is_hierarchy() const;
};

// A byte range that lies within one slice on every machine. Machines with different
// numbers of members divide a tensor into different slices; pieces are bounded by the
// borders of all these slices, so on each machine exactly one member owns a piece and
// exchanges it with its owners on the other machines.
struct Piece {
  Range range;
  std::vector<int> owners;  // the owner on each machine, as a member index
};

// Returns all pieces in order, the same on all ranks. There is at least one: an empty
// tensor is one empty piece. If all machines have the same number of members, the
// pieces are the slices.
std::vector<Piece> cut_into_pieces(const Machines& machines, std::size_t nbytes);

}  // namespace bluecomm
