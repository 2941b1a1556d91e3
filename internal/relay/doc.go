// Package relay carries the control plane between hosts: it replicates control pages, tells of ranks
// that are gone, and decides who goes on.
//
// # Data flow
//
// Each process has a [Node]; its ranks are [Member]s. Processes are numbered by their lowest ranks, and
// each connects to one with a lower number: a tree with 32 neighbours below a node. A job of up to 33
// processes is a star.
//
//	member  Publish, Abort, Decide       a rank's page, and the copies that others read
//	   \                                        ^
//	  stream of the process: 1, 2, 3 ...        | every node applies it
//	     \______ node ____ node ____ node ______/
//
// What a process says is one stream of numbered messages: parts of its ranks' pages, aborts, ranks that
// leave, beats, proposals and votes. A node applies each message once, in order, and passes it on to all
// neighbours but the one that it came from. Every node has a copy of the page of every rank; ranks of other
// hosts read it as a view, with plain loads.
//
// # Layout
//
// Pages are those of package control, one after the other in memory of the process. A message is a kind,
// a process, a number and a body; stream.go lists them. Links are [bootstrap.Link]s: one for a process and
// its parent, which prove the job's secret by the bootstrap's handshake before anything is believed.
//
// # Why the order is right
//
// A neighbour that connects gets the whole state of each process up to a number, and then each message
// after that. Hence what a node knows of a stream is always a beginning of it, without a gap, whichever
// neighbours it was learned from, and messages that come twice are dropped by their number. Hence a link
// that breaks costs nothing: the node connects anew, to its parent or to another process with a lower
// number. Numbers only fall along these links, so they form no cycle; if they did, it would do no harm.
//
// A rank's own messages to all others come in order: an abort before the note that follows it, and its
// end last. Package control relies on that.
//
// # Who leaves
//
// Ranks of one host see each other's pages in shared memory, so a rank may end a call, and leave, before
// the messages of that call have come to its node. Others may still need them from there. Hence a node that
// leaves says so and passes messages on until each neighbour has answered with its last word; its own ranks'
// end comes after that. A neighbour that answers uses another link from then on.
//
// A node leaves its ranks' end to an heir, a neighbour that passes it on: one that stays, or its parent if that
// leaves, too, which then waits for it. An heir that leaves later resigns before it ends: the node answers that it has
// another heir to look for, or its end has come before the answer, and is passed on. A node without an heir waits for
// one, for about the heartbeat: what it said last may be known to nobody. It does not wait if all others are its
// neighbours or have left; so that it knows of those, neighbours send it all news until they end themselves.
//
// # Who is gone
//
// A process's end is certain when its host says so, whose kernel has shown it to another process, when
// the launcher says so, or when all its ranks have left. It is only likely when nothing listens in its
// place after its link has ended without a farewell, or, without a link, for as long as the heartbeat: it may have
// left, and others tell so. Nor is it certain when nothing was heard of its host for as long as the heartbeat: a
// network that rejects packets looks the same. Members get an event in either case, and only once.
//
// One process of each host beats for it, every twentieth of the heartbeat; the next one does when that
// falls silent. A parent that is silent for a third of the heartbeat is left as soon as there is another one, so that a
// process which stands still takes nobody's messages with it, and one that is only slow loses none. For deadlines that
// are shorter yet, each node says which neighbour it does not hear, and [Member.Behind] finds the one that is to blame.
//
// Time for which a process itself stood still, or was late at its own looks, is not counted, nor is a neighbour silent
// whose bytes have come and are yet to be read.
//
// # Who goes on
//
// A decision replaces the one before it. Which one does is settled by voting, one slot after the other: a
// slot is the generation of the decision to be replaced, and its voters are the ranks that this decision
// left in, each by its process. It is the synod of Lamport's "The part-time parliament" with state in place
// of messages: a proposal has a ballot; a process that sees it promises to vote for none below; once enough
// have promised, the leader proposes the value that was accepted with the highest ballot, or its own if
// there was none; and a value that enough have accepted is decided.
//
// Enough is a majority of the slot's ranks, or half of them with the lowest. Two such sets share a
// process, which has either accepted what was decided, and says so to whoever asks for its promise, or has
// promised first, and does not accept any more. So a slot has one decision: of two disjoint sides one at
// most goes on, however late messages are, and whoever stops, dies, or is cut off. It needs no clock.
//
// Those that are left when the others are gone may be fewer. Hence this exception: all ranks of the job
// whose end is not certain are enough, whichever they are.
//
// Suppose that a decision was made before by
// others, all of which are gone, and somebody who lives knows it or may yet learn it. Who knows it
// votes in this slot no more, and without that vote there is no exception. To learn it later one would have
// to get a message of those that are gone. But a vote names whose messages its voter has stopped to
// believe, of streams and of links, and the exception needs votes that name all who are gone. So nobody
// who lives knows of that decision, or ever will.
//
// No process proposes a value that leaves out every rank of the slot, unless the end of all of them is certain. Votes
// would not prevent it: the processes of those ranks vote, whatever the value is.
//
// A leader that gives its call up takes its proposal back. If it was accepted somewhere it may still be
// decided, which package control allows for.
//
// # Cost
//
// The floor is one message to each process and one way through the tree: two hops up to 33 processes,
// of 10 to 25 us each on TCP. A gather costs one message a rank, a decision two rounds of one
// message a process. An idle job sends a beat of each host and a ping of each link four times a second.
package relay
