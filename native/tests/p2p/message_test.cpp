#include "p2p/message.h"

#include "tests/check.h"

namespace bluecomm::test {
namespace {

TEST(point_message, survives_the_wire) {
  PointMessage sent;
  sent.dtype = DType::kFloat32;
  sent.count = 3;
  sent.tag = 7;
  sent.send = 9;
  const auto got = read_point_message(to_header(sent, 12));
  REQUIRE(got.has_value());
  CHECK_EQ(got->count, 3U);
  CHECK_EQ(got->tag, 7);
  CHECK_EQ(got->send, 9U);
}

TEST(point_message, rejects_invalid_headers) {
  PointMessage good;
  good.dtype = DType::kFloat32;
  good.count = 3;
  CHECK(!read_point_message(Header{}).has_value());
  CHECK(!read_point_message(to_header(good, 11)).has_value());
  CHECK(!read_point_message(to_header(good, 13)).has_value());
  for (void (*spoil)(PointMessage&) : {
           +[](PointMessage& one) { one.action = static_cast<PointAction>(9); },
           +[](PointMessage& one) { one.dtype = static_cast<DType>(99); },
           +[](PointMessage& one) { one.code = -1; },
       }) {
    PointMessage bad = good;
    spoil(bad);
    CHECK(!read_point_message(to_header(bad, 12)).has_value());
  }
  for (const PointAction action :
       {PointAction::kCancel, PointAction::kDecline, PointAction::kUnsent}) {
    PointMessage notice = good;
    notice.action = action;
    CHECK(read_point_message(to_header(notice, Channel::kMaxPost)).has_value());
    CHECK(!read_point_message(to_header(notice, Channel::kMaxPost + 1)).has_value());
  }
}

}  // namespace
}  // namespace bluecomm::test
