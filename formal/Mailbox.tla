------------------------------ MODULE Mailbox ------------------------------
(***************************************************************************)
(* The mailbox protocol as the stores implement it: send, receive with     *)
(* promotion, acknowledge, nack (failed, put off or undone), extend,       *)
(* expiry, purge and crash, and the two sequences built on it: reply then  *)
(* acknowledge, and dead-letter then acknowledge.  What a caller is told   *)
(* is in Replies.                                                          *)
(*                                                                         *)
(* A step of a store is one atomic action here, as it is one script on     *)
(* Redis and one transaction on SQLite.  Where a store does more in one    *)
(* step (promotion as part of a receive, acknowledgements that travel with *)
(* a receive, on SQLite the reply with its acknowledgement) the model      *)
(* keeps the parts apart: the whole is then its parts with nobody in       *)
(* between, which is one of the ways they can run.                         *)
(*                                                                         *)
(* Time is abstract: a lease is live until Expire makes it overdue, at any *)
(* moment; whether anybody has promoted it since is another matter, and    *)
(* handles must be refused in both cases.                                  *)
(*                                                                         *)
(* A consumer may hold any number of receipts, and use each as often as it *)
(* likes, also after it was settled: the answer may have been lost, and    *)
(* the call is repeated.  It forgets one at any time: it heard the answer, *)
(* or was refused, or never heard of the lease that it was given.          *)
(*                                                                         *)
(* Every message has somebody who waits for a reply; one without takes the *)
(* same steps and leaves out the reply.                                    *)
(*                                                                         *)
(* Left out: messages that are dropped for their age, receiving by id, and *)
(* servers that forget what they confirmed.                                *)
(*                                                                         *)
(* Bug plants one mistake; TLC must find each of them.                     *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
    Messages,       \* ids of messages
    Consumers,      \* processes that receive
    MaxDeliveries,  \* bound on deliveries of one message
    MaxSends,       \* bound on sends of one id: it can be used again once its message is gone
    MaxPurges,      \* bound on purges
    Calm,           \* whether faults end: nothing befalls the last delivery (for liveness)
    Bug             \* "none", or the mistake to plant

ASSUME Bug \in {"none", "token", "send-again", "remove-first", "reaper", "no-promotion",
                "count-anew", "payload-first", "purge-ghost", "ack-first", "letter-last",
                "last-reply", "answer-name", "letter-name", "undo-again", "put-off-again"}
               \cup {check \o step : check \in {"handle-", "expiry-"},
                                     step \in {"ack", "nack", "extend"}}

VARIABLES
    pending,    \* sequence of ids that can be received
    delayed,    \* ids that become visible later
    leased,     \* id -> [send, delivery, live] for those held
    data,       \* ids whose payload is stored
    sends,      \* id -> how often it was sent; all below is about the last time
    count,      \* id -> deliveries so far, with those that do not count
    done,       \* ids that were acknowledged
    purged,     \* ids that were purged
    answered,   \* id -> 0 while a reply is awaited; the delivery whose reply was stored; or Closed
    letters,    \* ids of which a dead letter is stored
    held,       \* consumer -> set of receipts [id, send, delivery, safe]; safe: what came of the
                \*   message is stored, as a reply or a dead letter, so that it may be acknowledged
    purges,     \* how many purges happened
    aside,      \* consumer -> ids between two halves of a step (only with a planted bug)
    harm,       \* ghost: a settlement by somebody who did not hold the lease was accepted
    tally       \* id -> what the counts say: deliveries that were undone, deliveries that were put
                \*   off, and the count that the last delivery has shown

vars == <<pending, delayed, leased, data, sends, count, done, purged, answered, letters, held,
          purges, aside, harm, tally>>

----------------------------------------------------------------------------
Range(s) == {s[i] : i \in DOMAIN s}

Overdue == {m \in DOMAIN leased : ~leased[m].live}

Queued == Range(pending) \cup delayed \cup DOMAIN leased

Without(f, m) == [x \in DOMAIN f \ {m} |-> f[x]]

\* A handle is the message, the delivery, and a token drawn anew for each: what the number of the
\* send stands for here, for nothing else tells two messages apart that had the same id.  (Redis:
\* id, time of sending, counts and token.  SQLite: place in line and token.  Memory: id and a
\* number that is never used again.)
SameHandle(a, b) == a.delivery = b.delivery /\ (a.send = b.send \/ Bug = "token")

\* The truth: this is the message's latest delivery, and its lease has not run out.
Holds(r) ==
    /\ r.send = sends[r.id] /\ r.delivery = count[r.id]
    /\ r.id \in DOMAIN leased /\ leased[r.id].live

\* What the store checks before it settles.
Accepts(r, step) ==
    /\ r.id \in DOMAIN leased
    /\ SameHandle(leased[r.id], r) \/ Bug = "handle-" \o step
    /\ leased[r.id].live \/ Bug = "expiry-" \o step

\* The caller has cancelled, or its time is over: nobody waits for a reply any more.
Closed == MaxDeliveries + 1

\* Faults end: this delivery is one that nothing befalls.
Spared(m) == Calm /\ count[m] = MaxDeliveries

----------------------------------------------------------------------------
Nothing == [undone |-> 0, put_off |-> 0, shown |-> 0]

Init ==
    /\ pending = <<>> /\ delayed = {} /\ leased = [m \in {} |-> 0] /\ data = {}
    /\ sends = [m \in Messages |-> 0] /\ count = [m \in Messages |-> 0]
    /\ done = {} /\ purged = {}
    /\ answered = [m \in Messages |-> 0] /\ letters = {}
    /\ held = [c \in Consumers |-> {}]
    /\ purges = 0
    /\ aside = [c \in Consumers |-> {}]
    /\ harm = FALSE
    /\ tally = [m \in Messages |-> Nothing]

\* An id that is queued is left as it is.  One that is not starts from nothing: what its reply and
\* its dead letter are stored under must be its own.
Send(m) ==
    /\ m \notin Queued /\ sends[m] < MaxSends /\ (sends[m] = 0 \/ m \in done \cup purged)
    /\ sends' = [sends EXCEPT ![m] = @ + 1]
    /\ count' = [count EXCEPT ![m] = 0] /\ answered' = [answered EXCEPT ![m] = 0]
    /\ done' = done \ {m} /\ purged' = purged \ {m} /\ letters' = letters \ {m}
    /\ data' = data \cup {m} /\ tally' = [tally EXCEPT ![m] = Nothing]
    /\ \/ pending' = Append(pending, m) /\ delayed' = delayed
       \/ delayed' = delayed \cup {m} /\ pending' = pending
    /\ UNCHANGED <<leased, held, purges, aside, harm>>

\* The caller stops waiting.
Close(m) ==
    /\ sends[m] > 0 /\ answered[m] = 0
    /\ answered' = [answered EXCEPT ![m] = Closed]
    /\ UNCHANGED <<pending, delayed, leased, data, sends, count, done, purged, letters, held,
                   purges, aside, harm, tally>>

\* A delay has elapsed; the next receive would promote it, so it may as well be visible now.
Due(m) ==
    /\ m \in delayed
    /\ delayed' = delayed \ {m} /\ pending' = Append(pending, m)
    /\ UNCHANGED <<leased, data, sends, count, done, purged, answered, letters, held, purges,
                   aside, harm, tally>>

\* Time passes: a lease runs out.  Nobody has noticed yet.
Expire(m) ==
    /\ m \in DOMAIN leased /\ leased[m].live /\ ~Spared(m)
    /\ leased' = [leased EXCEPT ![m].live = FALSE]
    /\ UNCHANGED <<pending, delayed, data, sends, count, done, purged, answered, letters, held,
                   purges, aside, harm, tally>>

\* Somebody who receives brings back what is overdue, all of it or some, in whatever order it came
\* due.  (In memory, whoever counts or peeks does so too.)
Promote(m) ==
    /\ m \in Overdue /\ Bug \notin {"reaper", "no-promotion"}
    /\ leased' = Without(leased, m)
    /\ pending' = Append(pending, m)
    /\ count' = IF Bug = "count-anew" THEN [count EXCEPT ![m] = 0] ELSE count
    /\ UNCHANGED <<delayed, data, sends, done, purged, answered, letters, held, purges, aside,
                   harm, tally>>

Lease(c, m) ==
    LET delivery == count[m] + 1
    IN /\ delivery <= MaxDeliveries
       /\ count' = [count EXCEPT ![m] = delivery]
       /\ leased' = [x \in DOMAIN leased \cup {m} |->
                        IF x = m THEN [send |-> sends[m], delivery |-> delivery, live |-> TRUE]
                        ELSE leased[x]]
       /\ tally' = [tally EXCEPT ![m].shown = delivery - tally[m].undone]
       /\ held' = [held EXCEPT ![c] = @ \cup
                        {[id |-> m, send |-> sends[m], delivery |-> delivery, safe |-> FALSE]}]

