package io.github.epicepoch;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.util.List;
import java.util.regex.Pattern;
import javax.tools.ToolProvider;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Tests that the code of the README compiles, and that its program does what the README says. */
class ReadmeTest extends Scene {
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
        String client =
                Path.of(EpicEpochClient.class.getProtectionDomain().getCodeSource().getLocation().toURI())
                        .toString();
        String[] arguments = {"-cp", client, "-d", directory.toString(), file.toString()};
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

    @Test
    void theSettingsCompile() throws Exception {
        String imports =
                "import io.github.epicepoch.*;\nimport java.nio.file.Path;\nimport java.time.Duration;\n";
        compile(
                "Settings",
                imports + "class Settings { void go() throws Exception {\n" + blocks().get(1) + "}}");
    }
}
