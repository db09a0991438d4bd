// Tests sends and receives between engines: matching, early messages, sizes, and the
// rank itself as peer.
#include <algorithm>
#include <numeric>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "tests/check.h"
#include "tests/p2p/points.h"

namespace bluecomm::test {
namespace {

TEST(points, values_arrive_whatever_their_size) {
  for (const std::size_t count : {0UL, 1UL, 1000UL, 100000UL, 3000001UL}) {
    EngineWorld world(2);
    world.run([&](int rank, Engine& engine) {
      std::vector<float> values(count);
      if (rank == 0) std::iota(values.begin(), values.end(), 1.0F);
      const Status status =
          run_point(engine, rank == 0 ? send_call(engine, values, 1, 7)
                                      : recv_call(engine, values, 0, 7));
      CHECK_EQ(status.text, "");
      if (count > 0) CHECK_EQ(values.back(), static_cast<float>(count));
    });
  }
}

TEST(points, messages_arrive_before_their_receives) {
  EngineWorld world(2);
  std::vector<float> small{1.0F, 2.0F};
  std::vector<float> large(1 << 20, 3.0F);
  // A small message needs no receive; a large one stays with its sender.
  CHECK_EQ(run_point(world.engine(0), send_call(world.engine(0), small, 1)).text, "");
  const RequestId id = world.engine(0).submit(send_call(world.engine(0), large, 1));
  std::this_thread::sleep_for(20ms);
  CHECK(!world.engine(0).done(id));

  std::vector<float> first(2);
  std::vector<float> second(large.size());
  Engine& receiver = world.engine(1);
  CHECK_EQ(run_point(receiver, recv_call(receiver, first, 0)).text, "");
  CHECK_EQ(run_point(receiver, recv_call(receiver, second, 0)).text, "");
  CHECK_EQ(first[1], 2.0F);
  CHECK_EQ(second.back(), 3.0F);
  CHECK_EQ(finish(world.engine(0), id).text, "");
}

TEST(points, sends_beyond_the_limit_wait_for_receives) {
  constexpr std::size_t kMore = 100;
  constexpr std::size_t kSends = PointCredit::kLimit + kMore;
  EngineWorld world(2);
  Engine& sender = world.engine(0);
  Engine& receiver = world.engine(1);
  std::vector<float> empty;
  std::vector<RequestId> ids;
  for (std::size_t i = 0; i < kSends; ++i) {
    ids.push_back(sender.submit(send_call(sender, empty, 1)));
  }
  std::vector<float> value{7.0F};
  const RequestId last = sender.submit(send_call(sender, value, 1));
  for (std::size_t i = PointCredit::kLimit - kMore; i < kSends; ++i) {
    CHECK_EQ(sender.done(ids[i]), i < PointCredit::kLimit);
  }
  CHECK(!sender.done(last));
  // A send that fails while it waits reaches nobody.
  sender.fail(ids.back(), {Code::kClosed, "given up", -1});
  ids.pop_back();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    CHECK_EQ(run_point(receiver, recv_call(receiver, empty, 0)).text, "");
  }
  std::vector<float> got(1);
  CHECK_EQ(run_point(receiver, recv_call(receiver, got, 0)).text, "");
  CHECK_EQ(got[0], 7.0F);
  for (std::size_t i = PointCredit::kLimit; i < ids.size(); ++i) {
    CHECK_EQ(finish(sender, ids[i]).text, "");
  }
  CHECK_EQ(finish(sender, last).text, "");
}

TEST(points, a_send_that_waits_for_others_says_so) {
  EngineWorld world(2);
  Engine& sender = world.engine(0);
  std::vector<float> empty;
  for (std::size_t i = 0; i < PointCredit::kLimit; ++i) {
    sender.submit(send_call(sender, empty, 1));
  }
  PointCall call = send_call(sender, empty, 1);
  call.deadline = Clock::now() + 10ms;
  const Status status = run_point(sender, std::move(call));
  CHECK(status.code == Code::kTimedOut);
  CHECK(status.text.find("16384 earlier messages wait there for a recv") !=
        std::string::npos);
}

TEST(points, cancelled_messages_use_no_credit) {
  PointCredit sender;
  PointCredit receiver;
  for (std::uint64_t i = 0; i < PointCredit::kLimit; ++i) {
    CHECK(sender.may_send());
    sender.count_sent();
    // One of three messages waits for a receive, one is matched, and one is cancelled
    // before its header leaves the sender.
    if (i % 3 < 2) receiver.arrive(sender.sent());
    if (i % 3 == 1) receiver.count_taken();
    if (i % 3 == 2) receiver.set_sent(sender.sent());
  }
  CHECK(!sender.may_send());
  sender.set_taken(receiver.take_report());
  CHECK(sender.may_send());
  const std::uint64_t taken = PointCredit::kLimit / 3 * 2;
  for (std::uint64_t i = 0; i < taken; ++i) {
    CHECK(sender.may_send());
    sender.count_sent();
  }
  CHECK(!sender.may_send());
  CHECK_EQ(receiver.take_report(), 0U);
  sender.set_taken(PointCredit::kLimit * 3);  // more than have been sent
  CHECK(!sender.may_send());
}

TEST(points, a_thousand_tags_match_in_any_order) {
  constexpr int kTags = 1000;
  EngineWorld world(2);
  world.run([&](int rank, Engine& engine) {
    // Two messages for each tag; the receiver asks in another order than the sender.
    std::vector<int> tags;
    for (int tag = 0; tag < kTags; ++tag) tags.insert(tags.end(), {tag, tag});
    std::mt19937 random(static_cast<unsigned>(rank));
    std::shuffle(tags.begin(), tags.end(), random);
    std::vector<int> seen(kTags);
    std::vector<std::vector<float>> values(tags.size(), std::vector<float>(1));
    std::vector<RequestId> ids;
    std::vector<int> turn;
    for (std::size_t i = 0; i < tags.size(); ++i) {
      const int tag = tags[i];
      turn.push_back(seen[static_cast<std::size_t>(tag)]++);
      values[i][0] = rank == 0 ? static_cast<float>(2 * tag + turn[i]) : -1.0F;
      ids.push_back(engine.submit(rank == 0 ? send_call(engine, values[i], 1, tag)
                                            : recv_call(engine, values[i], 0, tag)));
    }
    for (std::size_t i = 0; i < tags.size(); ++i) {
      CHECK_EQ(finish(engine, ids[i]).text, "");
      CHECK_EQ(values[i][0], static_cast<float>(2 * tags[i] + turn[i]));
    }
  });
}

TEST(points, any_source_takes_each_message_once) {
  constexpr int kSize = 4;
  EngineWorld world(kSize);
  world.run([&](int rank, Engine& engine) {
    if (rank > 0) {
      std::vector<float> value{static_cast<float>(rank)};
      CHECK_EQ(run_point(engine, send_call(engine, value, 0, 5)).text, "");
      return;
    }
    std::vector<int> sources;
    for (int i = 1; i < kSize; ++i) {
      std::vector<float> value(1);
      const RequestId id = engine.submit(recv_call(engine, value, kAnySource, 5));
      CHECK(engine.wait(id, Clock::now() + kDeadline)->ok());
      sources.push_back(engine.source_of(id));
      CHECK_EQ(value[0], static_cast<float>(sources.back()));
      engine.release(id);
    }
    std::sort(sources.begin(), sources.end());
    CHECK_EQ(sources, (std::vector<int>{1, 2, 3}));
  });
}

TEST(points, a_receive_that_names_its_source_passes_over_other_messages) {
  EngineWorld world(3);
  for (const int rank : {1, 2}) {
    std::vector<float> value{static_cast<float>(rank)};
    Engine& engine = world.engine(rank);
    CHECK_EQ(run_point(engine, send_call(engine, value, 0)).text, "");
  }
  std::vector<float> value(1);
  Engine& engine = world.engine(0);
  CHECK_EQ(run_point(engine, recv_call(engine, value, 2)).text, "");
  CHECK_EQ(value[0], 2.0F);
  const RequestId id = engine.submit(recv_call(engine, value, kAnySource));
  CHECK(engine.wait(id, Clock::now() + kDeadline)->ok());
  CHECK_EQ(engine.source_of(id), 1);
}

TEST(points, groups_keep_messages_apart) {
  EngineWorld world(2);
  for (int rank = 0; rank < 2; ++rank) world.engine(rank).add_group(2, {0, 1}, {0, 0});
  std::vector<float> one{1.0F};
  std::vector<float> two{2.0F};
  Engine& sender = world.engine(0);
  CHECK_EQ(run_point(sender, send_call(sender, one, 1, 0, 2)).text, "");
  CHECK_EQ(run_point(sender, send_call(sender, two, 1, 0)).text, "");
  std::vector<float> value(1);
  Engine& receiver = world.engine(1);
  CHECK_EQ(run_point(receiver, recv_call(receiver, value, 0, 0)).text, "");
  CHECK_EQ(value[0], 2.0F);
  CHECK_EQ(run_point(receiver, recv_call(receiver, value, 0, 0, 2)).text, "");
  CHECK_EQ(value[0], 1.0F);
}

TEST(points, a_rank_sends_to_itself) {
  for (const bool send_first : {true, false}) {
    EngineWorld world(1);
    Engine& engine = world.engine(0);
    std::vector<float> values(3000000, 4.0F);
    std::vector<float> copy(values.size());
    PointCall send = send_call(engine, values, 0);
    PointCall receive = recv_call(engine, copy, send_first ? 0 : kAnySource);
    const RequestId id =
        engine.submit(send_first ? std::move(send) : std::move(receive));
    CHECK_EQ(run_point(engine, send_first ? std::move(receive) : std::move(send)).text,
             "");
    CHECK_EQ(finish(engine, id).text, "");
    CHECK_EQ(copy.back(), 4.0F);
  }
}

// Nonblocking sends and receives never wait for each other, so opposite orders on two
// ranks meet.
TEST(points, opposite_orders_do_not_block) {
  EngineWorld world(2);
  world.run([&](int rank, Engine& engine) {
    constexpr std::size_t kEach = 8;
    std::vector<std::vector<float>> mine(kEach, std::vector<float>(100000, 1.0F));
    std::vector<std::vector<float>> theirs(kEach, std::vector<float>(100000));
    std::vector<RequestId> ids;
    for (std::size_t i = 0; i < kEach; ++i) {
      const std::size_t at = rank == 0 ? i : kEach - 1 - i;
      const auto tag = static_cast<std::int64_t>(at);
      ids.push_back(engine.submit(send_call(engine, mine[at], 1 - rank, tag)));
      const std::size_t other = kEach - 1 - at;
      const auto other_tag = static_cast<std::int64_t>(other);
      ids.push_back(
          engine.submit(recv_call(engine, theirs[other], 1 - rank, other_tag)));
    }
    for (const RequestId id : ids) CHECK_EQ(finish(engine, id).text, "");
    for (const auto& values : theirs) CHECK_EQ(values.back(), 1.0F);
  });
}

TEST(points, are_counted) {
  EngineWorld world(2);
  world.run([&](int rank, Engine& engine) {
    std::vector<float> values(100);
    CHECK_EQ(run_point(engine, rank == 0 ? send_call(engine, values, 1)
                                         : recv_call(engine, values, 0))
                 .text,
             "");
    const Stats stats = engine.stats();
    CHECK_EQ(stats.kinds.size(), 1U);
    CHECK_EQ(request_kind_name(stats.kinds[0].first), rank == 0 ? "send" : "recv");
    const EdgeStats& edge = stats.peers[0].edges.at(0).second;
    CHECK_EQ(edge.bytes_sent, rank == 0 ? 400U : 0U);
    CHECK_EQ(edge.bytes_received, rank == 0 ? 0U : 400U);
  });
}

}  // namespace
}  // namespace bluecomm::test
