// Program pd judges a cluster with PD's own client (github.com/tikv/pd/client), which TiDB and TiKV's
// tools use, and our own gRPC service with grpc-go. It starts three nodes with PD_WIRE=on and GRPC=on,
// and kills leaders.
//
//	pd judge BINARY [--kills N]                 what both may expect, and one order under kills
//	pd measure BINARY [--seconds S] [--lease]   timestamps per second and p50 with 1, 100, 1000 callers
//	pd measure http://HOST:PORT[,...]           the same of a PD that runs, for comparison
//	pd gaps BINARY [--kills N]                  how long PD's client has no timestamp after a kill
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"

	"github.com/pingcap/log"
	"go.uber.org/zap/zapcore"
)

func main() {
	if err := command(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "pd:", err)
		os.Exit(1)
	}
}

func command(args []string) error {
	usage := errors.New("usage: pd judge|measure|gaps BINARY [--kills N] [--seconds S] [--lease] [--log]")
	if len(args) < 2 {
		return usage
	}
	flags := flag.NewFlagSet("pd", flag.ContinueOnError)
	kills := flags.Int("kills", 4, "how many leaders are killed, 1 to 100")
	seconds := flags.Int("seconds", 5, "how long a measurement takes, 1 to 60 s")
	isByLease := flags.Bool("lease", false, "the measured nodes answer by a lease of 200 ms")
	shown := flags.Bool("log", false, "shows the log of PD's client")
	if err := flags.Parse(args[2:]); err != nil {
		return err
	}
	if flags.NArg() != 0 || *kills < 1 || *kills > 100 || *seconds < 1 || *seconds > 60 {
		return usage
	}
	if !*shown {
		log.SetLevel(zapcore.DPanicLevel)
	}
	switch args[0] {
	case "judge":
		return judge(args[1], *kills)
	case "measure":
		return measure(args[1], *seconds, *isByLease)
	case "gaps":
		return gaps(args[1], *kills)
	default:
		return usage
	}
}
