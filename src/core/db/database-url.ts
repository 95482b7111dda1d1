/**
 * URLs of PostgreSQL as libpq reads them: several hosts are tried in order, each with its own port, and
 * `target_session_attrs` selects the server among them. pg supports neither. A host that begins with a slash is the directory of
 * a Unix socket, which never uses TLS.
 *
 * The parameter `schema` names the schema of a cell, so that several cells can be in one database. Without it the tables are in
 * the first schema of the search path, `public` by default, and the queues in `pgboss`.
 */

const TARGETS = ['any', 'read-write', 'read-only', 'primary', 'standby', 'prefer-standby'] as const

/** Server that a session requires. */
export type SessionTarget = (typeof TARGETS)[number]

export type DatabaseUrl = {
  /** The URL with each of its hosts, in order. */
  urls: readonly [string, ...string[]]
  target: SessionTarget
  /** Schema of all tables of the cell, its queues included; null without the parameter. */
  schema: string | null
}

const PARTS = /^(postgres(?:ql)?:\/\/)((?:[^/?#]*@)?)([^/?#]*)(.*)$/s

const DEFAULT_PORT = '5432'

/** Longest path of a Unix socket in bytes: 103 on macOS, 107 on Linux. */
const SOCKET_PATH_BYTES = 103

/** Returns the path of the socket in a directory, null if it is too long. */
export function socketPath(directory: string, port: number | string): string | null {
  const path = `${directory}/.s.PGSQL.${port}`
  return Buffer.byteLength(path) <= SOCKET_PATH_BYTES ? path : null
}

/** With the longest channel, such a name has 62 of the 63 bytes of an identifier. Unquoted in statements, so lower case only. */
const SCHEMA = /^(?!pg|public$|information_schema$)[a-z_][a-z0-9_]{0,29}$/

const listOf = (text: string | null): string[] | null => (text ? text.split(',') : null)

const TLS_PARAMETERS = ['ssl', 'sslcert', 'sslkey', 'sslrootcert', 'sslnegotiation']

/** Returns the host, or directory of the socket, and the port of a URL with one host; the port is empty by default. */
function serverOf({ hostname, port, searchParams }: URL): { host: string; port: string } {
  return {
    host: searchParams.get('host') || decodeURIComponent(hostname),
    port: searchParams.get('port') || port,
  }
}

/**
 * Parses the URL of a database. Hosts may also be in the parameters `host` and `port`.
 * @throws Error if it is not a URL, has another number of ports than hosts, an unknown target, or an unusable schema
 */
export function parseDatabaseUrl(text: string): DatabaseUrl {
  const [, scheme, user, authority, rest] = PARTS.exec(text) ?? []
  if (scheme === undefined) throw new Error('must begin with postgres:// or postgresql://')
  const withHost = (host: string) => {
    // A host in the parameters leaves the authority empty, which is invalid in a URL with a user.
    const url = URL.parse(`${scheme}${user}${host || (user && 'localhost')}${rest}`)
    if (!url) throw new Error('must be a PostgreSQL URL')
    return url
  }
  const urls = authority.split(',').map(withHost)
  const { searchParams } = urls[0]
  const target = (searchParams.get('target_session_attrs') ?? 'any') as SessionTarget
  if (!TARGETS.includes(target)) throw new Error(`target_session_attrs must be one of ${TARGETS.join(', ')}`)
  const schema = searchParams.get('schema')
  const other = [...searchParams.keys()].find(name => name !== 'schema' && name.toLowerCase() === 'schema')
  if (other !== undefined) throw new Error(`has the parameter ${other}, which must be schema`)
  if (schema !== null && !SCHEMA.test(schema))
    throw new Error(
      'schema must have 1 to 30 lower case letters, digits and _, begin with a letter or _ and not with pg, and not be public',
    )
  const hosts = listOf(searchParams.get('host'))
  const ports = listOf(searchParams.get('port'))
  const count = hosts?.length ?? urls.length
  if (ports && ports.length !== 1 && ports.length !== count)
    throw new Error(`has ${ports.length} ports for ${count} hosts`)
  const each = Array.from({ length: count }, (_, index) => {
    const url = new URL(urls[hosts ? 0 : index])
    url.searchParams.delete('target_session_attrs')
    url.searchParams.delete('schema')
    if (hosts) url.searchParams.set('host', hosts[index])
    if (ports) url.searchParams.set('port', ports[ports.length === 1 ? 0 : index])
    const { host, port } = serverOf(url)
    if (host.startsWith('/')) {
      if (!socketPath(host, port || DEFAULT_PORT))
        throw new Error(`has a socket path of over ${SOCKET_PATH_BYTES} bytes`)
      for (const name of TLS_PARAMETERS) url.searchParams.delete(name)
      // Also overrides PGSSLMODE.
      url.searchParams.set('sslmode', 'disable')
    }
    return url.href
  })
  const urlsInSchema = each.map(url => (schema ? withParameters(url, { options: `-c search_path=${schema}` }) : url))
  return { urls: urlsInSchema as [string, ...string[]], target, schema }
}

/** Returns a URL with changed parameters; `options` are added to those that it has. */
export function withParameters(databaseUrl: string, parameters: Record<string, string>): string {
  const start = databaseUrl.indexOf('?')
  const query = new URLSearchParams(start < 0 ? '' : databaseUrl.slice(start + 1))
  for (const [name, value] of Object.entries(parameters)) {
    const isAdded = name === 'options' && query.get(name)
    query.set(name, isAdded ? `${query.get(name)} ${value}` : value)
  }
  return `${start < 0 ? databaseUrl : databaseUrl.slice(0, start)}?${query}`
}

/** Returns hosts and database of a URL, without credentials, for people; with the schema, if it has one. */
export function addressOf(databaseUrl: string): string {
  const { urls, schema } = parseDatabaseUrl(databaseUrl)
  return `${urls.map(hostOf).join(',')}${new URL(urls[0]).pathname}${schema ? `?schema=${schema}` : ''}`
}

/** Returns the host of a URL with one host, or the directory of its socket, with its port. */
export function hostOf(url: string): string {
  const { host, port } = serverOf(new URL(url))
  return port ? `${host}:${port}` : host
}

/** Returns what precedes the names of notification channels in the cell of a URL: the schemas of a database share its channels. */
export function channelPrefix(databaseUrl: string): string {
  const { schema } = parseDatabaseUrl(databaseUrl)
  return schema ? `${schema}.` : ''
}
