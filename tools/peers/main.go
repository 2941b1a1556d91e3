// Command peers times several programs of a collective against one another and prints one table: the
// median of the rounds' p50 by size, and the fastest. The programs take turns within a round, so that
// what else the machine is doing falls on all of them alike.
//
//	peers -op allreduce -ranks 2 weft='build/weft bench allreduce --ranks 2 --json' openmpi='mpirun ...'
//
// A program prints one JSON object a line with at least op, bytes, p50_us and verified; other lines
// are ignored. A program that fails, or does not verify what it computed,
// makes the exit code 1.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"time"
)

// engine is one contender: a name for the table and a command for the shell.
type engine struct {
	name    string
	command string
}

func main() {
	op := flag.String("op", "allreduce", "the collective, as op of a row names it")
	ranks := flag.Int("ranks", 2, "ranks, for the title of the table")
	rounds := flag.Int("rounds", 5, "rounds; each runs every program once")
	limit := flag.Duration("timeout", 5*time.Minute, "longest time for one run of one program")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := compare(ctx, *op, *ranks, *rounds, *limit, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

func compare(ctx context.Context, op string, ranks, rounds int, limit time.Duration, args []string) error {
	var engines []engine
	var names []string
	for _, arg := range args {
		name, command, ok := strings.Cut(arg, "=")
		if !ok {
			return fmt.Errorf("%q is not NAME=COMMAND", arg)
		}
		engines = append(engines, engine{name, command})
		names = append(names, name)
	}
	t := newTable(op, names)
	for round := 1; round <= rounds; round++ {
		for _, e := range engines {
			fmt.Fprintf(os.Stderr, "%s, %d ranks, round %d of %d: %s\n", op, ranks, round, rounds, e.name)
			output, err := run(ctx, e.command, limit)
			if err != nil {
				return fmt.Errorf("%s: %w", e.name, err)
			}
			if err := t.add(e.name, output); err != nil {
				return fmt.Errorf("%s: %w", e.name, err)
			}
		}
	}
	t.write(os.Stdout, ranks, rounds)
	return nil
}

// run returns what a command printed on standard output. It is killed at the limit, its descendants
// included, so that a launcher leaves no ranks behind.
func run(ctx context.Context, command string, limit time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", command)
	ownGroup(cmd)
	cmd.WaitDelay = 10 * time.Second
	cmd.Stderr = os.Stderr
	output, err := cmd.Output()
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%w after at most %v: %s", ctx.Err(), limit, command)
	}
	return output, err
}
