package bootstrap

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// storeProgram keeps a TCPStore until its input ends, and checks from PyTorch's side what a Go
// client left there.
const storeProgram = `
import sys
from datetime import timedelta
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False,
                 timeout=timedelta(seconds=30), use_libuv=sys.argv[1] == "libuv")
print("port", store.port, flush=True)
sys.stdin.readline()
print("key", store.get("later").decode(), store.add("counter", 1), flush=True)
sys.stdin.readline()
`

// TestTorchStore runs the store tests against PyTorch's own servers.
func TestTorchStore(t *testing.T) {
	python := os.Getenv("WEFT_PYTHON")
	if python == "" {
		python = "python3"
	}
	if out, err := exec.Command(python, "-c", "import torch.distributed").CombinedOutput(); err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		reason := python + " can't import torch: " + err.Error() + ": " + lines[len(lines)-1]
		if os.Getenv("WEFT_REQUIRE_TORCH") == "1" {
			t.Fatal(reason)
		}
		t.Skip(reason)
	}
	for _, server := range []string{"libuv", "plain"} {
		t.Run(server, func(t *testing.T) {
			cmd := exec.Command(python, "-c", storeProgram, server)
			cmd.Stderr = os.Stderr
			stdout, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			stdin, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() {
				stdin.Close()
				cmd.Process.Kill()
				cmd.Wait()
			}()
			out := bufio.NewScanner(stdout)
			line := func() []string {
				out.Scan()
				return strings.Fields(out.Text())
			}
			said := line()
			if len(said) != 2 || said[0] != "port" {
				t.Fatalf("the store says %q", said)
			}
			address := "127.0.0.1:" + said[1]
			testStoreClient(t, address)
			testStoreJobs(t, address)
			if _, err := stdin.Write([]byte("\n")); err != nil {
				t.Fatal(err)
			}
			// What this side wrote, PyTorch reads, and the other way round.
			if said := line(); strings.Join(said, " ") != "key now 4" {
				t.Errorf("the store holds %q", said)
			}
		})
	}
}
