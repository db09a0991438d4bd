#include "common/dtype.h"

#include "tests/check.h"

namespace bluecomm {
namespace {

TEST(dtype, every_name_leads_back_to_its_value) {
  for (std::uint8_t value = 0; value < kDTypeCount; ++value) {
    const auto dtype = dtype_from_value(value);
    REQUIRE(dtype.has_value());
    CHECK(dtype_from_name(dtype_name(*dtype)) == dtype);
    CHECK(item_size(*dtype) > 0);
  }
}

TEST(dtype, unknown_names_and_values_are_nothing) {
  CHECK(!dtype_from_name("complex32").has_value());
  CHECK(!dtype_from_name("").has_value());
  CHECK(!dtype_from_value(kDTypeCount).has_value());
  CHECK(!dtype_from_value(255).has_value());
}

TEST(dtype, sizes) {
  CHECK_EQ(item_size(DType::kBool), 1u);
  CHECK_EQ(item_size(DType::kBfloat16), 2u);
  CHECK_EQ(item_size(DType::kInt32), 4u);
  CHECK_EQ(item_size(DType::kFloat64), 8u);
  CHECK(is_floating(DType::kFloat16));
  CHECK(!is_floating(DType::kInt64));
}

}  // namespace
}  // namespace bluecomm
