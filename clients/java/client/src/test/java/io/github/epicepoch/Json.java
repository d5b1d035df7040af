package io.github.epicepoch;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Reads JSON, as far as the vectors and the driver need it: numbers are whole numbers only. */
final class Json {
    private final String text;
    private int at;

    private Json(String text) {
        this.text = text;
    }

    /** Reads a text. The value is a map, a list, a string, a long, a boolean or null. */
    static Object parse(String text) {
        Json json = new Json(text);
        Object value = json.value();
        json.skip();
        if (json.at != text.length()) {
            throw json.wrong();
        }
        return value;
    }

    @SuppressWarnings("unchecked")
    static Map<String, Object> object(Object value) {
        return (Map<String, Object>) value;
    }

    @SuppressWarnings("unchecked")
    static List<Object> list(Object value) {
        return (List<Object>) value;
    }

    static String quote(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char each : text.toCharArray()) {
            if (each == '"' || each == '\\') {
                quoted.append('\\').append(each);
            } else if (each < ' ') {
                quoted.append(String.format("\\u%04x", (int) each));
            } else {
                quoted.append(each);
            }
        }
        return quoted.append('"').toString();
    }

    private Object value() {
        switch (next()) {
            case '{':
                return object();
            case '[':
                return list();
            case '"':
                return string();
            default:
                int from = at - 1;
                while (at < text.length() && ",]} \n\r\t".indexOf(text.charAt(at)) < 0) {
                    at++;
                }
                return word(text.substring(from, at));
        }
    }

    private Object word(String word) {
        return switch (word) {
            case "null" -> null;
            case "true", "false" -> Boolean.valueOf(word);
            default -> Long.valueOf(word);
        };
    }

    private Map<String, Object> object() {
        Map<String, Object> all = new LinkedHashMap<>();
        for (char each = next(); each != '}'; each = next()) {
            if (each == ',') {
                each = next();
            }
            String key = string();
            if (each != '"' || next() != ':') {
                throw wrong();
            }
            all.put(key, value());
        }
        return all;
    }

    private List<Object> list() {
        List<Object> all = new ArrayList<>();
        for (char each = next(); each != ']'; each = next()) {
            if (each != ',') {
                at--;
            }
            all.add(value());
        }
        return all;
    }

    private String string() {
        StringBuilder string = new StringBuilder();
        for (char each = text.charAt(at++); each != '"'; each = text.charAt(at++)) {
            if (each != '\\') {
                string.append(each);
                continue;
            }
            char escaped = text.charAt(at++);
            int control = "bfnrt".indexOf(escaped);
            if (escaped == 'u') {
                string.append((char) Integer.parseInt(text.substring(at, at + 4), 16));
                at += 4;
            } else {
                string.append(control < 0 ? escaped : "\b\f\n\r\t".charAt(control));
            }
        }
        return string.toString();
    }

    private char next() {
        skip();
        return text.charAt(at++);
    }

    private void skip() {
        while (at < text.length() && Character.isWhitespace(text.charAt(at))) {
            at++;
        }
    }

    private IllegalArgumentException wrong() {
        return new IllegalArgumentException("not JSON at " + at + " of " + text);
    }
}
