// Package eptest is the conformance suite of expert parallelism: whatever engine moves the rows, it
// must pass [RunSome] unchanged.
//
// # Data flow
//
// A [Case] is one batch: a Spec, and what every rank's tokens select. From it the plain reference
// computes, in one process, with every rank's input at hand and by straightforward loops, what
// every rank must see: counts, zones, rows, scales, sums, gradients. It shares no code with package
// ep or with the vector routines below it, and has its own arithmetic of small floats. Then the
// engine runs the case on real ranks, and every byte that comes out is compared with the
// reference's, the bytes that must not be touched included.
//
// All contents follow from the case's seed, so ranks that are processes, which share nothing, agree
// on what each of them was given.
//
// # Memory
//
// The suite touches an engine's memory only through [Engine]. Operands stand in one arena a rank,
// in a window or in plain memory as the case says; what an operation writes is filled with a poison
// byte beforehand.
package eptest
