package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	epicepoch "github.com/epicepoch/epicepoch/clients/go"
	"github.com/pingcap/kvproto/pkg/pdpb"
	pd "github.com/tikv/pd/client"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

const (
	pdCallers     = 16
	httpCallers   = 3
	nativeCallers = 3
	oracleCallers = 4
	// between is the time from one kill to the next. In it, a killed node comes back.
	between = 3 * time.Second
)

// judge checks what PD's client relies on, and then the order of all answers while leaders are
// killed.
func judge(binary string, kills int) error {
	if err := refusals(binary); err != nil {
		return err
	}
	if err := moved(binary); err != nil {
		return err
	}
	c, err := startServing(binary)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := facts(c); err != nil {
		return fmt.Errorf("%w\n%s", err, c.Logs())
	}
	ours, err := oracleFacts(c)
	if err == nil {
		err = watched(c)
	}
	if err != nil {
		return fmt.Errorf("our own service: %w\n%s", err, c.Logs())
	}
	r, err := underKills(c, ours, kills)
	if err != nil {
		return fmt.Errorf("%w\n%s", err, c.Logs())
	}
	return r.verdict(kills)
}

// refusals checks that a node without PD_WIRE, and a cluster with wide timestamps, say no.
func refusals(binary string) error {
	for _, test := range []struct {
		settings []string
		code     codes.Code
		text     string
	}{
		{[]string{"TIMESTAMP_FORMAT=compact"}, codes.Unimplemented, "404"},
		{[]string{"PD_WIRE=on"}, codes.FailedPrecondition, "TIMESTAMP_FORMAT=compact"},
	} {
		c, err := startCluster(binary, test.settings...)
		if err != nil {
			return err
		}
		err = func() error {
			conn, err := dial(c.http[0])
			if err != nil {
				return err
			}
			defer conn.Close()
			ctx, cancel := context.WithTimeout(context.Background(), deadline)
			defer cancel()
			_, err = pdpb.NewPDClient(conn).GetMembers(ctx, &pdpb.GetMembersRequest{})
			return expect(fmt.Sprint("GetMembers with ", test.settings), err, test.code, test.text)
		}()
		if err := errors.Join(err, c.Close()); err != nil {
			return err
		}
	}
	return nil
}

// moved checks that a cluster begins above the timestamps of the oracle before it, even if those are
// ahead of the clock.
func moved(binary string) error {
	floor := time.Now().Add(2 * time.Second).UnixMilli()
	c, err := startServing(binary, fmt.Sprintf("RESTORE_FLOOR=%dms", floor), "RESTORE_LEASE_MS=0")
	if err != nil {
		return err
	}
	defer c.Close()
	client, err := pd.NewClient(c.http, pd.SecurityOption{})
	if err != nil {
		return err
	}
	defer client.Close()
	r := newRun()
	r.call(context.Background(), "pd", askPD(client))
	if len(r.answers) != 1 || r.answers[0].first>>indexBits < uint64(floor) {
		return fmt.Errorf("with the floor %d: %v, %v", floor, r.answers, r.missed)
	}
	return nil
}

// startServing starts a cluster that serves clients of PD. A new cluster gives compact timestamps a
// moment after its start, when all nodes are known to understand that setting.
func startServing(binary string, settings ...string) (*cluster, error) {
	c, err := startCluster(binary, append(settings, "PD_WIRE=on", "GRPC=on", "TIMESTAMP_FORMAT=compact")...)
	if err != nil {
		return nil, err
	}
	for _, addr := range c.http {
		conn, err := dial(addr)
		if err == nil {
			err = until(func() bool {
				ctx, cancel := context.WithTimeout(context.Background(), askWithin)
				defer cancel()
				_, err := pdpb.NewPDClient(conn).GetMembers(ctx, &pdpb.GetMembersRequest{})
				return err == nil
			})
			conn.Close()
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s serves no client of PD: %w\n%s", addr, err, c.Logs()), c.Close())
		}
	}
	return c, nil
}

