package spec

// Traffic counts the rows that a dispatch by a Routing moves, as seen by this rank. Multiplied by
// the bytes of a row the numbers give the usual conventions of bandwidth.
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
