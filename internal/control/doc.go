// Package control exchanges everything but data between ranks: notes that all of them gather, faults,
// and the set of masked ranks. A [Rank] is one rank's side of it.
//
// # Data flow
//
// Each rank has a page. It writes its own and reads views of its peers'. A view is memory of the
// reader's: loads of it are plain loads, and a [channel.Waiter] gets their addresses when the rank
// connects, so no wait calls through an interface. Ranks of one host map each other's pages, and a
// view is the page itself ([Shared]). Between hosts package relay replicates each page into a view at
// every process.
//
//	the owner writes       and peers read it in
//	note, then its round   Gather: every unmasked rank's note
//	intent                 SetMask: the generation and the set that a rank proposes
//	status                 a wait at its deadline, which looks for the rank to blame
//
// What reaches beyond a rank's own page is a [Transport]: Publish, Abort, Decide, Decision and
// Decides. The package holds all pointers into pages of peers but the statuses, which it hands
// to the Waiter and which are read only.
//
// # Layout
//
// The abort word comes first: a GPU polls it there. It has a pair of cache lines of its own, for
// peers write it. The status, the round, the two notes and the intent each begin a pair of lines.
// Last comes what only [Shared] uses, see below.
//
// # Words that peers write
//
// Two words have more than one writer, and each needs its reason.
//
//   - The abort word. Every wait polls it, on the host and in kernels. If peers wrote faults on their
//     own pages instead, a poll would read as many words as there are ranks. [Transport.Abort] sets
//     it. It returns nothing and may take effect later: the writer never reads it back.
//   - The decision. Two disjoint sides of living ranks must not both be decided, and reads and
//     writes of words with one writer each cannot decide that in any order: consensus among ranks that
//     may stop needs a compare-and-swap. [Transport.Decide] may take
//     effect later. Its outcome shows in [Transport.Decision]: a later decision, this one or the one
//     that was faster. Until then the leader holds on to its proposal.
//
// In shared memory a decision is a word on rank 0's page, which says whose roster has its set. A
// rank has two rosters on its page, and writes the one that the word does not name. The memory of a
// process that died stays mapped, so the word outlives rank 0.
//
// Where pages are mapped, ranks that sleep also count themselves in the counter of the round, beside
// the word that they sleep on. That count belongs to the view; it is never replicated.
//
// # What a fabric provides
//
//   - Messages from one rank to one peer arrive in order: parts, aborts, and the news that the rank
//     has left or died. Messages of different ranks have no order, nor do decisions.
//   - Publish shows each peer a part of the page, the notes or the intent, as it was when it was
//     published. A fabric that writes notes word by word writes the round last, with
//     [channel.Counter.Publish], which wakes sleepers; one that passes over some writes both halves.
//   - Statuses are replicated without a call, every few milliseconds. They are for diagnosis only.
//   - Abort sets the peer's word by the rule of [channel.Control.Abort]. A small message and an agent
//     on the peer's host do, and so does a remote compare-and-swap.
//   - Decide moves generation, leader and set in one step, from the decision that it names. The
//     place where that happens must outlive the ranks, or be a vote of which package relay has the
//     argument. Decision reads a copy that may be old, but never goes back. Decides says whether enough
//     voters can be reached.
//
// The test double in fabric_test.go provides this and no more, at random delays.
//
// # Why the order is right
//
// Gather: a rank publishes round n+1 only after it has read all notes of round n, and writes over
// the notes of round n in round n+2 only after it has seen every peer publish n+1. Hence two notes
// by parity suffice, however late views are: a rank reads a note of round n before its owner can
// write over it. Peers that go on without a rank send it an abort before they
// gather again. Hence a rank that finds no fault after a gather has the notes of its own round.
//
// Faults are dated with a generation, ignored when they are older, and ignored from or about ranks
// that are masked. Hence a fault may come late.
//
// A rank that gives its SetMask up for a reason of all, such as another set than a peer's, leaves the reason with its
// intent: an objection. It ends the call of whoever aims at that generation or an earlier one, also if that rank calls
// later. The next call aims beyond it. So ranks of one call end alike, and the objection ends no other call.
//
// SetMask succeeds with a decision only if its generation is one that this rank has aimed at since
// the call began. A rank never aims at a generation in two calls, and a decision about a rank's side
// has a generation that this rank has published. Hence no earlier decision is taken for the one that
// is waited for, however old the copy of it is.
//
// A rank raises its aim only if it has seen the last decision that the rank which it follows has
// seen. Hence it does not follow a peer into the peer's next SetMask while the decision of this one
// is still on its way.
//
// A leader that judges by an old decision changes nothing: Decide names the decision that it
// replaces. Old views delay a decision, or make a call fail that is then made again; they never make
// two.
//
// # Cost
//
// An operation looks at its own abort word: one load. A gather writes one note and waits for each
// peer's round; a fault is one store to each peer; a decision costs one publication a rank and one
// compare-and-swap.
package control
