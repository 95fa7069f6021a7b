// Command storm measures what repeats do to an origin that is in trouble: an outage of 2 s
// that is answered with 503, a stall of 2 s, and clients that fail at the same millisecond.
// It runs on real sockets of the loopback interface, compares no repeats, a naive loop and
// retrip with and without its budget, and exits with 1 where a bound does not hold.
//
//	go run .                   the experiment, under a minute; charts go to a folder it names
//	go run . -out ../../docs   the same; charts and table go there
//	go run . -long             with 60 s of normal traffic before each outage
//	go run . -short            a quick look with wider bounds, without charts
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "storm:", err)
		os.Exit(1)
	}
}

// A plan is how long and how often everything is done.
type plan struct {
	warm   time.Duration // normal traffic before an outage; one more kind has 1 s of it
	tail   time.Duration // after an outage, as long as recovery is looked for
	herds  int
	limits limits
	// policies are compared: the first does not repeat, the second has no jitter, the last one's
	// bounds are checked.
	policies []policy
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("storm", flag.ContinueOnError)
	short := flags.Bool("short", false, "a quick look with wider bounds, without charts")
	long := flags.Bool("long", false, "60 s of normal traffic before each outage")
	dir := flags.String("out", "", "folder for the charts and the table; default: a new one")
	if err := flags.Parse(args); err != nil {
		return err
	}
	began := time.Now()
	p := plan{warm: 10 * time.Second, tail: 9 * time.Second, herds: 5, limits: strict, policies: policies}
	switch {
	case *short:
		p = plan{warm: time.Second, tail: 3500 * time.Millisecond, herds: 1, limits: wide, policies: []policy{policies[0], policies[1], policies[ours]}}
	case *long:
		p.warm = time.Minute
	}

	r, err := measureCalmly(ctx, p, out)
	if err != nil {
		return err
	}
	r.took = time.Since(began)
	fmt.Fprint(out, r.table())
	if !*short {
		if err := write(*dir, r, out); err != nil {
			return err
		}
	}
	return r.judge(p.limits, out)
}

// measureCalmly measures again, up to twice, where the machine did so much else that the
// result says nothing.
func measureCalmly(ctx context.Context, p plan, out io.Writer) (*report, error) {
	for try := 1; ; try++ {
		r, err := measure(ctx, p)
		if err == nil {
			err = r.control()
		}
		if err == nil || try == 3 || !errors.Is(err, errBusy) {
			return r, err
		}
		fmt.Fprintf(out, "%v; once more\n", err)
	}
}

// measure does the experiments. Those of an outage run at the same time, each with an origin
// and clients of its own; they leave most of two cores idle.
func measure(ctx context.Context, p plan) (*report, error) {
	const length = 2 * time.Second
	kinds := []outage{
		{fault: answers503, warm: p.warm, length: length, tail: p.tail},
		{fault: stalls, warm: p.warm, length: length, tail: p.tail},
	}
	if p.warm > time.Second {
		kinds = append(kinds, outage{fault: answers503, warm: time.Second, length: length, tail: 3 * time.Second})
	}
	r := &report{}
	for _, kind := range kinds {
		for _, kind.policy = range p.policies {
			r.outages = append(r.outages, kind)
		}
	}
	if err := together(ctx, r.outages); err != nil {
		return nil, err
	}
	for _, policy := range p.policies[1:] { // without repeats there is no herd
		failing, err := herds(ctx, herd{clients: 50, policy: policy}, p.herds)
		if err != nil {
			return nil, err
		}
		told, err := herds(ctx, herd{clients: 50, policy: policy, retryAfter: 1}, 1)
		if err != nil {
			return nil, err
		}
		r.failing, r.told = append(r.failing, failing), append(r.told, told)
	}
	return r, nil
}
