/* Linked into the static binary of a release; scripts/release compiles this file.
 *
 * Limits lookups of host names to /etc/hosts and DNS. Without this, glibc reads /etc/nsswitch.conf and loads the
 * modules that it names, such as libnss_resolve, from the system. A static program can only load modules of exactly the
 * glibc that it was linked with. With another one the process dies: with glibc 2.36 in the program and the module of
 * glibc 2.41, it got SIGFPE at the first name that was not in /etc/hosts.
 */
int __nss_configure_lookup(const char *database, const char *services);

__attribute__((constructor)) static void limit_lookups(void) {
    __nss_configure_lookup("hosts", "files dns");
}
