#include "engine/matching.h"

#include "common/recent.h"
#include "tests/check.h"

namespace bluecomm::test {
namespace {

std::shared_ptr<Operation> make(Matching& matching, RequestId id,
                                const std::string& name) {
  auto group = std::make_shared<Group>();
  group->id = 1;
  group->ranks = {0};
  Call call;
  call.name = name;
  call.group = std::move(group);
  const std::uint32_t sequence = matching.next_sequence(1, name_hash(call));
  const Envelope envelope = make_envelope(call, Algorithm::kFlat, 0, 0, sequence);
  return std::make_shared<Operation>(id, std::move(call), Plan(), envelope, nullptr);
}

TEST(matching, a_second_use_of_a_name_waits_for_the_first) {
  Matching matching;
  const auto first = make(matching, 1, "x");
  CHECK(!matching.add(first));
  first->start({});
  const auto second = make(matching, 2, "x");
  CHECK(matching.add(second));
  const auto other = make(matching, 3, "y");
  CHECK(!matching.add(other));

  CHECK(matching.find(first->key()) == first.get());
  CHECK(matching.find(second->key()) == second.get());
  CHECK(matching.find_earlier(second->key()) == first.get());
  CHECK(matching.find_earlier(first->key()) == nullptr);
  CHECK(matching.remove(*first) == second);
  CHECK(matching.find(first->key()) == nullptr);
  CHECK(matching.standing(first->key()) == Matching::Standing::kPast);
  CHECK(matching.standing(second->key()) == Matching::Standing::kUnfinished);
  CHECK(matching.standing(make(matching, 4, "x")->key()) ==
        Matching::Standing::kFuture);
}

TEST(matching, unnamed_calls_run_at_once) {
  Matching matching;
  CHECK(!matching.add(make(matching, 1, "")));
  CHECK(!matching.add(make(matching, 2, "")));
}

TEST(matching, keeps_early_messages_and_failures) {
  Matching matching;
  Envelope envelope = make(matching, 1, "x")->envelope();
  matching.keep({3, envelope, nullptr});
  matching.keep({4, envelope, nullptr});
  REQUIRE(matching.announced_by(4).has_value());
  CHECK_EQ(matching.announced_by(4)->name_text(), "x");
  CHECK(!matching.announced_by(5));
  CHECK_EQ(matching.take(envelope.key).size(), 2U);
  CHECK(matching.take(envelope.key).empty());

  matching.keep_abort(envelope.key, {Code::kTimedOut, "late", 3});
  CHECK_EQ(matching.abort_of(envelope.key)->text, "late");
  CHECK(!matching.has_failed(envelope.key));
  matching.remember_failure(envelope.key);
  CHECK(matching.has_failed(envelope.key));
}

TEST(matching, a_recent_map_drops_the_oldest) {
  RecentMap<int, int, std::hash<int>> map(2);
  map.insert(1, 10);
  map.insert(1, 11);
  map.insert(2, 20);
  CHECK_EQ(*map.find(1), 10);
  map.insert(3, 30);
  CHECK(!map.contains(1));
  CHECK(map.contains(2) && map.contains(3));
  map.erase(2);
  map.erase(2);
  map.insert(4, 40);
  CHECK(!map.contains(2) && map.contains(3) && map.contains(4));
}

}  // namespace
}  // namespace bluecomm::test
