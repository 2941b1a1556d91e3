// Package gpu is the GPU engine of expert parallelism: every operation is one kernel on every rank,
// enqueued on the caller's stream. docs/design/gpu-engine.md has the design.
//
// A Go file has the arguments, the memory and the launch of a kernel; the .cu file beside it is the
// kernel. Rows move in one of two ways:
//
//   - slots (slots_dispatch.cu, slots_combine.cu): rows leave before anything is counted, to a slot whose
//     address follows from source and token. The receiver finds their row on arrival.
//   - direct (direct_row_map.cu, direct_push.cu, direct_pull.cu): a prepare gives every row its final
//     place. Dispatch stores it there, and the token's home reads it from there.
//
// The other kernels serve both: gradients.cu moves gradients, describe.cu says what each row is,
// copy.cu copies what has arrived, token_counts.cu counts where tokens go.
package gpu
