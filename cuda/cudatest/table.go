package cudatest

import "github.com/weftgo/weft/cuda/internal/sys"

// table fills in the driver's entries.
func (m *Machine) table() *sys.Table {
	t := new(sys.Table)
	m.deviceCalls(t)
	m.streamCalls(t)
	m.eventCalls(t)
	m.memoryCalls(t)
	m.copyCalls(t)
	m.pointerCalls(t)
	m.virtualCalls(t)
	m.multicastCalls(t)
	m.ipcCalls(t)
	m.moduleCalls(t)
	m.launchCalls(t)
	m.graphCalls(t)
	return t
}
