package io.github.epicepoch;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.io.DataInputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Supplier;

/** A node whose behaviour a test decides. */
final class ScriptedNode implements AutoCloseable {
    static final Cluster CLUSTER = new Cluster("01".repeat(16), 1);

    /** What the node does with a request. */
    interface Asked {
        void asked(Peer to, long id, long count);
    }

    final long id;
    /** The numbers of requests, pings and connections that came to the node. */
    final AtomicInteger asked = new AtomicInteger();

    final AtomicInteger pings = new AtomicInteger();
    final AtomicInteger met = new AtomicInteger();
    final BlockingQueue<byte[]> hellos = new LinkedBlockingQueue<>();
    /** The welcome, as bytes. If it is null, the node accepts connections and says nothing. */
    volatile Supplier<byte[]> onHello = () -> welcome(this).toBytes();

    volatile Asked script = (to, id, count) -> {};

    private final ServerSocket listener;
    private final List<Peer> peers = new ArrayList<>();

    ScriptedNode(long id) {
        this(id, listen());
    }

    ScriptedNode(long id, ServerSocket listener) {
        this.id = id;
        this.listener = listener;
        daemon(this::accept);
    }

    private static ServerSocket listen() {
        try {
            return new ServerSocket(0, 64, InetAddress.getByName("127.0.0.1"));
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    static void daemon(Runnable task) {
        Thread thread = new Thread(task);
        thread.setDaemon(true);
        thread.start();
    }

    String address() {
        return "127.0.0.1:" + listener.getLocalPort();
    }

    /** Returns a welcome that names this leader, or no leader if it is null. */
    EditableWelcome welcome(ScriptedNode leader) {
        EditableWelcome welcome = new EditableWelcome(id);
        welcome.members.add(new Member(id, address()));
        welcome.leader = leader == null ? null : new Member(leader.id, leader.address());
        return welcome;
    }

    private void accept() {
        try {
            while (true) {
                Peer peer = new Peer(listener.accept(), met.get() + 1);
                synchronized (peers) {
                    peers.add(peer);
                }
                met.incrementAndGet();
                daemon(() -> converse(peer));
            }
        } catch (IOException closed) {
            // The test is over.
        }
    }

    private void converse(Peer with) {
        try (with) {
            var in = new DataInputStream(with.socket.getInputStream());
            byte[] head = new byte[Frame.HEAD_BYTES];
            while (true) {
                in.readFully(head);
                ByteBuffer fields = ByteBuffer.wrap(head);
                int kind = fields.get(0) & 0xff;
                int argument = fields.getInt(4);
                long frame = fields.getLong(8);
                if (kind == Frame.HELLO) {
                    byte[] tail = in.readNBytes(argument);
                    hellos.add(ByteBuffer.allocate(head.length + argument).put(head).put(tail).array());
                    byte[] said = onHello.get();
                    with.say(said == null ? new byte[0] : said);
                } else if (kind == Frame.REQUEST) {
                    asked.incrementAndGet();
                    script.asked(with, frame, (argument & 0xffff_ffffL) + 1);
                } else if (kind == Frame.PING) {
                    pings.incrementAndGet();
                    with.say(Frame.pong(frame));
                } else if (kind == Frame.PONG) {
                    with.pongs.incrementAndGet();
                }
            }
        } catch (IOException closed) {
            // The client has left.
        }
    }

    void hangUp() {
        synchronized (peers) {
            peers.forEach(Peer::close);
            peers.clear();
        }
    }

    @Override
    public void close() {
        try {
            listener.close();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
        hangUp();
    }

    /** A client's connection, on the node's side. */
    static final class Peer implements AutoCloseable {
        final Socket socket;
        /** Counts the connections to the node, from 1. */
        final int number;
        final AtomicInteger pongs = new AtomicInteger();

        Peer(Socket socket, int number) {
            this.socket = socket;
            this.number = number;
        }

        synchronized void say(byte[] bytes) {
            try {
                socket.getOutputStream().write(bytes);
            } catch (IOException closed) {
                // The client has left.
            }
        }

        void answer(long id, long count, Timestamp first) {
            ByteBuffer frame = ByteBuffer.allocate(Frame.HEAD_BYTES + Timestamp.BYTES);
            Frame.putHead(frame, Frame.ANSWER, 0, 0, count - 1, id);
            say(frame.put(first.toBytes()).array());
        }

        void refuse(long id, int code, String text) {
            say(frame(Frame.ERROR, 0, code, id, text.getBytes(UTF_8)));
        }

        @Override
        public void close() {
            try {
                socket.close();
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }
    }

    static byte[] frame(int kind, int flags, int code, long id, byte[] tail) {
        ByteBuffer frame = ByteBuffer.allocate(Frame.HEAD_BYTES + tail.length);
        Frame.putHead(frame, kind, flags, code, tail.length, id);
        return frame.put(tail).array();
    }

    static byte[] leaderNotice(long node, String address) {
        return frame(Frame.LEADER, 0, 0, node, address.getBytes(UTF_8));
    }

    /** A welcome that a test can change before the node sends it. */
    static final class EditableWelcome {
        private final long node;
        Cluster cluster = CLUSTER;
        Member leader;
        int inFlightMax = 1024;
        int idleMillis = 60_000;
        long countMax = Frame.COUNT_MAX;
        final List<Member> members = new ArrayList<>();
        /** Fields behind the others. */
        byte[] more = {};

        EditableWelcome(long node) {
            this.node = node;
        }

        byte[] toBytes() {
            ByteBuffer fields = ByteBuffer.allocate(32_000);
            fields.putShort(Welcome.NODE).putShort((short) 8).putLong(node);
            fields.putShort(Welcome.IN_FLIGHT_MAX).putShort((short) 4).putInt(inFlightMax);
            fields.putShort(Welcome.IDLE).putShort((short) 4).putInt(idleMillis);
            fields.putShort(Welcome.COUNT_MAX).putShort((short) 8).putLong(countMax);
            if (cluster != null) {
                fields.putShort(Welcome.CLUSTER).putShort((short) 24);
                fields.put(HexFormat.of().parseHex(cluster.id())).putLong(cluster.history());
            }
            if (leader != null) {
                put(fields, Welcome.LEADER, leader);
            }
            members.forEach(member -> put(fields, Welcome.MEMBER, member));
            fields.put(more);
            byte[] tail = new byte[fields.flip().remaining()];
            fields.get(tail);
            return frame(Frame.WELCOME, Frame.VERSION, 0, Frame.MAGIC, tail);
        }

        private static void put(ByteBuffer to, short tag, Member member) {
            byte[] address = member.address().getBytes(UTF_8);
            to.putShort(tag).putShort((short) (8 + address.length));
            to.putLong(member.node()).put(address);
        }
    }

    /** Allocates rising timestamps. */
    static final class Oracle implements Asked {
        private long next = 1;

        synchronized Timestamp take(long count) {
            Timestamp first = new Timestamp(1, next);
            next += count;
            return first;
        }

        synchronized long taken() {
            return next - 1;
        }

        @Override
        public void asked(Peer to, long id, long count) {
            to.answer(id, count, take(count));
        }
    }
}
