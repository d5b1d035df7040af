package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

const (
	oracleName = "epicepoch.v1.Oracle"
	getOne     = "/epicepoch.v1.Oracle/GetTimestamp"
	getStream  = "/epicepoch.v1.Oracle/StreamTimestamps"
	getMembers = "/epicepoch.v1.Oracle/GetMembers"
	getFirst   = "/api.v1.HybridTimestampAPI/GetTimestamp"
)

// definition has the messages of our own service, as a node describes them. There is no generated code.
type definition struct{ file protoreflect.FileDescriptor }

// reflected asks a node for the services that it has and for the definition of ours.
func reflected(ctx context.Context, conn *grpc.ClientConn) (*definition, error) {
	stream, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		return nil, err
	}
	ask := func(request *reflectionpb.ServerReflectionRequest) (*reflectionpb.ServerReflectionResponse, error) {
		if err := stream.Send(request); err != nil {
			return nil, err
		}
		return stream.Recv()
	}
	list, err := ask(&reflectionpb.ServerReflectionRequest{
		MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{},
	})
	if err != nil {
		return nil, err
	}
	services := list.GetListServicesResponse().GetService()
	if len(services) != 4 {
		return nil, fmt.Errorf("services: %v", services)
	}
	var ours *definition
	for _, service := range services {
		answer, err := ask(&reflectionpb.ServerReflectionRequest{
			MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{
				FileContainingSymbol: service.GetName(),
			},
		})
		if err != nil {
			return nil, err
		}
		files := answer.GetFileDescriptorResponse().GetFileDescriptorProto()
		if len(files) != 1 {
			return nil, fmt.Errorf("%s: %v", service.GetName(), answer)
		}
		var described descriptorpb.FileDescriptorProto
		if err := proto.Unmarshal(files[0], &described); err != nil {
			return nil, err
		}
		file, err := protodesc.NewFile(&described, nil)
		if err != nil {
			return nil, err
		}
		name := protoreflect.FullName(service.GetName())
		if file.Services().ByName(name.Name()) == nil {
			return nil, fmt.Errorf("%s does not define %s", file.Path(), name)
		}
		if service.GetName() == oracleName {
			ours = &definition{file}
		}
	}
	if ours == nil {
		return nil, fmt.Errorf("%v: no %s", services, oracleName)
	}
	return ours, stream.CloseSend()
}

func (d *definition) message(name protoreflect.Name) *dynamicpb.Message {
	return dynamicpb.NewMessage(d.file.Messages().ByName(name))
}

// request makes a request for compact timestamps.
func (d *definition) request(count uint64, compact bool) *dynamicpb.Message {
	request := d.message("TimestampRequest")
	fields := request.Descriptor().Fields()
	request.Set(fields.ByName("count"), protoreflect.ValueOfUint64(count))
	request.Set(fields.ByName("compact"), protoreflect.ValueOfBool(compact))
	return request
}

// field reads a field of a message.
func field(message protoreflect.Message, name protoreflect.Name) protoreflect.Value {
	return message.Get(message.Descriptor().Fields().ByName(name))
}

// given checks an answer and returns its first compact timestamp.
func given(answer protoreflect.Message, count uint64) (uint64, uint64, error) {
	bytes := field(answer, "timestamp").Bytes()
	compacted, proof := field(answer, "compact").Uint(), field(answer, "proof").Enum()
	if len(bytes) != 16 || field(answer, "count").Uint() != count || proof != 1 {
		return 0, 0, fmt.Errorf("answer: %v", answer.Interface())
	}
	first, err := compact(binary.BigEndian.Uint64(bytes), binary.BigEndian.Uint64(bytes[8:]))
	if err == nil && first != compacted {
		err = fmt.Errorf("%d and %x are not the same", compacted, bytes)
	}
	return first, count, err
}

