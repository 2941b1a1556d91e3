package doctor

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftgo/weft/fabric/ibgda"
)

func TestNICs(t *testing.T) {
	const dir = "sys/class/infiniband/"
	mlx5 := []string{
		dir + "mlx5_0/ports/1/link_layer", "InfiniBand\n", dir + "mlx5_0/ports/1/state", "4: ACTIVE\n",
		dir + "mlx5_1/ports/1/link_layer", "Ethernet\n", dir + "mlx5_1/ports/1/state", "1: DOWN\n",
	}
	renamed := []string{
		dir + "ibp3s0/device/uevent", "DRIVER=mlx5_core\n", dir + "ibp3s0/ports/2/state", "4: ACTIVE\n",
	}
	const both = "mlx5_0 (InfiniBand), mlx5_1 (Ethernet) down"
	missing := fmt.Errorf("%w: libmlx5.so.1 was not found", ibgda.ErrUnavailable)
	found := []ibgda.Found{
		{Name: "mlx5_0", Network: "InfiniBand", Address: "LID 3"},
		{Name: "mlx5_1", Err: errors.New("mlx5_1: port 1 has no link")},
	}
	efa := []string{dir + "efa_0/ports/1/state", "4: ACTIVE\n"}
	foreign := []ibgda.Found{{Name: "efa_0", Err: errors.New("efa_0 is no mlx5")}}
	for name, tt := range map[string]struct {
		files          []string
		found          []ibgda.Found
		err            error
		value, meaning string
		grade          Grade
	}{
		"none":       {nil, nil, missing, "none", "over TCP", Note},
		"no library": {mlx5, nil, missing, both, "kernels can drive none: libmlx5.so.1 was not found", Good},
		"all":        {mlx5, found, nil, both, "of mlx5_0 (InfiniBand, LID 3): no card", Good},
		"renamed":    {renamed, nil, nil, "ibp3s0", "ibp3s0 is not known to libibverbs", Good},
		"down":       {mlx5[4:], found, nil, "mlx5_1 (Ethernet) down", "no port is active", Note},
		"EFA":        {efa, foreign, nil, "efa_0", "kernels can drive none: efa_0 is no mlx5", Good},
	} {
		s := machine(tt.files...)
		s.Cards = func() ([]ibgda.Found, error) { return tt.found, tt.err }
		f := find(t, Collect(s), "RDMA cards")
		if f.Value != tt.value || !strings.Contains(f.Meaning, tt.meaning) || f.Grade != tt.grade {
			t.Errorf("%s: %+v", name, f)
		}
	}
	s := machine(mlx5...)
	s.Cards = func() ([]ibgda.Found, error) { return found, nil }
	want := []NIC{
		{Name: "mlx5_0", MLX5: true, Link: "InfiniBand", Up: true, Address: "InfiniBand, LID 3"},
		{Name: "mlx5_1", MLX5: true, Link: "Ethernet", Err: "mlx5_1: port 1 has no link"},
	}
	if d := cmp.Diff(want, Collect(s).NICs); d != "" {
		t.Error(d)
	}
}
