package main_test

import (
	"errors"
	"fmt"
	"os/exec"
	"testing"

	"github.com/weftgo/weft/fabric"
	"github.com/weftgo/weft/fabric/fabrictest"
)

// Channels between processes: by memory, and by libfabric on one host and on several.
func TestPorts(t *testing.T) {
	program := compile(t, "testdata/ports.c")
	const memory, network = "1", "2"
	for _, test := range []struct {
		name, scenario, kind string
		hosts                []string
	}{
		{"memory", "exchange", memory, []string{"a", "a"}},
		{"memory", "exchange", memory, []string{"a", "a", "a"}},
		{"memory", "death", memory, []string{"a", "a", "a"}},
		{"fabric", "exchange", network, []string{"a", "a"}},
		{"fabric", "death", network, []string{"a", "a", "a"}},
		{"hosts", "exchange", network, []string{"a", "b"}},
		{"hosts", "exchange", network, []string{"a", "a", "b"}},
		{"hosts", "death", network, []string{"a", "b", "c"}},
	} {
		n := len(test.hosts)
		t.Run(fmt.Sprintf("%s/%s/%d", test.name, test.scenario, n), func(t *testing.T) {
			if test.kind == network {
				d := fabrictest.Libfabric(t.Context(), t, fabric.Options{Size: 1, Provider: "tcp", Source: "127.0.0.1"})
				if err := d.Close(); err != nil {
					t.Fatal(err)
				}
			}
			env := func(rank int) []string { return []string{"WEFT_HOSTID=" + test.hosts[rank], "WEFT_HEARTBEAT=60s"} }
			for r, o := range ranksWith(t, n, env, program, test.scenario, test.kind) {
				if test.scenario == "death" && r == n-1 {
					if exit, ok := errors.AsType[*exec.ExitError](o.err); !ok || exit.Exited() {
						t.Errorf("rank %d was not killed: %v\n%s", r, o.err, o.output)
					}
				} else if o.err != nil || o.output != "ok\n" {
					t.Errorf("rank %d of %d: %v\n%s", r, n, o.err, o.output)
				}
			}
		})
	}
}