// leaderOf returns the address in the details of an error, if it has some.
func leaderOf(err error) string {
	for _, detail := range status.Convert(err).Details() {
		if message, ok := detail.(proto.Message); ok {
			reflected := message.ProtoReflect()
			if reflected.Descriptor().Name() == "ErrNotLeader" {
				return field(reflected, "address").String()
			}
		}
	}
	return ""
}

// oracleFacts checks our own service at a leader and at a follower, one answer after another.
func oracleFacts(c *cluster) (*definition, error) {
	leader, err := c.Leader()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*deadline)
	defer cancel()
	ours, conns := (*definition)(nil), make([]*grpc.ClientConn, 2)
	for at, addr := range []string{c.http[leader], c.http[(leader+1)%members]} {
		if conns[at], err = dial(addr); err != nil {
			return nil, err
		}
		defer conns[at].Close()
		if ours, err = reflected(ctx, conns[at]); err != nil {
			return nil, err
		}
	}
	detail := dynamicpb.NewMessageType(ours.file.Messages().ByName("ErrNotLeader"))
	if err := protoregistry.GlobalTypes.RegisterMessage(detail); err != nil {
		return nil, err
	}
	answer := ours.message("TimestampResponse")
	if err := conns[0].Invoke(ctx, getOne, ours.request(3, true), answer); err != nil {
		return nil, err
	}
	first, _, err := given(answer, 3)
	if err != nil {
		return nil, err
	}
	// The message of the first service has one field, which is also the first of ours.
	old := dynamicpb.NewMessage(ours.file.Messages().ByName("TimestampResponse"))
	if err := conns[0].Invoke(ctx, getFirst, ours.message("MembersRequest"), old); err != nil {
		return nil, err
	}
	bytes := field(old, "timestamp").Bytes()
	if len(bytes) != 16 || field(old, "count").Uint() != 0 {
		return nil, fmt.Errorf("the first service answers %v", old)
	}
	if next, err := compact(binary.BigEndian.Uint64(bytes), binary.BigEndian.Uint64(bytes[8:])); err != nil || next < first+3 {
		return nil, fmt.Errorf("%d after %d: %v", next, first, err)
	}
	err = conns[1].Invoke(ctx, getOne, ours.request(1, true), answer)
	if err := expect("a follower", err, codes.Unavailable, "not leader"); err != nil {
		return nil, err
	}
	if leaderOf(err) != c.http[leader] {
		return nil, fmt.Errorf("the details of %v name %q, expected %s", err, leaderOf(err), c.http[leader])
	}
	for at, expected := range []healthpb.HealthCheckResponse_ServingStatus{
		healthpb.HealthCheckResponse_SERVING, healthpb.HealthCheckResponse_NOT_SERVING,
	} {
		health := healthpb.NewHealthClient(conns[at])
		checked, err := health.Check(ctx, &healthpb.HealthCheckRequest{Service: oracleName})
		if err != nil || checked.GetStatus() != expected {
			return nil, fmt.Errorf("health: %v, %v; expected %v", checked, err, expected)
		}
		all := ours.message("MembersResponse")
		if err := conns[at].Invoke(ctx, getMembers, ours.message("MembersRequest"), all); err != nil {
			return nil, err
		}
		var addresses []string
		list := field(all, "members").List()
		for at := range list.Len() {
			addresses = append(addresses, field(list.Get(at).Message(), "address").String())
		}
		if !slices.Equal(addresses, c.http) || field(all, "leader").Uint() != uint64(leader+1) {
			return nil, fmt.Errorf("members: %v", all)
		}
	}
	return ours, slowReader(ctx, ours, conns[0])
}

