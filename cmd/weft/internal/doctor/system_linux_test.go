package doctor

import "testing"

func TestThisMachine(t *testing.T) {
	m := Collect(System("test"))
	if m.CPU.Usable < 1 || m.CPU.Online < m.CPU.Usable || m.Memory.Total == 0 || m.Kernel == "" ||
		m.SIMD == "" || m.Pages == "" || m.Limits.OpenFiles == 0 {
		t.Errorf("%+v", m)
	}
}
