package io.github.epicepoch;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.PrintStream;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.time.Instant;
import java.util.List;
import java.util.regex.Pattern;
import javax.tools.ToolProvider;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Tests that the code of the README compiles and runs, and does what the README says. */
class ReadmeTest extends Scene {
    private static final String TOKEN = "the-token-of-the-readme";

    @TempDir Path directory;

    private static List<String> blocks() throws Exception {
        String readme = Files.readString(Path.of("../README.md"));
        return Pattern.compile("```java\n(.*?)```", Pattern.DOTALL)
                .matcher(readme)
                .results()
                .map(block -> block.group(1))
                .toList();
    }

    private void compile(String name, String source) throws Exception {
        Path file = directory.resolve(name + ".java");
        Files.writeString(file, source);
        var said = new ByteArrayOutputStream();
        String[] arguments = {"-cp", client(), "-d", directory.toString(), file.toString()};
        int code = ToolProvider.getSystemJavaCompiler().run(null, said, said, arguments);
        assertEquals(0, code, said::toString);
    }

    @Test
    void theProgramRuns() throws Exception {
        ScriptedNode leader = node(1);
        // The program compares timestamps with the present time. So this node gives timestamps of
        // today.
        long epoch = Timestamp.lowest(Instant.now()).epoch();
        var oracle = new ScriptedNode.Oracle();
        leader.script =
                (to, id, count) ->
                        to.answer(id, count, new Timestamp(epoch, oracle.take(count).index()));
        String program = blocks().get(0).replaceAll("localhost:888[123]", leader.address());
        compile("Example", program);
        PrintStream out = System.out;
        var said = new ByteArrayOutputStream();
        try (var loader = new URLClassLoader(new URL[] {directory.toUri().toURL()})) {
            System.setOut(new PrintStream(said, true, StandardCharsets.UTF_8));
            var main = loader.loadClass("Example").getDeclaredMethod("main", String[].class);
            main.setAccessible(true);
            main.invoke(null, (Object) new String[0]);
        } finally {
            System.setOut(out);
        }
        assertEquals(List.of("true", "true", "true", "true", "true"), said.toString().lines().toList());
    }

    /**
     * Runs the settings in a process of its own, in the directory of the certificates. Its node
     * requires every one of them: the cluster's name, TLS with a certificate, and the token.
     */
    @Test
    void theSettingsConnect() throws Exception {
        String settings = blocks().get(1);
        // Without a binary of the nodes, the test ends behind this line.
        compile("Settings", settingsProgram(settings));
        RealCluster.certificates(directory);
        Files.move(directory.resolve("client-app.pem"), directory.resolve("app.pem"));
        Files.move(directory.resolve("client-app.key"), directory.resolve("app.key"));
        Path tokens = directory.resolve("tokens");
        Files.createFile(
                tokens,
                PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rw-------")));
        Files.writeString(tokens, TOKEN + "\n");
        RealCluster cluster =
                closing(
                        RealCluster.startSecured(
                                directory,
                                directory,
                                "--cluster",
                                "payments",
                                "--client-token-file",
                                tokens.toString()));
        Tls tls = Tls.trusting(directory.resolve("ca.pem"));
        EpicEpochClient.builder(cluster.addresses())
                .timeout(RealCluster.START)
                .tls(tls.showing(directory.resolve("app.pem"), directory.resolve("app.key")))
                .token(TOKEN)
                .connect()
                .close();
        // Now the node is ready.
        String program = settings.replaceAll("db[12]\\.example:8080", cluster.addresses()[0]);
        compile("Settings", settingsProgram(program));
        List<String> said = run("Settings", TOKEN);
        assertTrue(said.contains("true"), said::toString);
    }

    private static String settingsProgram(String settings) {
        return "import io.github.epicepoch.*;\nimport java.nio.file.Path;\nimport java.time.Duration;\n"
                + "class Settings { public static void main(String[] all) throws Exception {\n"
                + settings
                + "try (client) {\n"
                + "System.out.println(client.timestamp().isBefore(client.timestamp()));\n"
                + "}}}";
    }

    /** Runs a compiled program with a token in its environment. Returns its output and its log. */
    private List<String> run(String name, String token) throws Exception {
        String java = Path.of(System.getProperty("java.home"), "bin", "java").toString();
        String classes = client() + File.pathSeparator + directory;
        ProcessBuilder program = new ProcessBuilder(java, "-cp", classes, name);
        program.directory(directory.toFile()).environment().put("EPICEPOCH_TOKEN", token);
        Process process = program.redirectErrorStream(true).start();
        closing(process::destroyForcibly);
        return process.inputReader().lines().toList();
    }

    /** Returns the directory of the client's classes. */
    private static String client() throws Exception {
        var source = EpicEpochClient.class.getProtectionDomain().getCodeSource();
        return Path.of(source.getLocation().toURI()).toString();
    }
}
