------------------------------ MODULE Replies ------------------------------
(***************************************************************************)
(* One caller and the reply that it waits for: answers and failures of     *)
(* workers, dead letters and their replays, cancels and the expiry.        *)
(*                                                                         *)
(* A sending is a message that the caller is to be answered for: the first *)
(* is its own, and each replay of a dead letter makes the next one.  The   *)
(* reply belongs to one sending at a time, its owner; a message of another *)
(* one, which a worker may still hold, must not settle it.                 *)
(*                                                                         *)
(* Queues are as in Mailbox, with less detail: a lease may run out at any  *)
(* time, and one whose lease is over may go on, because nobody has told    *)
(* it.  Who dies takes no more steps, as anybody may: there is no step for *)
(* that.  Each step here is one of a reply table or of a queue.  Where a store takes two of them in one (the answer with *)
(* its acknowledgement, the look at the reply with the lease), nobody      *)
(* comes between: that is one of the ways they can run.                    *)
(*                                                                         *)
(* Left out: a replay that stalls between its look at the reply and its    *)
(* next step for longer than it has leased the letter, replies that are    *)
(* removed, and the parts of a reply.                                      *)
(*                                                                         *)
(* Bug plants one mistake; TLC must find each of them.                     *)
(***************************************************************************)
EXTENDS Naturals, FiniteSets

CONSTANTS
    Last,           \* the number of the last sending: one more than there are replays
    MaxDeliveries,  \* bound on deliveries of one message
    Bug             \* "none", or the mistake to plant

ASSUME Bug \in {"none", "settle-again", "owner", "answer-cancelled", "cancel-late", "reopen-final",
                "reopen-again", "send-first", "failure-untold", "ack-first", "forget-reply"}

VARIABLES
    queue,      \* sending -> where its message is
    count,      \* sending -> deliveries so far; the last one's number is the handle of its lease
    marked,     \* sendings that were cancelled while a worker held them
    held,       \* receipts in workers' hands: [sending, delivery, has]
    letters,    \* sending -> whether its dead letter is stored
    state,      \* of the reply
    owner,      \* the sending that the reply belongs to
    replaying,  \* {}, or the step that a replay has taken: [letter, has]
    cancelling, \* {}, or what a cancel is yet to do: [sending, part]
    answers,    \* ghost: sending -> how many answers its caller could see while it was the owner
    said,       \* ghost: whether cancel() has returned True
    alien       \* ghost: whether a sending settled the reply of another

vars == <<queue, count, marked, held, letters, state, owner, replaying, cancelling,
          answers, said, alien>>

Sendings == 1 .. Last
Final == {"resolved", "cancelled"}

Init ==
    /\ queue = [s \in Sendings |-> IF s = 1 THEN "waiting" ELSE "unsent"]
    /\ count = [s \in Sendings |-> 0] /\ marked = {} /\ held = {}
    /\ letters = [s \in Sendings |-> "none"]
    /\ state = "open" /\ owner = 1
    /\ replaying = {} /\ cancelling = {}
    /\ answers = [s \in Sendings |-> 0] /\ said = FALSE /\ alien = FALSE

----------------------------------------------------------------------------
(* The queue.                                                              *)

Deliver(s) ==
    /\ queue[s] = "waiting" /\ count[s] < MaxDeliveries
    /\ queue' = [queue EXCEPT ![s] = "leased"]
    /\ count' = [count EXCEPT ![s] = @ + 1]
    /\ held' = held \cup {[sending |-> s, delivery |-> count[s] + 1, has |-> "begun"]}
    /\ UNCHANGED <<marked, letters, state, owner, replaying, cancelling, answers, said,
                   alien>>

\* A lease runs out, or its holder gives the message back; one that was cancelled is dropped.
Return(s) ==
    /\ queue[s] = "leased"
    /\ queue' = [queue EXCEPT ![s] = IF s \in marked THEN "gone" ELSE "waiting"]
    /\ held' = {r \in held : ~(r.sending = s /\ r.has = "told")}
    /\ UNCHANGED <<count, marked, letters, state, owner, replaying, cancelling,
                   answers, said, alien>>

Holds(r) == queue[r.sending] = "leased" /\ count[r.sending] = r.delivery

\* What comes of it must be stored before; who was refused need not know.
Acknowledge(r) ==
    /\ r.has = "told" \/ (Bug = "ack-first" /\ r.has = "begun")
    /\ queue' = IF Holds(r) THEN [queue EXCEPT ![r.sending] = "gone"] ELSE queue
    /\ held' = held \ {r}
    /\ UNCHANGED <<count, marked, letters, state, owner, replaying, cancelling,
                   answers, said, alien>>

