// Package sys is the CUDA driver's binary interface: its entry points as a table of typed Go
// functions, its structs, its constants.
//
// A [Table] is the seam between package cuda and the driver: [Open] fills one from libcuda, tests
// fill one with Go functions. An entry that a driver does not have answers [Missing], and [Since]
// says which CUDA version brought it.
//
// Entries whose first parameter is a [Context] run in that context: the same crossing into C makes
// it current on the calling thread, and it stays current there. A zero context leaves the thread's
// own in place.
//
// Pointers that are handed to an entry must be to the heap or to foreign memory. They are: an
// argument of a function value escapes.
//
// testdata/abi.txt holds the sizes, offsets, values and parameter sizes of CUDA 13.0's headers; a
// test compares all that is declared here with it.
package sys
