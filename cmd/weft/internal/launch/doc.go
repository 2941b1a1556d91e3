// Package launch starts the ranks of a job on this host and sees them to their
// end.
//
// # Two processes
//
//	shell -- guard -- supervisor -+- rank 0 -- its children
//	            \____pipe____/    +- rank 1
//	                              +- ...
//
// The guard is the process that the user started. It starts itself once more as
// the supervisor, forwards signals to it, and holds the writing end of a pipe
// whose reading end the supervisor watches. The supervisor starts the ranks.
//
// Both are child subreapers: a process below them whose parent dies becomes their child instead of
// init's. Therefore no process that a rank starts can leave the tree by daemonising. Hence every
// way to die is covered:
//
//   - a rank dies: the supervisor reaps it and its remaining children;
//   - the guard dies, even by SIGKILL: the pipe reads end of file and the
//     supervisor kills everything below it;
//   - the supervisor dies, even by SIGKILL: the kernel kills the ranks
//     (PR_SET_PDEATHSIG), their children become the guard's, and it kills them.
//
// Without privileges these remain impossible. Descendants of ranks survive if guard and supervisor
// are killed at the same instant (the ranks themselves do not, unless they changed credentials,
// which clears the death signal). A process that another service starts on a rank's behalf is
// outside of the tree. A process stuck inside the kernel dies only when the kernel lets it.
//
// # One loop
//
// The supervisor is one goroutine, locked to one thread, that selects over child
// deaths, signals, timers and the pipe. It alone starts, signals and reaps
// processes, so a process id that it signals is always a child not yet reaped and
// cannot have been reused. The thread lives as long as the loop, which matters
// because the death signal fires when the starting *thread* ends. A rank is
// pinned by pinning that thread around the fork: the rank's runtime sees its
// final affinity from its first instruction on.
//
// Two more goroutines per rank read its output, and one writes. Lines meet the
// writer through an unbuffered channel; the loop's own events go through one that
// is deep enough never to block, so a paused terminal stops the ranks' output but
// not their supervision.
//
// # Ends
//
// Ranks that wait in a join for one that has ended have no connection to learn it from. The
// supervisor records which ranks have ended, and how, in a memory file that the ranks' environment
// names; package bootstrap reads it.
//
// The first failure gives the other ranks a grace time to notice and to end by themselves with
// their own message, then SIGTERM, then after the same time SIGKILL. "First" is by the order of
// deaths, with one correction: a peer may exit within a moment of the crash that it observed. A
// death by a signal that this launcher did not send therefore outranks a plain exit seen at most 30
// ms before it.
package launch
