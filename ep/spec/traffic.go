package spec

// Traffic counts what a dispatch by a Routing moves, in rows, from this rank's point of view. Times
// the bytes of a row it gives the usual ways to count bandwidth.
type Traffic struct {
	// Tokens this rank dispatches, and rows that it receives.
	Tokens, Received int
	// Selections of this rank's tokens (DeepEP's low-latency convention, local ones included).
	Selections int
	// Visits: distinct (token, rank) pairs of this rank's tokens (the logical convention, local
	// ones included).
	Visits int
	// RemoteRows cross to other ranks: one for each visit of another rank.
	RemoteRows int
}
