#include "common/ticket.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/collectives/collectives.h"
#include "engine/collectives/team.h"

namespace bluecomm {
namespace {

// A message of this plan that has one number.
constexpr std::size_t kNumberBytes = 16;  // a multiple of the size of any element

int my_rank(const Group& group) {
  return group.ranks[static_cast<std::size_t>(group.me)];
}

// The messages between the first member and the others, in the memory of the plan.
struct TicketMessages {
  std::span<std::byte> answer;
  std::span<std::byte> question;   // says which rank called last
  std::span<std::byte> proposals;  // of all members, as the next one
  std::span<std::byte> offers;

  static std::size_t nbytes(std::size_t members, std::size_t offer_nbytes) {
    return Ticket::kAnswerBytes + kNumberBytes * (1 + members) + members * offer_nbytes;
  }
  TicketMessages(std::span<std::byte> memory, std::size_t members)
      : answer(memory.first(Ticket::kAnswerBytes)),
        question(memory.subspan(answer.size(), kNumberBytes)),
        proposals(memory.subspan(answer.size() + kNumberBytes, members * kNumberBytes)),
        offers(memory.subspan(answer.size() + kNumberBytes + proposals.size())) {}

  std::span<std::byte> proposal_of(std::size_t member) const {
    return proposals.subspan(member * kNumberBytes, kNumberBytes);
  }
};

// The phases up to the answer. Each has messages in one direction.
struct TicketPhases {
  Phase offering;
  Phase asking;
  Phase proposing;
  Phase answering;
};

void add_first_member(TicketPhases& phases, const Call& call,
                      const TicketMessages& messages,
                      const std::shared_ptr<const LastCaller>& last_caller) {
  const std::vector<int>& ranks = call.group->ranks;
  const std::shared_ptr<Ticket> ticket = call.ticket;
  const std::size_t nbytes = ticket->offer().size();
  std::memcpy(messages.offers.data(), ticket->offer().data(), nbytes);
  for (std::size_t member = 1; member < ranks.size(); ++member) {
    const int peer = ranks[member];
    phases.offering.gathers.push_back(
        copy_from(peer, 0, messages.offers.subspan(member * nbytes, nbytes)));
    phases.asking.sends.push_back(
        {.peer = peer, .slot = 0, .bytes = messages.question, .lingers = true});
    phases.proposing.gathers.push_back(
        copy_from(peer, 0, messages.proposal_of(member)));
    phases.answering.sends.push_back(
        {.peer = peer, .slot = 0, .bytes = messages.answer, .lingers = true});
  }
  phases.asking.prepare = [ticket, messages, last_caller] {
    ticket->check_offers(messages.offers);
    std::memcpy(messages.question.data(), &last_caller->heard, sizeof(int));
  };
  phases.answering.prepare = [ticket, messages, members = ranks.size()] {
    std::vector<std::uint64_t> proposals(members - 1);
    for (std::size_t member = 1; member < members; ++member) {
      std::memcpy(&proposals[member - 1], messages.proposal_of(member).data(),
                  sizeof proposals.front());
    }
    ticket->write_answer(proposals, messages.answer);
  };
}

void add_other_member(TicketPhases& phases, const Call& call,
                      const TicketMessages& messages,
                      const std::shared_ptr<LastCaller>& last_caller) {
  const std::shared_ptr<Ticket> ticket = call.ticket;
  const int first = call.group->ranks.front();
  const std::span<std::byte> own = messages.proposal_of(0);
  phases.offering.sends.push_back({.peer = first, .slot = 0, .bytes = ticket->offer()});
  phases.asking.gathers.push_back(copy_from(first, 0, messages.question));
  phases.proposing.prepare = [ticket, own, group = call.group,
                              question = messages.question, last_caller] {
    int caller = -1;
    std::memcpy(&caller, question.data(), sizeof caller);
    const bool is_other =
        caller != my_rank(*group) && std::ranges::count(group->ranks, caller) > 0;
    last_caller->told = is_other ? caller : -1;
    const std::uint64_t proposal = ticket->propose();
    std::memcpy(own.data(), &proposal, sizeof proposal);
  };
  phases.proposing.sends.push_back({.peer = first, .slot = 0, .bytes = own});
  phases.answering.gathers.push_back(copy_from(first, 0, messages.answer));
}

}  // namespace

// The first member collects the offers of the others, asks for their proposals, and
// sends its answer; then each member waits until the library of its device has taken
// the call.
Plan plan_ticket(const Call& call) {
  const std::size_t members = call.group->ranks.size();
  const std::shared_ptr<Ticket> ticket = call.ticket;
  Plan plan;
  plan.algorithm = Algorithm::kTicket;
  plan.scratch_nbytes = TicketMessages::nbytes(members, ticket->offer().size());
  plan.scratch = std::make_shared<std::byte[]>(plan.scratch_nbytes);
  plan.last_caller = std::make_shared<LastCaller>(my_rank(*call.group));
  const TicketMessages messages({plan.scratch.get(), plan.scratch_nbytes}, members);

  TicketPhases phases;
  if (call.group->me == 0) {
    add_first_member(phases, call, messages, plan.last_caller);
  } else {
    add_other_member(phases, call, messages, plan.last_caller);
  }
  Phase taking;
  taking.prepare = [ticket, answer = messages.answer] { ticket->take_answer(answer); };
  taking.gate = ticket;
  plan.phases.push_back(std::move(phases.offering));
  plan.phases.push_back(std::move(phases.asking));
  plan.phases.push_back(std::move(phases.proposing));
  plan.phases.push_back(std::move(phases.answering));
  plan.phases.push_back(std::move(taking));
  return plan;
}

}  // namespace bluecomm
