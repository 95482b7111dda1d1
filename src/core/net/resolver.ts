import { Resolver } from 'node:dns/promises'
import { readFileSync } from 'node:fs'
import { isIP } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { LRUCache } from 'lru-cache'
import { FairSemaphore } from '../base/fair-semaphore.ts'

/** Returns all addresses of a host name. Rejects if it has none or the lookup times out. */
export type Resolve = (hostname: string) => Promise<string[]>

const LOOKUP_MS = 5000
/** Timeout of the first query to a name server; it doubles with each retry. */
const TRY_MS = 2000
const TRIES = 3
/** Longest wait for one address family after the other has answered. */
const FAMILY_MS = 1000
/** Most addresses per name: a name may have thousands, which would fill the cache. */
const MAX_ADDRESSES = 32
/** Interval at which the system's files are read again, which takes some 50 µs. */
const REREAD_MS = 5000
/** Errors after which the next name of the search list is tried. */
const TRY_NEXT = new Set(['ENOTFOUND', 'ENODATA', 'ESERVFAIL'])

/**
 * Opens a resolver with its own sockets (c-ares). getaddrinfo, which `fetch` and Node's HTTP clients use, blocks one of
 * libuv's four threads per name, so four names with unresponsive name servers would block all other work that needs a
 * thread. Like getaddrinfo it uses the hosts file, the name servers, the search list and `ndots`. IPv4 addresses come
 * first.
 * @param options.servers comma-separated name servers, IP or IP:port; empty for the servers of the system
 * @throws Error for an invalid name server
 */
export function openResolver(options: { servers: string; hostsFile?: string; configFile?: string }): Resolve {
  const { hostsFile = '/etc/hosts', configFile = '/etc/resolv.conf' } = options
  const servers = parseNameServers(options.servers)
  let files = ''
  let system = readSystem('', '', servers)
  let readAt = Number.NEGATIVE_INFINITY
  return hostname => {
    const now = performance.now()
    if (now - readAt > REREAD_MS) {
      const [hosts, config] = [readOrEmpty(hostsFile), readOrEmpty(configFile)]
      if (files !== hosts + config) system = readSystem(hosts, config, servers)
      files = hosts + config
      readAt = now
    }
    return resolve(system, hostname)
  }
}

/**
 * Parses a comma-separated list of name servers, IP or IP:port.
 * @throws Error for an invalid name server
 */
export function parseNameServers(list: string): string[] {
  const servers = list.split(',').flatMap(server => server.trim() || [])
  new Resolver().setServers(servers)
  return servers
}

type SystemConfig = { hosts: Map<string, Set<string>>; search: string[]; ndots: number; resolver: Resolver }

function readOrEmpty(file: string): string {
  try {
    return readFileSync(file, 'utf8')
  } catch {
    return ''
  }
}

