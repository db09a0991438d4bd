// A small test framework: registration, checks, one runner (main.cpp).
//
// How to add a test
//   1. Create native/tests/<folder>/<file>_test.cpp for native/<folder>/<file>.cpp. The
//      Makefile finds it; there is no list to edit.
//   2. Include "tests/check.h" and write, at namespace scope:
//
//        TEST(combine, adds_in_the_order_given) {
//          CHECK_EQ(1 + 1, 2);
//        }
//
//   3. `make native-test`, or one test alone, by a part of its name:
//
//        make build/native/tests
//        build/native/tests --filter combine.adds_in      (also --list)
//
//      The same with sanitizers: build/native-asan/tests, build/native-tsan/tests.
//
// CHECK, CHECK_EQ, CHECK_NEAR and CHECK_THROWS record a failure and continue; they may
// be used in any thread that ends before its test. REQUIRE ends the test, so it must be
// used in the test's own thread. A test that exceeds the limit of the runner (300 s;
// --limit-s) fails the whole run, which prints its name.
#pragma once

#include <chrono>
#include <cmath>
#include <cstddef>
#include <exception>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>

namespace bluecomm::test {

// What REQUIRE throws. Not a std::exception, so that no code under test catches it.
struct TestAborted {};

using TestBody = void (*)();

// Adds a test to the runner's list; used by TEST.
bool add_test(std::string_view suite, std::string_view name, TestBody body);

// The limit for waits in tests. No wait takes this long, even if a process does not run
// for seconds.
inline constexpr std::chrono::seconds kDeadline{120};

// Counts and prints a failure of the running test. Thread-safe.
void record_failure(const char* file, int line, const std::string& text);
// Returns the number of failures of the running test, for processes that it forks.
int failures_so_far();

template <typename T>
std::string to_text(const T& value) {
  if constexpr (requires(std::ostream& out) { out << value; }) {
    std::ostringstream out;
    out.precision(17);
    if constexpr (sizeof(T) == 1 && std::is_integral_v<T>) {
      out << static_cast<int>(value);
    } else {
      out << value;
    }
    return out.str();
  } else if constexpr (std::is_enum_v<T>) {
    return std::to_string(static_cast<long long>(value));
  } else {
    return "<" + std::to_string(sizeof(T)) + " bytes>";
  }
}

template <typename A, typename B>
void check_equal(const A& got, const B& expected, const char* got_text,
                 const char* expected_text, const char* file, int line) {
  if (got == expected) return;
  record_failure(file, line,
                 std::string(got_text) + " == " + expected_text + ": got " +
                     to_text(got) + ", expected " + to_text(expected));
}

inline void check_near(double got, double expected, double tolerance,
                       const char* got_text, const char* file, int line) {
  if (std::abs(got - expected) <= tolerance) return;
  record_failure(file, line,
                 std::string(got_text) + ": got " + to_text(got) + ", expected " +
                     to_text(expected) + " within " + to_text(tolerance));
}

// Calls `body`, which must throw an `Exception` whose what() contains `part`.
template <typename Exception, typename Callable>
void check_throws(Callable&& body, std::string_view part, const char* text,
                  const char* file, int line) {
  try {
    body();
  } catch (const Exception& error) {
    if (std::string_view(error.what()).find(part) != std::string_view::npos) return;
    record_failure(file, line,
                   std::string(text) + ": the message '" + error.what() +
                       "' does not contain '" + std::string(part) + "'");
    return;
  } catch (const std::exception& error) {
    record_failure(file, line,
                   std::string(text) + ": threw another type: " + error.what());
    return;
  }
  record_failure(file, line, std::string(text) + ": did not throw");
}

}  // namespace bluecomm::test

#define TEST(suite, name)                                                \
  static void test_##suite##_##name();                                   \
  [[maybe_unused]] static const bool registered_##suite##_##name =       \
      ::bluecomm::test::add_test(#suite, #name, &test_##suite##_##name); \
  static void test_##suite##_##name()

#define CHECK(...)                                                        \
  do {                                                                    \
    if (!(__VA_ARGS__))                                                   \
      ::bluecomm::test::record_failure(__FILE__, __LINE__, #__VA_ARGS__); \
  } while (false)

#define REQUIRE(...)                                                      \
  do {                                                                    \
    if (!(__VA_ARGS__)) {                                                 \
      ::bluecomm::test::record_failure(__FILE__, __LINE__, #__VA_ARGS__); \
      throw ::bluecomm::test::TestAborted{};                              \
    }                                                                     \
  } while (false)

#define CHECK_EQ(got, expected) \
  ::bluecomm::test::check_equal((got), (expected), #got, #expected, __FILE__, __LINE__)

#define CHECK_NEAR(got, expected, tolerance) \
  ::bluecomm::test::check_near((got), (expected), (tolerance), #got, __FILE__, __LINE__)

// CHECK_THROWS(parse("x"), std::invalid_argument, "expected a number");
#define CHECK_THROWS(expression, exception, part)                                   \
  ::bluecomm::test::check_throws<exception>([&] { static_cast<void>(expression); }, \
                                            (part), #expression, __FILE__, __LINE__)