\* One that has told and does not hold the lease any more has nothing left to do.
Now(r, has) ==
    held' = (held \ {r}) \cup IF has = "told" /\ ~Holds(r) THEN {} ELSE {[r EXCEPT !.has = has]}


----------------------------------------------------------------------------
(* Workers.                                                                *)

Awaited(s) == state = "open" /\ owner = s

\* Nobody waits for this message's answer: it is not run.  A replay was asked for by a person, and
\* is run in any case.
Skip(r) ==
    /\ r.has = "begun" /\ r.sending = 1 /\ ~Awaited(r.sending)
    /\ Now(r, "told")
    /\ UNCHANGED <<queue, count, marked, letters, state, owner, replaying, cancelling,
                   answers, said, alien>>

\* A worker is told of the cancel, and drops what it has done.
Drop(r) ==
    /\ r.has = "begun" /\ r.sending \in marked
    /\ Now(r, "told")
    /\ UNCHANGED <<queue, count, marked, letters, state, owner, replaying, cancelling,
                   answers, said, alien>>

Accepts(s) ==
    /\ \/ state = "open"
       \/ Bug = "settle-again"
       \/ Bug = "answer-cancelled" /\ state = "cancelled"
    /\ owner = s \/ Bug = "owner"

Settle(as, s) ==
    IF Accepts(s)
    THEN /\ state' = as
         /\ answers' = [answers EXCEPT ![owner] = @ + 1]
         /\ alien' = (alien \/ owner /= s)
    ELSE UNCHANGED <<state, answers, alien>>

\* Also by one whose lease is over.
Answer(r) ==
    /\ r.has = "begun" /\ r.sending \notin marked
    /\ Settle("resolved", r.sending)
    /\ Now(r, "told")
    /\ UNCHANGED <<queue, count, marked, letters, owner, replaying, cancelling, said>>

\* The id of a letter is that of its message: a second one is the first, also after its replay.
GiveUp(r) ==
    /\ r.has = "begun"
    /\ letters' = IF letters[r.sending] = "none" THEN [letters EXCEPT ![r.sending] = "there"]
                  ELSE letters
    /\ Now(r, IF Bug = "failure-untold" THEN "told" ELSE "lettered")
    /\ UNCHANGED <<queue, count, marked, state, owner, replaying, cancelling, answers,
                   said, alien>>

Fail(r) ==
    /\ r.has = "lettered"
    /\ Settle("failed", r.sending)
    /\ Now(r, "told")
    /\ UNCHANGED <<queue, count, marked, letters, owner, replaying, cancelling, said>>

----------------------------------------------------------------------------
(* The replay of a letter: open the reply, send, remove the letter.        *)

Replay(s) ==
    /\ replaying = {} /\ letters[s] = "there" /\ s < Last
    /\ replaying' = {[letter |-> s, has |-> "begun"]}
    /\ UNCHANGED <<queue, count, marked, held, letters, state, owner, cancelling, answers,
                   said, alien>>

\* One that belongs to the new message already was opened by a replay that was killed.
Open(p) ==
    /\ p.has = (IF Bug = "send-first" THEN "sent" ELSE "begun")
    /\ LET opens == /\ \/ owner = p.letter
                       \/ owner = p.letter + 1 /\ Bug = "reopen-again"
                    /\ state \notin Final \/ Bug = "reopen-final"
       IN /\ state' = IF opens THEN "open" ELSE state
          /\ owner' = IF opens THEN p.letter + 1 ELSE owner
    /\ replaying' = {[p EXCEPT !.has = IF Bug = "send-first" THEN "done" ELSE "opened"]}
    /\ UNCHANGED <<queue, count, marked, held, letters, cancelling, answers, said, alien>>

SendAgain(p) ==
    /\ p.has = (IF Bug = "send-first" THEN "begun" ELSE "opened")
    /\ queue' = IF queue[p.letter + 1] = "unsent"
                THEN [queue EXCEPT ![p.letter + 1] = "waiting"] ELSE queue
    /\ replaying' = {[p EXCEPT !.has = IF Bug = "send-first" THEN "sent" ELSE "done"]}
    /\ UNCHANGED <<count, marked, held, letters, state, owner, cancelling, answers, said,
                   alien>>

RemoveLetter(p) ==
    /\ p.has = "done"
    /\ letters' = [letters EXCEPT ![p.letter] = "gone"]
    /\ replaying' = {}
    /\ UNCHANGED <<queue, count, marked, held, state, owner, cancelling, answers, said,
                   alien>>

