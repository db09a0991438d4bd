// The framework tests itself, as far as it can without failing.
#include "tests/check.h"

#include <stdexcept>

TEST(check, to_text_shows_small_integers_as_numbers) {
  CHECK_EQ(bluecomm::test::to_text(static_cast<unsigned char>(65)), std::string("65"));
  CHECK_EQ(bluecomm::test::to_text(0.5), std::string("0.5"));
}

TEST(check, throws_compares_type_and_message) {
  CHECK_THROWS(throw std::invalid_argument("expected a number"), std::invalid_argument,
               "a number");
}

TEST(check, near_is_inclusive) { CHECK_NEAR(1.0, 1.5, 0.5); }
