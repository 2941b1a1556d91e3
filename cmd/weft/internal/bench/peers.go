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

	"github.com/weftgo/weft/cmd/weft/internal/bench/collective"
	"github.com/weftgo/weft/cmd/weft/internal/measure"
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

// within is a context in which peers are measured.
func within(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, peersTime, fmt.Errorf("they took longer than %v", peersTime))
}

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
	ctx, cancel := within(ctx)
	defer cancel()
	args := []string{"exchange"}
	for _, n := range sizes {
		args = append(args, strconv.FormatInt(n, 10))
	}
	out, err := runPeers(ctx, gpus, args)
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

// runPeers runs the script with arguments, so many processes, each on a GPU of its own if it uses one.
func runPeers(ctx context.Context, ranks int, given []string) ([]byte, error) {
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
	args := []string{"-m", "torch.distributed.run", "--standalone", "--nproc-per-node", strconv.Itoa(ranks), script}
	args = append(args, given...)
	c := exec.CommandContext(ctx, program, args...)
	c.Env = append(os.Environ(), "NCCL_NVLS_ENABLE=0", "TORCH_SYMM_MEM_DISABLE_MULTICAST=1", "OMP_NUM_THREADS=1")
	endTogether(c)
	c.WaitDelay = 5 * time.Second
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Run(); err != nil {
		if cause := context.Cause(ctx); cause != nil { // the script was killed for that
			err = fmt.Errorf("they were ended: %w", cause)
		}
		if said := last(errs.String()); said != "" {
			err = fmt.Errorf("%w: %s", err, said)
		}
		return out.Bytes(), err
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

// MeasureCollectivePeers times NCCL, through PyTorch, at the sizes of rows of a collective, between as
// many GPUs. Without such a Python, or with one GPU, the error says why there are no rows.
func MeasureCollectivePeers(ctx context.Context, gpus int, graph bool, s collective.Sweep, rows []measure.Record,
) ([]measure.Record, error) {
	switch {
	case gpus < 2:
		return nil, errors.New("it sends between GPUs, and there is one")
	case len(rows) == 0 || rows[0].Ranks != gpus:
		return nil, errors.New("it has one rank on each GPU")
	}
	return collectivePeers(ctx, "nccl", map[bool]string{false: "eager", true: "graph"}[graph], s, rows)
}

// MeasureHostPeers times Gloo, through PyTorch, at the sizes of rows of a collective, between as many processes.
// Without such a Python, or with one rank, the error says why there are no rows.
func MeasureHostPeers(ctx context.Context, s collective.Sweep, rows []measure.Record) ([]measure.Record, error) {
	if len(rows) == 0 || rows[0].Ranks < 2 {
		return nil, errors.New("it sends between ranks, and there is one")
	}
	return collectivePeers(ctx, "gloo", "host", s, rows)
}

// collectivePeers times a library as often as rows have ranks.
func collectivePeers(ctx context.Context, engine, how string, s collective.Sweep, rows []measure.Record,
) ([]measure.Record, error) {
	args := []string{s.Kind, s.DType, s.Op, how}
	for i := range rows {
		args = append(args, strconv.FormatInt(rows[i].Message(), 10))
	}
	ctx, cancel := within(ctx)
	defer cancel()
	out, err := runPeers(ctx, rows[0].Ranks, args)
	if err != nil {
		return nil, err
	}
	var peers []measure.Record
	for line := range bytes.Lines(out) {
		if !bytes.HasPrefix(line, []byte("{")) {
			continue
		}
		var p struct {
			Peer
			Bytes int64
			P99   float64 `json:"p99_us"`
		}
		if err := json.Unmarshal(line, &p); err != nil {
			return peers, fmt.Errorf("the peers' script printed %q: %w", line, err)
		}
		if p.Skipped != "" {
			return peers, errors.New(p.Skipped)
		}
		for _, r := range rows {
			if r.Message() == p.Bytes {
				row := peerRow(r, p.P50, p.P99, p.Contract, p.Verified != nil && *p.Verified)
				row.Engine = engine
				peers = append(peers, row)
			}
		}
	}
	return peers, nil
}

// peerRow is a row of another library beside one of ours.
func peerRow(r measure.Record, p50, p99 float64, call string, verified bool) measure.Record {
	c := *r.Collective
	c.Algorithm, c.Wrong = call, 0 // the peer does not count
	row := measure.Record{
		Op: r.Op, Ranks: r.Ranks, DType: r.DType, Reduction: r.Reduction, Mode: r.Mode,
		WireBytes: r.WireBytes, Host: r.Host, Version: r.Version, Verified: verified, Collective: &c,
	}
	us := func(v float64) time.Duration { return time.Duration(v * float64(time.Microsecond)) }
	row.SetTimes(measure.Summary{Iterations: 1, P50: us(p50), P99: us(p99), Min: us(p50), Max: us(p99), Mean: us(p50)})
	row.SetCeiling(c.Ceiling)
	return row
}
