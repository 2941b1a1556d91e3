// Package spec says what a collective is: the operations, their operands, what is refused, and what
// ranks compare. It is plain data and rules. Package collective hands its engines calls that it has
// checked; the engines import this package and not each other.
//
// # The operations
//
// On R ranks, with Count elements a part. Ranks that are masked count in R: their parts of a tensor
// stay where they are, and are neither read nor written.
//
//	operation        input        output       in place
//	all-reduce       Count        Count        the same memory
//	all-gather       Count        R * Count    the input is this rank's part of the output
//	reduce-scatter   R * Count    Count        the output is this rank's part of the input
//	all-to-all       R * Count    R * Count    the same memory
//	broadcast        Count        Count        the same memory
//	reduce           Count        Count        the same memory
//	gather           Count        R * Count    the root's input is its part of the output
//	scatter          R * Count    Count        the root's output is its part of the input
//
// Only the root of a reduce and a gather has an output, and only the root of a broadcast and a scatter
// needs an input. Parts of different lengths (the V forms) are described by [Counts].
//
// A [PointToPoint] call is no collective. It has messages between pairs of ranks: see [Transfer].
package spec
