package bench

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Peer is the figure of another library: measured in the same run, or quoted.
type Peer struct {
	Op        string  `json:"op"`
	Engine    string  `json:"engine"`   // peer
	Contract  string  `json:"contract"` // the library's operation
	Ranks     int     `json:"ranks,omitempty"`
	Tokens    int     `json:"tokens,omitempty"`
	SMs       int     `json:"sms,omitempty"`
	WireBytes int64   `json:"wire_bytes,omitempty"` // out of each rank
	P50       float64 `json:"p50_us"`
	Verified  *bool   `json:"verified,omitempty"` // for measured figures

	// For quoted figures: when, where, and how they were measured.
	Date   string `json:"date,omitempty"`
	Source string `json:"source,omitempty"`

	Skipped string `json:"skipped,omitempty"` // why it could not be measured
}

// The names of the figures that are measured in the same run.
var measuredPeers = []string{"NCCL all_to_all_single", "PyTorch symmetric memory: copies and a barrier"}

//go:embed peers.py
var peersScript []byte

// peersTime bounds the measurement of peers: loading PyTorch on several GPUs takes most of it.
const peersTime = 2 * time.Minute

// MeasurePeers times NCCL and PyTorch's symmetric memory sending as many bytes out of each of the
// GPUs, if there is a Python that has PyTorch: WEFT_PYTHON, or python3. A figure that could not be
// measured has the reason instead.
func MeasurePeers(ctx context.Context, gpus int, sizes []int64) []Peer {
	if gpus < 2 {
		return skipped(errors.New("they send between GPUs, and there is one"))
	}
	if len(sizes) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, peersTime)
	defer cancel()
	out, err := runPeers(ctx, gpus, sizes)
	peers, bad := readPeers(out)
	if err = errors.Join(err, bad); err != nil {
		peers = append(peers, skipped(err)...)
	}
	return peers
}

func skipped(err error) []Peer {
	var list []Peer
	for _, name := range measuredPeers {
		list = append(list, Peer{Op: "all-to-all", Engine: "peer", Contract: name, Skipped: err.Error()})
	}
	return list
}

func runPeers(ctx context.Context, gpus int, sizes []int64) ([]byte, error) {
	python := os.Getenv("WEFT_PYTHON")
	if python == "" {
		python = "python3"
	}
	program, err := exec.LookPath(python)
	if err != nil {
		return nil, err
	}
	if err := exec.CommandContext(ctx, program, "-c", "import torch.distributed").Run(); err != nil {
		return nil, fmt.Errorf("%s has no PyTorch: %w", program, err)
	}
	dir, err := os.MkdirTemp("", "weft-peers-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	script := filepath.Join(dir, "peers.py")
	if err := os.WriteFile(script, peersScript, 0o600); err != nil {
		return nil, err
	}
	args := []string{"-m", "torch.distributed.run", "--standalone", "--nproc-per-node", strconv.Itoa(gpus), script}
	for _, n := range sizes {
		args = append(args, strconv.FormatInt(n, 10))
	}
	c := exec.CommandContext(ctx, program, args...)
	c.Env = append(os.Environ(), "NCCL_NVLS_ENABLE=0", "TORCH_SYMM_MEM_DISABLE_MULTICAST=1", "OMP_NUM_THREADS=1")
	endTogether(c)
	c.WaitDelay = 5 * time.Second
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Run(); err != nil {
		return out.Bytes(), fmt.Errorf("%w: %s", errors.Join(err, context.Cause(ctx)), last(errs.String()))
	}
	return out.Bytes(), nil
}

// last is the last line that says something.
func last(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

// readPeers reads the output of the script. Other lines are others' talk.
func readPeers(out []byte) (peers []Peer, err error) {
	for line := range bytes.Lines(out) {
		if !bytes.HasPrefix(line, []byte("{")) {
			continue
		}
		p := Peer{Op: "all-to-all", Engine: "peer"}
		if err := json.Unmarshal(line, &p); err != nil {
			return peers, fmt.Errorf("the peers' script printed %q: %w", line, err)
		}
		peers = append(peers, p)
	}
	return peers, nil
}

//go:embed quoted.json
var quotedText []byte

// quoted has figures of other libraries that this program cannot run itself, measured with those
// libraries' own benchmarks, each with when, where and how.
var quoted = func() (q struct{ LowLatency, Throughput []Peer }) {
	if err := json.Unmarshal(quotedText, &q); err != nil {
		panic("quoted.json: " + err.Error())
	}
	return q
}()

// QuotedPeers are the quoted figures for few tokens at a time.
func QuotedPeers() []Peer { return quoted.LowLatency }

// QuotedThroughputPeers are those for many.
func QuotedThroughputPeers() []Peer { return quoted.Throughput }
