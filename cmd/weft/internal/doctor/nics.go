package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/weftgo/weft/fabric/ibgda"
)

// NIC is a network card that can write to other hosts' memory, as the kernel's RDMA drivers list it.
type NIC struct {
	Name string `json:"name"`
	MLX5 bool   `json:"mlx5"` // whether kernels could drive it by device/nic.cuh
	Link string `json:"link"` // "InfiniBand" or "Ethernet"
	Up   bool   `json:"up"`   // whether a port of it is
	// Address is that of its port, by which kernels' queue pairs are connected; Err is why there are none.
	Address string `json:"address,omitempty"`
	Err     string `json:"error,omitempty"`
}

// nics reads the kernel's list of cards.
func nics(root fs.FS) []NIC {
	const dir = "sys/class/infiniband"
	var all []NIC
	names, _ := fs.Glob(root, dir+"/*")
	for _, at := range names {
		n := NIC{Name: path.Base(at)}
		n.MLX5 = strings.HasPrefix(n.Name, "mlx5_") ||
			strings.Contains(readFile(root, at+"/device/uevent"), "DRIVER=mlx5_core")
		ports, _ := fs.Glob(root, at+"/ports/*")
		for _, p := range ports {
			n.Link = strings.TrimSpace(readFile(root, p+"/link_layer"))
			if strings.Contains(readFile(root, p+"/state"), "ACTIVE") {
				n.Up = true
				break
			}
		}
		all = append(all, n)
	}
	return all
}

// askCards adds what the libraries say that kernels' queue pairs are made by.
func askCards(all []NIC, list func() ([]ibgda.Found, error)) {
	if len(all) == 0 {
		return
	}
	found, err := list()
	for i := range all {
		n := &all[i]
		if err != nil {
			n.Err = reason(err)
			continue
		}
		at := slices.IndexFunc(found, func(f ibgda.Found) bool { return f.Name == n.Name })
		switch {
		case at < 0:
			n.Err = n.Name + " is not known to libibverbs: install its provider (Debian: ibverbs-providers)"
		case found[at].Err != nil:
			n.Err = reason(found[at].Err)
		default:
			n.Address = found[at].Network + ", " + found[at].Address
		}
	}
}

func reason(err error) string {
	return strings.TrimPrefix(err.Error(), ibgda.ErrUnavailable.Error()+": ")
}

// nicFinding says which cards there are, and which of them kernels could drive.
func nicFinding(m Machine) Finding {
	var names, driven, reasons []string
	up := false
	for _, n := range m.NICs {
		text := n.Name
		if n.Link != "" {
			text += " (" + n.Link + ")"
		}
		if !n.Up {
			text += " down"
		}
		names = append(names, text)
		up = up || n.Up
		switch {
		case n.Address != "":
			driven = append(driven, n.Name+" ("+n.Address+")")
		case n.Up && !slices.Contains(reasons, n.Err):
			reasons = append(reasons, n.Err)
		}
	}
	f := Finding{Name: "RDMA cards", Value: strings.Join(names, ", "), Grade: Note}
	switch {
	case len(names) == 0:
		f.Value, f.Meaning = "none", "data between hosts goes over TCP, by libfabric"
	case !up:
		f.Meaning = "no port is active: data between hosts goes over TCP, by libfabric"
	case len(driven) == 0:
		f.Grade, f.Meaning = Good, "libfabric may use them; kernels can drive none: "+strings.Join(reasons, "; ")
	default:
		f.Grade = Good
		f.Meaning = fmt.Sprintf("libfabric may use them; with %s=1 kernels drive one, the nearest to their GPU of %s: no "+
			"card has tested that", ibgda.UseVariable, strings.Join(driven, ", "))
	}
	return f
}

// Push is how kernels reach other hosts, where variables say it.
type Push struct {
	Way string `json:"way,omitempty"`
	Err string `json:"error,omitempty"`
}

// push reads the variables.
func push(getenv func(string) string) Push {
	asked := false
	way, err := ibgda.Choose(getenv, func(string) error {
		asked = true
		return errors.New("not yet")
	}, nil)
	switch {
	case err != nil:
		return Push{Err: err.Error()}
	case asked || way != ibgda.Proxy:
		return Push{Way: way.String()}
	}
	return Push{}
}

func pushFinding(p Push) Finding {
	f := Finding{Name: "kernels to hosts", Value: "by the " + p.Way, Grade: Note}
	switch {
	case p.Err != "":
		f.Value, f.Meaning, f.Grade = p.Err, "low latency between hosts will fail with this", Bad
	case p.Way == ibgda.Software.String():
		f.Value, f.Meaning = "by a card made of Go", ibgda.NICVariable+" asks for it: for tests, between ranks of one process"
	default:
		f.Meaning = ibgda.UseVariable + " asks for a card; the row of network cards says which kernels can drive"
	}
	return f
}
