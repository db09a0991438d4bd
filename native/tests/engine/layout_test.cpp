#include "engine/layout.h"

#include <cstdint>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "tests/check.h"

namespace bluecomm::test {
namespace {

Group group_on(std::vector<int> machine_of) {
  Group group;
  group.ranks.resize(machine_of.size());
  std::iota(group.ranks.begin(), group.ranks.end(), 0);
  group.machine_of = std::move(machine_of);
  return group;
}

TEST(layout, knows_the_bytes_of_a_tensor) {
  using Shape = std::vector<std::int64_t>;
  CHECK_EQ(nbytes_of(Shape{}, DType::kFloat64), 8U);
  CHECK_EQ(nbytes_of(Shape{2, 0, 3}, DType::kFloat32), 0U);
  CHECK_EQ(nbytes_of(Shape{2, 5, 3}, DType::kFloat16), 60U);
  for (const Shape& wrong : {Shape{2, -1}, Shape{INT64_MAX, 3}}) {
    CHECK_THROWS(nbytes_of(wrong, DType::kInt8), std::invalid_argument,
                 "not that of a tensor");
  }
}

TEST(layout, shares_rows_evenly) {
  CHECK(share_rows(11, 4) == (std::vector<std::int64_t>{3, 3, 3, 2}));
  CHECK(share_rows(2, 3) == (std::vector<std::int64_t>{1, 1, 0}));
  CHECK(share_rows(0, 2) == (std::vector<std::int64_t>{0, 0}));
}

TEST(layout, cuts_without_gap_at_aligned_offsets) {
  for (std::size_t nbytes : {0u, 1u, 63u, 64u, 65u, 1000u, 4096u, 100'001u}) {
    for (int parts : {1, 2, 3, 17}) {
      const std::vector<Range> slices = cut(nbytes, parts);
      CHECK_EQ(slices.size(), static_cast<std::size_t>(parts));
      std::size_t offset = 0;
      for (const Range& slice : slices) {
        CHECK_EQ(slice.offset, offset);
        CHECK(slice.offset % kSliceAlignment == 0 || slice.length == 0);
        CHECK(slice.length <= nbytes / parts + 2 * kSliceAlignment);
        offset = slice.end();
      }
      CHECK_EQ(offset, nbytes);
    }
  }
}

TEST(layout, lists_the_members_of_each_machine) {
  Group group = group_on({1, 0, 1, 2, 0});
  group.me = 4;
  const Machines machines(group);
  CHECK_EQ(machines.size(), 3);
  CHECK(machines.members[0] == (std::vector<int>{1, 4}));
  CHECK(machines.members[1] == (std::vector<int>{0, 2}));
  CHECK(machines.members[2] == (std::vector<int>{3}));
  CHECK_EQ(machines.mine, 0);
  CHECK_EQ(machines.local, 1);
  CHECK(machines.is_hierarchy());
  CHECK(!Machines(group_on({0, 0})).is_hierarchy());
  CHECK(!Machines(group_on({0, 1})).is_hierarchy());
}

TEST(layout, rejects_a_gap_between_machines) {
  CHECK_THROWS(Machines(group_on({0, 2, 2})), std::invalid_argument,
               "numbered from 0 without a gap, got number 2 although a lower number "
               "has no member");
  CHECK_THROWS(Machines(group_on({1})), std::invalid_argument, "got number 1");
  CHECK_THROWS(Machines(group_on({0, -1})), std::invalid_argument, "got number -1");
}

TEST(layout, cuts_pieces_that_one_member_of_each_machine_owns) {
  // Machine 0 cuts 6 blocks into 2 slices, machine 1 into 3, and machine 2 into 1.
  const Machines machines(group_on({0, 0, 1, 1, 1, 2}));
  const std::vector<Piece> pieces = cut_into_pieces(machines, 6 * 64);
  CHECK_EQ(pieces.size(), 4u);
  CHECK(pieces[0].range == (Range{0, 128}));
  CHECK(pieces[1].range == (Range{128, 64}));
  CHECK(pieces[2].range == (Range{192, 64}));
  CHECK(pieces[3].range == (Range{256, 128}));
  CHECK(pieces[0].owners == (std::vector<int>{0, 2, 5}));
  CHECK(pieces[1].owners == (std::vector<int>{0, 3, 5}));
  CHECK(pieces[2].owners == (std::vector<int>{1, 3, 5}));
  CHECK(pieces[3].owners == (std::vector<int>{1, 4, 5}));
}

TEST(layout, makes_one_piece_of_an_empty_tensor) {
  const Machines machines(group_on({0, 0, 1}));
  const std::vector<Piece> pieces = cut_into_pieces(machines, 0);
  CHECK_EQ(pieces.size(), 1u);
  CHECK(pieces[0].range == (Range{0, 0}));
  CHECK(pieces[0].owners == (std::vector<int>{0, 2}));
}

}  // namespace
}  // namespace bluecomm::test
