// Package fabrictest is a network made of Go, for tests of package fabric and of what is built on it. It
// needs no libfabric, and does what real networks may do but seldom do.
//
//	network := fabrictest.New(fabrictest.EFA(), seed)
//	domain, err := network.Open(ctx, fabric.Options{Rank: 0, Size: 2})
//	// ... the code under test ...
//	if err := network.Check(); err != nil { t.Error(err) }
//
// # What it does
//
// A [Class] says what the network promises, as a kind of hardware does: [EFA], [Verbs], [TCP], [RXM].
// Beyond that it does by seed what it likes. The bytes of a write land in pieces and in any order, and
// their source is read when each lands. Writes overtake each other where the class does not keep them
// in order. A piece may land twice before its write completes. Completions come late, and where the
// class allows it, before their bytes have landed. A full or unconnected endpoint says to try again,
// and so does one that is neither. Where the class wants it, writes land only while their target
// polls.
//
// # Faults
//
// [Network.Cut] makes silence between two ranks, which [Network.Heal] ends: what was posted lands
// late. [Network.Reset] fails what is underway, of which a part lands late, and lets later writes
// pass, as connections do that are made again. [Network.Kill] fails it for good. A wrong key fails as on a NIC.
//
// # What it checks
//
// [Network.Check] reports mistakes that a real network would not: a source that changed before its
// write completed, a payload outside the region that it was said to lie in.
//
// Ranks are goroutines of one process. The same seed gives the same run where one goroutine alone makes
// all calls; elsewhere goroutines take turns as they come.
package fabrictest
