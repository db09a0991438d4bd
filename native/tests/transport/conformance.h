// The suite that every transport must pass, as functions of a scheme.
//
// To test a transport, write a function that returns a Scheme, and at namespace scope
//
//    const bool registered = register_conformance<&my_scheme>("my_transport");
//
// This registers each check as a test, and further tests that the suite notices
// deliberate faults (faulty_transport.h) in this transport. inproc_test.cpp is the
// shortest example. Tests of one transport alone are added to the same file.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/check.h"
#include "tests/transport/faulty_transport.h"
#include "transport/channel.h"

namespace bluecomm::test {

// Transports of one kind that know each other. Members are destroyed from the last to
// the first.
struct World {
  std::shared_ptr<void> keep;  // whatever the transports need
  // Allocates memory for payloads of `rank`, which lives as long as the world. If
  // empty, payloads come from the heap.
  std::function<std::span<std::byte>(int rank, std::size_t nbytes)> allocate;
  // Whether payloads are sent with a Lease.
  bool lends = false;
  std::vector<std::unique_ptr<Transport>> transports;
  std::vector<std::vector<Channel*>> channels;  // [from][to], nullptr to itself

  int size() const { return static_cast<int>(transports.size()); }
  Channel& channel(int from, int to) const {
    return *channels[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)];
  }
};

// Fills `channels` from the transports' offers.
void connect(World& world);

struct Scheme {
  std::function<World(int size)> make_world;
  std::size_t eager_bytes;
  std::chrono::milliseconds limit = kDeadline;  // for each wait of a check
  // Whether a goodbye also reaches ranks that have exchanged nothing with the rank
  // that closes.
  bool tells_idle_ranks = false;
};

// The faults that a check has found; empty if it passed. Checks do not use CHECK
// themselves, so that the tests of faults can run them and expect findings.
using Findings = std::vector<std::string>;

void check_payload_sizes(const Scheme& scheme, Findings& findings);
void check_steps(const Scheme& scheme, Findings& findings);
void check_many_in_flight(const Scheme& scheme, Findings& findings);
void check_unaccepted(const Scheme& scheme, Findings& findings);
void check_unconsumed(const Scheme& scheme, Findings& findings);
void check_released(const Scheme& scheme, Findings& findings);
void check_growing(const Scheme& scheme, Findings& findings);
void check_post(const Scheme& scheme, Findings& findings);
void check_both_dial(const Scheme& scheme, Findings& findings);
void check_threads(const Scheme& scheme, Findings& findings);
void check_stats(const Scheme& scheme, Findings& findings);
void check_sender_cancels(const Scheme& scheme, Findings& findings);
void check_receiver_cancels(const Scheme& scheme, Findings& findings);
void check_close(const Scheme& scheme, Findings& findings);
void check_lost(const Scheme& scheme, Findings& findings);
void check_forget(const Scheme& scheme, Findings& findings);
void check_outlives(const Scheme& scheme, Findings& findings);

struct Check {
  std::string_view name;
  void (*run)(const Scheme& scheme, Findings& findings);
};

inline constexpr std::array kChecks = {
    Check{"payload_sizes_arrive_whole", check_payload_sizes},
    Check{"payload_is_consumed_in_any_steps", check_steps},
    Check{"many_in_flight_keep_the_order_of_headers", check_many_in_flight},
    Check{"unaccepted_messages_block_nothing", check_unaccepted},
    Check{"unconsumed_messages_block_nothing", check_unconsumed},
    Check{"released_memory_is_read_no_more", check_released},
    Check{"growing_payloads_are_read_as_they_grow", check_growing},
    Check{"posts_arrive_in_order", check_post},
    Check{"both_sides_may_dial", check_both_dial},
    Check{"ranks_in_threads_sleep_and_wake", check_threads},
    Check{"stats_count_messages_and_bytes", check_stats},
    Check{"sender_may_cancel", check_sender_cancels},
    Check{"receiver_may_discard", check_receiver_cancels},
    Check{"close_drains_and_says_goodbye", check_close},
    Check{"loss_is_reported_once", check_lost},
    Check{"forgotten_peer_is_silent", check_forget},
    Check{"messages_may_outlive_the_transport", check_outlives},
};

// Runs a check. An exception counts as a finding.
Findings run_check(const Check& check, const Scheme& scheme);

// Returns the same scheme, with transports that commit `fault`.
Scheme with_fault(const Scheme& scheme, Fault fault);

template <Scheme (*make_scheme)(), std::size_t index>
void conformance_test() {
  for (const std::string& finding : run_check(kChecks[index], make_scheme())) {
    record_failure(std::string(kChecks[index].name).c_str(), 0, finding);
  }
}

template <Scheme (*make_scheme)(), Fault fault, auto check>
void fault_test() {
  const Scheme scheme = with_fault(make_scheme(), fault);
  CHECK_EQ(run_check({"fault", check}, scheme).empty(), fault == Fault::kNone);
}

template <Scheme (*make_scheme)()>
bool register_conformance(std::string_view suite) {
  [suite]<std::size_t... index>(std::index_sequence<index...>) {
    (add_test(suite, kChecks[index].name, &conformance_test<make_scheme, index>), ...);
  }(std::make_index_sequence<kChecks.size()>{});
  add_test(suite, "suite_finds_nothing_without_a_fault",
           &fault_test<make_scheme, Fault::kNone, check_released>);
  add_test(suite, "suite_finds_a_lost_chunk",
           &fault_test<make_scheme, Fault::kLostChunk, check_steps>);
  add_test(suite, "suite_finds_swapped_chunks",
           &fault_test<make_scheme, Fault::kSwappedChunks, check_steps>);
  add_test(suite, "suite_finds_an_early_release",
           &fault_test<make_scheme, Fault::kEarlyRelease, check_released>);
  return true;
}

}  // namespace bluecomm::test
