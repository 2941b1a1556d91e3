// Package spec describes exchanges of expert parallelism: plain data, the rules for it, and the
// interface between a handle and its engine. It does no I/O and moves nothing.
//
//   - [Spec] and its types describe a handle's exchanges. [Spec.Validate] refuses by the rules in
//     support.go; docs/guides/ep-support.md is generated from the same rules.
//   - [Geometry] says where rows stand: a pure function of the Spec and of all ranks' counts.
//   - [Choice] says how GPU kernels move rows: a pure function of the Spec and the number of ranks,
//     so it is the same on every rank.
//   - A handle gives its engine a [Base]. The two share a [Batch] for each routing. [RowEngine] is
//     the interface of engines. The methods of Base that begin with Check check a call's arguments;
//     an engine calls them, because it decides how a refusal reaches the other ranks.
//
// Package ep has these types under the same names. Engines are packages below ep/internal; none of
// them imports another.
package spec
