// Package channel synchronises two ranks that share memory: counters, semaphores, memory channels
// and packets, and the rules by which a rank waits.
//
// # Data flow
//
// A [Counter] is a word with one writer that only grows. Its writer stores data, then publishes the
// next value; readers that see the value see the data (the store is a release, the load an
// acquire). Everything else is made of Counters: a [Semaphore] is two of them, one in each rank's
// memory; a [Memory] channel is a Semaphore and two mapped regions. [Packets] carry the counter
// inside the data and so need no second line. A [Channel] is what memory channels and the port channels of
// package port have in common.
//
// # Waiting
//
// A [Waiter] spins, then yields, then sleeps on a futex, by a [Policy] that follows from how many
// ranks share how many processors. Every wait ends: with the value, at its deadline, when its
// context ends, when the communicator's abort word is set, or when the peer is gone. The error is a
// [*PeerError] that names the operation and the culprit. At a deadline the Waiter follows the wait
// records in the [Control]s, so that it does not blame a rank that itself waits for a third.
//
// # Cost
//
// The floor is the trip of one cache line between two cores, 60 to 200 ns. A publication without a
// sleeper costs one locked store and one load of the same line; a satisfied wait costs one load.
package channel
