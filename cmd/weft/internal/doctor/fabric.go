package doctor

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/weftgo/weft/fabric"
)

// Fabric is what would carry data between hosts.
type Fabric struct {
	Library   string `json:"library"`   // and its version
	Provider  string `json:"provider"`  // the first that works; empty is none
	Address   string `json:"address"`   // that it takes if ranks do not meet by another one; empty for cards
	Interface string `json:"interface"` // which has that address
	Err       string `json:"error,omitempty"`
}

// fabricFor bounds how long the doctor tries providers.
const fabricFor = 30 * time.Second

// openFabric opens libfabric as a rank would that meets others.
func openFabric() Fabric {
	ctx, cancel := context.WithTimeout(context.Background(), fabricFor)
	defer cancel()
	d, err := fabric.Open(ctx, fabric.Options{Size: 1})
	if err != nil {
		return Fabric{Err: strings.TrimPrefix(err.Error(), fabric.ErrUnsupported.Error()+": ")}
	}
	caps := d.Capabilities()
	f := Fabric{Library: caps.Library, Provider: caps.Provider}
	if a := d.Address().Addr(); a.IsValid() {
		f.Address, f.Interface = a.String(), interfaceOf(a)
	}
	if err := d.Close(); err != nil {
		f.Err = err.Error()
	}
	return f
}

// interfaceOf names the network interface that has an address.
func interfaceOf(a netip.Addr) string {
	all, _ := net.Interfaces()
	for _, i := range all {
		addresses, _ := i.Addrs()
		for _, has := range addresses {
			if p, err := netip.ParsePrefix(has.String()); err == nil && p.Addr().Unmap() == a.Unmap() {
				return i.Name
			}
		}
	}
	return ""
}

// fabricFinding says which provider ranks would take. Hosts whose lines differ do not connect.
func fabricFinding(m Machine) Finding {
	f := m.Fabric
	if f.Provider == "" {
		return Finding{"between hosts", "nothing", f.Err, Note}
	}
	value := f.Library + ", provider " + f.Provider
	if f.Interface != "" {
		value += ", " + f.Interface + " (" + f.Address + ")"
	}
	return Finding{"between hosts", value, "every host must take the same provider: FI_PROVIDER names one", Good}
}
