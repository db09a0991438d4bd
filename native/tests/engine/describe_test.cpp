#include "engine/describe.h"

#include <vector>

#include "tests/check.h"

namespace bluecomm::test {
namespace {

TEST(describe, ranks) {
  CHECK_EQ(describe_ranks(std::vector{3}), "rank 3");
  CHECK_EQ(describe_ranks(std::vector{9, 5, 9}), "ranks 5, 9");
  std::vector<int> many;
  for (int rank = 0; rank < 20; ++rank) many.push_back(rank);
  CHECK_EQ(describe_ranks(many),
           "ranks 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 and 4 more");
}

TEST(describe, parts) {
  CHECK_EQ(describe_part(1, 1000), "1 of 1000 bytes");
  CHECK_EQ(describe_part(512, 2048), "0.5 of 2.0 KiB");
  CHECK_EQ(describe_part(3 << 19, 4 << 20), "1.5 of 4.0 MiB");
  CHECK_EQ(describe_part(0, std::size_t{3} << 30), "0.0 of 3.0 GiB");
}

TEST(describe, what_is_missing) {
  using std::chrono::milliseconds;
  const std::vector<Missing> missing{{9, 0, 4 << 20, false},
                                     {5, 3 << 19, 4 << 20, true}};
  CHECK_EQ(
      describe_missing(missing, {}, milliseconds(30000)),
      "no data from ranks 5, 9 within 30.0 s (received 1.5 of 4.0 MiB from rank 5)");
  const std::vector<int> readers{2};
  CHECK_EQ(describe_missing({}, readers, milliseconds(500)),
           "data not taken by rank 2 within 0.5 s");
  CHECK_EQ(describe_missing(std::vector<Missing>{{1, 0, 0, true}}, readers,
                            milliseconds(500)),
           "no data from rank 1 within 0.5 s; data not taken by rank 2");
}

TEST(describe, calls) {
  Envelope call;
  CHECK_EQ(describe_call(call), "barrier");
  CHECK_EQ(describe_operation(call, ""), "barrier");
  call.kind = Kind::kAllreduce;
  call.dtype = DType::kFloat32;
  call.op = ReduceOp::kAverage;
  call.local_only = 1;
  call.ndim = 2;
  call.dims = {4, 4};
  CHECK_EQ(describe_call(call), "allreduce float32 [4, 4] average inside the machine");
  call.kind = Kind::kBroadcast;
  call.local_only = 0;
  call.root = 3;
  call.ndim = 0;
  CHECK_EQ(describe_call(call), "broadcast float32 [] from root 3");
  call.kind = Kind::kNeighborAllreduce;
  call.ndim = 8;
  call.dims = {1, 2, 3, 4, 5, 6};
  CHECK_EQ(describe_call(call), "neighbor_allreduce float32 [1, 2, 3, 4, 5, 6, ...]");
}

TEST(describe, mismatches_read_the_same_on_both_sides) {
  Envelope mine;
  mine.kind = Kind::kAllreduce;
  mine.dtype = DType::kFloat32;
  mine.ndim = 1;
  mine.dims = {3};
  Envelope theirs = mine;
  theirs.dims = {4};
  theirs.shape_hash = 1;
  const MismatchedCall a{0, "rank 0 (hostA)", mine};
  const MismatchedCall b{1, "rank 1 (hostB)", theirs};
  const std::string text =
      "allreduce 'x': rank 0 (hostA) called allreduce float32 [3] sum, rank 1 (hostB) "
      "called allreduce float32 [4] sum. All ranks must pass the same shape and dtype.";
  CHECK_EQ(describe_mismatch("x", a, b), text);
  CHECK_EQ(describe_mismatch("x", b, a), text);
}

}  // namespace
}  // namespace bluecomm::test
