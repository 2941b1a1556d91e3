// Package spec describes exchanges of expert parallelism: plain data, the rules for it, and the
// interface between a handle and its engine. It does no I/O and moves nothing.
//
//   - [Spec] and its types say what a handle exchanges. [Spec.Validate] refuses by the rules in
//     support.go, which are also what docs/guides/ep-support.md is generated from.
//   - [Geometry] says where rows stand: a pure function of the Spec and of everyone's counts.
//   - [Choice] says how kernels of GPUs move the rows: a pure function of the Spec and the number of
//     ranks, so it is the same on every rank.
//   - [Base] is what a handle gives its engine, [Batch] what both know of a routing, and [RowEngine]
//     what an engine does. The methods of Base that begin with Check say what is wrong with a call's
//     arguments; an engine calls them, because it decides how a refusal reaches the other ranks.
//
// Package ep has these types under the same names. Engines are packages below ep/internal; none of
// them imports another.
package spec