function readSystem(hosts: string, config: string, servers: string[]): SystemConfig {
  const resolver = new Resolver({ timeout: TRY_MS, tries: TRIES })
  if (servers.length > 0) resolver.setServers(servers)
  const system: SystemConfig = { hosts: new Map(), search: [], ndots: 1, resolver }
  for (const line of hosts.split('\n')) {
    const [address, ...names] = line.replace(/#.*/, '').trim().toLowerCase().split(/\s+/)
    if (isIP(address))
      for (const name of names) system.hosts.set(name, (system.hosts.get(name) ?? new Set()).add(address))
  }
  for (const line of config.split('\n')) {
    const [keyword, ...values] = line.trim().split(/\s+/)
    if (keyword === 'search' || keyword === 'domain') system.search = values
    const ndots = keyword === 'options' && values.findLast(value => value.startsWith('ndots:'))
    if (ndots) system.ndots = Number(ndots.slice('ndots:'.length)) || 0
  }
  return system
}

async function resolve({ hosts, search, ndots, resolver }: SystemConfig, hostname: string): Promise<string[]> {
  const bare = hostname.replace(/\.$/, '')
  const hostsEntry = hosts.get(bare)
  if (hostsEntry) return [...hostsEntry]
  if (bare === 'localhost' || bare.endsWith('.localhost')) return ['127.0.0.1', '::1']
  const qualified = hostname === bare ? search.map(suffix => `${hostname}.${suffix}`) : []
  const names = hostname.split('.').length > ndots ? [hostname, ...qualified] : [...qualified, hostname]
  const deadline = performance.now() + LOOKUP_MS
  let code = 'ETIMEOUT'
  for (const name of names) {
    const result = await queryName(resolver, name, deadline - performance.now())
    if (typeof result !== 'string') return result
    if (name === hostname) code = result
    if (!TRY_NEXT.has(result)) break
  }
  throw new Error(`${bare} does not resolve: ${code}`)
}

/** Returns the addresses of a name, or an error code. */
async function queryName(resolver: Resolver, name: string, ms: number): Promise<string[] | string> {
  const found: string[][] = [[], []]
  const codes: string[] = []
  const queries = [resolver.resolve4(name), resolver.resolve6(name)].map(async (answer, family) => {
    found[family] = await answer.catch((error: { code: string }) => {
      codes.push(error.code)
      throw error
    })
  })
  const both = Promise.allSettled(queries)
  const firstAndGrace = Promise.any(queries).then(() => sleep(FAMILY_MS, undefined, { ref: false }))
  await Promise.race([both, firstAndGrace.catch(() => both), sleep(ms, undefined, { ref: false })])
  const addresses = found.flat().slice(0, MAX_ADDRESSES)
  if (addresses.length > 0) return addresses
  // If one family failed, ENODATA for the other one does not mean that the name has no address.
  return codes.length < 2 ? 'ETIMEOUT' : (codes.find(code => code !== 'ENODATA') ?? 'ENODATA')
}

/** TTL of results: long enough for a burst of deliveries to one host, short enough for a changed address. */
const RESULT_TTL_MS = 1000
/**
 * TTL of failures: shorter than the 3 s between the first and third attempt of a delivery, so that one of them queries
 * again.
 */
const FAILURE_TTL_MS = 2000
/** Concurrent lookups of one project in a process. */
const LOOKUPS_PER_TENANT = 32
const CACHE_SIZE = 10_000

export type LookupOptions = {
  /** Project on whose behalf the name is resolved; lookups without a project share one limit. */
  tenant?: string
  signal?: AbortSignal
  /** Called when the lookup begins to wait for a slot, and when it has one. */
  onWait?(): void
  onStart?(): void
}

/**
 * Returns a function that shares running lookups and caches their results. A project at its limit waits only for its
 * own lookups. A lookup is shared only while it runs, not while it waits for a slot of its project.
 */
export function coalescedLookups(resolve: Resolve): (hostname: string, options: LookupOptions) => Promise<string[]> {
  const lookups = new LRUCache<string, Promise<string[]>>({ max: CACHE_SIZE, ttl: RESULT_TTL_MS })
  const limits = new LRUCache<string, FairSemaphore>({ max: CACHE_SIZE })

  function start(hostname: string): Promise<string[]> {
    const running = resolve(hostname)
    lookups.set(hostname, running, { ttl: 0 })
    running.then(
      () => lookups.set(hostname, running),
      () => lookups.set(hostname, running, { ttl: FAILURE_TTL_MS }),
    )
    return running
  }

  return async (hostname, { tenant = '', signal, onWait, onStart }) => {
    const cached = lookups.get(hostname)
    if (cached) return cached
    const slots = limits.get(tenant) ?? new FairSemaphore(LOOKUPS_PER_TENANT)
    limits.set(tenant, slots)
    onWait?.()
    const release = await slots.acquire(tenant, 1, signal)
    try {
      onStart?.()
      return await (lookups.get(hostname) ?? start(hostname))
    } finally {
      release()
    }
  }
}
