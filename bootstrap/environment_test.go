package bootstrap

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func environ(pairs map[string]string) func(string) string {
	return func(name string) string { return pairs[name] }
}

// The variables as launchers set them.
var (
	weftVars = map[string]string{
		"WEFT_RANK": "1", "WEFT_SIZE": "4", "WEFT_ADDRESS": "127.0.0.1:4000",
		"WEFT_SECRET": "abc",
	}
	torchVars = map[string]string{
		"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4",
		"MASTER_ADDR": "node1", "MASTER_PORT": "29500",
		"TORCHELASTIC_RUN_ID": "run7", "TORCHELASTIC_RESTART_COUNT": "2", "TORCHELASTIC_USE_AGENT_STORE": "True",
	}
	slurmVars = map[string]string{
		"SLURM_PROCID": "3", "SLURM_NTASKS": "6", "SLURM_STEP_NUM_TASKS": "6", "SLURM_LOCALID": "0",
		"SLURM_NODEID": "1", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "1234",
		"SLURM_STEP_NODELIST": "gpu[07-08,12],login", "SLURM_STEP_TASKS_PER_NODE": "3,1(x3)",
		"SLURM_LAUNCH_NODE_IPADDR": "10.0.0.9",
	}
	openMPIVars = map[string]string{
		"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4",
		"OMPI_COMM_WORLD_LOCAL_RANK": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
		"PMIX_NAMESPACE": "3748397057", "PMIX_RANK": "2",
	}
	mpichVars = map[string]string{
		"PMI_RANK": "1", "PMI_SIZE": "2", "PMI_FD": "9", "MPI_LOCALRANKID": "1",
		"MPI_LOCALNRANKS": "2",
	}
	lwsVars = map[string]string{
		"LWS_WORKER_INDEX": "1", "LWS_GROUP_SIZE": "2",
		"LWS_LEADER_ADDRESS": "job-0.job.default",
	}
	indexedVars = map[string]string{"JOB_COMPLETION_INDEX": "2", "WEFT_SIZE": "3", "WEFT_ADDRESS": "train-0.train"}
)

func merge(maps ...map[string]string) map[string]string {
	all := map[string]string{}
	for _, m := range maps {
		for k, v := range m {
			all[k] = v
		}
	}
	return all
}

