// Package ranktest is where tests get ranks from: goroutines ([Join], [Run], [Groups]), real
// processes (package processes), and either of them on GPUs ([Real]), on emulated ones ([Emulated])
// or on ones that only have memory ([Fake]).
package ranktest
