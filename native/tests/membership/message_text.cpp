#include "tests/membership/message_text.h"

#include <sstream>

namespace bluecomm::test {
namespace {

std::string text_of(const MemberSet& set) {
  std::string text = "{";
  for (int rank = set.lowest(); rank != -1; rank = set.lowest(rank + 1)) {
    text += (text.size() > 1 ? " " : "") + std::to_string(rank);
  }
  return text + "}";
}

}  // namespace

std::string text_of(const MembershipMessage& message) {
  static const char* const names[] = {"?",   "SUSPECT", "GATHER", "REPORT", "PREPARE",
                                      "ACK", "NACK",    "COMMIT", "CLAIM"};
  std::ostringstream text;
  text << names[static_cast<int>(message.action)] << " after " << message.number
       << " ballot " << message.ballot.counter << "." << message.ballot.rank;
  if (message.other.is_set()) {
    text << " other " << message.other.counter << "." << message.other.rank;
  }
  if (!message.proposal.survivors.empty()) {
    text << " survivors " << text_of(message.proposal.survivors) << " from round "
         << message.proposal.first_round;
  }
  const Accusations& said = message.accusations;
  if (!said.silent.empty()) text << " silent " << text_of(said.silent);
  if (!said.stopped.empty()) text << " stopped " << text_of(said.stopped);
  if (!said.broken.empty()) text << " broken " << text_of(said.broken);
  if (!said.dead.empty()) text << " dead " << text_of(said.dead);
  return text.str();
}

}  // namespace bluecomm::test
