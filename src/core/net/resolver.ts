import { Resolver } from 'node:dns/promises'
import { readFileSync } from 'node:fs'
import { isIP } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { LRUCache } from 'lru-cache'
import pLimit, { type LimitFunction } from 'p-limit'

/** All addresses of a host name. Rejects when it has none or they are not found in time. */
export type Resolve = (hostname: string) => Promise<string[]>

const LOOKUP_MS = 5000
/** A name server that does not answer is asked again after this time, then after twice as long. */
const TRY_MS = 2000
const TRIES = 3
/** How long to wait for one address family once the other has answered. */
const FAMILY_MS = 1000
/** A name may have thousands of addresses, which would fill the cache. */
const MAX_ADDRESSES = 32
/** How often the system's files are read again, which takes some 50 µs. */
const REREAD_MS = 5000
/** Failures after which the next name of the search list is tried. */
const TRY_NEXT = new Set(['ENOTFOUND', 'ENODATA', 'ESERVFAIL'])

/**
 * A resolver on sockets of its own (c-ares). getaddrinfo, which `fetch` and node's HTTP clients use, blocks one of libuv's
 * four threads for each name, so four names with silent name servers block everything else that needs a thread. Like
 * getaddrinfo it honours the hosts file, the name servers, the search list and `ndots`. IPv4 addresses come first.
 * @param options.servers comma list of name servers, IP or IP:port; the system's when empty
 * @throws Error for a server that is neither
 */
export function openResolver(options: { servers: string; hostsFile?: string; configFile?: string }): Resolve {
  const { hostsFile = '/etc/hosts', configFile = '/etc/resolv.conf' } = options
  const servers = nameServers(options.servers)
  let files = ''
  let system = readSystem('', '', servers)
  let readAt = Number.NEGATIVE_INFINITY
  return hostname => {
    const now = performance.now()
    if (now - readAt > REREAD_MS) {
      const [hosts, config] = [textOf(hostsFile), textOf(configFile)]
      if (files !== hosts + config) system = readSystem(hosts, config, servers)
      files = hosts + config
      readAt = now
    }
    return resolve(system, hostname)
  }
}

/** A comma list of name servers, IP or IP:port. Throws an Error for one that is neither. */
export function nameServers(list: string): string[] {
  const servers = list.split(',').flatMap(server => server.trim() || [])
  new Resolver().setServers(servers)
  return servers
}

type System = { hosts: Map<string, Set<string>>; search: string[]; ndots: number; resolver: Resolver }

function textOf(file: string): string {
  try {
    return readFileSync(file, 'utf8')
  } catch {
    return ''
  }
}

function readSystem(hosts: string, config: string, servers: string[]): System {
  const resolver = new Resolver({ timeout: TRY_MS, tries: TRIES })
  if (servers.length > 0) resolver.setServers(servers)
  const system: System = { hosts: new Map(), search: [], ndots: 1, resolver }
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

async function resolve({ hosts, search, ndots, resolver }: System, hostname: string): Promise<string[]> {
  const bare = hostname.replace(/\.$/, '')
  const local = hosts.get(bare)
  if (local) return [...local]
  if (bare === 'localhost' || bare.endsWith('.localhost')) return ['127.0.0.1', '::1']
  const longer = hostname === bare ? search.map(suffix => `${hostname}.${suffix}`) : []
  const names = hostname.split('.').length > ndots ? [hostname, ...longer] : [...longer, hostname]
  const ends = performance.now() + LOOKUP_MS
  let code = 'ETIMEOUT'
  for (const name of names) {
    const found = await ask(resolver, name, ends - performance.now())
    if (typeof found !== 'string') return found
    if (name === hostname) code = found
    if (!TRY_NEXT.has(found)) break
  }
  throw new Error(`${bare} does not resolve: ${code}`)
}

/** The addresses of a name, or the code of the failure. */
async function ask(resolver: Resolver, name: string, ms: number): Promise<string[] | string> {
  const found: string[][] = [[], []]
  const codes: string[] = []
  const asked = [resolver.resolve4(name), resolver.resolve6(name)].map(async (answer, family) => {
    found[family] = await answer.catch((error: { code: string }) => {
      codes.push(error.code)
      throw error
    })
  })
  const both = Promise.allSettled(asked)
  const oneAndAWhile = Promise.any(asked).then(() => sleep(FAMILY_MS, undefined, { ref: false }))
  await Promise.race([both, oneAndAWhile.catch(() => both), sleep(ms, undefined, { ref: false })])
  const addresses = found.flat().slice(0, MAX_ADDRESSES)
  if (addresses.length > 0) return addresses
  // That a name has no address of one family says nothing when the other failed.
  return codes.length < 2 ? 'ETIMEOUT' : (codes.find(code => code !== 'ENODATA') ?? 'ENODATA')
}

/** Long enough for a burst of deliveries to one host, too short to matter when a name moves. */
const ANSWER_MS = 1000
/** Shorter than the 3 s between the first and the third attempt of a delivery, so that one of them resolves anew. */
const FAILURE_MS = 2000
/** Lookups of one project that run at once in a process. */
const LOOKUPS_PER_TENANT = 32
const CACHE_SIZE = 10_000

export type LookupOptions = {
  /** the project on whose behalf the name is resolved; lookups without one share one limit */
  tenant?: string
  signal?: AbortSignal
  /** Called when the lookup starts to wait for its turn, and when its turn has come. */
  onWait?(): void
  onStart?(): void
}

/**
 * Shares running lookups and caches their results. Above its limit a project waits for its own lookups only; a lookup is
 * shared once it runs, never while it waits for its project's turn.
 */
export function coalescedLookups(resolve: Resolve): (hostname: string, options: LookupOptions) => Promise<string[]> {
  const known = new LRUCache<string, Promise<string[]>>({ max: CACHE_SIZE, ttl: ANSWER_MS })
  const limits = new LRUCache<string, LimitFunction>({ max: CACHE_SIZE })

  function start(hostname: string): Promise<string[]> {
    const running = resolve(hostname)
    known.set(hostname, running, { ttl: 0 })
    running.then(
      () => known.set(hostname, running),
      () => known.set(hostname, running, { ttl: FAILURE_MS }),
    )
    return running
  }

  return async (hostname, { tenant = '', signal, onWait, onStart }) => {
    const shared = known.get(hostname)
    if (shared) return shared
    const limit = limits.get(tenant) ?? pLimit(LOOKUPS_PER_TENANT)
    limits.set(tenant, limit)
    onWait?.()
    return limit(() => {
      signal?.throwIfAborted()
      onStart?.()
      return known.get(hostname) ?? start(hostname)
    })
  }
}
