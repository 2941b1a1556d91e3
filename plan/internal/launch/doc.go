// Package launch is what executors of plans on the host and on GPUs have in common: what a plan needs of an engine,
// which operands a launch of it may have, and how much scratch it takes. Package executor loads plans and checks
// launches by it; an [Engine] runs what passed.
//
// # Bytes
//
// A launch gives every chunk the same bytes C, a multiple of the plan's alignment. Operands are those of a rank's
// file: as many bytes as it has chunks of input and output. All ranks have the same C, or none runs.
//
// # Buffers of peers
//
// [Plan.Inputs] and [Plan.Outputs] say whether any rank reaches another rank's input or output. Then the engine must
// know where these lie on every rank, in this launch. Otherwise operands lie wherever the rank reaches them.
//
// # Scratch
//
// Scratch is sized by the message: [Plan.Scratch] bytes at a chunk size, on every rank alike, and twice that if the
// plan has two halves. Halves lie at 0 and at half of what is allocated, whatever the message: so a launch's half
// never overlaps that of the launch before, even if their sizes differ. A slot's flag is the number of the
// launch, which only grows. At one place a word is always a flag or never, as long as the size stays; if another
// size follows, and [Plan.Mixed] says that scratch has data as well as packets, data may look like flags: so the engine
// makes scratch zeros between, while no rank is in a launch.
//
// # Launches
//
// What the verifier knows of launches that follow each other holds for launches of one size. Before a launch of another
// size, or of another plan that shares its scratch, all ranks must have ended the one before: engines make sure of
// that.
//
// # Numbers
//
// An operation folds its sources in the order of [program.Step.Folds], beginning with the first: in fp32 for types
// that are shorter, in their own type otherwise, and rounds once. Nothing else computes.
//
// # Failure
//
// Waits end with the communicator's: at its deadline, when its abort word is set, when a rank dies. The error is a
// [weft.PeerError] that names the peer, and in its operation the plan, the rank, the block and the operation
// ([Plan.At]). While a rank is masked plans are refused, for they have work for each rank.
package launch
