package ep_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/fabric/fabrictest"
	"github.com/weftgo/weft/internal/eptest"
)

// TestHosts runs the conformance suite unchanged on ranks of several hosts, on networks of each class.
func TestHosts(t *testing.T) {
	cases := 24
	if os.Getenv("WEFT_TEST_ALL") != "" {
		cases = 240
	}
	for i, names := range []string{"aabb", "aaaabbbb", "aabbcc", "abcd", "ababc"} {
		class := fabrictest.Classes()[i%len(fabrictest.Classes())]
		t.Run(fmt.Sprint(names, " on ", class.Name), func(t *testing.T) {
			seed := uint64(time.Now().UnixNano())
			t.Log("seed", seed)
			network := fabrictest.New(class, seed)
			e := eptest.NewHosts(names, weft.WithFabric(network.Open))
			t.Cleanup(func() {
				if err := e.Close(); err != nil {
					t.Error(err)
				}
				if err := network.Check(); err != nil {
					t.Error(err)
				}
			})
			eptest.RunSome(t, e, cases)
		})
	}
}
