package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/fabric"
	"github.com/weftgo/weft/fabric/fabrictest"
	"github.com/weftgo/weft/port/service"
)

// channelRank makes the test binary a rank that signals the other one through libfabric.
const channelRank = "rank with a channel"

func signalled() int {
	fail := func(err error) int {
		fmt.Println(err)
		if errors.Is(err, weft.ErrUnsupported) {
			return 77
		}
		return 5
	}
	ctx := context.Background()
	comm, err := weft.Join(ctx, weft.WithDeadline(20*time.Second))
	if err != nil {
		return fail(err)
	}
	defer comm.Close()
	s, err := service.New(ctx, comm, service.Options{})
	if err != nil {
		return fail(err)
	}
	defer s.Close()
	m, err := s.Register(ctx, make([]byte, 8))
	if err != nil {
		return fail(err)
	}
	c, err := s.Connect(ctx, 1-comm.Rank(), service.ChannelOptions{}, m, m)
	if err != nil {
		return fail(err)
	}
	if err := errors.Join(c.PutWithSignal(ctx, 0, 0, 8), c.Flush(ctx), c.Wait(ctx)); err != nil {
		return fail(err)
	}
	fmt.Println("signalled")
	return 0
}

// TestChannelsOfHostsWithBridges connects port channels between hosts that have an interface with the same address
// each, as Docker's bridge: they take the one by which the ranks have met.
func TestChannelsOfHostsWithBridges(t *testing.T) {
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skipf("needs iproute2: %v", err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	script := "{ ip link add docker0 type veth peer name dock1 && ip addr add 172.17.0.1/16 dev docker0 && " +
		"ip link set docker0 up && ip link set dock1 up; } || exit 77; exec '" + self + "' '" + channelRank + "'"
	switch code, out := inHosts(t, 2, script); {
	case code == 77 && os.Getenv("WEFT_REQUIRE_FABRIC") != "1":
		t.Skipf("needs libfabric, and interfaces: %s", out)
	case code != 0 || strings.Count(out, "signalled\n") != 2:
		t.Errorf("exit status %d\n%s", code, out)
	}
}

// TestDoctorOfHosts: the doctor says which variable is to blame.
func TestDoctorOfHosts(t *testing.T) {
	for variable, want := range map[string]string{
		"FI_PROVIDER=bogus":        "FI_PROVIDER=bogus leaves libfabric",
		"WEFT_INTERFACE=nosuch0":   "no interface \"nosuch0\" here",
		"WEFT_HEARTBEAT=bogus":     "WEFT_HEARTBEAT=bogus: it is a time",
		"WEFT_NO_PEER=bogus":       "WEFT_NO_PEER=bogus: set it to 1 or 0",
		"WEFT_LIBFABRIC=/no/where": "WEFT_LIBFABRIC: /no/where",
	} {
		t.Run(variable, func(t *testing.T) {
			name, value, _ := strings.Cut(variable, "=")
			if name == "FI_PROVIDER" {
				fabrictest.Libfabric(t.Context(), t, fabric.Options{Size: 1}).Close()
			}
			t.Setenv(name, value)
			wrong := 1
			if !strings.HasPrefix(name, "WEFT_") || name == "WEFT_LIBFABRIC" { // the host engine needs no fabric
				wrong = 0
			}
			out, _ := command(t, wrong, "doctor")
			if !strings.Contains(strings.Join(strings.Fields(out), " "), want) {
				t.Errorf("%s", out)
			}
		})
	}
}
