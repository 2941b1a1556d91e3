// Package libfabric opens libfabric at run time and drives one of its providers without cgo: RMA
// writes, with and without data for the target's queue, between reliable endpoints.
//
// # Calls
//
// libfabric exports six functions that are used here. All else is inline C in its headers: an object
// begins with tables of functions, and each table with its own size. This package reads those tables;
// a function beyond a table's end does not exist. The structs and offsets in abi.go are equal in 1.17,
// 1.22, 2.5 and 2.6, and testdata/abi.txt has what a C compiler makes of the headers.
//
// # Memory
//
// The library keeps two addresses beyond a call: the payload of a write until it completes, and the
// operation's context, into which it may write. Contexts are a pinned slab here, so that a completion's
// context is an index. Payloads lie in memory that the caller keeps pinned. Everything else is
// read during the call.
//
// # Signals
//
// Constructors of two old providers (PSM, PSM2) take SIGSEGV, SIGINT and others from Go's runtime when
// the library is opened. Two variables of the environment keep them from it, and [Open] sets them first.
package libfabric
