package bootstrap

// tracer gets every message of a collective that a rank sends or takes, in the rank's order. Tests
// count rounds with it.
type tracer func(sent bool, peer int, seq uint64)

// post sends p, a message of a collective, to peer by way of l.
func (m *mesh) post(peer int, l link, p *packet) {
	m.traced(true, peer, p.messages...)
	l.send(p)
}

func (m *mesh) traced(sent bool, peer int, messages ...message) {
	if m.trace == nil {
		return
	}
	for _, msg := range messages {
		switch msg := msg.(type) {
		case share:
			m.trace(sent, peer, msg.seq)
		case gathered:
			m.trace(sent, peer, msg.seq)
		case inquiry:
			m.trace(sent, peer, msg.seq)
		case missing:
			m.trace(sent, peer, msg.seq)
		}
	}
}
