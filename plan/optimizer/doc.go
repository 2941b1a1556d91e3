// Package optimizer makes a plan that does the same in less: with fewer operations, less synchronisation, or on other
// blocks.
//
//	better, report, err := optimizer.Optimize(ctx, file, optimizer.Options{Bytes: 1 << 20})
//
// # What stays
//
// A candidate takes the plan's place only if the verifier passes it, with no other findings than it has of the plan and
// with the same label, rank order or an order of its own, and if every output keeps its bits: the same inputs, folded
// and rounded in the same order. So nothing that the optimizer tries needs to be right by itself. A plan that
// the verifier does not pass is refused, and a plan in which nothing is found comes back as it is.
//
// # What is tried
//
//   - Synchronisation goes where the verifier passes without it: signals with their waits, releases of semaphores with
//     their acquires, meetings at barriers and single blocks of them, flushes, nops. What goes is tried together,
//     then by halves. Less order never makes another order needless, so no single one that could go is left.
//   - Operations in a row become one by the sound rules of package lowering, and where they do the same on ranges that
//     touch, unless that takes longer by the model: what waits for more goes on later.
//   - Operations get other blocks: a block goes on with those of another, its last ones go to a new block, or parts of
//     it that share no bytes do, on all ranks alike or on one. An order chosen by [Options.Seed] decides what is tried
//     first, and what makes the plan faster stays.
//   - The plan has several instances, side by side on chunks that are smaller, up to [Options.Instances]. The message
//     must have the chunks: see [Grain].
//
// Times are those of package cost, or measured by [Options.Measure]. By one seed the result is the same each
// time, unless the time was over ([Report.Stopped]) or times were measured.
//
// # Limits
//
// Moves are single steps uphill, so a better plan behind a worse one is not found. Channels that nothing uses any more
// stay in the file, because others have their numbers behind them.
package optimizer
