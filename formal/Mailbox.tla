------------------------------ MODULE Mailbox ------------------------------
(***************************************************************************)
(* The mailbox protocol as the stores implement it: send, receive with     *)
(* promotion, acknowledge, nack, extend, expiry, purge and crash, and the  *)
(* two sequences built on it: reply then acknowledge, and dead-letter then *)
(* acknowledge.                                                            *)
(*                                                                         *)
(* A step of a store is one atomic action here, as it is one script on     *)
(* Redis and one transaction on SQLite.  Time is abstract: a lease is live *)
(* until Expire makes it overdue, at any moment; whether anybody has       *)
(* promoted it since is another matter, and handles must be refused in     *)
(* both cases.                                                             *)
(*                                                                         *)
(* Bug plants one mistake; TLC must find each of them.                     *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    Messages,       \* ids of messages
    Consumers,      \* processes that receive
    MaxDeliveries,  \* bound on deliveries of one message
    MaxPurges,      \* bound on purges
    GiveUpAfter,    \* deliveries after which a consumer dead-letters
    Bug             \* "none", or the mistake to plant

ASSUME Bug \in {"none", "handle", "expiry", "remove-first", "reaper",
                "ack-first", "letter-last", "purge-ghost"}

VARIABLES
    pending,    \* sequence of ids that can be received
    delayed,    \* ids that become visible later
    leased,     \* id -> [handle, live] for those held
    data,       \* ids whose payload is stored
    count,      \* id -> deliveries so far
    sent,       \* ids whose send was confirmed
    done,       \* ids that were acknowledged
    purged,     \* ids that were purged
    held,       \* consumer -> set of [id, handle, step]: what it believes to hold
    answered,   \* id -> handle of the delivery whose reply was stored, 0 if none
    letters,    \* ids of which a dead letter is stored
    handles,    \* how many handles were ever given out
    purges,     \* how many purges happened
    transit,    \* ids popped but not yet leased (only with a planted bug)
    reaping,    \* consumer -> ids that its reaper has read (only with a planted bug)
    harm        \* ghost: a settlement by somebody who did not hold the lease was accepted

vars == <<pending, delayed, leased, data, count, sent, done, purged, held, answered,
          letters, handles, purges, transit, reaping, harm>>

----------------------------------------------------------------------------
Range(s) == {s[i] : i \in DOMAIN s}

Overdue == {m \in DOMAIN leased : ~leased[m].live}

Without(f, ids) == [m \in DOMAIN f \ ids |-> f[m]]

\* Any order of the promoted will do: the promise of order is for first deliveries.
RECURSIVE AsSeq(_)
AsSeq(S) == IF S = {} THEN <<>> ELSE LET m == CHOOSE x \in S : TRUE IN <<m>> \o AsSeq(S \ {m})

\* The lease is really this delivery's, and has not run out.
Holds(r) == r.id \in DOMAIN leased /\ leased[r.id].handle = r.handle /\ leased[r.id].live

\* What the store checks before it settles.
Accepts(r) ==
    /\ r.id \in DOMAIN leased
    /\ Bug = "handle" \/ leased[r.id].handle = r.handle
    /\ Bug = "expiry" \/ leased[r.id].live

----------------------------------------------------------------------------
Init ==
    /\ pending = <<>> /\ delayed = {} /\ leased = [m \in {} |-> 0] /\ data = {}
    /\ count = [m \in Messages |-> 0]
    /\ sent = {} /\ done = {} /\ purged = {}
    /\ held = [c \in Consumers |-> {}]
    /\ answered = [m \in Messages |-> 0]
    /\ letters = {} /\ handles = 0 /\ purges = 0
    /\ transit = {} /\ reaping = [c \in Consumers |-> {}]
    /\ harm = FALSE

Send(m) ==
    /\ m \notin sent
    /\ sent' = sent \cup {m} /\ data' = data \cup {m}
    /\ \/ pending' = Append(pending, m) /\ delayed' = delayed
       \/ delayed' = delayed \cup {m} /\ pending' = pending
    /\ UNCHANGED <<leased, count, done, purged, held, answered, letters, handles, purges,
                   transit, reaping, harm>>

\* A delay has elapsed; the next receive would promote it, so it may as well be visible now.
Due(m) ==
    /\ m \in delayed
    /\ delayed' = delayed \ {m} /\ pending' = Append(pending, m)
    /\ UNCHANGED <<leased, data, count, sent, done, purged, held, answered, letters, handles,
                   purges, transit, reaping, harm>>

\* Time passes: a lease runs out.  Nobody has noticed yet.
Expire(m) ==
    /\ m \in DOMAIN leased /\ leased[m].live
    /\ leased' = [leased EXCEPT ![m].live = FALSE]
    /\ UNCHANGED <<pending, delayed, data, count, sent, done, purged, held, answered, letters,
                   handles, purges, transit, reaping, harm>>

\* One step: promote what is overdue, to the end of the queue, and lease the first.
Receive(c) ==
    /\ Bug /= "remove-first"
    /\ LET promoted == IF Bug = "reaper" THEN {} ELSE Overdue
           queue == pending \o AsSeq(promoted)
       IN /\ queue /= <<>>
          /\ LET m == Head(queue)
             IN /\ count[m] < MaxDeliveries
                /\ handles' = handles + 1
                /\ count' = [count EXCEPT ![m] = @ + 1]
                /\ pending' = Tail(queue)
                /\ leased' = [x \in (DOMAIN leased \ promoted) \cup {m} |->
                                IF x = m THEN [handle |-> handles + 1, live |-> TRUE]
                                ELSE leased[x]]
                /\ held' = [held EXCEPT ![c] = @ \cup
                                {[id |-> m, handle |-> handles + 1, step |-> "work"]}]
    /\ UNCHANGED <<delayed, data, sent, done, purged, answered, letters, purges, transit,
                   reaping, harm>>

