// Package executor runs communication plans on the ranks of a communicator, on the host and on GPUs.
//
//	x, err := executor.New(ctx, comm, executor.Options{})
//	p, err := x.Load(ctx, file)
//	err = p.Execute(ctx, nil, weft.TensorOf(out), weft.TensorOf(in))
//
// [Executor.Load] verifies a plan, compares it among the ranks, and makes what it needs. A plan in which the verifier
// finds errors is refused, alike on every rank. [Plan.Execute] runs it, any number of times, on operands of any
// legal size.
//
// Ranks may be on several hosts, on host memory and on GPUs: ports of a plan lead to any rank, memory and switch
// channels within a host. No network card has carried plans so far.
//
// A plan may also be an algorithm of a group of package collective: see [Algorithm].
//
// # Data flow
//
//	file -> launch.Plan (what it needs) -> verified, compared -> launch.Loaded (memory) -> launches
//
// Package plan/internal/launch says what engines have in common, plan/internal/host and plan/internal/gpu how each
// runs.
package executor