Receive(c) ==
    /\ pending /= <<>> /\ Bug /= "remove-first"
    /\ Lease(c, Head(pending))
    /\ pending' = Tail(pending)
    /\ UNCHANGED <<delayed, data, sends, done, purged, answered, letters, purges, aside, harm>>

----------------------------------------------------------------------------
(* Settling.  What the store refuses changes nothing.                      *)

Safe(c, r) == held' = [held EXCEPT ![c] = (@ \ {r}) \cup {[r EXCEPT !.safe = TRUE]}]

\* The first value stands; who finds that nobody waits any more has nothing to reply and goes on.
\* A consumer looks at its own clock before it replies, but the two are not one step, and a purge
\* tells nobody: so a reply may come from one who holds nothing any more.  (With "answer-name" and
\* "letter-name", what is stored is named by the id alone, so that the next message's is a repeat.)
Reply(c, r) ==
    /\ answered' =
        IF \/ r.send /= sends[r.id]
           \/ answered[r.id] /= 0 /\ Bug /= "last-reply"
           \/ Bug = "ack-first" /\ ~r.safe
           \/ Bug = "answer-name" /\ r.send > 1
        THEN answered ELSE [answered EXCEPT ![r.id] = r.delivery]
    /\ Safe(c, r)
    /\ UNCHANGED <<pending, delayed, leased, data, sends, count, done, purged, letters, purges,
                   aside, harm, tally>>

\* Whether a message is given up is the policy's affair: it may be so at any delivery.
DeadLetter(c, r) ==
    /\ letters' =
        IF \/ r.send /= sends[r.id]
           \/ Bug = "letter-last" /\ ~r.safe
           \/ Bug = "letter-name" /\ r.send > 1
        THEN letters ELSE letters \cup {r.id}
    /\ Safe(c, r)
    /\ UNCHANGED <<pending, delayed, leased, data, sends, count, done, purged, answered, purges,
                   aside, harm, tally>>

Acknowledge(c, r) ==
    /\ r.safe /\ Accepts(r, "ack")
    /\ harm' = (harm \/ ~Holds(r))
    /\ leased' = Without(leased, r.id)
    /\ data' = data \ {r.id}
    /\ done' = done \cup {r.id}
    /\ UNCHANGED <<pending, delayed, sends, count, purged, answered, letters, held, purges, aside, tally>>

\* A message that was put off has been run, but its attempt does not count as one; one that is undone
\* was not run: it keeps its place, and that delivery does not count.
Counted(m, how) ==
    CASE how = "undone" -> [tally EXCEPT ![m].undone = @ + 1]
      [] how = "put_off" -> [tally EXCEPT ![m].put_off = @ + 1]
      [] OTHER -> tally

\* Also after a reply or a dead letter: a worker that ends gives back whatever it has in hand.
Release(c, r, how) ==
    /\ Accepts(r, "nack") /\ ~Spared(r.id)
    /\ harm' = (harm \/ ~Holds(r))
    /\ leased' = Without(leased, r.id)
    /\ \/ /\ pending' = IF how = "undone" THEN <<r.id>> \o pending ELSE Append(pending, r.id)
          /\ delayed' = delayed
       \/ delayed' = delayed \cup {r.id} /\ pending' = pending
    /\ tally' = Counted(r.id, how)
    /\ UNCHANGED <<data, sends, count, done, purged, answered, letters, held, purges, aside>>

\* The counts have nothing to do with liveness, and would multiply its states.
Nack(c, r) ==
    \E how \in IF Calm THEN {"failed"} ELSE {"failed", "put_off", "undone"} : Release(c, r, how)

Extend(c, r) ==
    /\ Accepts(r, "extend")
    /\ harm' = (harm \/ ~Holds(r))
    /\ leased' = [leased EXCEPT ![r.id].live = TRUE]
    /\ UNCHANGED <<pending, delayed, data, sends, count, done, purged, answered, letters, held,
                   purges, aside, tally>>

----------------------------------------------------------------------------
Needed(r) == Spared(r.id) /\ Holds(r)

Forget(c, r) ==
    /\ ~Needed(r)
    /\ held' = [held EXCEPT ![c] = @ \ {r}]
    /\ UNCHANGED <<pending, delayed, leased, data, sends, count, done, purged, answered, letters,
                   purges, aside, harm, tally>>

Crash(c) ==
    /\ held[c] /= {} \/ aside[c] /= {}
    /\ \A r \in held[c] : ~Needed(r)
    /\ held' = [held EXCEPT ![c] = {}]
    /\ aside' = [aside EXCEPT ![c] = {}]
    /\ UNCHANGED <<pending, delayed, leased, data, sends, count, done, purged, answered, letters,
                   purges, harm, tally>>

Purge ==
    /\ purges < MaxPurges /\ Queued /= {}
    /\ purges' = purges + 1
    /\ purged' = purged \cup Queued
    /\ data' = data \ Queued
    /\ leased' = IF Bug = "purge-ghost" THEN leased ELSE [m \in {} |-> 0]
    /\ pending' = <<>> /\ delayed' = {}
    /\ UNCHANGED <<sends, count, done, answered, letters, held, aside, harm, tally>>

----------------------------------------------------------------------------
(* Planted bugs that need steps of their own.                              *)

\* The sender heard no answer and sends again; the store does not look whether it has the message.
SendAgain(m) ==
    /\ Bug = "send-again" /\ m \in Queued
    /\ pending' = Append(pending, m)
    /\ UNCHANGED <<delayed, leased, data, sends, count, done, purged, answered, letters, held,
                   purges, aside, harm, tally>>

\* The message leaves the queue in one step and is leased in the next.
Pop(c) ==
    /\ Bug = "remove-first" /\ pending /= <<>> /\ aside[c] = {}
    /\ aside' = [aside EXCEPT ![c] = {Head(pending)}] /\ pending' = Tail(pending)
    /\ UNCHANGED <<delayed, leased, data, sends, count, done, purged, answered, letters, held,
                   purges, harm, tally>>

Take(c) ==
    /\ Bug = "remove-first"
    /\ \E m \in aside[c] : Lease(c, m) /\ aside' = [aside EXCEPT ![c] = @ \ {m}]
    /\ UNCHANGED <<pending, delayed, data, sends, done, purged, answered, letters, purges, harm>>

\* Each client reads what is overdue, and moves it later, whatever others did in between.
ReapRead(c) ==
    /\ Bug = "reaper" /\ aside[c] = {} /\ Overdue /= {}
    /\ aside' = [aside EXCEPT ![c] = Overdue]
    /\ UNCHANGED <<pending, delayed, leased, data, sends, count, done, purged, answered, letters,
                   held, purges, harm, tally>>

ReapMove(c) ==
    /\ Bug = "reaper"
    /\ \E m \in aside[c] :
        /\ pending' = Append(pending, m)
        /\ leased' = Without(leased, m)
        /\ aside' = [aside EXCEPT ![c] = @ \ {m}]
    /\ UNCHANGED <<delayed, data, sends, count, done, purged, answered, letters, held, purges,
                   harm, tally>>

\* The payload is removed before the handle is looked at.
AcknowledgeRefused(c, r) ==
    /\ Bug = "payload-first" /\ r.safe /\ ~Accepts(r, "ack")
    /\ data' = data \ {r.id}
    /\ UNCHANGED <<pending, delayed, leased, sends, count, done, purged, answered, letters, held,
                   purges, aside, harm, tally>>

\* The call is repeated, because its answer was lost: refused, and counted nevertheless.
ReleaseRefused(c, r) ==
    /\ ~Accepts(r, "nack")
    /\ \/ Bug = "undo-again" /\ tally' = Counted(r.id, "undone")
       \/ Bug = "put-off-again" /\ tally' = Counted(r.id, "put_off")
    /\ UNCHANGED <<pending, delayed, leased, data, sends, count, done, purged, answered, letters,
                   held, purges, aside, harm>>

Planted ==
    \/ \E m \in Messages : SendAgain(m)
    \/ \E c \in Consumers :
        \/ Pop(c) \/ Take(c) \/ ReapRead(c) \/ ReapMove(c)
        \/ \E r \in held[c] : AcknowledgeRefused(c, r) \/ ReleaseRefused(c, r)

----------------------------------------------------------------------------
Settle(c, r) == Reply(c, r) \/ DeadLetter(c, r) \/ Acknowledge(c, r)

Next ==
    \/ \E m \in Messages : Send(m) \/ Close(m) \/ Due(m) \/ Expire(m) \/ Promote(m)
    \/ \E c \in Consumers :
        \/ Receive(c) \/ Crash(c)
        \/ \E r \in held[c] : Settle(c, r) \/ Nack(c, r) \/ Extend(c, r) \/ Forget(c, r)
    \/ Purge
    \/ Planted

\* Time passes, somebody goes on receiving, and whoever has received goes on; no more is promised.
Fairness ==
    /\ \A m \in Messages : WF_vars(Due(m)) /\ WF_vars(Expire(m)) /\ WF_vars(Promote(m))
    /\ WF_vars(\E c \in Consumers : Receive(c))
    /\ \A c \in Consumers : WF_vars(\E r \in held[c] : Settle(c, r))

Safety == Init /\ [][Next]_vars

Spec == Safety /\ Fairness

(* To check more in less time, for safety alone: with either of these TLC  *)
(* would not check liveness soundly.                                       *)

\* The names of messages and consumers do not matter.
Symmetry == Permutations(Messages) \cup Permutations(Consumers)

\* Nor does it matter who holds a receipt: every step needs only that somebody does, and each can
\* be forgotten alone, so that a crash does nothing that forgetting does not.  Nor which outcome is
\* stored, a reply, a letter or that nobody waits: no step does anything else because of it, and all
\* that is asked is whether there is one.  (FirstReplyStands asks more: it counts without the view.)
\* Nor what the counts say, apart from how many deliveries there were: no step looks at them, and
\* AttemptsCount and CountsGrow count without the view.
Kept == {m \in Messages : answered[m] /= 0 \/ m \in letters}
Receipts == UNION {held[c] : c \in Consumers}
Holders(r) == Cardinality({c \in Consumers : r \in held[c]})
View == <<pending, delayed, leased, data, sends, count, done, purged, Kept,
          [r \in Receipts |-> Holders(r)], purges, aside, harm>>

----------------------------------------------------------------------------
TypeOK ==
    /\ Range(pending) \subseteq Messages /\ delayed \subseteq Messages
    /\ DOMAIN leased \subseteq Messages /\ data \subseteq Messages
    /\ \A m \in Messages : sends[m] <= MaxSends /\ count[m] <= MaxDeliveries

One(yes) == IF yes THEN 1 ELSE 0

\* A message between two halves of a step still counts: only a crash there loses it.
Places(m) ==
    One(m \in Range(pending)) + One(m \in delayed) + One(m \in DOMAIN leased) + One(m \in done)
    + One(m \in purged) + One(Bug = "remove-first" /\ \E c \in Consumers : m \in aside[c])

\* INV-1: a message that was sent is in exactly one state; INV-5: so none is lost.
Exclusive == \A m \in Messages : Places(m) = One(sends[m] > 0)

\* INV-2, INV-7: no two receipts in anybody's hands carry the same handle.
UniqueHandles ==
    \A c, d \in Consumers : \A r \in held[c], s \in held[d] :
        r.id = s.id /\ SameHandle(r, s) => c = d /\ r = s

\* INV-3, fencing: nobody settled a message that he did not hold.
NoHarm == ~harm

\* INV-8
NoDuplicates == \A i, j \in DOMAIN pending : pending[i] = pending[j] => i = j

\* INV-9
HasData == \A m \in Queued : m \in data

\* Once a message is gone, nobody waits in vain: the reply is there, or its dead letter.
AnsweredOrLettered == \A m \in done : answered[m] /= 0 \/ m \in letters

\* A message in somebody's hands was tried at least once: the deliveries that were put off are among
\* those that count.
AttemptsCount == \A m \in DOMAIN leased : tally[m].put_off < tally[m].shown

\* INV-4; and the first reply stands, or that nobody waits.  Both for one message, not for the next
\* one that has its id.
CountsGrow ==
    [][\A m \in Messages :
        sends'[m] = sends[m] => count'[m] >= count[m] /\ tally'[m].shown >= tally[m].shown]_vars
FirstReplyStands ==
    [][\A m \in Messages :
        sends'[m] = sends[m] /\ answered[m] /= 0 => answered'[m] = answered[m]]_vars

\* INV-6 and "no message is stuck": if faults end, what was sent is finished.
NotStuck == \A m \in Messages : (m \in Queued) ~> (m \in done \cup purged)
=============================================================================
