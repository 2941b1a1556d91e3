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

// Where the quoted figures are from.
const (
	fourGPUs  = "4 H200s, NVLink 4, no multicast, hidden 7168, top-8 of 256; kernel time in a graph, mean of ranks"
	fourEager = "the machine of 4 H200s; kernel time without a graph, mean of ranks"
	fourChunk = "the machine of 4 H200s; kernel time without a graph, mean of ranks, of its chunk sizes the best"
	fourNCCL  = "the machine of 4 H200s; nccl-tests, 10 operations a graph"
)

// QuotedPeers are figures of other libraries that this program cannot run itself, measured with
// those libraries' own benchmarks.
func QuotedPeers() []Peer {
	var list []Peer
	quote := func(name, source string, tokens int, dispatch, combine float64) {
		for _, p := range []Peer{{Op: "dispatch", P50: dispatch}, {Op: "combine", P50: combine}} {
			p.Engine, p.Contract, p.Ranks, p.Tokens, p.Date, p.Source = "peer", name, 4, tokens, "2026-11-20", source
			list = append(list, p)
		}
	}
	for _, f := range []struct {
		tokens                        int
		rankDispatch, rankCombine     float64
		expertDispatch, expertCombine float64
		expertEager                   bool
	}{
		{1, 7.0, 4.7, 8.9, 9.6, false},
		{8, 7.1, 5.5, 9.8, 11.1, false},
		{32, 8.6, 8.5, 12.4, 13.1, false},
		{128, 19.3, 20.8, 28.0, 30.0, true},
		{256, 33.9, 38.0, 47.0, 46.2, false},
	} {
		quote("MSCCL++ (feature/ep, 2026-08) rank-major bf16", fourGPUs, f.tokens, f.rankDispatch, f.rankCombine)
		source := fourGPUs
		if f.expertEager {
			source = fourEager
		}
		quote("MSCCL++ (feature/ep, 2026-08) expert-major partial bf16", source, f.tokens, f.expertDispatch, f.expertCombine)
	}
	quote("MSCCL++ (feature/ep, 2026-08) expert-major partial, fp8 dispatch", fourEager, 128, 24.4, 30.6)
	quote("DeepEP V1 (2026-02) expert-major exact, fp8 dispatch", fourEager, 128, 32.9, 57.0)
	return append(list, quotedNCCL(8<<10, 9.9), quotedNCCL(1<<20, 16.8))
}

// QuotedThroughputPeers are those figures for many tokens at a time.
func QuotedThroughputPeers() []Peer {
	var list []Peer
	quote := func(op, name, source string, sms int, us float64) {
		list = append(list, Peer{
			Op: op, Engine: "peer", Contract: name, Ranks: 4, Tokens: 4096, SMs: sms, P50: us,
			Date: "2026-11-20", Source: source,
		})
	}
	for _, f := range []struct {
		sms               int
		dispatch, combine float64
	}{{8, 791, 673}, {12, 544, 549}, {20, 549, 507}, {24, 530, 506}, {64, 467, 506}} {
		const name = "MSCCL++ (feature/ep, 2026-08) throughput bf16"
		quote("dispatch", name, fourGPUs, f.sms, f.dispatch)
		quote("combine", name, fourGPUs, f.sms, f.combine)
	}
	quote("dispatch", "DeepEP V1 (2026-02) normal bf16", fourChunk, 24, 809)
	quote("combine", "DeepEP V1 (2026-02) normal bf16", fourChunk, 24, 595)
	quote("dispatch", "DeepEP V1 (2026-02) normal fp8", fourChunk, 24, 428)
	return append(list, quotedNCCL(256<<20, 663))
}

// quotedNCCL is an all-to-all between four ranks, of so many bytes of each with its own.
func quotedNCCL(bytes int64, us float64) Peer {
	return Peer{
		Op: "all-to-all", Engine: "peer", Contract: "NCCL 2.28.9 all-to-all", Ranks: 4,
		WireBytes: bytes / 4 * 3, P50: us, Date: "2026-11-20", Source: fourNCCL,
	}
}
