package fabric

// BoardKey is what peers are told to write to a domain's board.
func (d *Domain) BoardKey() uint64 { return d.boardMemory.Key() }

// Unread is the offset of a word of the board that nothing reads.
func (d *Domain) Unread() int { return d.board.unread() }
