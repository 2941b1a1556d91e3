// Package spec says what a communication plan is: the file, its types, its text, and what breaks a rule
// of it. It is plain data and rules, without input or output. Package plan builds files, and its verifier,
// simulator and executors run them; all of them import this package and not each other.
//
// A [File] has a program for every rank. A [Rank] has blocks, which run at the same time, and a [Block] has
// operations, which run in order. Blocks of ranks meet through channels, blocks of one rank through barriers
// and semaphores. [Kind] says what each operation does.
//
// # Text
//
// The text is the JSON of MSCCL++'s plans. [Decode] reads it, and [File.Text] writes it as that project's
// Python package does, byte for byte: a text that this package wrote comes back the same, and so does a
// [File]. Keys that a reader may leave out take their defaults, and unknown keys are refused, for they may
// change what a plan means.
//
// # Bytes
//
// A message of n bytes gives every chunk of input, output and scratch the same number of bytes, C. Chunk i
// starts at byte i * C. Packets carry a flag beside the data, so the packets of scratch chunk j, a slot, lie
// where chunks 2j and 2j+1 lie. A plan of protocol LL has twice the scratch.
package spec