----------------------------------------------------------------------------
(* Settling.  A consumer that is refused forgets the receipt.              *)

Forget(c, r) == held' = [held EXCEPT ![c] = @ \ {r}]

Proceed(c, r, step) == held' = [held EXCEPT ![c] = (@ \ {r}) \cup {[r EXCEPT !.step = step]}]

Remove(m) ==
    /\ leased' = Without(leased, {m})
    /\ data' = data \ {m}
    /\ done' = done \cup {m}

Refused(c, r) ==
    /\ ~Accepts(r)
    /\ Forget(c, r)
    /\ UNCHANGED <<pending, delayed, leased, data, count, sent, done, purged, answered, letters,
                   handles, purges, transit, reaping, harm>>

\* The reply is stored first; the first value stands.  The consumer looks at its own deadline
\* before it replies, which is never later than the store's.
Reply(c, r) ==
    /\ r.step = "work" /\ Bug /= "ack-first" /\ Holds(r)
    /\ answered' = [answered EXCEPT ![r.id] = IF @ = 0 THEN r.handle ELSE @]
    /\ Proceed(c, r, "replied")
    /\ UNCHANGED <<pending, delayed, leased, data, count, sent, done, purged, letters, handles,
                   purges, transit, reaping, harm>>

DeadLetter(c, r) ==
    /\ r.step = "work" /\ count[r.id] >= GiveUpAfter /\ Bug /= "letter-last"
    /\ letters' = letters \cup {r.id}
    /\ Proceed(c, r, "lettered")
    /\ UNCHANGED <<pending, delayed, leased, data, count, sent, done, purged, answered, handles,
                   purges, transit, reaping, harm>>

Acknowledge(c, r) ==
    /\ r.step \in {"replied", "lettered"} \/ (r.step = "work" /\ Bug \in {"ack-first", "letter-last"})
    /\ Accepts(r)
    /\ harm' = (harm \/ ~Holds(r))
    /\ Remove(r.id)
    /\ Forget(c, r)
    /\ UNCHANGED <<pending, delayed, count, sent, purged, answered, letters, handles, purges,
                   transit, reaping>>

Nack(c, r) ==
    /\ r.step = "work" /\ Accepts(r) /\ count[r.id] < GiveUpAfter
    /\ harm' = (harm \/ ~Holds(r))
    /\ leased' = Without(leased, {r.id})
    /\ \/ pending' = Append(pending, r.id) /\ delayed' = delayed
       \/ delayed' = delayed \cup {r.id} /\ pending' = pending
    /\ Forget(c, r)
    /\ UNCHANGED <<data, count, sent, done, purged, answered, letters, handles, purges, transit,
                   reaping>>

Extend(c, r) ==
    /\ Accepts(r)
    /\ harm' = (harm \/ ~Holds(r))
    /\ leased' = [leased EXCEPT ![r.id].live = TRUE]
    /\ UNCHANGED <<pending, delayed, data, count, sent, done, purged, held, answered, letters,
                   handles, purges, transit, reaping>>

----------------------------------------------------------------------------
Crash(c) ==
    /\ held[c] /= {} \/ reaping[c] /= {}
    /\ held' = [held EXCEPT ![c] = {}]
    /\ reaping' = [reaping EXCEPT ![c] = {}]
    /\ transit' = IF Bug = "remove-first" THEN {} ELSE transit
    /\ UNCHANGED <<pending, delayed, leased, data, count, sent, done, purged, answered, letters,
                   handles, purges, harm>>

Purge ==
    /\ purges < MaxPurges /\ purges' = purges + 1
    /\ LET gone == Range(pending) \cup delayed \cup DOMAIN leased
       IN /\ gone /= {}
          /\ purged' = purged \cup gone
          /\ data' = data \ gone
          /\ leased' = IF Bug = "purge-ghost" THEN leased ELSE [m \in {} |-> 0]
    /\ pending' = <<>> /\ delayed' = {}
    /\ UNCHANGED <<count, sent, done, held, answered, letters, handles, transit, reaping, harm>>

----------------------------------------------------------------------------
(* Planted bugs that need steps of their own.                              *)