func TestDetect(t *testing.T) {
	slurmPort := withPort("gpu07", derivedPort("1234.0"))
	tests := []struct {
		name string
		vars map[string]string
		want Environment
		line string
	}{
		{"none", nil, Environment{Source: "none", Size: 1, LocalSize: 1}, "no launcher: one rank"},
		{
			"weft", weftVars,
			Environment{
				Source: "WEFT", Rank: 1, Size: 4, LocalRank: 1, LocalSize: 4, Address: "127.0.0.1:4000",
				Secret: []byte("abc"),
			},
			"WEFT: rank 1 of 4 (local 1 of 4), rank 0 at 127.0.0.1:4000, with a secret",
		},
		{
			"weft without a secret",
			map[string]string{"WEFT_RANK": "0", "WEFT_SIZE": "2", "WEFT_ADDRESS": "localhost", "WEFT_INTERFACE": "lo"},
			Environment{Source: "WEFT", Size: 2, LocalSize: 2, Address: "localhost:29411", Interface: "lo"},
			"WEFT: rank 0 of 2 (local 0 of 2), rank 0 at localhost:29411, no secret: loopback peers only",
		},
		{
			"weft across hosts",
			map[string]string{
				"WEFT_RANK": "1", "WEFT_SIZE": "2", "WEFT_ADDRESS": "node0",
				"WEFT_LOCAL_RANK": "0", "WEFT_LOCAL_SIZE": "1",
			},
			Environment{Source: "WEFT", Rank: 1, Size: 2, LocalSize: 1, Address: "node0:29411"},
			"WEFT: rank 1 of 2 (local 0 of 1), rank 0 at node0:29411, no secret: loopback peers only",
		},
		{
			"weft without an address",
			map[string]string{"WEFT_RANK": "1", "WEFT_SIZE": "2"},
			Environment{Source: "WEFT", Rank: 1, Size: 2},
			"WEFT: rank 1 of 2, no address of rank 0: set WEFT_ADDRESS",
		},
		{
			"torchrun", torchVars,
			Environment{
				Source: "torchrun", Rank: 5, Size: 8, LocalRank: 1, LocalSize: 4,
				Address: "node1:29500", Store: true, Prefix: "run7/2/",
			},
			"torchrun: rank 5 of 8 (local 1 of 4), TCPStore at node1:29500, which carries the secret",
		},
		{
			"torchrun's names without its agent",
			map[string]string{"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "::1", "MASTER_PORT": "29500"},
			Environment{Source: "torchrun", Size: 2, Address: "[::1]:29500"},
			"torchrun: rank 0 of 2, rank 0 at [::1]:29500, no secret: loopback peers only",
		},
		{
			"slurm", slurmVars,
			Environment{Source: "Slurm", Rank: 3, Size: 6, LocalSize: 1, Address: slurmPort},
			"Slurm: rank 3 of 6 (local 0 of 1), rank 0 at " + slurmPort + ", no secret: loopback peers only",
		},
		{
			"slurm on one node", merge(slurmVars, map[string]string{
				"SLURM_STEP_NODELIST":       "gpu07",
				"SLURM_STEP_TASKS_PER_NODE": "6", "SLURM_NODEID": "0", "SLURM_LOCALID": "3",
			}),
			Environment{Source: "Slurm", Rank: 3, Size: 6, LocalRank: 3, LocalSize: 6, Address: onThisHost("1234.0")},
			"",
		},
		{
			"slurm without a list", merge(slurmVars, map[string]string{"SLURM_STEP_NODELIST": ""}),
			Environment{Source: "Slurm", Rank: 3, Size: 6, LocalSize: 1, Address: withPort("10.0.0.9", derivedPort("1234.0"))},
			"",
		},
		{
			"a batch script is no step",
			map[string]string{"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "a[1-8]"},
			Environment{Source: "none", Size: 1, LocalSize: 1},
			"",
		},
		{
			"open mpi", openMPIVars,
			Environment{Source: "Open MPI", Rank: 2, Size: 4, LocalRank: 2, LocalSize: 4, Address: onThisHost("3748397057")},
			"",
		},
		{
			"open mpi across hosts", merge(openMPIVars, map[string]string{"OMPI_COMM_WORLD_LOCAL_SIZE": "3"}),
			Environment{Source: "Open MPI", Rank: 2, Size: 4, LocalRank: 2, LocalSize: 3},
			"Open MPI: rank 2 of 4 (local 2 of 3), no address of rank 0: set WEFT_ADDRESS",
		},
		{
			"open mpi's daemons as tasks of a step", merge(slurmVars, openMPIVars),
			Environment{Source: "Open MPI", Rank: 2, Size: 4, LocalRank: 2, LocalSize: 4, Address: onThisHost("3748397057")},
			"",
		},
		{
			"srun with its own PMI", merge(slurmVars, map[string]string{"PMI_RANK": "3", "PMI_SIZE": "6", "PMI_FD": "4"}),
			Environment{Source: "Slurm", Rank: 3, Size: 6, LocalSize: 1, Address: slurmPort},
			"",
		},
		{
			"mpich", mpichVars,
			Environment{Source: "MPICH", Rank: 1, Size: 2, LocalRank: 1, LocalSize: 2, pmi: "9"},
			"MPICH: rank 1 of 2 (local 1 of 2), meeting through the process manager, which carries the secret",
		},
		{
			"leader and workers", lwsVars,
			Environment{Source: "Kubernetes", Rank: 1, Size: 2, Address: "job-0.job.default:29411"},
			"Kubernetes: rank 1 of 2, rank 0 at job-0.job.default:29411, no secret: loopback peers only",
		},
		{
			"indexed job", indexedVars,
			Environment{Source: "Kubernetes", Rank: 2, Size: 3, Address: "train-0.train:29411"},
			"",
		},
		{
			"a store by hand",
			map[string]string{"WEFT_RANK": "1", "WEFT_SIZE": "2", "WEFT_STORE": "node0"},
			Environment{Source: "WEFT", Rank: 1, Size: 2, Address: "node0:29500", Store: true},
			"",
		},
		{
			"overrides", merge(torchVars, map[string]string{
				"WEFT_ADDRESS": "elsewhere:1", "WEFT_SECRET": "x",
				"WEFT_LOCAL_RANK": "3", "WEFT_LOCAL_SIZE": "8",
			}),
			Environment{
				Source: "torchrun", Rank: 5, Size: 8, LocalRank: 3, LocalSize: 8,
				Address: "elsewhere:1", Prefix: "run7/2/", Secret: []byte("x"),
			},
			"",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := Detect(environ(test.vars))
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(test.want, got, cmp.AllowUnexported(Environment{}), cmpopts.EquateEmpty()); d != "" {
				t.Error(d)
			}
			if line := got.String(); test.line != "" && line != test.line || strings.Contains(line, "\n") {
				t.Errorf("got  %s\nwant %s", line, test.line)
			}
		})
	}
}

// TestPrecedence takes launchers away one by one, from the strongest.
func TestPrecedence(t *testing.T) {
	// Slurm and the MPIs count as nested unless they agree on the size.
	sized := merge(map[string]string{}, slurmVars)
	sized["SLURM_STEP_NUM_TASKS"], sized["SLURM_STEP_NODELIST"], sized["SLURM_STEP_TASKS_PER_NODE"] = "4", "gpu07", "4"
	mpich := merge(mpichVars, map[string]string{"PMI_SIZE": "4"})
	layers := []map[string]string{weftVars, torchVars, sized, openMPIVars, mpich, lwsVars}
	for i, want := range []string{"WEFT", "torchrun", "Slurm", "Open MPI", "MPICH", "Kubernetes"} {
		e, err := Detect(environ(merge(layers[i:]...)))
		if err != nil || e.Source != want {
			t.Errorf("%s won, want %s (%v)", e.Source, want, err)
		}
	}
}

func TestDetectErrors(t *testing.T) {
	tests := []struct {
		vars    map[string]string
		mention string
	}{
		{map[string]string{"WEFT_RANK": "1"}, "WEFT_SIZE"},
		{map[string]string{"WEFT_SIZE": "2"}, "WEFT_RANK"},
		{map[string]string{"WEFT_RANK": "x", "WEFT_SIZE": "2"}, "WEFT_RANK"},
		{map[string]string{"WEFT_RANK": "-1", "WEFT_SIZE": "2"}, "WEFT_RANK"},
		{map[string]string{"WEFT_RANK": "2", "WEFT_SIZE": "2"}, "WEFT: rank 2 of 2 ranks, want 0 to 1"},
		{map[string]string{"WEFT_RANK": "0", "WEFT_SIZE": "0"}, "WEFT: 0 ranks, want 1 or more"},
		{map[string]string{"WEFT_ADDRESS": "10.0.0.1:29411"}, "set WEFT_RANK and WEFT_SIZE, or unset WEFT_ADDRESS"},
		{map[string]string{"WEFT_STORE": "10.0.0.1:29411"}, "set WEFT_RANK and WEFT_SIZE, or unset WEFT_STORE"},
		{
			map[string]string{"WEFT_RANK": "0", "WEFT_SIZE": "1", "WEFT_LOCAL_RANK": "1", "WEFT_LOCAL_SIZE": "2"},
			"WEFT: 2 ranks on this host, of 1 in all",
		},
		{map[string]string{"WEFT_RANK": "0", "WEFT_SIZE": "99999999999", "WEFT_ADDRESS": "127.0.0.1:4555"}, "WEFT_SIZE"},
		{map[string]string{"WEFT_RANK": "0", "WEFT_SIZE": "1" + strings.Repeat("0", 40)}, "WEFT_SIZE"},
		{merge(torchVars, map[string]string{"WORLD_SIZE": "99999999999"}), "WORLD_SIZE"},
		{merge(torchVars, map[string]string{"WEFT_SIZE": "99999999999"}), "WEFT_SIZE"},
		{merge(slurmVars, map[string]string{"SLURM_STEP_NUM_TASKS": "99999999999"}), "SLURM_STEP_NUM_TASKS"},
		{map[string]string{"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "99999999999"}, "OMPI_COMM_WORLD_SIZE"},
		{map[string]string{"PMI_RANK": "0", "PMI_SIZE": "99999999999"}, "PMI_SIZE"},
		{merge(lwsVars, map[string]string{"LWS_GROUP_SIZE": "99999999999"}), "LWS_GROUP_SIZE"},
		{
			map[string]string{"WEFT_RANK": "0", "WEFT_SIZE": "2", "WEFT_LOCAL_RANK": "2", "WEFT_LOCAL_SIZE": "2"},
			"WEFT: local rank 2 of 2 ranks on this host, want 0 to 1",
		},
		{map[string]string{"WEFT_RANK": "0", "WEFT_SIZE": "2", "WEFT_ID": "nonsense"}, "WEFT_ID"},
		{map[string]string{"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "1"}, "MASTER_ADDR"},
		{map[string]string{"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, "MASTER_PORT"},
		{merge(slurmVars, map[string]string{"SLURM_STEP_NODELIST": "gpu[1-"}), "SLURM_STEP_NODELIST"},
		{merge(slurmVars, map[string]string{"SLURM_STEP_TASKS_PER_NODE": "2(x"}), "SLURM_STEP_TASKS_PER_NODE"},
		{map[string]string{"OMPI_COMM_WORLD_RANK": "0"}, "OMPI_COMM_WORLD_SIZE"},
		{map[string]string{"PMI_RANK": "0"}, "PMI_SIZE"},
		{map[string]string{"LWS_WORKER_INDEX": "0", "LWS_GROUP_SIZE": "2"}, "LWS_LEADER_ADDRESS"},
		{map[string]string{"JOB_COMPLETION_INDEX": "0"}, "WEFT_SIZE"},
	}
	for _, test := range tests {
		_, err := Detect(environ(test.vars))
		if !errors.Is(err, ErrEnvironment) || !strings.Contains(err.Error(), test.mention) {
			t.Errorf("%v: %v", test.vars, err)
		}
	}
}

// TestUnknownHost: an address whose host has no number is in the error, whole.
func TestUnknownHost(t *testing.T) {
	ctx, cancel := context.WithCancel(testContext(t))
	cancel() // nobody is asked
	_, err := DialTCP(ctx, TCPConfig{Rank: 1, Size: 2, Address: "nosuch.invalid:29411"})
	if err == nil || !strings.Contains(err.Error(), "rank 0 at nosuch.invalid:29411: lookup nosuch.invalid") {
		t.Error(err)
	}
}

func TestEnvironmentDial(t *testing.T) {
	ctx := testContext(t)
	t.Run("alone", func(t *testing.T) {
		e, err := Detect(environ(nil))
		if err != nil {
			t.Fatal(err)
		}
		b, err := e.Dial(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		if all, err := b.AllGather(ctx, []byte("me")); err != nil || b.Size() != 1 || len(all) != 1 ||
			string(all[0]) != "me" {
			t.Errorf("%q, %v", all, err)
		}
	})
	t.Run("no address", func(t *testing.T) {
		e, err := Detect(environ(map[string]string{"WEFT_RANK": "1", "WEFT_SIZE": "2"}))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := e.Dial(ctx); !errors.Is(err, ErrEnvironment) || !strings.Contains(err.Error(), "WEFT_ADDRESS") {
			t.Error(err)
		}
	})
	store := startStore(t)
	host, port, _ := strings.Cut(store, ":")
	id, err := NewID(OnLoopback())
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]func(rank string) map[string]string{
		"address": func(rank string) map[string]string {
			return merge(weftVars, map[string]string{"WEFT_RANK": rank, "WEFT_ADDRESS": derivedForTest(t)})
		},
		"unique id": func(rank string) map[string]string {
			return map[string]string{"WEFT_RANK": rank, "WEFT_SIZE": "4", "WEFT_ID": id.String()}
		},
		"torchrun": func(rank string) map[string]string {
			return merge(torchVars, map[string]string{"RANK": rank, "WORLD_SIZE": "4", "MASTER_ADDR": host, "MASTER_PORT": port})
		},
		"open mpi": func(rank string) map[string]string {
			return merge(openMPIVars, map[string]string{
				"OMPI_COMM_WORLD_RANK":       rank,
				"OMPI_COMM_WORLD_LOCAL_RANK": rank, "PMIX_NAMESPACE": derivedForTest(t),
			})
		},
	}
	for name, vars := range kinds {
		t.Run(name, func(t *testing.T) {
			ranks := mustDialAll(t, 4, func(rank int) (Bootstrap, error) {
				e, err := Detect(environ(vars(string(rune('0' + rank)))))
				if err != nil {
					return nil, err
				}
				return e.Dial(ctx)
			})
			for r, err := range onAll(ranks, func(b Bootstrap) error { return b.Barrier(ctx) }) {
				if err != nil {
					t.Errorf("rank %d: %v", r, err)
				}
			}
		})
	}
}

// derivedForTest is the same address for every call of one process.
func derivedForTest(t *testing.T) string {
	return onThisHost(t.Name() + " " + os.Args[0] + " " + strings.Repeat("x", os.Getpid()%97))
}

func TestHostlist(t *testing.T) {
	tests := []struct {
		list string
		want []string
	}{
		{"", nil},
		{"a", []string{"a"}},
		{"node[01-03,7],gpu2", []string{"node01", "node02", "node03", "node7", "gpu2"}},
		{"n[9-11]", []string{"n9", "n10", "n11"}},
		{"n[099-101].example", []string{"n099.example", "n100.example", "n101.example"}},
		{"r[1-2]n[1-2]", []string{"r1n1", "r1n2", "r2n1", "r2n2"}},
		{"[1-2]", []string{"1", "2"}},
	}
	for _, test := range tests {
		got, err := expandHostlist(test.list)
		if err != nil {
			t.Errorf("%q: %v", test.list, err)
		}
		if d := cmp.Diff(test.want, got); d != "" {
			t.Errorf("%q: %s", test.list, d)
		}
	}
	for _, list := range []string{
		"a[", "a]", "a[1", "a[[1]]", "a[]", "a[x]", "a[2-1]", "a[1-]", ",a", "a,",
		"a,,b", "a[1-99999999]", "a[0-999]b[0-999]", "a[-1]",
	} {
		if got, err := expandHostlist(list); err == nil {
			t.Errorf("%q expands to %d names", list, len(got))
		}
	}
}

func TestCounts(t *testing.T) {
	got, err := expandCounts("2(x3),1")
	if d := cmp.Diff([]int{2, 2, 2, 1}, got); err != nil || d != "" {
		t.Error(err, d)
	}
	for _, list := range []string{"", "x", "2(x)", "2(x3", "2(3)", "2,", "-1", "1(x999999999)"} {
		if got, err := expandCounts(list); err == nil {
			t.Errorf("%q expands to %v", list, got)
		}
	}
}

func FuzzHostlist(f *testing.F) {
	for _, s := range []string{"node[01-03,7],gpu2", "a[1-2]b[3-4],c", "a[", "a[0-65535]", "2(x3),1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		hosts, err := expandHostlist(s)
		if err == nil && len(hosts) > maxHosts {
			t.Fatalf("%d hosts", len(hosts))
		}
		for _, h := range hosts {
			if h == "" {
				t.Fatal("empty host")
			}
		}
		if counts, err := expandCounts(s); err == nil && len(counts) > maxHosts {
			t.Fatalf("%d counts", len(counts))
		}
	})
}
