package weft

import (
	"errors"
	"strings"
	"testing"

	"github.com/weftgo/weft/cuda"
)

// TestMulticastIsAskedOnAllRanks: ranks of which some ask for multicast refuse to join, all in the same words.
func TestMulticastIsAskedOnAllRanks(t *testing.T) {
	peers := []gpuInfo{
		{sms: 1, uuid: cuda.UUID{1}, multicast: multicastWanted, bus: "a"},
		{sms: 1, uuid: cuda.UUID{2}, bus: "b"},
		{sms: 1, uuid: cuda.UUID{3}, multicast: multicastMissing, bus: "c"},
	}
	for i := range peers {
		got, err := parseGPUInfo([]byte(peers[i].encode()))
		if err != nil || got != peers[i] {
			t.Errorf("%+v came as %+v, %v", peers[i], got, err)
		}
	}
	d := &Device{peers: peers, virtual: true}
	err := d.agreeMulticast()
	if !errors.Is(err, ErrMismatch) || !strings.Contains(err.Error(), "is 1 on ranks [0 2] and not on ranks [1]") {
		t.Errorf("one has not asked: %v", err)
	}
}
