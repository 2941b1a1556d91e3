//go:build !race

package channel

// storeWord is one store, behind those before it: the processor keeps their order, and a locked store would take ten
// times as long.
func storeWord(w *uint64, v uint64) { *w = v }
