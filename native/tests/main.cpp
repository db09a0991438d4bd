// Runs the tests that native/tests/**/*_test.cpp registered; see check.h.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "tests/check.h"

namespace bluecomm::test {
namespace {

struct Test {
  std::string name;
  TestBody body;
};

// Filled before main() by the registrations. A function-local static, because their
// order across files is undefined.
std::vector<Test>& all_tests() {
  static std::vector<Test> tests;
  return tests;
}

std::atomic<int> failures_in_test{0};

// Name of the running test, for the alarm handler. Set only while no alarm is armed.
char running_name[256] = "";

struct RunnerOptions {
  std::string filter;
  unsigned limit_s = 600;
  // Every `parts`-th test is run, so that several processes share them.
  unsigned part = 1;
  unsigned parts = 1;
  bool list = false;
};

[[noreturn]] void usage(const char* complaint) {
  std::fprintf(stderr,
               "%s\nusage: tests [--list] [--filter PART_OF_NAME] [--limit-s SECONDS] "
               "[--part K/N]\n",
               complaint);
  std::exit(2);
}

RunnerOptions parse_options(int argc, char** argv) {
  RunnerOptions options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--list") {
      options.list = true;
    } else if (flag == "--filter" && i + 1 < argc) {
      options.filter = argv[++i];
    } else if (flag == "--limit-s" && i + 1 < argc) {
      const int limit_s = std::atoi(argv[++i]);
      if (limit_s < 1) usage("--limit-s must be at least 1");
      options.limit_s = static_cast<unsigned>(limit_s);
    } else if (flag == "--part" && i + 1 < argc) {
      const int read = std::sscanf(argv[++i], "%u/%u", &options.part, &options.parts);
      if (read != 2 || options.part < 1 || options.part > options.parts) {
        usage("--part must be K/N, with K from 1 to N");
      }
    } else {
      usage(("unknown or incomplete argument: " + flag).c_str());
    }
  }
  return options;
}

// Only async-signal-safe calls: the test may hold any lock.
void on_alarm(int) {
  const char* const parts[] = {"\nTIMED OUT ", running_name, "\n"};
  for (const char* part : parts) {
    if (write(STDERR_FILENO, part, std::strlen(part)) < 0) break;
  }
  _exit(124);
}

// Returns the number of failures.
int run_test(const Test& test, unsigned limit_s) {
  failures_in_test = 0;
  std::snprintf(running_name, sizeof running_name, "%s", test.name.c_str());
  const auto start = std::chrono::steady_clock::now();
  alarm(limit_s);
  try {
    test.body();
  } catch (const TestAborted&) {
    // REQUIRE has recorded why.
  } catch (const std::exception& error) {
    record_failure(test.name.c_str(), 0, std::string("threw: ") + error.what());
  } catch (...) {
    record_failure(test.name.c_str(), 0,
                   "threw an object that is not a std::exception");
  }
  alarm(0);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  const int failures = failures_in_test;
  std::printf("%s %s (%.3f s)\n", failures == 0 ? "ok    " : "FAILED",
              test.name.c_str(), took.count());
  std::fflush(stdout);
  return failures;
}

int run(const RunnerOptions& options) {
  std::vector<Test> chosen;
  for (const Test& test : all_tests()) {
    if (test.name.find(options.filter) != std::string::npos) chosen.push_back(test);
  }
  std::sort(chosen.begin(), chosen.end(),
            [](const Test& a, const Test& b) { return a.name < b.name; });
  if (chosen.empty()) {
    std::fprintf(stderr, "no test has '%s' in its name\n", options.filter.c_str());
    return 2;
  }
  std::vector<std::string> failed;
  std::size_t count = 0;
  for (std::size_t i = options.part - 1; i < chosen.size(); i += options.parts) {
    const Test& test = chosen[i];
    ++count;
    if (options.list) {
      std::puts(test.name.c_str());
    } else if (run_test(test, options.limit_s) != 0) {
      failed.push_back(test.name);
    }
  }
  if (options.list) return 0;
  std::printf("%zu tests, %zu failed\n", count, failed.size());
  for (const std::string& name : failed) std::printf("  FAILED %s\n", name.c_str());
  return failed.empty() ? 0 : 1;
}

}  // namespace

bool add_test(std::string_view suite, std::string_view name, TestBody body) {
  all_tests().push_back({std::string(suite) + "." + std::string(name), body});
  return true;
}

void record_failure(const char* file, int line, const std::string& text) {
  static std::mutex print_mutex;
  failures_in_test.fetch_add(1);
  const std::scoped_lock lock(print_mutex);
  std::fprintf(stderr, "%s:%d: CHECK failed: %s\n", file, line, text.c_str());
}

int failures_so_far() { return failures_in_test; }

}  // namespace bluecomm::test

int main(int argc, char** argv) {
  signal(SIGALRM, bluecomm::test::on_alarm);
  signal(SIGPIPE, SIG_IGN);
  return bluecomm::test::run(bluecomm::test::parse_options(argc, argv));
}
