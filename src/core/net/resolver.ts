import { Resolver } from 'node:dns/promises'
import { readFileSync } from 'node:fs'
import { isIP } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { LRUCache } from 'lru-cache'
import pLimit, { type LimitFunction } from 'p-limit'

/** All addresses of a host name. Rejects when it has none or they are not found in time. */
export type Resolve = (hostname: string) => Promise<string[]>

const LOOKUP_MS = 5000
/** A name server is asked again after this time, then after twice as long. */
const TRY_MS = 2000
const TRIES = 3
/** How much longer the addresses of one family are waited for than those of the other. */
const FAMILY_MS = 1000
/** A name may have thousands; answers are kept, and a call tries one address after the other. */
const MAX_ADDRESSES = 32
/** How often the system's files are read again: some 50 µs. */
const REREAD_MS = 5000
/** Answers after which the next name of a search list is tried. */
const TRY_NEXT = new Set(['ENOTFOUND', 'ENODATA', 'ESERVFAIL'])

/**
 * Resolves names over sockets of its own (c-ares). getaddrinfo, which `fetch` and node's own clients use, occupies one of
 * four threads for each name: four names whose server is silent hold up everything that needs a thread. What getaddrinfo
 * reads is honoured: the hosts file, name servers, search list and `ndots`. IPv4 addresses come first.
 * @param options.servers comma list of name servers, IP or IP:port; the system's when empty
 * @throws Error for a server that is neither
 */
export function openResolver(options: { servers: string; hostsFile?: string; configFile?: string }): Resolve {
  const { hostsFile = '/etc/hosts', configFile = '/etc/resolv.conf' } = options
  const servers = options.servers.split(',').flatMap(server => server.trim() || [])
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
/** Shorter than the two waits of a delivery together, so that three attempts in a row mean more than one lookup. */
const FAILURE_MS = 2000
/** Lookups of one project that run at once in a process. */
const LOOKUPS_PER_TENANT = 32
const CACHE_SIZE = 10_000

export type LookupOptions = {
  /** the project on whose behalf the name is resolved; requests without one share their places */
  tenant?: string
  signal?: AbortSignal
  /** Called before the lookup waits for a place, and when it got one. */
  onWait?(): void
  onStart?(): void
}

/**
 * Shares running lookups and, for a while, how they ended. A project's names wait for its own lookups only: nobody waits
 * behind a lookup that another project has not even begun.
 */
export function sharedLookups(resolve: Resolve): (hostname: string, options: LookupOptions) => Promise<string[]> {
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