\* The message leaves the queue in one step and is leased in the next.
Pop ==
    /\ Bug = "remove-first" /\ pending /= <<>> /\ transit = {}
    /\ transit' = {Head(pending)} /\ pending' = Tail(pending)
    /\ UNCHANGED <<delayed, leased, data, count, sent, done, purged, held, answered, letters,
                   handles, purges, reaping, harm>>

Take(c) ==
    /\ Bug = "remove-first" /\ transit /= {}
    /\ LET m == CHOOSE x \in transit : TRUE
       IN /\ count[m] < MaxDeliveries
          /\ leased' = [x \in DOMAIN leased \cup {m} |->
                            IF x = m THEN [handle |-> handles + 1, live |-> TRUE] ELSE leased[x]]
          /\ count' = [count EXCEPT ![m] = @ + 1]
          /\ held' = [held EXCEPT ![c] = @ \cup
                            {[id |-> m, handle |-> handles + 1, step |-> "work"]}]
    /\ handles' = handles + 1 /\ transit' = {}
    /\ UNCHANGED <<pending, delayed, data, sent, done, purged, answered, letters, purges,
                   reaping, harm>>

\* Each client reads what is overdue, and moves it later, whatever others did in between.
ReapRead(c) ==
    /\ Bug = "reaper" /\ reaping[c] = {} /\ Overdue /= {}
    /\ reaping' = [reaping EXCEPT ![c] = Overdue]
    /\ UNCHANGED <<pending, delayed, leased, data, count, sent, done, purged, held, answered,
                   letters, handles, purges, transit, harm>>

ReapMove(c) ==
    /\ reaping[c] /= {}
    /\ LET m == CHOOSE x \in reaping[c] : TRUE
       IN /\ pending' = Append(pending, m)
          /\ leased' = Without(leased, {m})
          /\ reaping' = [reaping EXCEPT ![c] = @ \ {m}]
    /\ UNCHANGED <<delayed, data, count, sent, done, purged, held, answered, letters, handles,
                   purges, transit, harm>>

\* With "letter-last" the dead letter is stored after the acknowledgement, if the consumer lives.
----------------------------------------------------------------------------
Settle(c, r) ==
    \/ Reply(c, r) \/ DeadLetter(c, r) \/ Acknowledge(c, r) \/ Refused(c, r)

Next ==
    \/ \E m \in Messages : Send(m) \/ Due(m) \/ Expire(m)
    \/ \E c \in Consumers :
        \/ Receive(c) \/ Take(c) \/ ReapRead(c) \/ ReapMove(c) \/ Crash(c)
        \/ \E r \in held[c] : Settle(c, r) \/ Nack(c, r) \/ Extend(c, r)
    \/ Purge \/ Pop

\* Time passes, and somebody goes on receiving and finishing; nothing else is promised.
Fairness ==
    /\ \A m \in Messages : WF_vars(Due(m)) /\ WF_vars(Expire(m))
    /\ \A c \in Consumers :
        /\ SF_vars(Receive(c))
        /\ SF_vars(\E r \in held[c] : Settle(c, r))

Spec == Init /\ [][Next]_vars /\ Fairness

----------------------------------------------------------------------------
TypeOK ==
    /\ Range(pending) \subseteq Messages /\ delayed \subseteq Messages
    /\ DOMAIN leased \subseteq Messages /\ data \subseteq Messages

Places(m) ==
    (IF m \in Range(pending) THEN 1 ELSE 0) + (IF m \in delayed THEN 1 ELSE 0)
    + (IF m \in DOMAIN leased THEN 1 ELSE 0) + (IF m \in done THEN 1 ELSE 0)
    + (IF m \in purged THEN 1 ELSE 0)

\* INV-1: a message that was sent is in exactly one state; INV-5: so none is lost.
Exclusive == \A m \in sent : Places(m) = 1

\* INV-2, INV-7: no two receipts in anybody's hands carry the same handle.
UniqueHandles ==
    \A c, d \in Consumers : \A r \in held[c], s \in held[d] :
        r.handle = s.handle => (c = d /\ r = s)

\* INV-3, fencing: nobody settled a message that he did not hold.
NoHarm == ~harm

\* INV-8
NoDuplicates == \A i, j \in DOMAIN pending : pending[i] = pending[j] => i = j

\* INV-9
HasData == \A m \in Range(pending) \cup delayed \cup DOMAIN leased : m \in data

\* Whoever waits for a reply has one once the message is gone, or its dead letter is kept.
AnsweredOrLettered == \A m \in done : answered[m] /= 0 \/ m \in letters

\* INV-4, and the first reply stands.
CountsGrow == [][\A m \in Messages : count'[m] >= count[m]]_vars
FirstReplyStands == [][\A m \in Messages : answered[m] /= 0 => answered'[m] = answered[m]]_vars

\* INV-6 and "no message is stuck": what was sent is finished, unless the bound on deliveries that
\* keeps the model finite was reached.
NotStuck ==
    \A m \in Messages :
        (m \in sent) ~> (m \in done \cup purged \/ \E x \in Messages : count[x] = MaxDeliveries)
=============================================================================
