package io.github.epicepoch;

import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.KeyStore;
import java.security.PrivateKey;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.spec.InvalidKeySpecException;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.Base64;
import java.util.Collection;
import java.util.List;
import java.util.Objects;
import java.util.function.Supplier;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLEngine;
import javax.net.ssl.SSLParameters;
import javax.net.ssl.TrustManagerFactory;

/**
 * The TLS settings of a client: the authorities that it trusts, and its certificate. Files are read
 * again before each connection, so that they can be replaced while the client runs. If their new
 * content cannot be used, the old one stays in use.
 *
 * <p>A node's certificate must be valid for the host that was dialled. The client uses TLS 1.3.
 */
public final class Tls {
    /** Names the native protocol in the TLS handshake. */
    private static final String ALPN = "epicepoch/1";

    private static final char[] NO_PASSWORD = {};
    private static final List<String> KEY_ALGORITHMS = List.of("EC", "RSA", "EdDSA");
    private static final Pattern KEY =
            Pattern.compile("-----BEGIN PRIVATE KEY-----([A-Za-z0-9+/=\\s]+)-----END");

    private final Supplier<SSLContext> contexts;
    /** The file of the authorities, which {@link #showing} reads again; null for {@link #of}. */
    private final Path authorities;

    private Tls(Supplier<SSLContext> contexts, Path authorities) {
        this.contexts = contexts;
        this.authorities = authorities;
    }

    /**
     * Trusts only nodes whose certificate is signed by an authority in a file. The system's
     * authorities are not trusted.
     *
     * @param authorities a file in PEM with one or more certificates
     * @return the settings
     * @throws IOException if the file cannot be read
     * @throws GeneralSecurityException if the file cannot be used
     */
    public static Tls trusting(Path authorities) throws IOException, GeneralSecurityException {
        return reading(authorities, null, null);
    }

    /**
     * Adds the client's certificate, for nodes that require one.
     *
     * @param certificate a file in PEM with the certificate and those between it and its authority
     * @param key a file in PEM with the key, as PKCS #8 without a password
     * @return settings with the certificate
     * @throws IOException if a file cannot be read
     * @throws GeneralSecurityException if a file cannot be used
     */
    public Tls showing(Path certificate, Path key) throws IOException, GeneralSecurityException {
        if (authorities == null) {
            throw new IllegalStateException("add the certificate to the SSLContext");
        }
        Objects.requireNonNull(certificate, "certificate");
        return reading(authorities, certificate, Objects.requireNonNull(key, "key"));
    }

    /**
     * Uses contexts that the program makes itself. The client calls the source before each
     * connection. The source must return quickly.
     *
     * @param contexts returns a context, never null
     * @return the settings
     */
    public static Tls of(Supplier<SSLContext> contexts) {
        return new Tls(Objects.requireNonNull(contexts, "contexts"), null);
    }

    private static Tls reading(Path authorities, Path certificate, Path key)
            throws IOException, GeneralSecurityException {
        SSLContext[] last = {load(authorities, certificate, key)};
        Supplier<SSLContext> contexts =
                () -> {
                    synchronized (last) {
                        try {
                            last[0] = load(authorities, certificate, key);
                        } catch (IOException | GeneralSecurityException unusable) {
                            // The new content cannot be used, so the content that was read before
                            // stays in use.
                        }
                        return last[0];
                    }
                };
        return new Tls(contexts, authorities);
    }

    private static SSLContext load(Path authorities, Path certificate, Path key)
            throws IOException, GeneralSecurityException {
        KeyStore trusted = emptyStore();
        for (Certificate each : certificates(authorities)) {
            trusted.setCertificateEntry("authority-" + trusted.size(), each);
        }
        var trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(trusted);
        KeyStore own = emptyStore();
        if (certificate != null) {
            Certificate[] chain = certificates(certificate).toArray(Certificate[]::new);
            own.setKeyEntry("client", privateKey(key), NO_PASSWORD, chain);
        }
        var keys = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        keys.init(own, NO_PASSWORD);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(keys.getKeyManagers(), trust.getTrustManagers(), null);
        return context;
    }

    private static KeyStore emptyStore() throws IOException, GeneralSecurityException {
        KeyStore store = KeyStore.getInstance("PKCS12");
        store.load(null, null);
        return store;
    }

    private static Collection<? extends Certificate> certificates(Path file)
            throws IOException, GeneralSecurityException {
        try (InputStream in = Files.newInputStream(file)) {
            var all = CertificateFactory.getInstance("X.509").generateCertificates(in);
            if (all.isEmpty()) {
                throw new GeneralSecurityException(file + " has no certificate");
            }
            return all;
        }
    }

    private static PrivateKey privateKey(Path file) throws IOException, GeneralSecurityException {
        Matcher pem = KEY.matcher(Files.readString(file));
        if (!pem.find()) {
            throw new GeneralSecurityException(file + " has no PRIVATE KEY");
        }
        PKCS8EncodedKeySpec encoded;
        try {
            encoded = new PKCS8EncodedKeySpec(Base64.getMimeDecoder().decode(pem.group(1)));
        } catch (IllegalArgumentException error) {
            throw new GeneralSecurityException(file + " has a key that is not valid Base64", error);
        }
        for (String algorithm : KEY_ALGORITHMS) {
            try {
                return KeyFactory.getInstance(algorithm).generatePrivate(encoded);
            } catch (InvalidKeySpecException anotherAlgorithm) {
                continue;
            }
        }
        throw new GeneralSecurityException(file + " has a key of an unknown algorithm");
    }

    /** Returns the client's end of a TLS connection to a host. */
    SSLEngine engine(String host, int port) {
        SSLContext context = contexts.get();
        SSLEngine engine = context.createSSLEngine(host, port);
        engine.setUseClientMode(true);
        SSLParameters parameters = engine.getSSLParameters();
        parameters.setProtocols(new String[] {"TLSv1.3"});
        parameters.setApplicationProtocols(new String[] {ALPN});
        parameters.setEndpointIdentificationAlgorithm("HTTPS");
        engine.setSSLParameters(parameters);
        return engine;
    }
}
