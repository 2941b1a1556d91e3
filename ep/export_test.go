package ep

// SetApart makes some blocks of every operation send and the others receive, however little there is, and gives what undoes it.
func SetApart() (undo func()) {
	rank, expert, combine := apartRankBytes, apartExpertCount, apartCombineBytes
	apartRankBytes, apartExpertCount, apartCombineBytes = 1, 1, 1
	return func() { apartRankBytes, apartExpertCount, apartCombineBytes = rank, expert, combine }
}

// SetBulk makes all rows that can be sent by bulk copies go so, however small they are, and gives what undoes it.
func SetBulk() (undo func()) {
	bytes := bulkRowBytes
	bulkRowBytes = 1
	return func() { bulkRowBytes = bytes }
}

// Announced is the set of places for received rows of which a handle's next operation would say that nobody reads them.
func Announced(h *Handle) uint32 { return h.engine.(*gpu).free() }