// slowReader sends many more requests than fit into all windows before it reads an answer. None may
// be lost.
func slowReader(ctx context.Context, ours *definition, conn *grpc.ClientConn) error {
	const requests = 50_000
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, getStream)
	if err != nil {
		return err
	}
	var count atomic.Int64
	sent := make(chan error, 1)
	go func() {
		request := ours.request(1, true)
		for range requests {
			if err := stream.SendMsg(request); err != nil {
				sent <- err
				return
			}
			count.Add(1)
		}
		sent <- stream.CloseSend()
	}()
	// The client may not send all: answers must be read first. It stands still when it has sent nothing for a while.
	for before := int64(-1); before != count.Load(); {
		before = count.Load()
		select {
		case err := <-sent:
			return fmt.Errorf("%d requests were taken before any answer was read (%v)", requests, err)
		case <-time.After(500 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	last := uint64(0)
	for at := range requests {
		answer := ours.message("TimestampResponse")
		if err := stream.RecvMsg(answer); err != nil {
			return fmt.Errorf("answer %d: %w", at, err)
		}
		first, _, err := given(answer, 1)
		if err != nil || first <= last {
			return fmt.Errorf("answer %d is %d, after %d: %v", at, first, last, err)
		}
		last = first
	}
	if err := stream.RecvMsg(ours.message("TimestampResponse")); !errors.Is(err, io.EOF) {
		return fmt.Errorf("after the last answer: %v", err)
	}
	return <-sent
}

// watched checks that a health check which stays open follows leadership, while the leader is killed.
func watched(c *cluster) error {
	leader, err := c.Leader()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), readyWithin)
	defer cancel()
	told := make(chan healthpb.HealthCheckResponse_ServingStatus, 2*members)
	for at, addr := range c.http {
		if at == leader {
			continue
		}
		conn, err := dial(addr)
		if err != nil {
			return err
		}
		defer conn.Close()
		stream, err := healthpb.NewHealthClient(conn).Watch(ctx, &healthpb.HealthCheckRequest{Service: oracleName})
		if err != nil {
			return err
		}
		if first, err := stream.Recv(); err != nil || first.GetStatus() != healthpb.HealthCheckResponse_NOT_SERVING {
			return fmt.Errorf("a follower's health: %v, %v", first, err)
		}
		go func() {
			for {
				next, err := stream.Recv()
				if err != nil {
					return
				}
				told <- next.GetStatus()
			}
		}()
	}
	if err := c.Kill(leader); err != nil {
		return err
	}
	select {
	case next := <-told:
		if next != healthpb.HealthCheckResponse_SERVING {
			return fmt.Errorf("after the leader was killed: %v", next)
		}
	case <-ctx.Done():
		return errors.New("no follower's health has changed after the leader was killed")
	}
	return c.Restart(leader)
}

// askOracle asks our own service, with a call for each answer or on one stream, and follows the leader.
func askOracle(c *cluster, ours *definition, count uint64, streams bool) func(context.Context) (uint64, uint64, error) {
	conns := map[string]*grpc.ClientConn{}
	leader, next := c.http[0], 0
	var stream grpc.ClientStream
	endStream := func() {}
	return func(ctx context.Context) (uint64, uint64, error) {
		conn, err := conns[leader], error(nil)
		if conn == nil {
			if conn, err = dial(leader); err != nil {
				return 0, 0, err
			}
			conns[leader] = conn
		}
		answer := ours.message("TimestampResponse")
		// A node that was paused or killed must not hold a caller until its deadline.
		callCtx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if streams {
			if stream == nil {
				// The stream lives longer than this call.
				var streamCtx context.Context
				streamCtx, endStream = context.WithCancel(context.Background())
				desc := &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}
				stop := context.AfterFunc(callCtx, endStream)
				stream, err = conn.NewStream(streamCtx, desc, getStream)
				stop()
			}
			if err == nil {
				stop := context.AfterFunc(callCtx, endStream)
				defer stop()
				// An error of SendMsg is EOF; RecvMsg has the reason.
				_ = stream.SendMsg(ours.request(count, true))
				err = stream.RecvMsg(answer)
			}
		} else {
			err = conn.Invoke(callCtx, getOne, ours.request(count, true), answer)
		}
		if err == nil {
			return given(answer, count)
		}
		endStream()
		stream = nil
		if addr := leaderOf(err); addr != "" {
			leader = addr
		} else {
			next++
			leader = c.http[next%members]
		}
		return 0, 0, err
	}
}
