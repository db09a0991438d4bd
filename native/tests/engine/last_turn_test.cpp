// The messages of a request's last turn. Dispatchers without threads, over TCP, are
// polled one by one, so that one of them can stand still.
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "engine/dispatcher.h"
#include "tests/check.h"
#include "tests/engine/engine_world.h"

namespace bluecomm::test {
namespace {

using Dispatchers = std::vector<std::unique_ptr<Dispatcher>>;

Dispatchers make_dispatchers(int size) {
  const MakeTransport make_transport = over_tcp(1, stream::Encryption::kOff);
  Dispatchers all;
  std::vector<Peer> peers;
  std::vector<int> ranks;
  for (int rank = 0; rank < size; ++rank) {
    EngineConfig config;
    config.rank = rank;
    config.size = size;
    config.job = "test";
    config.machine = "here";
    std::vector<std::unique_ptr<Transport>> transports;
    transports.push_back(make_transport(rank));
    all.push_back(
        std::make_unique<Dispatcher>(std::move(config), std::move(transports)));
    peers.push_back({rank, "host", "here", 1000 + rank, all.back()->offers()});
    ranks.push_back(rank);
  }
  for (int rank = 0; rank < size; ++rank) {
    Dispatcher& one = *all[static_cast<std::size_t>(rank)];
    one.connect(peers);
    one.add_group({.id = kWorld, .ranks = ranks, .machine_of = ranks, .me = rank});
  }
  return all;
}

RequestId enter_barrier(Dispatcher& dispatcher) {
  Call call;
  call.kind = Kind::kBarrier;
  call.name = "b";
  call.group = dispatcher.group(kWorld);
  call.deadline = Clock::now() + 2 * kDeadline;
  return dispatcher.submit(std::move(call));
}

void poll_until(const std::vector<Dispatcher*>& polled,
                const std::function<bool()>& done) {
  const Clock::time_point limit = Clock::now() + kDeadline;
  while (!done() && Clock::now() < limit) {
    for (Dispatcher* const one : polled) one->poll();
  }
  REQUIRE(done());
}

std::uint64_t received(const Dispatcher& dispatcher, int peer) {
  for (const PeerStats& one : dispatcher.stats().peers) {
    if (one.rank == peer) return one.channel.messages_received;
  }
  return 0;
}

// In the second step of the barrier, rank 0 receives from rank 1 and sends to rank 2.
// Rank 1's message comes first, so rank 0's barrier ends in the turn in which that of
// rank 2 arrives. Then rank 0 does nothing more: its process may have ended.
TEST(last_turn, the_messages_of_a_calls_last_turn_have_left) {
  const Dispatchers all = make_dispatchers(3);
  Dispatcher& stops = *all[0];
  Dispatcher& early = *all[1];
  Dispatcher& last = *all[2];
  const std::vector<Dispatcher*> everybody{&stops, &early, &last};
  const auto have_ended = [&](const std::vector<RequestId>& ids) {
    return all[0]->request(ids[0])->done() && all[1]->request(ids[1])->done() &&
           all[2]->request(ids[2])->done();
  };
  std::vector<RequestId> ids;
  for (Dispatcher* const one : everybody) ids.push_back(enter_barrier(*one));
  poll_until(everybody, [&] { return have_ended(ids); });  // all links are open now

  const std::uint64_t before = received(stops, 1);
  ids[0] = enter_barrier(stops);
  ids[1] = enter_barrier(early);
  poll_until({&stops, &early}, [&] { return received(stops, 1) > before; });
  ids[2] = enter_barrier(last);
  last.poll();
  poll_until({&stops}, [&] { return stops.request(ids[0])->done(); });
  poll_until({&early, &last}, [&] { return have_ended(ids); });
}

}  // namespace
}  // namespace bluecomm::test