func dial(addr string) (*grpc.ClientConn, error) {
	return grpc.Dial(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// expect compares an error with a code and a part of its text.
func expect(what string, err error, code codes.Code, text string) error {
	got, _ := status.FromError(err)
	if got.Code() != code || !strings.Contains(got.Message(), text) {
		return fmt.Errorf("%s: %v; expected %v with %q", what, err, code, text)
	}
	return nil
}

// facts checks the answers of a leader and a follower, one by one.
func facts(c *cluster) error {
	leader, err := c.Leader()
	if err != nil {
		return err
	}
	follower := (leader + 1) % members
	ctx, cancel := context.WithTimeout(context.Background(), 2*deadline)
	defer cancel()
	var conns []*grpc.ClientConn
	for _, addr := range []string{c.http[leader], c.http[follower]} {
		conn, err := dial(addr)
		if err != nil {
			return err
		}
		defer conn.Close()
		conns = append(conns, conn)
	}
	cluster := uint64(0)
	for _, conn := range conns {
		client := pdpb.NewPDClient(conn)
		got, err := client.GetMembers(ctx, &pdpb.GetMembersRequest{})
		if err != nil {
			return err
		}
		var urls []string
		for _, member := range got.GetMembers() {
			urls = append(urls, member.GetClientUrls()...)
		}
		var expected []string
		for _, addr := range c.http {
			expected = append(expected, "http://"+addr)
		}
		slices.Sort(urls)
		slices.Sort(expected)
		if !slices.Equal(urls, expected) {
			return fmt.Errorf("members: %v, expected %v", urls, expected)
		}
		if led := got.GetLeader().GetClientUrls(); len(led) != 1 || led[0] != "http://"+c.http[leader] {
			return fmt.Errorf("leader: %v, expected %s", led, c.http[leader])
		}
		if id := got.GetHeader().GetClusterId(); id == 0 || cluster != 0 && id != cluster {
			return fmt.Errorf("cluster ids: %d and %d", cluster, id)
		}
		cluster = got.GetHeader().GetClusterId()
		info, err := client.GetClusterInfo(ctx, &pdpb.GetClusterInfoRequest{})
		if err != nil || !slices.Equal(info.GetServiceModes(), []pdpb.ServiceMode{pdpb.ServiceMode_PD_SVC_MODE}) {
			return fmt.Errorf("cluster info: %v, %v", info, err)
		}
		_, err = client.AllocID(ctx, &pdpb.AllocIDRequest{})
		if err := expect("AllocID", err, codes.Unimplemented, "AllocID"); err != nil {
			return err
		}
		health := healthpb.NewHealthClient(conn)
		checked, err := health.Check(ctx, &healthpb.HealthCheckRequest{})
		if err != nil || checked.GetStatus() != healthpb.HealthCheckResponse_SERVING {
			return fmt.Errorf("health: %v, %v", checked, err)
		}
		_, err = health.Check(ctx, &healthpb.HealthCheckRequest{Service: "no.such.Service"})
		if err := expect("health of another service", err, codes.NotFound, "no such service"); err != nil {
			return err
		}
	}
	request := func(cluster uint64, count uint32) *pdpb.TsoRequest {
		return &pdpb.TsoRequest{Header: &pdpb.RequestHeader{ClusterId: cluster}, Count: count}
	}
	for _, test := range []struct {
		what    string
		conn    *grpc.ClientConn
		request *pdpb.TsoRequest
		code    codes.Code
		text    string
	}{
		{"another cluster", conns[0], request(cluster+1, 1), codes.FailedPrecondition, "mismatch cluster id"},
		{"no timestamps", conns[0], request(cluster, 0), codes.InvalidArgument, "count is 0"},
		{"too many", conns[0], request(cluster, 1<<indexBits+1), codes.InvalidArgument, "count is 262145"},
		{"a follower", conns[1], request(cluster, 1), codes.Unavailable, "not leader"},
	} {
		stream, err := pdpb.NewPDClient(test.conn).Tso(ctx)
		if err != nil {
			return err
		}
		if err := stream.Send(test.request); err != nil {
			return err
		}
		_, err = stream.Recv()
		if err := expect("Tso, "+test.what, err, test.code, test.text); err != nil {
			return err
		}
	}
	return pipelined(ctx, pdpb.NewPDClient(conns[0]), request, cluster)
}

// pipelined sends many requests before it reads. The answers come in order, each with the count of
// its request, and the logical part of the last timestamp.
func pipelined(
	ctx context.Context, client pdpb.PDClient, request func(uint64, uint32) *pdpb.TsoRequest, cluster uint64,
) error {
	const requests = 500
	stream, err := client.Tso(ctx)
	if err != nil {
		return err
	}
	for at := range requests {
		if err := stream.Send(request(cluster, uint32(at%97+1))); err != nil {
			return err
		}
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	last := uint64(0)
	for at := range requests {
		got, err := stream.Recv()
		if err != nil {
			return err
		}
		count := uint64(at%97 + 1)
		time, logical := got.GetTimestamp().GetPhysical(), uint64(got.GetTimestamp().GetLogical())
		if uint64(got.GetCount()) != count || logical+1 < count || logical >= 1<<indexBits {
			return fmt.Errorf("answer %d: %v", at, got)
		}
		first := uint64(time)<<indexBits | (logical + 1 - count)
		if first <= last {
			return fmt.Errorf("answer %d begins at %d, after %d", at, first, last)
		}
		last = first + count - 1
	}
	if got, err := stream.Recv(); err == nil || err.Error() != "EOF" {
		return fmt.Errorf("after the last answer: %v, %v", got, err)
	}
	return nil
}

// underKills runs callers of all protocols at once, and kills leaders meanwhile.
func underKills(c *cluster, own *definition, kills int) (*run, error) {
	client, err := pd.NewClient(c.http, pd.SecurityOption{})
	if err != nil {
		return nil, err
	}
	defer client.Close()
	ours, err := epicepoch.Dial(context.Background(), c.http)
	if err != nil {
		return nil, err
	}
	defer ours.Close()
	r := newRun()
	ctx, cancel := context.WithCancel(context.Background())
	var callers sync.WaitGroup
	begin := func(by string, ask func(context.Context) (uint64, uint64, error)) {
		callers.Add(1)
		go func() {
			defer callers.Done()
			for ctx.Err() == nil {
				r.call(ctx, by, ask)
			}
		}()
	}
	for range pdCallers {
		begin("pd", askPD(client))
	}
	for at := range httpCallers {
		begin("http", askHTTP(c, uint64(1+at*50)))
	}
	for at := range nativeCallers {
		begin("native", askNative(ours, uint64(1+at*50)))
	}
	for at := range oracleCallers {
		begin("grpc", askOracle(c, own, uint64(1+at*50), at%2 == 0))
	}
	err = killLeaders(c, kills, func(time.Time) {})
	cancel()
	callers.Wait()
	return r, err
}

// killLeaders kills the leader that there is, again and again. Each killed node comes back.
func killLeaders(c *cluster, kills int, killed func(time.Time)) error {
	time.Sleep(between / 2)
	for range kills {
		leader, err := c.Leader()
		if err != nil {
			return err
		}
		killed(time.Now())
		if err := c.Kill(leader); err != nil {
			return err
		}
		time.Sleep(between / 2)
		if err := c.Restart(leader); err != nil {
			return err
		}
		time.Sleep(between / 2)
	}
	return nil
}

// verdict prints what a run has shown. It fails if something was wrong.
func (r *run) verdict(kills int) error {
	counts := map[string]int{}
	for _, one := range r.answers {
		counts[one.by]++
	}
	fmt.Printf("%d leaders killed; calls answered: pd %d, http %d, native %d, grpc %d\n",
		kills, counts["pd"], counts["http"], counts["native"], counts["grpc"])
	for text, times := range r.errors {
		fmt.Printf("PD's client returned %d times: %s\n", times, text)
	}
	for by, least := range map[string]int{"pd": 1000, "http": 500, "native": 500, "grpc": 500} {
		if counts[by] < least {
			return fmt.Errorf("only %d calls of %s were answered", counts[by], by)
		}
	}
	if len(r.missed) > 0 {
		return fmt.Errorf("%d calls had no answer within %v, such as %s", len(r.missed), deadline, r.missed[0])
	}
	if found := disorder(r.answers); len(found) > 0 {
		return errors.New(strings.Join(found, "\n"))
	}
	fmt.Printf("%d answers: no timestamp twice, one order, no call missed its deadline of %v\n", len(r.answers), deadline)
	return nil
}