\* Killed at any point: the letter is still there, and is replayed again.
KillReplay(p) ==
    /\ replaying' = {}
    /\ UNCHANGED <<queue, count, marked, held, letters, state, owner, cancelling, answers,
                   said, alien>>

----------------------------------------------------------------------------
(* The caller.                                                             *)

\* reply.cancel(): the reply first, and that is what it returns; then the message.
CancelReply ==
    /\ cancelling = {} /\ (state = "open" \/ Bug = "cancel-late")
    /\ said' = TRUE
    /\ state' = IF state = "open" THEN "cancelled" ELSE state
    /\ answers' = IF state = "open" THEN [answers EXCEPT ![owner] = @ + 1] ELSE answers
    /\ cancelling' = {[sending |-> owner, part |-> "message"]}
    /\ UNCHANGED <<queue, count, marked, held, letters, owner, replaying, alien>>

Remove(s) ==
    /\ queue' = IF queue[s] = "waiting" THEN [queue EXCEPT ![s] = "gone"] ELSE queue
    /\ marked' = IF queue[s] = "leased" THEN marked \cup {s} ELSE marked

CancelMessage(c) ==
    /\ c.part = "message"
    /\ Remove(c.sending)
    /\ cancelling' = {}
    /\ UNCHANGED <<count, held, letters, state, owner, replaying, answers, said, alien>>

\* mailbox.cancel(id): the message first, which says what the reply is.
CancelById(s) ==
    /\ cancelling = {} /\ queue[s] \in {"waiting", "leased"} /\ s \notin marked
    /\ Remove(s)
    /\ cancelling' =
        IF Bug = "forget-reply" THEN {} ELSE {[sending |-> s, part |-> "reply"]}
    /\ UNCHANGED <<count, held, letters, state, owner, replaying, answers, said, alien>>

CancelItsReply(c) ==
    /\ c.part = "reply"
    /\ IF Awaited(c.sending)
       THEN /\ state' = "cancelled" /\ said' = TRUE
            /\ answers' = [answers EXCEPT ![owner] = @ + 1]
       ELSE UNCHANGED <<state, said, answers>>
    /\ cancelling' = {}
    /\ UNCHANGED <<queue, count, marked, held, letters, owner, replaying, alien>>

Expire ==
    /\ state = "open"
    /\ state' = "expired" /\ answers' = [answers EXCEPT ![owner] = @ + 1]
    /\ UNCHANGED <<queue, count, marked, held, letters, owner, replaying, cancelling,
                   said, alien>>

----------------------------------------------------------------------------
Next ==
    \/ \E s \in Sendings : Deliver(s) \/ Return(s) \/ Replay(s) \/ CancelById(s)
    \/ \E r \in held :
        \/ Skip(r) \/ Drop(r) \/ Answer(r) \/ GiveUp(r) \/ Fail(r) \/ Acknowledge(r)
    \/ \E p \in replaying : Open(p) \/ SendAgain(p) \/ RemoveLetter(p) \/ KillReplay(p)
    \/ \E c \in cancelling : CancelMessage(c) \/ CancelItsReply(c)
    \/ CancelReply \/ Expire

Safety == Init /\ [][Next]_vars

----------------------------------------------------------------------------
TypeOK ==
    /\ queue \in [Sendings -> {"unsent", "waiting", "leased", "gone"}]
    /\ state \in {"open", "resolved", "failed", "cancelled", "expired"} /\ owner \in Sendings
    /\ letters \in [Sendings -> {"none", "there", "gone"}]
    /\ Cardinality(replaying) <= 1

\* A caller gets one terminal answer for each sending: a value, a failure, cancelled or expired.
OneAnswerPerSending == \A s \in Sendings : answers[s] <= 1

\* Once cancel() has returned True no answer comes, not even by a replay.
NoAnswerAfterCancel == said => state = "cancelled"

\* A message answers for itself, not for its replay.
OwnAnswer == ~alien

\* When nothing is left to do, the caller does not wait any more.  (It waits for its expiry if one
\* who cancelled the message by its id died before it cancelled the reply.)
AnsweredWhenDone ==
    (\A s \in Sendings : queue[s] \in {"unsent", "gone"}) /\ queue[owner] = "gone"
    /\ cancelling = {} => state /= "open"

\* A value and a cancel are final; a failure or an expiry may be followed by a replay's answer.
FinalStays == [][(state \in Final) => (state' = state)]_vars
=============================================================================
